//! Lists of jobs and chains, with their filters.

use maud::{Markup, html};
use serde_json::json;

use super::Visit;
use super::filter::Pairs;
use super::form::{CHAINS, JOBS, Kind, form};
use super::layout::{Page, Refresh, Section};
use super::part::{Action, ago, empty, short_link, state, type_link};
use crate::api::filter::{ChainQuery, JobQuery};
use crate::api::route::Json;
use crate::api::wire::{Chain, Job};
use crate::api::{Problem, chains, jobs as api_jobs};
use crate::auth::Role;
use crate::bulk;

/// The number of rows on a page.
const ROWS: &str = "25";

pub(super) async fn jobs(visit: Visit) -> Result<Page, Problem> {
    let query = visit.given_with::<JobQuery>(&listed(&visit)?)?;
    let Json(page) = api_jobs::list(visit.call.clone(), query).await?;
    let base = visit.base();
    let rows = html! { @for job in &page.jobs { (job_row(base, job)) } };
    let head = ["Job", "Type", "State", "Attempt", "Created", "Chain"];
    let body = html! {
        h1 { "Jobs" }
        p class="lead" { "A job is one step of a chain." }
        (form(&visit, JOBS).await?)
        div id="content" data-part="" {
            (table(&visit, JOBS, &head, page.jobs.len(), page.next.as_deref(), &rows))
        }
    };
    Ok(Page::new("Jobs", Section::Jobs, refresh(&visit), body))
}

pub(super) async fn chains(visit: Visit) -> Result<Page, Problem> {
    let query = visit.given_with::<ChainQuery>(&listed(&visit)?)?;
    let Json(page) = chains::list(visit.call.clone(), query).await?;
    let base = visit.base();
    let rows = html! { @for chain in &page.chains { (chain_row(base, chain)) } };
    let head = ["Chain", "Type", "State", "Key", "Jobs", "Created", "Closed"];
    let body = html! {
        h1 { "Chains" }
        p class="lead" { "A chain is a piece of work: a job, and the jobs that continue it." }
        (form(&visit, CHAINS).await?)
        // Replaced together with the list: a period such as "last hour" moves on, and both must have the same filter.
        div id="bulk-actions" data-part="" { (bulk_buttons(&visit)?) }
        div id="content" data-part="" {
            (table(&visit, CHAINS, &head, page.chains.len(), page.next.as_deref(), &rows))
        }
    };
    Ok(Page::new("Chains", Section::Chains, refresh(&visit), body))
}

/// Returns the filter of the page. A page has few rows, unless the address says otherwise: one step of the store is enough
/// for them, and a step of a filter that matches little scans many rows.
fn listed(visit: &Visit) -> Result<Pairs, Problem> {
    let pairs = visit.pairs.resolved()?;
    Ok(if pairs.get("limit").is_none() { pairs.with("limit", Some(ROWS)) } else { pairs })
}

/// Only the first page changes by itself: the others begin at a fixed position.
fn refresh(visit: &Visit) -> Refresh {
    if visit.pairs.get("after").is_none() { Refresh::List } else { Refresh::Never }
}

fn job_row(base: &str, job: &Job) -> Markup {
    html! {
        tr {
            td { (short_link(base, "jobs", &job.id)) }
            td { (type_link(base, "jobs", &job.job_type)) }
            td { (state(job.state)) (error_line(job.error.as_deref())) }
            td class="number" { (job.attempt) @if let Some(max) = job.max_attempts { " of " (max) } }
            td { (ago(&job.created_at)) }
            td { (short_link(base, "chains", &job.chain)) " " span class="note" { "step " (job.index + 1) } }
        }
    }
}

fn chain_row(base: &str, chain: &Chain) -> Markup {
    html! {
        tr {
            td { (short_link(base, "chains", &chain.id)) }
            td {
                (type_link(base, "chains", &chain.chain_type))
                @if chain.job_type != chain.chain_type { " " span class="note" { "at " (chain.job_type) } }
            }
            td { (state(chain.state)) (error_line(chain.error.as_deref())) }
            td class="key" { @match &chain.key { Some(key) => (key), None => span class="none" { "–" } } }
            td class="number" { (chain.jobs) }
            td { (ago(&chain.created_at)) }
            td { @match &chain.closed_at { Some(at) => (ago(at)), None => span class="none" { "–" } } }
        }
    }
}

/// Returns the first line of an error. The style sheet cuts it where the space ends.
fn error_line(error: Option<&str>) -> Markup {
    const SHOWN_BYTES: usize = 200;
    html! {
        @if let Some(line) = error.and_then(|error| error.lines().next()) {
            span class="error-line" { (&line[..line.floor_char_boundary(SHOWN_BYTES)]) }
        }
    }
}

fn table(visit: &Visit, kind: Kind, head: &[&str], rows: usize, next: Option<&str>, body: &Markup) -> Markup {
    let (base, pairs) = (visit.base(), &visit.pairs);
    let is_filtered = !pairs.with("after", None).with("order", None).with("limit", None).is_empty();
    html! {
        @if rows > 0 {
            div class="scroll card" tabindex="0" role="region" aria-label=(kind.noun) {
                table class="rows" {
                    (super::part::head(head))
                    tbody { (body) }
                }
            }
        } @else if next.is_some() {
            p class="empty" { "No matches in this part of the list. Continue searching." }
        } @else if is_filtered {
            (empty(&format!("No {} match this filter", kind.noun), &html! {
                p { "The search by key is exact. Jobs that have expired are not stored any more." }
                p { a href={ (base) (kind.path) } { "Show all " (kind.noun) } }
            }))
        } @else {
            (empty(&format!("No {} are stored", kind.noun), &html! {
                p { "Start one: " code { "windlass start TYPE INPUT" } }
            }))
        }
        (pages(visit, kind.path, next))
    }
}

/// Returns the links to the other pages of a list.
pub(super) fn pages(visit: &Visit, path: &str, next: Option<&str>) -> Markup {
    let (base, pairs) = (visit.base(), &visit.pairs);
    html! {
        nav class="pages" aria-label="Pages of the list" {
            @if pairs.get("after").is_some() {
                a class="button" href={ (base) (path) (pairs.with("after", None).query()) } { "First page" }
            }
            @if let Some(next) = next {
                a class="button" id="next" rel="next"
                    href={ (base) (path) (pairs.with("after", Some(next)).query()) } { "Continue" }
            }
        }
    }
}

/// Returns the buttons that change all chains that match the filter.
fn bulk_buttons(visit: &Visit) -> Result<Markup, Problem> {
    if visit.role() < Role::Operate {
        return Ok(html! {});
    }
    let query: ChainQuery = visit.pairs.resolved()?.parse()?;
    let filter = query.bulk_filter();
    if !filter.has_field() {
        return Ok(html! {
            p class="note js" { "Set a filter to retry, cancel or delete many chains at once." }
        });
    }
    let actions = [
        (bulk::Action::Retry, Role::Operate, "Retry all that match"),
        (bulk::Action::Cancel, Role::Operate, "Cancel all that match"),
        (bulk::Action::Delete, Role::Admin, "Delete all that match"),
    ];
    let is_possible = |action| bulk::Plan::new(action, filter.clone(), false, true).is_ok();
    let shown = actions.iter().filter(|(action, role, _)| visit.role() >= *role && is_possible(*action));
    Ok(html! {
        div class="actions js" role="group" aria-label="Change all that match" {
            @for (action, _, name) in shown {
                (bulk_button(visit.base(), *action, name, &json!(filter)))
            }
        }
    })
}

fn bulk_button(base: &str, action: bulk::Action, name: &str, filter: &serde_json::Value) -> Markup {
    let question = format!("{name}?");
    let text = format!(
        "Filter: {}. Chains that are created from now on are not affected.",
        super::bulk::filter_text(filter)
    );
    let button = Action {
        body: json!({"action": action.as_str(), "filter": filter}),
        option: (action == bulk::Action::Cancel).then_some(("Also ask running jobs to stop", "running")),
        then: Some(format!("{base}/bulk")),
        is_dangerous: action != bulk::Action::Retry,
        ..Action::post(name, "/bulk".to_owned(), &question, &text)
    };
    html! { span data-counted="" { (button.button()) } }
}
