//! `windlass doctor`: finds problems, each with a remedy.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::timeout;
use windlass::command::{ChainFilter, ListChains, NextDue, Page, TypeCount, Types};
use windlass::notifier::{Hint, Reach, Topic};
use windlass::schedule::Schedule;
use windlass::store::{Capability, Finding};
use windlass::time::Timestamp;
use windlass::{ChainId, Client, Status, Store};

use super::Context;
use crate::exit::{Code, Failure, Result, with_sources};
use crate::output::note;
use crate::shell::quoted;
use crate::store::{Connection, OpenMode};

/// The largest acceptable difference between this machine's clock and the store's.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(2);

/// How long a ready job may wait before it is reported.
const READY_TIME_MAX: Duration = Duration::from_secs(300);

/// How long a ready job may wait for the first worker of its type before it is reported. The worker may just be starting.
const UNHANDLED_MAX: Duration = Duration::from_secs(10);

/// How late a schedule may be before it is reported. Workers query for due schedules at least every 5 s.
const OVERDUE_MAX: Duration = Duration::from_secs(15);

/// How long a program may not have declared its schedule before it is reported. Workers note it every 10 minutes.
const UNDECLARED_MAX: Duration = Duration::from_secs(30 * 60);

/// The maximum number of failed or cancelled chains to check for waiting dependents.
const ENDED_CHAINS_MAX: u32 = 100;

/// Timeout for a published hint to arrive.
const HINT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest acceptable response time of the store.
const RESPONSE_TIME_MAX: Duration = Duration::from_millis(500);

pub(crate) async fn run(context: &Context) -> Result {
    // Connection and schema errors end the command here, with their own exit code.
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let checks = [
        ("store", client.store().health().await?),
        ("clock", clock(&client).await?),
        ("notifier", notifier(&connection).await),
        ("work", work(&client).await?),
        ("schedules", schedules(&client).await?),
    ];
    let mut found = false;
    for (check, findings) in checks {
        found |= !findings.is_empty();
        for Finding { problem, remedy } in &findings {
            let line = || format!("{check}: {problem}\n  remedy: {remedy}");
            let failed = Line { check, ok: false, problem: Some(problem), remedy: Some(remedy) };
            context.output.print(&failed, line)?;
        }
        if findings.is_empty() {
            context
                .output
                .print(&Line { check, ok: true, problem: None, remedy: None }, || format!("{check}: ok"))?;
        }
    }
    if found { Err(Failure::silent(Code::Failed)) } else { Ok(()) }
}

#[derive(Serialize)]
struct Line<'a> {
    check: &'a str,
    ok: bool,
    problem: Option<&'a str>,
    remedy: Option<&'a str>,
}

/// Checks the clock difference between this machine and the store, and the store's response time.
async fn clock(client: &Client<dyn Store>) -> Result<Vec<Finding>> {
    if !client.store().capabilities().has(Capability::NextDue) {
        return Ok(Vec::new());
    }
    let (before, began) = (Timestamp::now(), Instant::now());
    let there = client.store().next_due(NextDue { types: Types::Only(Vec::new()) }).await?.now;
    let (after, took) = (Timestamp::now(), began.elapsed());
    let mut findings = Vec::new();
    let skew = there.since(after).max(before.since(there));
    if skew > CLOCK_SKEW_MAX {
        findings.push(finding(
            format!("the clocks of this machine and the store differ by {skew:?}"),
            "synchronize both with NTP: due times follow the store's clock",
        ));
    }
    if took > RESPONSE_TIME_MAX {
        findings.push(finding(
            format!("the store took {took:?} to respond"),
            "check the network and the load of the store",
        ));
    }
    Ok(findings)
}

/// Checks whether a published hint is received, and whether those of other processes are.
async fn notifier(connection: &Connection) -> Vec<Finding> {
    let chain = ChainId::new();
    let received = async {
        let mut subscription = connection.notifier.subscribe(vec![Topic::ChainClosed(chain)]).await?;
        connection.notifier.publish(Hint::ChainClosed(chain)).await?;
        Ok::<_, windlass::Error>(subscription.next().await)
    };
    let remedy = "check the notifier's URL and server; behind a pooler in transaction mode, connect it directly. \
                  Workers poll until then";
    match timeout(HINT_TIMEOUT, received).await {
        Ok(Ok(Some(_))) => match connection.notifier.reach() {
            Reach::Lost(error) => vec![finding(
                format!("a notification did not arrive from another process: {}", with_sources(&error)),
                remedy,
            )],
            _ => Vec::new(),
        },
        Ok(Err(error)) => vec![finding(format!("the notifier failed: {}", with_sources(&error)), remedy)],
        Ok(Ok(None)) | Err(_) => {
            vec![finding(format!("a notification did not arrive within {HINT_TIMEOUT:?}"), remedy)]
        }
    }
}

/// Checks whether stored jobs make progress: workers, paused types, backlogs, expired leases and failed blockers.
async fn work(client: &Client<dyn Store>) -> Result<Vec<Finding>> {
    let can = client.store().capabilities();
    if !(can.has(Capability::Count) && can.has(Capability::Workers)) {
        return Ok(Vec::new());
    }
    let (counts, workers) = (client.count(Types::All).await?.types, client.workers().await?);
    let handled: BTreeSet<_> = workers.iter().flat_map(|worker| &worker.types).collect();
    let of_type = |count: &TypeCount| of_type(count, handled.contains(&count.job_type));
    let mut findings: Vec<_> = counts.iter().flat_map(of_type).collect();
    if counts.iter().any(|count| count.blocked > 0) {
        findings.extend(blocked(client).await?);
    }
    Ok(findings)
}

/// Checks whether schedules are started: overdue, unreadable and paused ones, superseded declarations, and types that no
/// worker handles.
async fn schedules(client: &Client<dyn Store>) -> Result<Vec<Finding>> {
    let can = client.store().capabilities();
    if !(can.has(Capability::Schedules) && can.has(Capability::Workers)) {
        return Ok(Vec::new());
    }
    let (schedules, workers) = (client.schedules().list().await?, client.workers().await?);
    let handled: BTreeSet<_> =
        workers.iter().flat_map(|worker| worker.types.iter().map(|name| name.as_str())).collect();
    // Programs whose workers have declared a schedule lately.
    let live: BTreeSet<_> = schedules
        .iter()
        .filter(|schedule| undeclared_since(schedule).is_none())
        .filter_map(program)
        .collect();
    let findings = schedules.iter().flat_map(|schedule| {
        let undeclared = undeclared(schedule, &live);
        of_schedule(schedule, &handled).into_iter().chain(undeclared)
    });
    Ok(findings.collect())
}

fn program(schedule: &Schedule) -> Option<&str> {
    schedule.details.as_ref().ok()?.program.as_deref()
}

/// Reports a schedule that its program no longer declares, or whose program does not run.
fn undeclared(schedule: &Schedule, live: &BTreeSet<&str>) -> Option<Finding> {
    let (name, program, since) = (&schedule.name, program(schedule)?, undeclared_since(schedule)?);
    let is_marked = schedule.details.as_ref().is_ok_and(|details| details.undeclared_at.is_some());
    Some(if is_marked || live.contains(program) {
        finding(
            format!("program `{program}` no longer declares schedule `{name}`: it last did at {since}"),
            format!("if it was removed from the code, run `windlass schedules delete {}`", quoted(name)),
        )
    } else {
        finding(
            format!("program `{program}` has not declared schedule `{name}` since {since}"),
            format!("start the program; if it is gone, run `windlass schedules delete {}`", quoted(name)),
        )
    })
}

/// Returns when a program declared a schedule last, if a worker of the program noticed that it is no longer declared, or
/// if it is long ago.
pub(super) fn undeclared_since(schedule: &Schedule) -> Option<Timestamp> {
    let details = schedule.details.as_ref().ok()?;
    let at = details.declared_at?;
    (details.undeclared_at.is_some() || schedule.now.since(at) > UNDECLARED_MAX).then_some(at)
}

fn of_schedule(schedule: &Schedule, handled: &BTreeSet<&str>) -> Vec<Finding> {
    let name = &schedule.name;
    let details = match &schedule.details {
        Ok(details) => details,
        Err(error) => {
            return vec![finding(
                format!("schedule `{name}` cannot be read: {error}"),
                "update this program; a worker that cannot read a schedule does not start it",
            )];
        }
    };
    let mut findings = Vec::new();
    if details.paused_at.is_some() {
        findings.push(finding(
            format!("schedule `{name}` is paused"),
            format!("run `windlass schedules resume {}` when it may continue", quoted(name)),
        ));
    } else if is_overdue(schedule) {
        let late = schedule.overdue_by().unwrap_or_default().as_secs();
        let late = humantime::format_duration(Duration::from_secs(late));
        findings.push(finding(
            format!("schedule `{name}` has been due for {late}"),
            "start a worker on this store; if one runs, update it: it may not know the time zone or the expression",
        ));
    }
    if details.ended_at.is_none() && !handled.contains(details.job_type.as_str()) {
        let job_type = &details.job_type;
        findings.push(finding(
            format!("schedule `{name}` starts jobs of type `{job_type}`, which no live worker handles"),
            format!("start a worker for the type, e.g. `windlass work {} --exec COMMAND`", quoted(job_type)),
        ));
    }
    if let Some(program) = &details.refused_program {
        findings.push(finding(
            format!("program `{program}` declares schedule `{name}` with content that was superseded"),
            format!(
                "deploy the newer program, or run `windlass schedules accept {}` to accept the rollback",
                quoted(name)
            ),
        ));
    }
    findings
}

/// Whether a schedule has been due for so long that no worker seems to visit it.
pub(super) fn is_overdue(schedule: &Schedule) -> bool {
    schedule.overdue_by().is_some_and(|late| late > OVERDUE_MAX)
}

fn of_type(count: &TypeCount, is_handled: bool) -> Vec<Finding> {
    let TypeCount { job_type, pending, expired_leases, .. } = count;
    let mut findings = Vec::new();
    let waits = count.oldest_ready.map(|since| Timestamp::now().since(since));
    let waited = humantime::format_duration(Duration::from_secs(waits.unwrap_or_default().as_secs()));
    if count.paused && *pending > 0 {
        findings.push(finding(
            format!("`{job_type}` is paused, but has pending jobs ({pending})"),
            format!("run `windlass resume {}` when it may continue", quoted(job_type)),
        ));
    } else if waits.is_some_and(|waits| waits > UNHANDLED_MAX) && !is_handled {
        findings.push(finding(
            format!("jobs of type `{job_type}` have been due for {waited}, and no live worker handles them"),
            format!("start a worker for the type, e.g. `windlass work {} --exec COMMAND`", quoted(job_type)),
        ));
    } else if waits.is_some_and(|waits| waits > READY_TIME_MAX) {
        findings.push(finding(
            format!("jobs of type `{job_type}` have been due for {waited}: the workers cannot keep up"),
            "raise the concurrency of the workers, or start more workers",
        ));
    }
    if *expired_leases > 0 && !is_handled {
        findings.push(finding(
            format!("jobs of type `{job_type}` have expired leases ({expired_leases}), and no live worker requeues them"),
            "start a worker for the type: it also requeues jobs with expired leases",
        ));
    }
    findings
}

/// Finds jobs that are blocked by a failed or cancelled chain. Checks only the newest `ENDED_CHAINS_MAX` such chains.
async fn blocked(client: &Client<dyn Store>) -> Result<Vec<Finding>> {
    let statuses = vec![Status::Failed, Status::Cancelled];
    let filter = ChainFilter { statuses, ..ChainFilter::default() };
    let page = Page { max: ENDED_CHAINS_MAX + 1, ..Page::default() };
    let mut findings = Vec::new();
    let mut reply = client.list_chains(ListChains { filter, page }).await?;
    let checked = reply.chains.len().min(ENDED_CHAINS_MAX as usize);
    if reply.chains.len() > checked || reply.next.is_some() {
        note(&format!(
            "checked only the newest {checked} failed or cancelled chains for blocked jobs: `windlass jobs --status \
             blocked --limit 0` lists all blocked jobs"
        ));
    }
    reply.chains.truncate(checked);
    for chain in reply.chains {
        let dependents = client.dependents(chain.id).await?;
        let waiting = dependents.iter().filter(|job| job.status == Status::Blocked).count();
        if waiting > 0 {
            let (id, status) = (chain.id, chain.status());
            findings.push(finding(
                format!("chain {id} is {status} and blocks other jobs ({waiting})"),
                format!(
                    "run `windlass retry {id}`, or cancel the blocked jobs, which `windlass chains {id}` lists"
                ),
            ));
        }
    }
    Ok(findings)
}

fn finding(problem: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { problem: problem.into(), remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use windlass::command::EndedJobs;
    use windlass::name::TypeName;

    use super::*;

    /// A type with one job that has been due for this time.
    fn count(job_type: &str, due_for: Duration) -> TypeCount {
        let now = std::time::SystemTime::now();
        TypeCount {
            job_type: TypeName::new(job_type).unwrap(),
            blocked: 0,
            pending: 1,
            running: 0,
            completed: 0,
            failed: 0,
            cancelled: 0,
            ended: EndedJobs::default(),
            oldest_ready: Some((now - due_for).into()),
            expired_leases: 0,
            paused: false,
        }
    }

    #[test]
    fn an_unhandled_type_is_a_problem_after_some_seconds() {
        let findings = |seconds| of_type(&count("mail", Duration::from_secs(seconds)), false);
        assert_eq!(findings(8), []);
        let found = findings(12);
        assert!(found[0].problem.starts_with("jobs of type `mail` have been due for 12s"), "{found:?}");
        assert_eq!(of_type(&count("mail", Duration::from_secs(12)), true), []);
    }

    #[test]
    fn remedies_are_quoted_for_the_shell() {
        let found = of_type(&count("send mail", Duration::from_secs(60)), false);
        assert!(found[0].remedy.contains("`windlass work 'send mail' --exec COMMAND`"), "{found:?}");
    }
}
