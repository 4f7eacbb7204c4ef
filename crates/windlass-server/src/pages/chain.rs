//! One chain: its graph, its jobs, its input and output.

use maud::{Markup, html};

use super::Visit;
use super::filter::encoded;
use super::graph;
use super::layout::{Page, Refresh, Section};
use super::part::{
    Action, ago, content, error, facts, head, optional_time, short, short_link, state, time, type_link,
};
use crate::api::Problem;
use crate::api::excerpt::{self, Excerpt, JobLine};
use crate::api::wire::{Chain, State, Time};
use crate::auth::Role;

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let excerpt = excerpt::query(&visit.call, visit.path.job()?).await?;
    let (base, chain) = (visit.base(), &Chain::of(&excerpt.chain, visit.call.sight()));
    let title = format!("Chain {}", short(&chain.id));
    let body = html! {
        div id="content" data-part="" {
            p class="crumbs" { a href={ (base) "/chains" } { "Chains" } " / " (type_link(base, "chains", &chain.chain_type)) }
            div class="heading" {
                h1 { (chain.chain_type) " " (state(chain.state)) }
                (actions(base, chain, visit.role()))
            }
            p class="full-id" { code { (chain.id) } }
            @if !excerpt.why.is_empty() { (why(&excerpt.why)) }
            (error(chain.error.as_deref(), chain.error_hidden))
            (about(base, chain, excerpt.schedule.as_deref()))
            (neighbors(base, &excerpt))
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
            (jobs(base, &excerpt))
        }
    };
    // A closed chain changes only if someone retries it.
    let refresh = if chain.closed_at.is_some() { Refresh::Slow } else { Refresh::Chain };
    Ok(Page { chain: Some(chain.id.clone()), ..Page::new(title, Section::Chains, refresh, body) })
}

/// Returns why a job does not run.
pub(super) fn why(reasons: &[String]) -> Markup {
    html! {
        div class="warning" {
            p { "Why it does not run:" }
            ul { @for reason in reasons { li { (with_times(reason)) } } }
        }
    }
}

/// Returns a text whose times the browser shows in the zone of the viewer.
fn with_times(text: &str) -> Markup {
    html! {
        @for (index, word) in text.split(' ').enumerate() {
            @if index > 0 { " " }
            @let at = Time(word.to_owned());
            @if word.ends_with('Z') && at.parse().is_ok() { (time(&at)) } @else { (word) }
        }
    }
}

fn about(base: &str, chain: &Chain, schedule: Option<&str>) -> Markup {
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
    if let Some(schedule) = schedule {
        about
            .push(("Schedule", html! { a href={ (base) "/schedules/" (encoded(schedule)) } { (schedule) } }));
    }
    html! { section class="card" { (facts(&about)) } }
}

fn neighbors(base: &str, graph: &Excerpt) -> Markup {
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
        }
    }
}

/// Returns the text in place of the jobs that are left out.
pub(super) fn between(count: u32) -> String {
    format!("… {} jobs between", super::format::number(u64::from(count)))
}

fn jobs(base: &str, excerpt: &Excerpt) -> Markup {
    let all = format!("{base}/jobs?order=oldest&chain={}", excerpt.chain.id);
    html! {
        section class="card" {
            h2 { "Jobs" }
            div class="scroll" tabindex="0" role="region" aria-label="Jobs of the chain" {
                table class="rows" {
                    (head(&["Step", "Job", "Type", "State", "Attempt", "Started", "Closed"]))
                    tbody {
                        @for job in &excerpt.first { (job_row(base, job)) }
                        @if excerpt.between > 0 {
                            tr { td {} td colspan="6" { a href=(all) { (between(excerpt.between)) } } }
                        }
                        @for job in &excerpt.newest { (job_row(base, job)) }
                    }
                }
            }
            @if excerpt.between > 0 { p { a href=(all) { "All jobs of this chain" } } }
        }
    }
}

fn job_row(base: &str, job: &JobLine) -> Markup {
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
fn actions(base: &str, chain: &Chain, role: Role) -> Markup {
    let (id, status) = (&chain.id, chain.status);
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
        if chain.closed_at.is_none() {
            let text = "A cancelled chain does not run again, unless it is retried.";
            let cancel = Action::post("Cancel", path("cancel"), "Cancel this chain?", text).dangerous();
            let option = (status == State::Running).then_some(("Ask the running job to stop", "running"));
            actions.push(Action { option, ..cancel });
        }
    }
    if role >= Role::Admin {
        let text = "The chain and its jobs are removed forever.";
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
