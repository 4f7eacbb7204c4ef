//! `windlass schedules`.

use serde::Serialize;
use windlass::schedule::{
    Cron, Every, Once, RunOutcome, Schedule, ScheduleDetails, ScheduleRun, ScheduleSpec,
};
use windlass::time::Timestamp;
use windlass::{ChainId, Client, Store};

use super::list::ago;
use super::{Context, start};
use crate::arguments::{PutSchedule, ScheduleAction, ScheduleNames, Schedules};
use crate::exit::{Failure, Result};
use crate::input;
use crate::output::Output;
use crate::shell::quoted;
use crate::store::OpenMode;

pub(crate) async fn run(context: &Context, schedules: Schedules) -> Result {
    let output = context.output;
    match schedules.action {
        Some(ScheduleAction::Put(schedule)) => put(context, *schedule).await,
        Some(ScheduleAction::Pause(names)) => {
            change(context, &names, async |client, name| {
                let was = client.schedules().pause(name).await?;
                Ok(if was { "paused" } else { "was paused before" }.to_owned())
            })
            .await
        }
        Some(ScheduleAction::Resume(names)) => {
            change(context, &names, async |client, name| {
                let was = client.schedules().resume(name).await?;
                Ok(if was { "resumed" } else { "was not paused" }.to_owned())
            })
            .await
        }
        Some(ScheduleAction::Run(names)) => {
            change(context, &names, async |client, name| {
                Ok(format!("started chain {}", client.schedules().run_now(name).await?))
            })
            .await
        }
        Some(ScheduleAction::Accept(names)) => {
            change(context, &names, async |client, name| {
                let was = client.schedules().accept(name).await?;
                Ok(if was { "rollback accepted" } else { "has no declaration to accept" }.to_owned())
            })
            .await
        }
        Some(ScheduleAction::Delete(names)) => {
            change(context, &names, async |client, name| match client.schedules().delete(name).await? {
                true => Ok("deleted".to_owned()),
                false => Err(unknown(name)),
            })
            .await
        }
        None => {
            let connection = context.open(OpenMode::Existing).await?;
            let client = connection.client();
            match schedules.name {
                Some(name) => {
                    let schedule = client.schedules().get(&name).await?;
                    show(output, &schedule.ok_or_else(|| unknown(&name))?)
                }
                None => list(output, &client.schedules().list().await?),
            }
        }
    }
}

fn unknown(name: &str) -> Failure {
    Failure::not_found(format!("schedule `{name}` not found: check the name, --store and --namespace"))
}

/// Applies a change to each schedule. Continues after a failure.
async fn change(
    context: &Context,
    names: &ScheduleNames,
    apply: impl AsyncFn(&Client<dyn Store>, &str) -> Result<String>,
) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let mut outcome = Ok(());
    for name in &names.names {
        match apply(&client, name).await {
            Ok(result) => {
                let line = || format!("{name}: {result}");
                context.output.print_change(&Changed { id: name, done: true, what: &result }, line)?;
            }
            Err(failure) => outcome = Err(failure),
        }
    }
    outcome
}

#[derive(Debug, Serialize)]
struct Changed<'a> {
    id: &'a str,
    done: bool,
    what: &'a str,
}

async fn put(context: &Context, put: PutSchedule) -> Result {
    // Validate everything before opening the store: an invalid call must not create a SQLite file.
    let spec = spec(&put)?;
    let input = input::payload(put.input.as_deref(), "input").await?;
    let chain = start::chain(put.job_type, input, &put.options)?;
    let connection = context.open(OpenMode::CreateFile).await?;
    let client = connection.client();
    client.schedules().put_chain(&put.name, spec, &chain).await?;
    let schedule = client.schedules().get(&put.name).await?.ok_or_else(|| unknown(&put.name))?;
    let view = View::of(&schedule);
    let next = view.next.first().cloned().unwrap_or_else(|| "never".to_owned());
    context.output.print_change(&view, || format!("{}: stored; next: {next}", put.name))
}

fn spec(put: &PutSchedule) -> Result<ScheduleSpec> {
    let mut spec = match (&put.cron, put.every, put.once) {
        (Some(expression), ..) => Cron::new(expression)?,
        (None, Some(interval), _) => Every::new(interval)?,
        (None, None, Some(at)) => Once::at(at),
        (None, None, None) => return Err(Failure::usage("pass --cron, --every or --once")),
    };
    if let Some(zone) = &put.zone {
        spec = spec.in_zone(zone);
    }
    if let Some(from) = put.from {
        spec = spec.starts_at(from);
    }
    if let Some(to) = put.to {
        spec = spec.ends_at(to);
    }
    if let Some(jitter) = put.jitter {
        spec = spec.jitter(jitter);
    }
    if let Some(missed) = put.missed {
        spec = spec.missed(missed);
    }
    if let Some(grace) = put.grace {
        spec = spec.grace(grace);
    }
    if let Some(overlap) = put.overlap {
        spec = spec.overlap(overlap.into());
    }
    Ok(spec)
}

fn list(output: Output, schedules: &[Schedule]) -> Result {
    if output.is_json() {
        return schedules.iter().try_for_each(|schedule| output.object(&View::of(schedule)));
    }
    let rows: Vec<_> = schedules
        .iter()
        .map(|schedule| {
            let view = View::of(schedule);
            let last = view.runs.last();
            [
                view.name.to_owned(),
                view.when.clone().unwrap_or_default(),
                view.job_type.unwrap_or_default().to_owned(),
                view.state.to_owned(),
                view.next.first().cloned().unwrap_or_default(),
                last.map(|run| run.at.clone()).unwrap_or_default(),
                last.map(|run| run.outcome.to_owned()).unwrap_or_default(),
            ]
        })
        .collect();
    output.table(["NAME", "WHEN", "TYPE", "STATE", "NEXT", "LAST", "OUTCOME"], &rows)
}

fn show(output: Output, schedule: &Schedule) -> Result {
    let view = View::of(schedule);
    if output.is_json() {
        return output.object(&view);
    }
    output.line(&format!("{} ({})", view.name, view.state))?;
    if let Some(error) = view.error {
        return output.line(&format!("  cannot be read: {error}"));
    }
    let mut facts = vec![
        ("id", Some(view.id.clone())),
        ("why", Some(view.why.join("; ")).filter(|why| !why.is_empty())),
        ("when", view.when.clone()),
        ("type", view.job_type.map(str::to_owned)),
        ("input", view.input.map(str::to_owned)),
        ("policies", view.policies.clone()),
        ("next", Some(view.next.join(", ")).filter(|next| !next.is_empty())),
        ("waiting", view.waiting.clone()),
        ("last success", view.last_success.clone()),
        ("declared by", view.program.map(str::to_owned)),
        ("last declared", view.declared_at.clone()),
    ];
    if let Some(program) = view.refused_program {
        let text = format!("by {program}; apply it with `windlass schedules accept {}`", quoted(view.name));
        facts.push(("superseded declaration", Some(text)));
    }
    let dropped = format!(
        "{} missed, {} overlapped, {} with a held key, {} paused",
        view.missed, view.overlapped, view.key_held, view.dropped_in_pauses
    );
    facts.push(("not started", Some(dropped)));
    for (name, value) in facts {
        if let Some(value) = value {
            output.line(&format!("  {name}: {value}"))?;
        }
    }
    let rows: Vec<_> = view
        .runs
        .iter()
        .rev()
        .map(|run| {
            let kind = if run.manual { "manual" } else { "" };
            [run.at.clone(), run.chain.to_string(), run.outcome.to_owned(), kind.to_owned()]
        })
        .collect();
    output.table(["RUN", "CHAIN", "OUTCOME", ""], &rows)
}

/// A schedule in `--json`.
#[derive(Debug, Serialize)]
struct View<'a> {
    name: &'a str,
    id: String,
    state: &'static str,
    why: Vec<String>,
    when: Option<String>,
    #[serde(rename = "type")]
    job_type: Option<&'a str>,
    input: Option<&'a str>,
    policies: Option<String>,
    due_at: Option<String>,
    next: Vec<String>,
    waiting: Option<String>,
    handled: Option<String>,
    last_success: Option<String>,
    missed: u64,
    overlapped: u64,
    key_held: u64,
    dropped_in_pauses: u64,
    program: Option<&'a str>,
    declared_at: Option<String>,
    refused_program: Option<&'a str>,
    runs: Vec<RunView>,
    error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct RunView {
    at: String,
    chain: ChainId,
    manual: bool,
    outcome: &'static str,
    closed_at: Option<String>,
}

impl<'a> View<'a> {
    fn of(schedule: &'a Schedule) -> Self {
        let text = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let details = schedule.details.as_ref().ok();
        let times = |list: &[Timestamp]| list.iter().map(ToString::to_string).collect();
        let number = |of: fn(&ScheduleDetails) -> u64| details.map(of).unwrap_or_default();
        Self {
            name: schedule.name.as_str(),
            id: schedule.id.to_string(),
            state: state(schedule),
            why: why(schedule),
            when: details.map(|details| details.spec.describe()),
            job_type: details.map(|details| details.job_type.as_str()),
            input: details.and_then(|details| details.input.as_deref()),
            policies: details.map(policies),
            due_at: text(schedule.due_at),
            next: details.map(|details| times(&details.next)).unwrap_or_default(),
            waiting: text(details.and_then(|details| details.waiting)),
            handled: text(schedule.handled),
            last_success: text(details.and_then(|details| details.last_success)),
            missed: number(|details| details.missed),
            overlapped: number(|details| details.overlapped),
            key_held: number(|details| details.key_held),
            dropped_in_pauses: number(|details| details.paused),
            program: details.and_then(|details| details.program.as_deref()),
            declared_at: text(details.and_then(|details| details.declared_at)),
            refused_program: details.and_then(|details| details.refused_program.as_deref()),
            runs: details.map(|details| details.runs.iter().map(RunView::of).collect()).unwrap_or_default(),
            error: schedule.details.as_ref().err().map(String::as_str),
        }
    }
}

impl RunView {
    fn of(run: &ScheduleRun) -> Self {
        let outcome = match run.outcome {
            None => "open",
            Some(RunOutcome::Completed) => "completed",
            Some(RunOutcome::Failed) => "failed",
            Some(RunOutcome::Cancelled) => "cancelled",
            Some(_) => "deleted",
        };
        let closed_at = run.closed_at.map(|at| at.to_string());
        Self { at: run.at.to_string(), chain: run.chain, manual: run.is_manual, outcome, closed_at }
    }
}

fn policies(details: &ScheduleDetails) -> String {
    let (overlap, missed) = (details.spec.overlap_policy(), details.spec.missed_policy());
    format!("overlap {overlap:?}, missed {missed:?}").to_lowercase()
}

/// Returns the state of a schedule in one word.
fn state(schedule: &Schedule) -> &'static str {
    let Ok(details) = &schedule.details else { return "unreadable" };
    if details.paused_at.is_some() {
        "paused"
    } else if details.ended_at.is_some() {
        "ended"
    } else if super::doctor::is_overdue(schedule) {
        "overdue"
    } else if details.waiting.is_some() {
        "waiting"
    } else if super::doctor::undeclared_since(schedule).is_some() {
        "undeclared"
    } else {
        "active"
    }
}

/// Returns why a schedule starts nothing now, may not be wanted any more, or has failed, with a remedy where there is one.
fn why(schedule: &Schedule) -> Vec<String> {
    let (name, Ok(details)) = (&schedule.name, &schedule.details) else { return Vec::new() };
    let mut reasons = Vec::new();
    if let Some(at) = details.paused_at {
        reasons.push(format!("it has been paused since {at} (`windlass schedules resume {}`)", quoted(name)));
    } else if super::doctor::is_overdue(schedule) {
        let late = schedule.overdue_by().unwrap_or_default().as_secs();
        let late = humantime::format_duration(std::time::Duration::from_secs(late));
        let cure =
            "start a worker on this store, or update it: it may not know the time zone or the expression";
        reasons.push(format!("it has been due for {late}, and no worker has visited it: {cure}"));
    }
    if let Some(at) = details.ended_at {
        reasons.push(format!("it ended at {at}"));
    }
    if let (Some(at), Some(run)) = (details.waiting, details.runs.last()) {
        reasons.push(format!("the occurrence of {at} waits for chain {}", run.chain));
    }
    if let Some(run) = details.runs.last().filter(|run| run.outcome == Some(RunOutcome::Failed)) {
        reasons.push(format!("its latest run failed (`windlass chains {}`)", run.chain));
    }
    if let Some(at) = super::doctor::undeclared_since(schedule) {
        reasons.push(format!(
            "no program has declared it since {at} (`windlass schedules delete {}`, if it was removed from the code)",
            quoted(name)
        ));
    }
    reasons
}

/// Describes the schedule that has started a chain.
pub(super) async fn origin(client: &Client<dyn Store>, chain: ChainId) -> Result<Option<String>> {
    let Some(occurrence) = chain.occurrence() else { return Ok(None) };
    let schedule = client.schedules().get_by_id(occurrence.schedule).await?;
    let name = schedule
        .map_or_else(|| "a deleted schedule".to_owned(), |schedule| format!("schedule `{}`", schedule.name));
    let kind = if occurrence.is_manual { "run by hand" } else { "occurrence" };
    Ok(Some(format!("{name}, {kind} of {} ({})", occurrence.at, ago(occurrence.at))))
}
