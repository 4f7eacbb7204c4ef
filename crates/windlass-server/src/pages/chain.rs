//! One chain: its graph, its jobs, its input and output.

use maud::{Markup, html};

use super::Visit;
use super::filter::encoded;
use super::graph;
use super::layout::{Page, Refresh, Section};
use super::part::{
    Action, ago, content, error, facts, head, optional_time, short, short_link, state, time, type_link,
};
use crate::api::route::Json;
use crate::api::wire::{ChainDetails, ChainGraph, Job, State};
use crate::api::{Problem, chains};
use crate::auth::Role;

/// Jobs in the table. Long chains have more: the list of jobs shows them all.
const JOBS_SHOWN: usize = 50;

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let Json(details) = chains::get(visit.call.clone(), visit.given()?).await?;
    let Json(graph) = chains::graph(visit.call.clone(), visit.given()?).await?;
    let (base, chain) = (visit.base(), &details.chain);
    let title = format!("Chain {}", short(&chain.id));
    let body = html! {
        div id="content" data-part="" {
            p class="crumbs" { a href={ (base) "/chains" } { "Chains" } " / " (type_link(base, "chains", &chain.chain_type)) }
            div class="heading" {
                h1 { (chain.chain_type) " " (state(chain.state)) }
                (actions(base, &details, visit.role()))
            }
            p class="full-id" { code { (chain.id) } }
            @if !details.why.is_empty() { (why(&details.why)) }
            (error(chain.error.as_deref(), chain.error_hidden))
            (about(base, &details))
            (neighbours(base, &graph))
            div class="columns" {
                section class="card" { h2 { "Input" } (content(&chain.input)) }
                section class="card" {
                    h2 { "Output" }
                    @match &chain.output {
                        Some(output) => (content(output)),
                        None => p class="note" { "No output yet." },
                    }
                }
            }
            (jobs(base, &details))
        }
    };
    // A closed chain changes only if someone retries it.
    let refresh = if chain.closed_at.is_some() { Refresh::Slow } else { Refresh::Chain };
    let chain = Some(details.chain.id.clone());
    Ok(Page { chain, ..Page::new(title, Section::Chains, refresh, body) })
}

/// Returns why a job does not run.
pub(super) fn why(reasons: &[String]) -> Markup {
    html! {
        div class="warning" {
            p { "Why it does not run:" }
            ul { @for reason in reasons { li { (reason) } } }
        }
    }
}

fn about(base: &str, details: &ChainDetails) -> Markup {
    let chain = &details.chain;
    let key = html! {
        @match &chain.key {
            Some(key) => {
                a class="key" href={ (base) "/chains?key=" (encoded(key)) } { (key) }
                " " span class="note" { @if chain.key_held { "held" } @else { "released" } }
            }
            None => span class="none" { "–" },
        }
    };
    let mut about = vec![
        ("Created", time(&chain.created_at)),
        ("Closed", optional_time(chain.closed_at.as_ref())),
        ("Jobs", html! { (chain.jobs) }),
        ("Key", key),
        ("Kept until", optional_time(chain.retain_until.as_ref())),
    ];
    if let Some(schedule) = &details.schedule {
        about
            .push(("Schedule", html! { a href={ (base) "/schedules/" (encoded(schedule)) } { (schedule) } }));
    }
    html! { section class="card" { (facts(&about)) } }
}

fn neighbours(base: &str, graph: &ChainGraph) -> Markup {
    html! {
        section class="card" {
            h2 { "Graph" }
            div class="scroll" tabindex="0" role="region" aria-label="Graph of the chain" { (graph::draw(base, graph)) }
            @if !graph.blockers.is_empty() || !graph.dependents.is_empty() {
                p class="legend edges" {
                    span class="waits" { "still waits" }
                    span class="resolved" { "no longer waits" }
                }
            }
            @if graph.truncated { p class="note" { "There are too many jobs to draw them all." } }
        }
    }
}

fn jobs(base: &str, details: &ChainDetails) -> Markup {
    let all = &details.chain_jobs;
    html! {
        section class="card" {
            h2 { "Jobs" }
            div class="scroll" tabindex="0" role="region" aria-label="Jobs of the chain" {
                table class="rows" {
                    (head(&["Step", "Job", "Type", "State", "Attempt", "Started", "Closed"]))
                    tbody { @for job in all.iter().take(JOBS_SHOWN) { (job_row(base, job)) } }
                }
            }
            @if all.len() > JOBS_SHOWN {
                p { a href={ (base) "/jobs?order=oldest&chain=" (details.chain.id) } { "All jobs of this chain" } }
            }
        }
    }
}

fn job_row(base: &str, job: &Job) -> Markup {
    html! {
        tr {
            td class="number" { (job.index + 1) }
            td { (short_link(base, "jobs", &job.id)) }
            td { (job.job_type) }
            td { (state(job.state)) }
            td class="number" { (job.attempt) }
            @for at in [&job.started_at, &job.closed_at] {
                td { @match at { Some(at) => (ago(at)), None => span class="none" { "–" } } }
            }
        }
    }
}

/// Returns the buttons that the role and the state permit.
fn actions(base: &str, details: &ChainDetails, role: Role) -> Markup {
    let (id, status) = (&details.chain.id, details.chain.status);
    let path = |action: &str| format!("/chains/{id}/{action}");
    let mut actions = Vec::new();
    if role >= Role::Operate {
        match status {
            State::Failed | State::Cancelled => {
                let text = "Its latest job becomes pending, with new attempts.";
                actions.push(Action::post("Retry", path("retry"), "Retry this chain?", text));
            }
            State::Pending => {
                let text = "The job becomes due at once, whatever its due time.";
                actions.push(Action::post("Run now", path("trigger"), "Run this job now?", text));
            }
            _ => {}
        }
        if details.chain.closed_at.is_none() {
            let text = "A cancelled chain does not run again, unless it is retried.";
            let cancel = Action::post("Cancel", path("cancel"), "Cancel this chain?", text).dangerous();
            let option = (status == State::Running).then_some(("Ask the running job to stop", "running"));
            actions.push(Action { option, ..cancel });
        }
    }
    if role >= Role::Admin {
        let text = "The chain and its jobs are removed for ever.";
        let delete = Action::post("Delete", format!("/chains/{id}"), "Delete this chain?", text).dangerous();
        let option = Some(("Also delete the chains that it waits for", "cascade"));
        actions.push(Action { method: "DELETE", option, then: Some(format!("{base}/chains")), ..delete });
    }
    html! {
        @if !actions.is_empty() {
            div class="actions js" role="group" aria-label="Actions" { @for action in &actions { (action.button()) } }
        }
    }
}
