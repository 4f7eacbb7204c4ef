//! Schedules with their next and latest runs.

use maud::{Markup, html};

use super::Visit;
use super::filter::encoded;
use super::layout::{Page, Refresh, Section};
use super::lists::pages;
use super::part::{
    Action, ago, content, empty, facts, head, label, optional_time, short_link, time, type_link, word,
};
use crate::api::route::Json;
use crate::api::wire::{Run, Schedule, ScheduleState};
use crate::api::{Problem, schedules};
use crate::auth::Role;

/// Runs that are shown of one schedule in the list.
const RUNS_SHOWN: usize = 10;

pub(super) async fn list(visit: Visit) -> Result<Page, Problem> {
    let Json(list) = schedules::list(visit.call.clone(), visit.given_with(&visit.pairs)?).await?;
    let after = visit.pairs.get("after");
    let (base, role) = (visit.base(), visit.role());
    let body = html! {
        h1 { "Schedules" }
        p class="lead" { "A schedule starts a chain again and again, at fixed times." }
        div id="content" data-part="" {
            @if list.schedules.is_empty() && after.is_some() {
                p class="empty" { "There are no further schedules." }
            } @else if list.schedules.is_empty() {
                (empty("There are no schedules", &html! {
                    p { "Create one from the shell:" }
                    pre { code { "windlass schedules put nightly --cron '0 3 * * *' report" } }
                }))
            } @else {
                div class="scroll card" tabindex="0" role="region" aria-label="Schedules" {
                    table class="rows" {
                        thead {
                            tr {
                                @for name in ["Schedule", "State", "When", "Type", "Next run", "Latest runs"] {
                                    th scope="col" { (name) }
                                }
                                @if role >= Role::Operate { th scope="col" class="js" { "Actions" } }
                            }
                        }
                        tbody { @for schedule in &list.schedules { (row(base, role, schedule)) } }
                    }
                }
            }
            (pages(&visit, "/schedules", list.next.as_deref()))
        }
    };
    Ok(Page::new("Schedules", Section::Schedules, Refresh::Slow, body))
}

fn row(base: &str, role: Role, schedule: &Schedule) -> Markup {
    html! {
        tr {
            td { a href={ (base) "/schedules/" (encoded(&schedule.name)) } { (schedule.name) } }
            td { (label(&word(&schedule.state))) }
            td { (schedule.when.as_deref().unwrap_or("–")) }
            td { @match &schedule.job_type { Some(name) => (type_link(base, "chains", name)), None => "–" } }
            td { @match schedule.next.first() { Some(at) => (ago(at)), None => span class="none" { "–" } } }
            td { (dots(base, &schedule.runs)) }
            @if role >= Role::Operate { td class="js" { (actions(schedule, role, None)) } }
        }
    }
}

/// Returns the latest runs as small marks, the newest at the right.
fn dots(base: &str, runs: &[Run]) -> Markup {
    let latest = runs.iter().skip(runs.len().saturating_sub(RUNS_SHOWN));
    html! {
        @if runs.is_empty() { span class="none" { "none yet" } }
        span class="dots" {
            @for run in latest {
                @let outcome = word(&run.outcome);
                a class={ "run " (outcome) } href={ (base) "/chains/" (run.chain) }
                    data-outcome=(outcome) data-at=(run.at.0)
                    title={ (outcome) " at " (run.at.0) } aria-label={ (outcome) " at " (run.at.0) } {}
            }
        }
    }
}

fn actions(schedule: &Schedule, role: Role, then: Option<String>) -> Markup {
    let name = encoded(&schedule.name);
    let path = |action: &str| format!("/schedules/{name}/{action}");
    let question = |text: &str| text.replace("{}", &schedule.name);
    let run = "It starts its chain once more. The regular schedule does not change.";
    let pause = "It starts nothing until it is resumed.";
    let resume = "It starts chains at its times again. Times during the pause are dropped.";
    let accept =
        "The declaration of the older program, which was refused, is applied the next time it starts.";
    html! {
        div class="actions" role="group" aria-label="Actions" {
            @if schedule.state == ScheduleState::Paused {
                (Action::post("Resume", path("resume"), &question("Resume the schedule \"{}\"?"), resume).button())
            } @else if schedule.state != ScheduleState::Ended {
                (Action::post("Pause", path("pause"), &question("Pause the schedule \"{}\"?"), pause).button())
            }
            (Action::post("Run now", path("run"), &question("Run the schedule \"{}\" now?"), run).button())
            @if schedule.refused_program.is_some() {
                (Action::post("Accept rollback", path("accept"), &question("Accept the rollback of the schedule \"{}\"?"), accept).button())
            }
            @if let Some(then) = then.filter(|_| role >= Role::Admin) {
                @let delete = question("Delete the schedule \"{}\"?");
                @let delete = Action::post("Delete", format!("/schedules/{name}"), &delete,
                    "Chains that it has started stay.").dangerous();
                (Action { method: "DELETE", then: Some(then), ..delete }.button())
            }
        }
    }
}

pub(super) async fn one(visit: Visit) -> Result<Page, Problem> {
    let Json(schedule) = schedules::get(visit.call.clone(), visit.given()?).await?;
    let (base, role) = (visit.base(), visit.role());
    let body = html! {
        div id="content" data-part="" {
            p class="crumbs" { a href={ (base) "/schedules" } { "Schedules" } }
            div class="heading" {
                h1 { (schedule.name) " " (label(&word(&schedule.state))) }
                @if role >= Role::Operate {
                    div class="js" { (actions(&schedule, role, Some(format!("{base}/schedules")))) }
                }
            }
            @if let Some(error) = &schedule.error { p class="warning" { (error) } }
            (about(base, &schedule))
            div class="columns" {
                section class="card" {
                    h2 { "Next runs" }
                    @if schedule.next.is_empty() { p class="note" { "It has no further runs." } }
                    ol class="times" { @for at in &schedule.next { li { (time(at)) } } }
                }
                section class="card" {
                    h2 { "Input" }
                    @match &schedule.input {
                        Some(input) => (content(input)),
                        None => p class="note" { "It starts its chain without an input." },
                    }
                }
            }
            (runs(base, &schedule))
        }
    };
    Ok(Page::new(format!("Schedule {}", schedule.name), Section::Schedules, Refresh::Slow, body))
}

fn about(base: &str, schedule: &Schedule) -> Markup {
    let mut about = vec![
        ("When", html! { (schedule.when.as_deref().unwrap_or("–")) }),
        (
            "Type",
            html! { @match &schedule.job_type { Some(name) => (type_link(base, "chains", name)), None => "–" } },
        ),
        ("Last success", optional_time(schedule.last_success.as_ref())),
        ("Missed", html! { (schedule.missed) }),
        ("Skipped, previous run open", html! { (schedule.overlapped) }),
        ("Skipped, key held", html! { (schedule.key_held) }),
        ("Dropped in pauses", html! { (schedule.dropped_in_pauses) }),
    ];
    if let Some(program) = &schedule.program {
        about.push(("Declared by", html! { (program) }));
    }
    if let Some(program) = &schedule.refused_program {
        about.push(("Refused", html! { (program) }));
    }
    html! { section class="card" { (facts(&about)) } }
}

fn runs(base: &str, schedule: &Schedule) -> Markup {
    html! {
        section class="card" {
            h2 { "Latest runs" }
            @if schedule.runs.is_empty() { p class="note" { "It has not run yet." } }
            @else {
                div class="scroll" tabindex="0" role="region" aria-label="Latest runs" {
                    table class="rows" {
                        (head(&["Time", "Chain", "Outcome", "Closed"]))
                        tbody {
                            @for run in schedule.runs.iter().rev() {
                                tr {
                                    td { (time(&run.at)) @if run.manual { " " span class="note" { "by hand" } } }
                                    td { (short_link(base, "chains", &run.chain)) }
                                    td { (label(&word(&run.outcome))) }
                                    td { (optional_time(run.closed_at.as_ref())) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
