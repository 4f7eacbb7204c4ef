//! The sequence of commits: the truth against which everything else is compared.
//!
//! The journal records commands that were executed, with their replies, below the layer that injects faults.
//! It keeps its own compact model of jobs and chains, and reports a forbidden commit immediately.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::command::*;
use windlass_core::{ChainId, ClosedAs, Fence, JobId, OnBlockerFailure, Payload, Status, TypeName, WorkerId};

use super::fact::Fact;
use super::invariant::{Invariant, Violation};
use super::jobs::{INTERRUPTED, Mark, Plan, TIMED, error_fence};
use super::world::{NodeId, short};

/// A lease with at least this much time left can still be renewed.
const RENEWABLE: Duration = Duration::from_millis(400);

#[derive(Default)]
pub(crate) struct Journal {
    commits: u64,
    facts: BTreeMap<Fact, u32>,
    pub(crate) acquired: BTreeMap<(JobId, Fence), Acquisition>,
    held: BTreeMap<JobId, Fence>,
    pub(crate) ended: BTreeMap<(JobId, Fence), Ended>,
    /// Counted attempts since the creation or the latest retry.
    counted: BTreeMap<JobId, u32>,
    closed_jobs: BTreeSet<JobId>,
    pub(crate) chains: BTreeMap<ChainId, Life>,
    pub(crate) rows: Vec<Row>,
    runs: BTreeMap<JobId, Vec<Fence>>,
}

/// A job that was acquired.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) node: NodeId,
    pub(crate) worker: WorkerId,
    pub(crate) attempt: u32,
    pub(crate) job_type: TypeName,
    pub(crate) at: Instant,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Completed,
    Continued,
    Retried,
    Rescheduled,
    Released,
    Failed,
    Cancelled,
    Reaped,
    Displaced,
}

/// The life of a chain, measured in commits.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Spans from creation or a retry to the next close.
    pub(crate) open: Vec<(u64, Option<u64>)>,
    pub(crate) ends: Vec<ClosedAs>,
    pub(crate) deleted: bool,
}

/// A row that a handler writes in its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) job: JobId,
    pub(crate) fence: Fence,
    pub(crate) kind: RowKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// Written before the work.
    Prepared,
    /// Written together with the end of the attempt.
    Finished,
}

/// What a commit revealed.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    pub(crate) reaped: Vec<(JobId, Acquisition)>,
}

impl Findings {
    fn add(&mut self, invariant: Invariant, what: String) {
        self.violations.push(Violation { invariant, what });
    }
}

impl Journal {
    /// Records a command that was executed for a node.
    pub(crate) fn commit(&mut self, node: NodeId, command: &Command, reply: &Reply) -> Findings {
        self.commits += 1;
        let mut findings = Findings::default();
        match (command, reply) {
            (Command::Create(create), Reply::Create(reply)) => self.created(&create.chains, &reply.chains),
            (Command::ChangeSchedules(request), Reply::ChangeSchedules(reply)) => {
                self.fired(request, reply, &mut findings);
            }
            (Command::Acquire(acquire), Reply::Acquire(reply)) => {
                self.acquired(node, acquire.worker, reply, &mut findings);
            }
            (Command::Settle(settle), Reply::Settle(reply)) => self.settled(settle, reply, &mut findings),
            (Command::Exchange(exchange), Reply::Exchange(reply)) => {
                self.settled(&exchange.settle, &reply.settle, &mut findings);
                self.acquired(node, exchange.acquire.worker, &reply.acquire, &mut findings);
            }
            (Command::CreateAndAcquire(joined), Reply::CreateAndAcquire(reply)) => {
                self.created(&joined.create.chains, &reply.create.chains);
                self.acquired(node, joined.acquire.worker, &reply.acquire, &mut findings);
            }
            (Command::Reap(_), Reply::Reap(reply)) => self.reaped(reply, &mut findings),
            (Command::CompleteFromOutside(request), Reply::CompleteFromOutside(reply)) => {
                self.completed_from_outside(request, reply, &mut findings);
            }
            (Command::Cancel(_), Reply::Cancel(reply)) => self.cancelled(reply, &mut findings),
            (Command::Trigger(_), Reply::Trigger(TriggerReply::Triggered(jobs))) => {
                jobs.iter().for_each(|triggered| self.add(Fact::JobTriggered(triggered.job.job)));
            }
            (Command::Retry(_), Reply::Retry(reply)) => self.retried(reply),
            (Command::Delete(_), Reply::Delete(DeleteReply::Deleted(deleted))) => self.deleted(deleted),
            (Command::Expire(_), Reply::Expire(reply)) => {
                for expired in &reply.chains {
                    self.add(Fact::ChainExpired(expired.chain));
                    self.life(expired.chain).deleted = true;
                }
            }
            _ => {}
        }
        findings
    }

    /// Records rows that were committed. The commands of the same transaction must already be recorded.
    pub(crate) fn commit_rows(&mut self, rows: &[Row]) -> Findings {
        let mut findings = Findings::default();
        for row in rows {
            let Row { job, fence, kind } = *row;
            let name = short(job.as_uuid());
            match kind {
                RowKind::Prepared if self.held.get(&job) != Some(&fence) => findings.add(
                    Invariant::StaleAttemptsWriteNothing,
                    format!("job {name} was prepared by an attempt that no longer held it"),
                ),
                RowKind::Finished if !self.ended.contains_key(&(job, fence)) => findings.add(
                    Invariant::EffectsCommitWithTheEnd,
                    format!("an attempt of job {name} left a row without its end"),
                ),
                _ => {}
            }
            self.rows.push(*row);
        }
        findings
    }

    /// Consumes a fact that is announced. Returns false if it was never committed, or was announced before.
    pub(crate) fn take(&mut self, fact: &Fact) -> bool {
        match self.facts.get_mut(fact) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// Records that a handler runs. Returns how often the job ran before, or `None` if this attempt already
    /// ran.
    pub(crate) fn run(&mut self, job: JobId, fence: Fence) -> Option<usize> {
        let runs = self.runs.entry(job).or_default();
        let is_new = !runs.contains(&fence);
        is_new.then(|| {
            runs.push(fence);
            runs.len() - 1
        })
    }

    /// Returns the jobs that a worker holds, except for the type with a timeout, whose leases may expire.
    pub(crate) fn held_by(&self, worker: WorkerId) -> Vec<JobId> {
        let of = |(job, fence): &(&JobId, &Fence)| {
            self.acquired
                .get(&(**job, **fence))
                .is_some_and(|of| of.worker == worker && of.job_type.as_str() != TIMED)
        };
        self.held.iter().filter(of).map(|(job, _)| *job).collect()
    }

    pub(crate) fn is_or_was_closed(&self, chain: ChainId) -> bool {
        self.chains.get(&chain).is_some_and(|life| !life.ends.is_empty() || life.deleted)
    }

    fn add(&mut self, fact: Fact) {
        *self.facts.entry(fact).or_default() += 1;
    }

    fn life(&mut self, chain: ChainId) -> &mut Life {
        self.chains.entry(chain).or_default()
    }

    fn open(&mut self, chain: ChainId) {
        let at = self.commits;
        self.life(chain).open.push((at, None));
    }

    fn close(&mut self, chain: ChainId, closed_as: Option<ClosedAs>) {
        let at = self.commits;
        let life = self.life(chain);
        if let Some((_, until @ None)) = life.open.last_mut() {
            *until = Some(at);
        }
        life.ends.extend(closed_as);
    }

    fn created(&mut self, chains: &[NewChain], replies: &[Created]) {
        for (new, created) in chains.iter().zip(replies) {
            let Created::New { job, repeated: false } = created else { continue };
            self.add(Fact::ChainCreated(new.id));
            self.open(new.id);
            self.summary(*job);
        }
    }

    /// Records the chains that schedules have started.
    fn fired(&mut self, request: &ChangeSchedules, reply: &ChangeSchedulesReply, findings: &mut Findings) {
        for (change, changed) in request.changes.iter().zip(&reply.changes) {
            let (ScheduleAction::Put(put), ScheduleChanged::Applied { created: Some(created) }) =
                (&change.action, changed)
            else {
                continue;
            };
            self.created(put.chain.as_slice(), std::slice::from_ref(created));
            let planned = put.chain.as_ref().and_then(|chain| chain.id.occurrence());
            if let Some(early) = planned.filter(|planned| !planned.is_manual && reply.now < planned.at) {
                let what = format!("the occurrence of {} was started at {}", early.at, reply.now);
                findings.add(Invariant::OccurrencesStartInTime, what);
            }
        }
    }

    /// Records a job that was created.
    fn summary(&mut self, job: JobSummary) {
        self.add(Fact::JobCreated(job.job));
        match job.status {
            Status::Blocked => self.add(Fact::JobBlocked(job.job)),
            Status::Failed => {
                self.closed_jobs.insert(job.job);
                self.close(job.chain, Some(ClosedAs::Failed));
            }
            _ => {}
        }
    }

    fn ripple(&mut self, ripple: &Ripple) {
        for unblocked in &ripple.unblocked {
            self.add(Fact::JobUnblocked(unblocked.job.job));
        }
        for closed in &ripple.closed {
            self.add(Fact::ChainClosed(closed.chain, closed.closed_as));
            self.close(closed.chain, Some(closed.closed_as));
        }
    }

    fn acquired(&mut self, node: NodeId, worker: WorkerId, reply: &AcquireReply, findings: &mut Findings) {
        self.ripple(&reply.ripple);
        for Acquired { job, .. } in &reply.jobs {
            let name = short(job.id.as_uuid());
            self.held.insert(job.id, job.fence);
            let attempt = job.attempt;
            let acquisition =
                Acquisition { node, worker, attempt, job_type: job.job_type.clone(), at: Instant::now() };
            let left = job.lease.as_ref().map_or(Duration::ZERO, |lease| lease.until.since(reply.now));
            match self.acquired.entry((job.id, job.fence)) {
                Entry::Vacant(entry) => drop(entry.insert(acquisition)),
                // The same jobs, returned again after a lost reply. If the lease can still be renewed, the
                // acquisition counts from now on, and the worker must not lose it.
                Entry::Occupied(mut entry) => {
                    if left > RENEWABLE {
                        entry.insert(acquisition);
                    }
                    continue;
                }
            }
            self.add(Fact::AttemptStarted(job.id, attempt, worker));
            let counted = self.counted.get(&job.id).copied().unwrap_or(0);
            if attempt != counted + 1 || job.max_attempts.is_some_and(|max| attempt > max) {
                findings.add(
                    Invariant::AttemptsAreCountedRight,
                    format!("job {name} is in attempt {attempt} after {counted} that count"),
                );
            }
            let receives = job.on_blocker_failure == OnBlockerFailure::Receive;
            for blocker in job.blockers.iter() {
                let ends = self.chains.get(&blocker.chain).map_or(&[][..], |life| &life.ends);
                let ended = ends.contains(&ClosedAs::Completed) || receives && !ends.is_empty();
                if !ended {
                    findings.add(Invariant::BlockedJobsDoNotRun, format!("job {name} runs before its time"));
                }
            }
        }
    }

    fn settled(&mut self, settle: &Settle, reply: &SettleReply, findings: &mut Findings) {
        for (settlement, settled) in settle.settlements.iter().zip(&reply.settled) {
            if let Settled::Applied(applied) = settled {
                self.applied(settlement, applied, findings);
            }
        }
        self.ripple(&reply.ripple);
    }

    fn applied(&mut self, settlement: &Settlement, applied: &Applied, findings: &mut Findings) {
        let Settlement { job, fence, outcome } = settlement;
        let name = short(job.as_uuid());
        if self.held.remove(job) != Some(*fence) || writer(outcome).is_some_and(|by| by != *fence) {
            let what =
                format!("{} of job {name} was written by an attempt that did not hold it", kind(outcome));
            findings.add(Invariant::StaleAttemptsWriteNothing, what);
        }
        if matches!(outcome, Outcome::Retry { error, .. } if error.to_string().contains(INTERRUPTED)) {
            let what = format!("an attempt of job {name} was stopped but counts");
            findings.add(Invariant::AttemptsAreCountedRight, what);
        }
        let Some(Acquisition { attempt, worker, .. }) = self.acquired.get(&(*job, *fence)).cloned() else {
            return;
        };
        let ended = match (outcome, applied.job.status) {
            (_, Status::Cancelled) => Ended::Cancelled,
            (_, Status::Failed) => Ended::Failed,
            (Outcome::Complete { .. }, _) => Ended::Completed,
            (Outcome::Continue { .. }, _) => Ended::Continued,
            (Outcome::Reschedule { .. }, _) => Ended::Rescheduled,
            (Outcome::Release, _) => Ended::Released,
            (Outcome::Retry { .. } | Outcome::Fail { .. }, _) => Ended::Retried,
        };
        self.ended.insert((*job, *fence), ended);
        if ended == Ended::Retried {
            *self.counted.entry(*job).or_default() += 1;
        }
        self.add(Fact::ended(ended, *job, attempt, worker, applied.next.map(|next| next.job)));
        if !applied.job.status.is_open() {
            self.job_closed(*job, findings);
        }
        if let Some(next) = applied.next {
            self.add(Fact::JobCreated(next.job));
            if next.status == Status::Blocked {
                self.add(Fact::JobBlocked(next.job));
            }
        }
        self.created(outcome.carried(), &applied.created);
    }

    fn job_closed(&mut self, job: JobId, findings: &mut Findings) {
        if !self.closed_jobs.insert(job) {
            findings.add(Invariant::JobsCloseOnce, format!("job {} was closed again", short(job.as_uuid())));
        }
    }

    fn reaped(&mut self, reply: &ReapReply, findings: &mut Findings) {
        for reaped in &reply.reaped {
            let job = reaped.job.job;
            self.add(Fact::AttemptReaped(job, reaped.attempt, reaped.worker));
            match reaped.job.status {
                Status::Failed => self.add(Fact::JobFailed(job, reaped.attempt, reaped.worker)),
                Status::Cancelled => self.add(Fact::JobCancelled(job, reaped.attempt, reaped.worker)),
                _ => {}
            }
            *self.counted.entry(job).or_default() += 1;
            let Some(fence) = self.held.remove(&job) else { continue };
            self.ended.insert((job, fence), Ended::Reaped);
            findings.reaped.extend(self.acquired.get(&(job, fence)).map(|of| (job, of.clone())));
            if !reaped.job.status.is_open() {
                self.job_closed(job, findings);
            }
        }
        self.ripple(&reply.ripple);
    }

    fn completed_from_outside(
        &mut self,
        request: &CompleteFromOutside,
        reply: &CompleteFromOutsideReply,
        findings: &mut Findings,
    ) {
        let CompleteFromOutsideReply::Applied(applied) = reply else { return };
        self.job_closed(request.job, findings);
        if let Some(fence) = self.held.remove(&request.job) {
            self.ended.insert((request.job, fence), Ended::Displaced);
        }
        self.ripple(&applied.ripple);
    }

    fn cancelled(&mut self, reply: &CancelReply, findings: &mut Findings) {
        for cancelled in &reply.chains {
            if let Cancelled::Cancelled { job, .. } = cancelled {
                self.job_closed(*job, findings);
            }
        }
        self.ripple(&reply.ripple);
    }

    fn retried(&mut self, reply: &RetryReply) {
        for retried in &reply.chains {
            if let Retried::Retried { job, .. } = retried {
                self.add(Fact::ChainRetried(job.chain));
                self.closed_jobs.remove(&job.job);
                self.counted.remove(&job.job);
                self.open(job.chain);
            }
        }
    }

    fn deleted(&mut self, deleted: &Deleted) {
        for chain in &deleted.chains {
            self.add(Fact::ChainDeleted(chain.chain));
            self.close(chain.chain, None);
            self.life(chain.chain).deleted = true;
            if let Some((job, _)) = chain.running {
                self.held.remove(&job);
            }
        }
    }
}

/// Returns the fence of the attempt that produced an outcome. Handlers put their fence into everything they
/// write.
fn writer(outcome: &Outcome) -> Option<Fence> {
    let decode = |payload: &Payload| payload.decode::<Mark>().ok().map(|mark| Fence(mark.fence));
    match outcome {
        Outcome::Complete { output, .. } => decode(output),
        Outcome::Continue { next, .. } => next.job.input.decode::<Plan>().ok().map(|plan| Fence(plan.by)),
        Outcome::Retry { error, .. } | Outcome::Fail { error, .. } => error_fence(&error.to_string()),
        Outcome::Reschedule { .. } | Outcome::Release => None,
    }
}

const fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Complete { .. } => "the completion",
        Outcome::Continue { .. } => "the continuation",
        Outcome::Retry { .. } => "the retry",
        Outcome::Reschedule { .. } => "the rescheduling",
        Outcome::Fail { .. } => "the failure",
        Outcome::Release => "the release",
    }
}
