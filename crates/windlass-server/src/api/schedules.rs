//! Schedules.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::ScheduleName;
use windlass_core::command::ListSchedules;
use windlass_core::limit::SCHEDULE_PAGE_MAX;
use windlass_core::schedule::{self, Cron, Every, MissedRuns, Once, Overlap, ScheduleSpec};

use super::chains_change::StartChain;
use super::problem::Problem;
use super::route::{Call, Given, Json, NoBody, NoQuery};
use super::wire::{Schedule, Time};
use crate::audit;

/// The number of schedules on a page, unless the caller asks for another one.
const PAGE_ROWS: u32 = 50;

/// The page of the list of schedules.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleQuery {
    /// The cursor of the page, from `next` of the page before: the name of its last schedule.
    after: Option<String>,
    /// The maximum number of schedules on the page: 1 to 100. Default: 50.
    limit: Option<u32>,
}

/// One page of schedules, sorted by name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SchedulePage {
    pub(crate) schedules: Vec<Schedule>,
    /// The cursor of the next page, for the parameter `after`. `null` on the last page. A page may be empty.
    pub(crate) next: Option<String>,
}

pub(crate) async fn list(
    call: Call,
    given: Given<ScheduleQuery, NoBody>,
) -> Result<Json<SchedulePage>, Problem> {
    let max = given.query.limit.unwrap_or(PAGE_ROWS);
    if max == 0 || max as usize > SCHEDULE_PAGE_MAX {
        return Err(Problem::invalid(format!("`limit` must be 1 to {SCHEDULE_PAGE_MAX}, got {max}")));
    }
    let after = given.query.after.map(ScheduleName::new).transpose()?;
    let reply = call.client().list_schedules(ListSchedules { after, max }).await?;
    let read = |row| Schedule::of(&schedule::Schedule::read(row, reply.now), call.sight().in_list());
    let next = reply.schedules.last().filter(|_| reply.schedules.len() >= max as usize);
    let next = next.map(|last| last.name.to_string());
    Ok(Json(SchedulePage { schedules: reply.schedules.iter().map(read).collect(), next }))
}

pub(crate) async fn get(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Schedule>, Problem> {
    show(&call, given.path.schedule()?.as_str()).await
}

async fn show(call: &Call, name: &str) -> Result<Json<Schedule>, Problem> {
    let schedule = call.client().schedule(name).await?.ok_or_else(|| not_found(name))?;
    Ok(Json(Schedule::of(&schedule, call.sight())))
}

fn not_found(name: &str) -> Problem {
    Problem::not_found(format!("no schedule has the name {name:?}"))
}

/// What a schedule starts, and when. Exactly one of `cron`, `every_ms` and `once` is required.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutSchedule {
    /// A cron expression with five or six fields.
    cron: Option<String>,
    /// The time zone of the cron expression. Default: UTC.
    zone: Option<String>,
    /// A fixed interval, in milliseconds.
    every_ms: Option<u64>,
    /// A single time.
    once: Option<Time>,
    /// The earliest occurrence.
    from: Option<Time>,
    /// The latest occurrence.
    to: Option<Time>,
    /// Delays each start by up to this time, in milliseconds.
    jitter_ms: Option<u64>,
    /// What to do with occurrences that no worker started in time. Default: `once`.
    missed: Option<Missed>,
    /// How late an occurrence may start before it counts as missed, in milliseconds. Default: 60000.
    grace_ms: Option<u64>,
    /// What to do while the previous chain is open. Default: `skip`.
    overlap: Option<OverlapPolicy>,
    /// The chain to start. It has no `id`, `at`, `delay_ms`, `blocked_by` or `wait_ms` of its own.
    job: StartChain,
}

/// What to do with missed occurrences.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Missed {
    /// Drop them.
    Skip,
    /// Start the newest one.
    Once,
}

/// What to do with an occurrence while the previous chain is open.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OverlapPolicy {
    Allow,
    Skip,
    Wait,
    Cancel,
}

impl PutSchedule {
    fn spec(&self) -> Result<ScheduleSpec, Problem> {
        let once = self.once.as_ref().map(Time::parse).transpose()?;
        let mut spec = match (&self.cron, self.every_ms, once) {
            (Some(expression), None, None) => Cron::new(expression)?,
            (None, Some(interval), None) => Every::new(Duration::from_millis(interval))?,
            (None, None, Some(at)) => Once::at(at),
            _ => return Err(Problem::invalid("pass exactly one of `cron`, `every_ms` and `once`")),
        };
        if let Some(zone) = &self.zone {
            if self.cron.is_none() {
                return Err(Problem::invalid("`zone` needs `cron`"));
            }
            spec = spec.in_zone(zone);
        }
        if let Some(from) = &self.from {
            spec = spec.starts_at(from.parse()?);
        }
        if let Some(to) = &self.to {
            spec = spec.ends_at(to.parse()?);
        }
        if let Some(jitter) = self.jitter_ms {
            spec = spec.jitter(Duration::from_millis(jitter));
        }
        if let Some(missed) = self.missed {
            spec = spec.missed(match missed {
                Missed::Skip => MissedRuns::Skip,
                Missed::Once => MissedRuns::RunOnce,
            });
        }
        if let Some(grace) = self.grace_ms {
            spec = spec.grace(Duration::from_millis(grace));
        }
        if let Some(overlap) = self.overlap {
            spec = spec.overlap(match overlap {
                OverlapPolicy::Allow => Overlap::Allow,
                OverlapPolicy::Skip => Overlap::Skip,
                OverlapPolicy::Wait => Overlap::Wait,
                OverlapPolicy::Cancel => Overlap::Cancel,
            });
        }
        Ok(spec)
    }
}

pub(crate) async fn put(
    call: Call,
    given: Given<NoQuery, Json<PutSchedule>>,
) -> Result<Json<Schedule>, Problem> {
    let (name, Json(wanted)) = (given.path.schedule()?, given.body);
    wanted.job.check_for_schedule()?;
    let (spec, chain) = (wanted.spec()?, wanted.job.chain()?);
    let before = call.client().schedule(name.as_str()).await?;
    let entry = call.audit("put-schedule", target(name.as_str(), before.as_ref())).await?;
    let put = call.client().put_schedule(&name, spec.clone(), &chain).await.map_err(Problem::from);
    entry.end_with(put, |()| audit::Outcome::word("stored")).await?;
    // The schedule was stored, so a query that fails must not report an error.
    let now = call.client().schedule(name.as_str()).await.ok().flatten();
    let stored = || Schedule::stored(&name, &spec, &chain.job.job_type);
    Ok(Json(now.map_or_else(stored, |now| Schedule::of(&now, call.sight()))))
}

pub(crate) async fn pause(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Schedule>, Problem> {
    let (entry, before) = begin(&call, &given, "pause-schedule").await?;
    let changed = call.client().pause_schedule(before.name.as_str()).await;
    end(&call, entry, &before, changed).await
}

pub(crate) async fn resume(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Schedule>, Problem> {
    let (entry, before) = begin(&call, &given, "resume-schedule").await?;
    let changed = call.client().resume_schedule(before.name.as_str()).await;
    end(&call, entry, &before, changed).await
}

pub(crate) async fn accept(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Schedule>, Problem> {
    let (entry, before) = begin(&call, &given, "accept-schedule").await?;
    let changed = call.client().accept_schedule(before.name.as_str()).await;
    end(&call, entry, &before, changed).await
}

async fn begin(
    call: &Call,
    given: &Given<NoQuery, NoBody>,
    action: &str,
) -> Result<(audit::Entry, schedule::Schedule), Problem> {
    let name = given.path.schedule()?;
    let before = call.client().schedule(name.as_str()).await?.ok_or_else(|| not_found(name.as_str()))?;
    Ok((call.audit(action, target(name.as_str(), Some(&before))).await?, before))
}

async fn end(
    call: &Call,
    entry: audit::Entry,
    before: &schedule::Schedule,
    changed: windlass_core::Result<bool>,
) -> Result<Json<Schedule>, Problem> {
    let word = |changed: &bool| audit::Outcome::word(if *changed { "done" } else { "unchanged" });
    entry.end_with(changed.map_err(Problem::from), word).await?;
    // The change was made, so a query that fails must not report an error: the answer is then the schedule as it was.
    let now = call.client().schedule(before.name.as_str()).await.ok().flatten();
    Ok(Json(Schedule::of(now.as_ref().unwrap_or(before), call.sight())))
}

/// The chain that a schedule was asked to start.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunStarted {
    chain: String,
}

pub(crate) async fn run(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<RunStarted>, Problem> {
    let name = given.path.schedule()?;
    let before = call.client().schedule(name.as_str()).await?;
    let entry = call.audit("run-schedule", target(name.as_str(), before.as_ref())).await?;
    let chain = call.client().run_schedule(name.as_str()).await.map_err(Problem::from);
    let chain = entry.end_with(chain, |chain| {
        let target = audit::Target { chain: Some(chain.to_string()), ..audit::Target::default() };
        audit::Outcome { targets: vec![target], ..audit::Outcome::word("started") }
    });
    let chain = chain.await?;
    Ok(Json(RunStarted { chain: chain.to_string() }))
}

/// The schedule that was deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedSchedule {
    deleted: String,
}

pub(crate) async fn delete(
    call: Call,
    given: Given<NoQuery, NoBody>,
) -> Result<Json<DeletedSchedule>, Problem> {
    let name = given.path.schedule()?;
    let before = call.client().schedule(name.as_str()).await?;
    let entry = call.audit("delete-schedule", target(name.as_str(), before.as_ref())).await?;
    let deleted = match call.client().delete_schedule(name.as_str()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(not_found(name.as_str())),
        Err(error) => Err(error.into()),
    };
    entry.end_with(deleted, |()| audit::Outcome::word("deleted")).await?;
    Ok(Json(DeletedSchedule { deleted: name.to_string() }))
}

/// Describes a schedule in the audit log, as it was before the change.
fn target(name: &str, before: Option<&schedule::Schedule>) -> audit::Target {
    let details = before.and_then(|before| before.details.as_ref().ok());
    audit::Target {
        schedule: Some(name.to_owned()),
        paused: details.map(|details| details.paused_at.is_some()),
        ..audit::Target::default()
    }
}
