//! Types and queues, from the latest sample.

use maud::{Markup, html};

use super::Visit;
use super::filter::encoded;
use super::format::{duration, number};
use super::layout::{Page, Refresh, Section};
use super::part::{Action, empty, label, type_link};
use crate::api::Problem;
use crate::auth::Role;
use crate::sampler::TypeSample;

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let sample = visit.call.app.sampler.latest().await?;
    let (base, role) = (visit.base(), visit.role());
    // By name, so that rows stay where they are while their numbers change.
    let mut types: Vec<&TypeSample> = sample.types.iter().collect();
    types.sort_by(|one, other| one.count.job_type.cmp(&other.count.job_type));
    let body = html! {
        h1 { "Types and queues" }
        p class="lead" { "A queue is a type whose jobs are enqueued under your own ids." }
        div id="content" data-part="" {
            @if sample.types.is_empty() {
                (empty("No types are stored", &html! {
                    p { "A type appears with its first job: " code { "windlass start TYPE INPUT" } }
                }))
            } @else {
                div class="scroll card" tabindex="0" role="region" aria-label="Types" {
                    table class="rows" {
                        thead {
                            tr {
                                th scope="col" { "Type" }
                                @for name in ["Pending", "Running", "Blocked", "Completed", "Failed", "Cancelled", "Oldest due"] {
                                    th scope="col" class="number" { (name) }
                                }
                                @if role >= Role::Operate { th scope="col" class="js" { "Actions" } }
                            }
                        }
                        tbody { @for sample in types { (row(base, role, sample)) } }
                    }
                }
                @if sample.closed_estimated {
                    p class="note" { "The numbers of closed jobs are estimates." }
                }
                @if sample.truncated {
                    p class="note" { "These are the types with the most open jobs. The API lists all of them." }
                }
            }
        }
    };
    Ok(Page::new("Types", Section::Types, Refresh::Sample, body))
}

fn row(base: &str, role: Role, sample: &TypeSample) -> Markup {
    let (count, name) = (&sample.count, encoded(&sample.count.job_type));
    let cell = |value: u64, status: &str| {
        html! {
            td class={ "number" @if status == "failed" && value > 0 { " bad" } } {
                @if value > 0 {
                    a href={ (base) "/jobs?type=" (name) "&status=" (status) } { (number(value)) }
                } @else { span class="none" { "0" } }
            }
        }
    };
    html! {
        tr {
            td { (type_link(base, "jobs", &count.job_type)) @if count.paused { " " (label("paused")) } }
            (cell(count.pending, "pending"))
            (cell(count.running, "running"))
            (cell(count.blocked, "blocked"))
            (cell(count.completed, "completed"))
            (cell(count.failed, "failed"))
            (cell(count.cancelled, "cancelled"))
            td class="number" { (sample.oldest_ready_ms.map(duration).unwrap_or_else(|| "–".to_owned())) }
            @if role >= Role::Operate { td class="js" { (pause(&count.job_type, count.paused)) } }
        }
    }
}

fn pause(job_type: &str, is_paused: bool) -> Markup {
    let name = encoded(job_type);
    // The question names the type: the rows move while a user aims at a button.
    if is_paused {
        let question = format!("Resume the type \"{job_type}\"?");
        let text = "Workers take its jobs again.";
        Action::post("Resume", format!("/types/{name}/resume"), &question, text).button()
    } else {
        let question = format!("Pause the type \"{job_type}\"?");
        let text = "Workers take no more of its jobs. Running jobs go on.";
        Action::post("Pause", format!("/types/{name}/pause"), &question, text).button()
    }
}
