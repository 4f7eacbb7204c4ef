//! One job: its attempts, errors, input and output.

use maud::{Markup, html};

use super::Visit;
use super::chain::why;
use super::format::duration;
use super::layout::{Page, Refresh, Section};
use super::part::{
    Action, content, error, facts, head, label, optional_time, short, short_link, state, time, type_link,
    word,
};
use crate::api::route::Json;
use crate::api::wire::{Attempt, JobDetails, State, Time};
use crate::api::{Problem, jobs};
use crate::auth::Role;

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let Json(details) = jobs::get(visit.call.clone(), visit.given()?).await?;
    let (base, job) = (visit.base(), &details.job);
    let body = html! {
        div id="content" data-part="" {
            p class="crumbs" {
                a href={ (base) "/chains" } { "Chains" } " / "
                a href={ (base) "/chains/" (job.chain) } { (job.chain_type) } " / step " (job.index + 1)
            }
            div class="heading" {
                h1 { (job.job_type) " " (state(job.state)) }
                (actions(&details, visit.role()))
            }
            p class="full-id" { code { (job.id) } }
            @if !details.why.is_empty() { (why(&details.why)) }
            (about(base, &details))
            (timeline(&details))
            @if !details.blocker_chains.is_empty() { (blockers(base, &details)) }
            div class="columns" {
                section class="card" { h2 { "Input" } (content(&job.input)) }
                section class="card" {
                    h2 { "Output" }
                    @match &job.output {
                        Some(output) => (content(output)),
                        None => p class="note" { "The job has no output." },
                    }
                }
            }
        }
    };
    let refresh = if job.closed_at.is_some() { Refresh::Slow } else { Refresh::Chain };
    let (title, chain) = (format!("Job {}", short(&job.id)), Some(job.chain.clone()));
    Ok(Page { chain, ..Page::new(title, Section::Jobs, refresh, body) })
}

fn about(base: &str, details: &JobDetails) -> Markup {
    let job = &details.job;
    let attempts = html! { (job.attempt) @if let Some(max) = job.max_attempts { " of " (max) } };
    let mut about = vec![
        ("Chain", short_link(base, "chains", &job.chain)),
        ("Attempts", attempts),
        ("Priority", html! { (job.priority) }),
        ("Due", time(&job.due_at)),
        ("Closed", optional_time(job.closed_at.as_ref())),
    ];
    if let Some(worker) = &job.worker {
        about.push(("Worker", html! { (job.worker_name.as_deref().unwrap_or(worker)) }));
        about.push(("Leased until", optional_time(job.leased_until.as_ref())));
    }
    html! { section class="card" { (facts(&about)) } }
}

/// Returns what happened to the job, in order.
fn timeline(details: &JobDetails) -> Markup {
    let job = &details.job;
    let is_cut = details.attempts.first().is_some_and(|attempt| attempt.attempt > 1);
    html! {
        section class="card" {
            h2 { "Timeline" }
            ol class="timeline" {
                li { p { strong { "Created" } " " (time(&job.created_at)) } }
                @if is_cut { li { p class="note" { "Older attempts are not stored." } } }
                @for attempt in &details.attempts { (attempt_item(attempt)) }
                @if details.attempts.is_empty() && job.closed_at.is_none() {
                    li class="open" { p class="note" { "No attempt yet." } }
                }
                @if let Some(at) = &job.closed_at {
                    li class=(word(&job.status)) { p { strong { "Closed" } " " (label(&word(&job.status))) " " (time(at)) } }
                }
            }
            @if details.attempts.is_empty() { (error(job.error.as_deref(), job.error_hidden)) }
        }
    }
}

fn attempt_item(attempt: &Attempt) -> Markup {
    let end = word(&attempt.end);
    let took = attempt.ended_at.as_ref().and_then(|ended| between(&attempt.started_at, ended));
    let worker = attempt.worker_name.as_deref().unwrap_or(&attempt.worker);
    html! {
        li class=(end) {
            p {
                strong { "Attempt " (attempt.attempt) } " " (label(&end)) " " (time(&attempt.started_at))
                @if let Some(took) = took { span class="note" { " · took " (took) } }
                span class="note" { " · by " (worker) }
            }
            (error(attempt.error.as_deref(), attempt.error_hidden))
        }
    }
}

fn between(from: &Time, to: &Time) -> Option<String> {
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    Some(duration(u64::try_from(to.since(from).as_millis()).ok()?))
}

fn blockers(base: &str, details: &JobDetails) -> Markup {
    let is_resolved = |id: &str| {
        let blocker = details.job.blockers.iter().find(|blocker| blocker.chain == id);
        blocker.is_some_and(|blocker| blocker.resolved)
    };
    html! {
        section class="card" {
            h2 { "Waits for" }
            div class="scroll" tabindex="0" role="region" aria-label="Waits for" {
                table {
                    (head(&["Chain", "Type", "State", "Waits"]))
                    tbody {
                        @for chain in &details.blocker_chains {
                            tr {
                                td { (short_link(base, "chains", &chain.id)) }
                                td { (type_link(base, "chains", &chain.chain_type)) }
                                td { (state(chain.state)) }
                                td class="note" {
                                    @if is_resolved(&chain.id) { "no longer waits" } @else { "still waits" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn actions(details: &JobDetails, role: Role) -> Markup {
    let job = &details.job;
    html! {
        @if role >= Role::Operate && job.status == State::Pending {
            div class="actions js" role="group" aria-label="Actions" {
                (Action::post("Run now", format!("/jobs/{}/trigger", job.id), "Run this job now?",
                    "The job becomes due at once, whatever its due time.").button())
            }
        }
        @if role >= Role::Operate && matches!(job.status, State::Failed | State::Cancelled) {
            div class="actions js" role="group" aria-label="Actions" {
                (Action::post("Retry", format!("/chains/{}/retry", job.chain), "Retry this chain?",
                    "Its latest job becomes pending, with new attempts.").button())
            }
        }
    }
}
