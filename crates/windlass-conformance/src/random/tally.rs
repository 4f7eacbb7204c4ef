use std::collections::BTreeMap;
use std::fmt;

use windlass_core::command::{
    Cancelled, Command, CompleteFromOutsideReply, Created, DeleteReply, Lost, Outcome, Renewed, Reply,
    Retried, Ripple, ScheduleChanged, Settled, TriggerReply,
};
use windlass_core::{Capabilities, Capability, Refusal, Result, Status};

/// Statistics of random runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of commands.
    pub commands: usize,
    /// Number of commands that did or found something.
    pub accepted: usize,
    /// Number of commands in transactions that were rolled back.
    pub rolled_back: usize,
    /// Number of replies of each kind.
    pub kinds: BTreeMap<String, usize>,
}

/// Kinds of reply that a long run of the commands that every store supports must produce.
const CORE_KINDS: &[&str] = &[
    "create new",
    "create repeated",
    "create existing",
    "create refused IdTaken",
    "create refused BlockerNotFound",
    "create refused WaitsForItself",
    "create refused NoAttempts",
    "acquire jobs",
    "acquire nothing",
    "renew held",
    "renew lost NotFound",
    "renew lost Requeued",
    "renew lost TakenOver",
    "renew lost Closed",
    "settle complete applied",
    "settle continue applied",
    "settle retry applied",
    "settle reschedule applied",
    "settle fail applied",
    "settle release applied",
    "settle retry exhausted",
    "settle already applied",
    "settle lost NotFound",
    "settle lost Requeued",
    "settle lost TakenOver",
    "settle lost Closed",
    "settle refused IdTaken",
    "settle refused BlockerNotFound",
    "settle refused WaitsForItself",
    "settle with chains",
    "reap jobs",
    "reap nothing",
    "expire chains",
    "expire nothing",
    "get_chains found",
    "get_chains missing",
    "get_jobs found",
    "get_jobs missing",
    "ripple unblocked",
    "ripple closed",
    "error",
];

/// Kinds of reply that need one or more optional capabilities.
const FURTHER_KINDS: &[(&[Capability], &[&str])] = &[
    (
        &[Capability::Outside],
        &["outside applied", "outside already applied", "outside changed", "outside refused"],
    ),
    (
        &[Capability::Cancel],
        &["cancel cancelled", "cancel asked", "cancel running", "cancel closed", "cancel not found"],
    ),
    (&[Capability::Cancel], &["settle cancelled", "settle without successor"]),
    (&[Capability::Cancel, Capability::Outside], &["outside cancelled"]),
    (&[Capability::Trigger], &["trigger triggered", "trigger refused"]),
    (&[Capability::Retry], &["retry retried", "retry already", "retry not retriable", "retry refused"]),
    (&[Capability::Delete], &["delete deleted", "delete refused"]),
    (&[Capability::Exchange], &["exchange"]),
    (&[Capability::CreateAndAcquire], &["create_and_acquire"]),
    (&[Capability::NextDue], &["next_due"]),
    (&[Capability::SetRetention], &["set_retention"]),
    (&[Capability::Pause], &["pause"]),
    (&[Capability::Lists], &["list_chains", "list_jobs", "list_dependents"]),
    (&[Capability::Attempts], &["list_attempts"]),
    (&[Capability::Count], &["count"]),
    (
        &[Capability::Schedules],
        &[
            "schedule applied",
            "schedule fired",
            "schedule not created",
            "schedule repeated",
            "schedule conflict",
            "schedule not due",
            "schedule too late",
            "get_schedules",
            "list_schedules",
            "due_schedules",
        ],
    ),
];

impl Tally {
    /// Asserts that at least half of the commands were accepted and that every kind of reply occurred.
    pub fn assert_thorough(&self, capabilities: Capabilities) {
        let further = FURTHER_KINDS
            .iter()
            .filter(|(needed, _)| needed.iter().all(|one| capabilities.has(*one)))
            .flat_map(|(_, kinds)| *kinds);
        let missing: Vec<_> =
            CORE_KINDS.iter().chain(further).filter(|kind| !self.kinds.contains_key(**kind)).collect();
        assert!(missing.is_empty(), "these kinds of reply never occurred: {missing:?}\n{self}");
        assert!(self.accepted * 2 >= self.commands, "fewer than half of the commands were accepted\n{self}");
    }

    /// Asserts that at least a fifth of the commands were in transactions that were rolled back.
    pub fn assert_rolled_back(&self) {
        assert!(self.rolled_back * 5 >= self.commands, "too few commands were rolled back\n{self}");
    }

    /// Adds the statistics of another run.
    pub fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.accepted += other.accepted;
        self.rolled_back += other.rolled_back;
        for (kind, times) in &other.kinds {
            *self.kinds.entry(kind.clone()).or_default() += times;
        }
    }

    pub(super) fn count(&mut self, command: &Command, reply: &Result<Reply>) {
        self.commands += 1;
        let kinds = match reply {
            Ok(reply) => kinds(command, reply),
            Err(_) => vec!["error".to_owned()],
        };
        // A command counts as accepted if any part of its reply says that something was done or found.
        let refused =
            ["refused", "lost", "nothing", "missing", "not ", "error", "changed", "running", "closed"];
        if kinds.iter().any(|kind| !refused.iter().any(|word| kind.contains(word))) {
            self.accepted += 1;
        }
        for kind in kinds {
            *self.kinds.entry(kind).or_default() += 1;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} commands, {} accepted, {} rolled back",
            self.commands, self.accepted, self.rolled_back
        )?;
        self.kinds.iter().try_for_each(|(kind, times)| writeln!(f, "  {times:>6} {kind}"))
    }
}

fn kinds(command: &Command, reply: &Reply) -> Vec<String> {
    match reply {
        Reply::Create(reply) => reply.chains.iter().map(created).collect(),
        Reply::Acquire(reply) => {
            let jobs = if reply.jobs.is_empty() { "acquire nothing" } else { "acquire jobs" };
            [jobs.to_owned()].into_iter().chain(ripple(&reply.ripple)).collect()
        }
        Reply::Renew(reply) => reply.leases.iter().map(renewed).collect(),
        Reply::Settle(reply) => {
            let outcomes: Vec<_> = match command {
                Command::Settle(settle) => settle.settlements.iter().map(|item| &item.outcome).collect(),
                _ => Vec::new(),
            };
            let settled =
                outcomes.iter().zip(&reply.settled).flat_map(|(outcome, item)| settled(outcome, item));
            settled.chain(ripple(&reply.ripple)).collect()
        }
        Reply::Reap(reply) if reply.reaped.is_empty() => vec!["reap nothing".to_owned()],
        Reply::Reap(reply) => ["reap jobs".to_owned()].into_iter().chain(ripple(&reply.ripple)).collect(),
        Reply::Expire(reply) if reply.jobs == 0 => vec!["expire nothing".to_owned()],
        Reply::Expire(_) => vec!["expire chains".to_owned()],
        Reply::GetChains(reply) => found("get_chains", reply.chains.iter().map(Option::is_some)),
        Reply::GetJobs(reply) => found("get_jobs", reply.jobs.iter().map(Option::is_some)),
        other => managed(command, other),
    }
}

fn managed(command: &Command, reply: &Reply) -> Vec<String> {
    match reply {
        Reply::CompleteFromOutside(reply) => vec![
            match reply {
                CompleteFromOutsideReply::Applied(applied) if applied.latest.status == Status::Cancelled => {
                    "outside cancelled"
                }
                CompleteFromOutsideReply::Applied(_) => "outside applied",
                CompleteFromOutsideReply::AlreadyApplied => "outside already applied",
                CompleteFromOutsideReply::Changed { .. } => "outside changed",
                CompleteFromOutsideReply::NotFound => "outside not found",
                CompleteFromOutsideReply::Busy => "outside busy",
                CompleteFromOutsideReply::Refused(_) => "outside refused",
            }
            .to_owned(),
        ],
        Reply::Cancel(reply) => {
            reply.chains.iter().map(|item| format!("cancel {}", cancelled(*item))).collect()
        }
        Reply::Trigger(TriggerReply::Triggered(_)) => vec!["trigger triggered".to_owned()],
        Reply::Trigger(TriggerReply::Refused(_)) => vec!["trigger refused".to_owned()],
        Reply::Retry(reply) => reply.chains.iter().map(|item| format!("retry {}", retried(item))).collect(),
        Reply::Delete(DeleteReply::Deleted(_)) => vec!["delete deleted".to_owned()],
        Reply::Delete(_) => vec!["delete refused".to_owned()],
        Reply::ChangeSchedules(reply) => {
            reply.changes.iter().map(|item| format!("schedule {}", schedule_changed(item))).collect()
        }
        _ => vec![command.name().to_owned()],
    }
}

const fn schedule_changed(item: &ScheduleChanged) -> &'static str {
    match item {
        ScheduleChanged::Applied { created: None } => "applied",
        ScheduleChanged::Applied { created: Some(Created::New { .. }) } => "fired",
        ScheduleChanged::Applied { created: Some(_) } => "not created",
        ScheduleChanged::Repeated => "repeated",
        ScheduleChanged::Conflict => "conflict",
        ScheduleChanged::NotDue => "not due",
        ScheduleChanged::TooLate => "too late",
        ScheduleChanged::Busy => "busy",
    }
}

const fn cancelled(item: Cancelled) -> &'static str {
    match item {
        Cancelled::Cancelled { .. } => "cancelled",
        Cancelled::Asked { .. } => "asked",
        Cancelled::Running { .. } => "running",
        Cancelled::Closed { .. } => "closed",
        Cancelled::NotFound => "not found",
        Cancelled::Busy => "busy",
    }
}

const fn retried(item: &Retried) -> &'static str {
    match item {
        Retried::Retried { .. } => "retried",
        Retried::AlreadyRetried => "already",
        Retried::NotRetriable(_) => "not retriable",
        Retried::NotFound => "not found",
        Retried::Refused(_) => "refused",
        Retried::Busy => "busy",
    }
}

fn created(item: &Created) -> String {
    match item {
        Created::New { repeated: false, .. } => "create new".to_owned(),
        Created::New { repeated: true, .. } => "create repeated".to_owned(),
        Created::Existing(_) => "create existing".to_owned(),
        Created::Busy => "create busy".to_owned(),
        Created::Refused(refusal) => format!("create refused {}", name(refusal)),
    }
}

fn renewed(item: &Renewed) -> String {
    match item {
        Renewed::Held { .. } => "renew held".to_owned(),
        Renewed::Busy => "renew busy".to_owned(),
        Renewed::Lost(reason) => format!("renew lost {}", lost(*reason)),
    }
}

fn settled(outcome: &Outcome, item: &Settled) -> Vec<String> {
    let kind = match outcome {
        Outcome::Complete { .. } => "complete",
        Outcome::Continue { .. } => "continue",
        Outcome::Retry { .. } => "retry",
        Outcome::Reschedule { .. } => "reschedule",
        Outcome::Fail { .. } => "fail",
        Outcome::Release => "release",
    };
    match item {
        Settled::Applied(applied) => {
            let stopped = Created::Refused(Refusal::CancelRequested);
            let more = [
                (!applied.created.is_empty(), "settle with chains"),
                (applied.created.contains(&stopped), "settle without successor"),
                (applied.job.status == Status::Cancelled, "settle cancelled"),
                (kind == "retry" && applied.job.status == Status::Failed, "settle retry exhausted"),
            ];
            let more = more.into_iter().filter(|(seen, _)| *seen).map(|(_, kind)| kind.to_owned());
            [format!("settle {kind} applied")].into_iter().chain(more).collect()
        }
        Settled::AlreadyApplied(_) => vec!["settle already applied".to_owned()],
        Settled::Busy => vec!["settle busy".to_owned()],
        Settled::Lost(reason) => vec![format!("settle lost {}", lost(*reason))],
        Settled::Refused(refusal) => vec![format!("settle refused {}", name(refusal))],
    }
}

const fn lost(reason: Lost) -> &'static str {
    match reason {
        Lost::NotFound => "NotFound",
        Lost::Requeued => "Requeued",
        Lost::TakenOver => "TakenOver",
        Lost::Closed(_) => "Closed",
    }
}

/// Returns the name of the variant.
fn name(refusal: &Refusal) -> String {
    let text = format!("{refusal:?}");
    text.split(|char: char| !char.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

fn ripple(ripple: &Ripple) -> Vec<String> {
    let unblocked = (!ripple.unblocked.is_empty()).then(|| "ripple unblocked".to_owned());
    let closed = (!ripple.closed.is_empty()).then(|| "ripple closed".to_owned());
    unblocked.into_iter().chain(closed).collect()
}

fn found(command: &str, items: impl Iterator<Item = bool>) -> Vec<String> {
    items.map(|found| format!("{command} {}", if found { "found" } else { "missing" })).collect()
}
