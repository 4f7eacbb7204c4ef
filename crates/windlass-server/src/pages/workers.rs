//! Live workers and their load.

use maud::{Markup, html};

use super::Visit;
use super::layout::{Page, Refresh, Section};
use super::part::{ago, empty, head, short};
use crate::api::Problem;
use crate::api::overview;
use crate::api::route::Json;
use crate::api::wire::Worker;

/// Types that are shown of one worker.
const TYPES_SHOWN: usize = 6;

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let Json(list) = overview::workers(visit.call.clone(), visit.given()?).await?;
    let body = html! {
        h1 { "Workers" }
        p class="lead" { "Workers report every few seconds. A worker that stops reporting disappears from this list." }
        div id="content" data-part="" {
            @if list.workers.is_empty() {
                (empty("No worker is live", &html! {
                    p { "Start one from the shell: " code { "windlass work TYPE --exec COMMAND" } }
                    p { "Or in a program: " code { "Worker::new(&client).handle(job).start()" } }
                }))
            } @else {
                div class="scroll card" tabindex="0" role="region" aria-label="Workers" {
                    table class="rows" {
                        (head(&["Worker", "Load", "Types", "Started", "Last report"]))
                        tbody { @for worker in &list.workers { (row(worker)) } }
                    }
                }
            }
        }
    };
    Ok(Page::new("Workers", Section::Workers, Refresh::Slow, body))
}

fn row(worker: &Worker) -> Markup {
    let name = worker.name.as_deref().unwrap_or("unnamed");
    let more = worker.types.len().saturating_sub(TYPES_SHOWN);
    let text = format!("{} of {} slots busy", worker.running, worker.concurrency);
    html! {
        tr {
            td { strong { (name) } " " span class="id note" title=(worker.id) { (short(&worker.id)) } }
            td class="load" {
                meter min="0" max=(worker.concurrency) value=(worker.running) aria-label={ "Load of " (name) } { (text) }
                " " (worker.running) " / " (worker.concurrency)
            }
            td {
                @for name in worker.types.iter().take(TYPES_SHOWN) { span class="tag" { (name) } " " }
                @if more > 0 { span class="note" { "and " (more) " more" } }
            }
            td { (ago(&worker.started_at)) }
            td { (ago(&worker.seen_at)) }
        }
    }
}
