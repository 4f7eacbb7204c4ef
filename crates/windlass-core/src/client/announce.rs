use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use super::store_time::StoreTime;
use super::trace::{RequestedJob, RequestedTraces, not_created};
use super::watch::{Fate, Written};
use crate::LEASE_EXPIRED;
use crate::command::{
    Applied, Cancelled, ClosedChain, Created, DeleteReply, DueTime, JobSummary, NewChain, NewJob, Outcome,
    OutsideApplied, Reaped, Retried, Ripple, Settled, Step, TriggerReply,
};
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::{ErrorText, TraceContext, TypeName};
use crate::notifier::Hint;
use crate::observer::{About, AboutJob, Event};
use crate::record::{ClosedAs, Status};
use crate::store::TxEnd;
use crate::time::Timestamp;

/// What to announce once a write has been committed: events for observers, hints for waiting workers and
/// callers, and hooks.
///
/// Nothing is announced before the commit: a rolled-back job must not be reported, and a worker woken too
/// early would not find the job. The notes are in the order of the writes. A savepoint is a position in the
/// list, and a rollback to the savepoint cuts the list there.
#[derive(Default)]
#[must_use = "send these after the commit: otherwise workers and waits notice the changes only by polling"]
pub(crate) struct Announcements {
    /// Whether no observer or subscriber wants events. If so, none are created.
    unobserved: bool,
    /// The clock of the events. `None` if there are none to record.
    time: Option<Arc<StoreTime>>,
    /// If the write is already committed, the events are not noted, but passed on at once.
    committed: Option<Committed>,
    notes: Vec<Note>,
    /// The positions of the savepoints in `notes`, latest last.
    savepoints: Vec<usize>,
}

/// The dispatcher of events about a committed write. Most writes are not part of a transaction of the application: their
/// events need no copy that waits for the commit.
#[derive(Clone)]
struct Committed {
    dispatcher: Arc<Dispatcher>,
    is_watched: bool,
    /// When the write was announced. All its events have this time.
    at: Timestamp,
}

/// Announcements of a transaction that has not been committed. If the guard is dropped, by a panic or with
/// its task, the announcements are treated as rolled back.
pub(crate) struct AnnouncementGuard {
    pub(crate) announcements: Announcements,
    pub(crate) dispatcher: Arc<Dispatcher>,
}

impl AnnouncementGuard {
    pub(crate) fn take(mut self) -> Announcements {
        std::mem::take(&mut self.announcements)
    }
}

impl Drop for AnnouncementGuard {
    fn drop(&mut self) {
        std::mem::take(&mut self.announcements).end(false, &self.dispatcher);
    }
}

enum Note {
    /// Boxed, like the next large one: without observers, there are only small notes.
    Event(Box<Event>),
    Scheduled(TypeName, Timestamp),
    Closed(ChainId),
    /// This chain, which a schedule has started, is open again.
    RunReopened(ChainId),
    /// This chain failed or was cancelled, and jobs may still wait for it.
    Failed(ChainId, ClosedAs),
    Lost(WorkerId, JobId),
    /// Schedules were changed, so that the next one may be due earlier.
    SchedulesChanged,
    /// Trace contexts were requested for this job. Ignored after a commit; reported to the observers after a
    /// rollback.
    Traced(Box<RequestedJob>),
    AfterCommit(Hook),
    AfterRollback(Hook),
    /// The command that the following notes are about has written this.
    Written(Written),
    /// Sends a command that resolves the waits which the transaction deferred.
    ResolveWaits(Hook),
}

/// A callback that runs at the end of a transaction.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

impl Announcements {
    /// Creates an empty list for a transaction. Records events only if an observer or subscriber currently wants them.
    pub(crate) fn new(dispatcher: &Dispatcher) -> Self {
        let is_observed = dispatcher.is_observed();
        let time = is_observed.then(|| Arc::clone(dispatcher.time()));
        Self { unobserved: !is_observed, time, ..Self::default() }
    }

    /// Creates an empty list for writes that are committed. Observers receive the events while they are announced, before
    /// [`send`](Self::send) publishes the hints.
    pub(crate) fn committed(dispatcher: &Dispatcher) -> Self {
        let (is_observed, is_watched) = dispatcher.wants_events();
        let committed = if is_observed { dispatcher.weak().upgrade() } else { None };
        let committed =
            committed.map(|dispatcher| Committed { at: dispatcher.now(), dispatcher, is_watched });
        Self { unobserved: committed.is_none(), committed, ..Self::default() }
    }

    /// Announces everything after the commit, then runs the commit hooks.
    ///
    /// Does not wait for the notifier: hints are published in the background. The hooks run last, so that a
    /// slow hook does not delay the hints.
    pub(crate) fn send(self, dispatcher: &Dispatcher) {
        let mut scheduled = BTreeMap::<TypeName, (u32, Timestamp)>::new();
        let (mut others, mut failed, mut hooks, mut resolve) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut schedules_changed = false;
        let mut is_watched = None;
        for note in self.notes {
            match note {
                Note::Event(event) => {
                    let is_watched = *is_watched.get_or_insert_with(|| dispatcher.is_watched());
                    dispatcher.report(&event, is_watched);
                }
                Note::Scheduled(job_type, due_at) => {
                    let entry = scheduled.entry(job_type).or_insert((0, due_at));
                    *entry = (entry.0.saturating_add(1), entry.1.min(due_at));
                }
                Note::Closed(chain) => {
                    dispatcher.run_changed(chain);
                    others.push(Hint::ChainClosed(chain));
                }
                Note::RunReopened(chain) => dispatcher.run_changed(chain),
                Note::SchedulesChanged => schedules_changed = true,
                Note::Failed(chain, closed_as) => failed.push((chain, closed_as)),
                Note::Lost(worker, job) => others.push(Hint::OwnershipLost { worker, job }),
                Note::AfterCommit(hook) => hooks.push(hook),
                // Keep only one: a single command resolves the waits that all commands of the transaction
                // deferred.
                Note::ResolveWaits(hook) => resolve = Some(hook),
                Note::Traced(..) | Note::AfterRollback(_) | Note::Written(_) => {}
            }
        }
        // One hint per job type, with the number of jobs and the earliest due time.
        let scheduled = scheduled.into_iter();
        let scheduled =
            scheduled.map(|(job_type, (count, due_at))| Hint::Scheduled { job_type, count, due_at });
        let schedules = schedules_changed.then_some(Hint::SchedulesChanged);
        dispatcher.publish(scheduled.chain(others).chain(schedules));
        dispatcher.report_dependents(failed);
        resolve.into_iter().for_each(run);
        hooks.into_iter().for_each(run);
    }

    /// Notes what the last command has written. The notes that follow belong to that command.
    pub(super) fn wrote(&mut self, written: Written) {
        self.notes.push(Note::Written(written));
    }

    /// Returns what the commands have written.
    pub(super) fn written(&self) -> impl Iterator<Item = Written> {
        self.notes.iter().filter_map(|note| match note {
            Note::Written(written) => Some(*written),
            _ => None,
        })
    }

    /// Handles the end of a transaction that the application ended. `fate` says of each write whether it is
    /// stored, and `end` how the transaction ended. Announces the commands whose writes are stored. Returns the
    /// hooks to run, in order: those of stored writes after the commit, those of lost writes after the rollback.
    ///
    /// Notes before the first write belong to the transaction as a whole. If it is unknown whether a write is
    /// stored, its hints are published, because they do no harm, but no events, and no hook runs.
    pub(super) fn end_by(
        self,
        end: TxEnd,
        fate: impl Fn(Written) -> Fate,
        dispatcher: &Dispatcher,
    ) -> Vec<Hook> {
        let fate_in = |written| match (end, fate(written)) {
            (TxEnd::RolledBack, _) => Fate::Lost,
            (_, fate) => fate,
        };
        let fates: Vec<_> = self.written().map(fate_in).collect();
        let mut current = match end {
            TxEnd::Committed => Fate::Stored,
            TxEnd::RolledBack => Fate::Lost,
            _ if fates.contains(&Fate::Stored) => Fate::Stored,
            _ if !fates.is_empty() && fates.iter().all(|fate| *fate == Fate::Lost) => Fate::Lost,
            _ => Fate::Unknown,
        };
        let (mut fates, mut hooks, mut stored) = (fates.into_iter(), Vec::new(), Self::default());
        for note in self.notes {
            match (note, current) {
                (Note::Written(_), _) => current = fates.next().unwrap_or(Fate::Unknown),
                (Note::AfterCommit(hook), Fate::Stored) | (Note::AfterRollback(hook), Fate::Lost) => {
                    hooks.push(hook);
                }
                (Note::AfterCommit(_) | Note::AfterRollback(_), _) => {}
                (Note::Traced(job), Fate::Lost) => dispatcher.untrace(&job),
                (note, Fate::Stored) => stored.notes.push(note),
                (
                    note @ (Note::Scheduled(..)
                    | Note::Closed(_)
                    | Note::RunReopened(_)
                    | Note::Lost(..)
                    | Note::SchedulesChanged),
                    Fate::Unknown,
                ) => {
                    stored.notes.push(note);
                }
                _ => {}
            }
        }
        stored.send(dispatcher);
        hooks
    }

    /// Whether there is nothing to announce.
    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// Handles the end of the transaction: a commit or a rollback.
    pub(crate) fn end(self, is_committed: bool, dispatcher: &Dispatcher) {
        if is_committed { self.send(dispatcher) } else { self.roll_back(dispatcher) }
    }

    /// Discards everything after a rollback. Notifies the observers of requested trace contexts, then runs
    /// the rollback hooks.
    pub(super) fn roll_back(mut self, dispatcher: &Dispatcher) {
        self.cut(0, dispatcher);
    }

    /// Sets a savepoint.
    pub(super) fn savepoint(&mut self) {
        self.savepoints.push(self.notes.len());
    }

    /// Removes the latest savepoint and keeps the notes made since.
    pub(super) fn release(&mut self) {
        self.savepoints.pop();
    }

    /// Removes and returns the notes made since the latest savepoint. Removes the savepoint too.
    pub(super) fn split_off(&mut self) -> Self {
        let kept = self.savepoints.pop().unwrap_or_default().min(self.notes.len());
        let (unobserved, time) = (self.unobserved, self.time.clone());
        Self { unobserved, time, notes: self.notes.split_off(kept), ..Self::default() }
    }

    /// Undoes [`split_off`](Self::split_off): restores the savepoint and its notes.
    pub(super) fn put_back(&mut self, part: Self) {
        self.savepoints.push(self.notes.len());
        self.notes.extend(part.notes);
    }

    /// Rolls back the notes after the first `kept` ones.
    fn cut(&mut self, kept: usize, dispatcher: &Dispatcher) {
        let mut hooks = Vec::new();
        for note in self.notes.drain(kept.min(self.notes.len())..) {
            match note {
                Note::Traced(job) => dispatcher.untrace(&job),
                Note::AfterRollback(hook) => hooks.push(hook),
                _ => {}
            }
        }
        hooks.into_iter().for_each(run);
    }

    /// Announces that schedules were changed.
    pub(super) fn schedules_changed(&mut self) {
        self.notes.push(Note::SchedulesChanged);
    }

    pub(super) fn after_commit(&mut self, hook: Hook) {
        self.notes.push(Note::AfterCommit(hook));
    }

    /// Notes that a command deferred the resolution of waits. `resolve` runs after the commit and sends the
    /// command that resolves them, so that dependents need not wait for the next acquire or reap of a worker.
    pub(crate) fn resolve_waits(&mut self, resolve: impl FnOnce() + Send + 'static) {
        self.notes.push(Note::ResolveWaits(Box::new(resolve)));
    }

    pub(super) fn after_rollback(&mut self, hook: Hook) {
        self.notes.push(Note::AfterRollback(hook));
    }

    /// Notes the jobs for which trace contexts were requested and that the transaction has written.
    pub(crate) fn traced(&mut self, traces: RequestedTraces) {
        let jobs = traces.into_jobs().into_iter();
        // A committed write is not rolled back.
        if self.committed.is_none() && !self.unobserved {
            self.notes.extend(jobs.map(|job| Note::Traced(Box::new(job))));
        }
    }

    /// Notifies the observers of requested trace contexts whose carried chains were not created. Forgets these items.
    pub(crate) fn settled_in_tx(
        &mut self,
        carried: &[NewChain],
        created: &[Created],
        dispatcher: &Dispatcher,
    ) {
        let missing = not_created(carried, created);
        self.notes.retain(|note| match note {
            Note::Traced(job) => !dispatcher.is_missing(job, &missing),
            _ => true,
        });
    }

    /// Announces a chain that was created. Does nothing for other results.
    pub(super) fn created(&mut self, new: &NewChain, created: &Created) {
        let Created::New { job, repeated } = created else { return };
        if !repeated && !self.unobserved {
            let shared = AboutJob {
                key: new.key.as_ref().map(|key| key.key.clone()),
                chain_trace: new.trace.clone(),
                ..about_new(*job, &new.job, &new.job.job_type)
            };
            let about = About {
                job_age: Some(Duration::ZERO),
                chain_age: Some(Duration::ZERO),
                ..About::new(self.created_at(*job, &new.job), Arc::new(shared))
            };
            self.event(Event::ChainCreated(about.clone()));
            self.job_created(about, *job);
        }
        // Also for a repeated creation: if the first reply was lost, no worker has been woken yet.
        self.wake_workers(*job, &new.job.job_type);
    }

    /// Announces the unblocked jobs and the closed chains.
    pub(crate) fn ripple(&mut self, ripple: &Ripple) {
        // If several chains closed, the reply does not say which of them a job waited for.
        let cause = if let [closed] = &ripple.closed[..] { closed.trace.as_ref() } else { None };
        for unblocked in &ripple.unblocked {
            if !self.unobserved {
                let shared = AboutJob {
                    wait_traces: unblocked.traces.iter().flatten().cloned().collect(),
                    cause_traces: cause.cloned().into_iter().collect(),
                    ..about_job(unblocked.job, &unblocked.job_type, &unblocked.chain_type)
                };
                self.event(Event::JobUnblocked(About::new(self.now(), Arc::new(shared))));
            }
            self.wake_workers(unblocked.job, &unblocked.job_type);
        }
        self.notes.reserve(ripple.closed.len());
        for closed in &ripple.closed {
            if !self.unobserved {
                self.closed(self.about_closed(closed), closed.closed_as);
            }
            self.notes.push(Note::Closed(closed.chain));
        }
    }

    /// Announces a cancelled job, or notifies the worker of a job that was asked to stop. The closed chain is
    /// announced by [`ripple`](Self::ripple).
    pub(super) fn cancelled(&mut self, cancelled: Cancelled, ripple: &Ripple) {
        match cancelled {
            Cancelled::Asked { job, worker, .. } => self.notes.push(Note::Lost(worker, job)),
            Cancelled::Cancelled { chain, .. } => {
                if let Some(closed) = ripple.closed.iter().find(|closed| closed.chain == chain) {
                    self.event(Event::JobCancelled(self.about_closed(closed)));
                }
            }
            _ => {}
        }
    }

    /// Announces the result of an attempt's settlement. `about` describes the attempt at a time of the store. It is called
    /// only if there is something to describe.
    pub(crate) fn settled(
        &mut self,
        outcome: &Outcome,
        job_type: &TypeName,
        about: impl Fn(Timestamp) -> About,
        settled: &Settled,
    ) {
        match settled {
            Settled::Applied(applied) => self.applied(outcome, job_type, about, applied),
            Settled::AlreadyApplied(job) => self.applied_before(outcome, &about(self.now()), *job),
            Settled::Lost(_) if !self.unobserved => self.event(Event::AttemptLost(about(self.now()))),
            Settled::Lost(_) | Settled::Busy | Settled::Refused(_) => {}
        }
    }

    fn applied(
        &mut self,
        outcome: &Outcome,
        job_type: &TypeName,
        about: impl Fn(Timestamp) -> About,
        applied: &Applied,
    ) {
        if !self.unobserved {
            self.event(ended(outcome, about(self.now()), applied));
        }
        self.wake_workers(applied.job, job_type);
        if let (Some(next), Outcome::Continue { next: job, .. }) = (applied.next, outcome) {
            if !self.unobserved {
                let before = about(self.now());
                let shared = AboutJob {
                    key: before.key.clone(),
                    chain_trace: before.chain_trace.clone(),
                    cause_traces: before.trace.clone().into_iter().collect(),
                    ..about_new(next, &job.job, &before.chain_type)
                };
                let about = About {
                    job_age: Some(Duration::ZERO),
                    chain_age: before.chain_age,
                    ..About::new(self.created_at(next, &job.job), Arc::new(shared))
                };
                self.job_created(about, next);
            }
            self.wake_workers(next, &job.job.job_type);
        }
        for (new, created) in outcome.carried().iter().zip(&applied.created) {
            self.created(new, created);
        }
    }

    /// Announces a settlement whose first reply was lost, so that nothing has been announced for it yet.
    ///
    /// `job` is the current state. Other callers may have changed the job since the settlement, so its end is
    /// announced only if the job is still closed in the way in which this attempt closed it.
    fn applied_before(&mut self, outcome: &Outcome, about: &About, job: JobSummary) {
        let applied = |next| Applied { job, next, created: Vec::new() };
        match (outcome, job.status) {
            (Outcome::Continue { next, .. }, Status::Completed) => {
                // The status of the next job is unknown. If it is blocked, a worker wakes and finds no job.
                let next = JobSummary { job: next.id, status: Status::Pending, ..job };
                self.applied(outcome, &about.job_type, |_| about.clone(), &applied(Some(next)));
            }
            (Outcome::Complete { .. }, Status::Completed) | (Outcome::Fail { .. }, Status::Failed) => {
                self.applied(outcome, &about.job_type, |_| about.clone(), &applied(None));
                if let Some(closed_as) = job.status.closed_as() {
                    self.closed(about.clone(), closed_as);
                    self.notes.push(Note::Closed(about.chain));
                }
            }
            _ => self.wake_workers(job, &about.job_type),
        }
    }

    /// Announces a completion from outside of the job in `about`.
    pub(super) fn outside(&mut self, mut about: About, steps: &[Step], applied: &OutsideApplied) {
        let job = about.job;
        let mut created = applied.created.iter();
        if applied.latest.status == Status::Cancelled {
            // The job had been asked to stop. A step that would continue the chain cancels it instead.
            self.event(Event::JobCancelled(about.clone()));
        } else {
            for step in steps {
                for (new, created) in step.carried().iter().zip(&mut created) {
                    self.created(new, created);
                }
                about = self.step(about, step, applied.latest);
            }
        }
        self.wake_workers(applied.latest, &about.job_type);
        self.notes.extend(applied.displaced.map(|worker| Note::Lost(worker, job)));
        self.ripple(&applied.ripple);
    }

    /// Announces one step from outside. Returns the chain's job after the step.
    fn step(&mut self, about: About, step: &Step, latest: JobSummary) -> About {
        match step {
            Step::Continue { next, .. } => {
                let (id, job) = (next.id, &next.job);
                self.event(Event::JobCompleted(about.clone(), Some(id)));
                let mut next = About { job_age: Some(Duration::ZERO), ..about };
                let shared = next.shared_mut();
                shared.job = id;
                shared.job_type.clone_from(&job.job_type);
                shared.wait_traces = wait_traces(job);
                shared.cause_traces = shared.trace.take().into_iter().collect();
                shared.trace.clone_from(&job.trace);
                // The reply has the status of the latest job only. A later step has completed the others.
                let status = if latest.job == id { latest.status } else { Status::Completed };
                self.job_created(next.clone(), JobSummary { status, ..latest });
                return next;
            }
            Step::Complete { .. } => self.event(Event::JobCompleted(about.clone(), None)),
            Step::Fail { error, .. } => self.event(Event::JobFailed(about.clone(), error.clone())),
        }
        about
    }

    /// Announces a job whose lease expired. Also notifies the worker that held the lease, because it may
    /// still be running the job.
    pub(crate) fn reaped(&mut self, reaped: &Reaped) {
        let shared = AboutJob {
            attempt: Some(reaped.attempt),
            worker: Some(reaped.worker),
            worker_name: reaped.worker_name.clone(),
            ..about_job(reaped.job, &reaped.job_type, &reaped.chain_type)
        };
        let about = About::new(self.now(), Arc::new(shared));
        self.event(Event::AttemptReaped(about.clone()));
        match reaped.job.status {
            Status::Failed => self.event(Event::JobFailed(about, ErrorText::new(LEASE_EXPIRED))),
            Status::Cancelled => self.event(Event::JobCancelled(about)),
            _ => {}
        }
        self.notes.push(Note::Lost(reaped.worker, reaped.job.job));
        self.wake_workers(reaped.job, &reaped.job_type);
    }

    pub(super) fn triggered(&mut self, reply: &TriggerReply) {
        let TriggerReply::Triggered(jobs) = reply else { return };
        for triggered in jobs {
            let about = self.about(triggered.job, &triggered.job_type, &triggered.chain_type);
            self.event(Event::JobTriggered(about));
            self.wake_workers(triggered.job, &triggered.job_type);
        }
    }

    pub(super) fn retried(&mut self, retried: &Retried) {
        let Retried::Retried { job, job_type, chain_type } = retried else { return };
        self.event(Event::ChainRetried(self.about(*job, job_type, chain_type)));
        self.notes.extend(job.chain.occurrence().map(|_| Note::RunReopened(job.chain)));
        self.wake_workers(*job, job_type);
    }

    pub(super) fn deleted(&mut self, reply: &DeleteReply) {
        let DeleteReply::Deleted(deleted) = reply else { return };
        for chain in &deleted.chains {
            self.event(Event::ChainDeleted(chain.chain, chain.chain_type.clone()));
            self.notes.extend(chain.running.map(|(job, worker)| Note::Lost(worker, job)));
            self.notes.push(Note::Closed(chain.chain));
        }
    }

    /// Wakes workers for a pending job. Jobs with another status cannot be acquired.
    fn wake_workers(&mut self, job: JobSummary, job_type: &TypeName) {
        if job.status == Status::Pending {
            self.notes.push(Note::Scheduled(job_type.clone(), job.due_at));
        }
    }

    fn closed(&mut self, about: About, closed_as: ClosedAs) {
        let chain = about.chain;
        self.event(Event::ChainClosed(about, closed_as));
        if closed_as != ClosedAs::Completed && !self.unobserved {
            self.notes.push(Note::Failed(chain, closed_as));
        }
    }

    fn job_created(&mut self, about: About, job: JobSummary) {
        let blocked = (job.status == Status::Blocked).then(|| about.clone());
        self.event(Event::JobCreated(about));
        if let Some(about) = blocked {
            self.event(Event::JobBlocked(about));
        }
    }

    /// Returns the store's time.
    fn now(&self) -> Timestamp {
        match (&self.committed, &self.time) {
            (Some(committed), _) => committed.at,
            (None, Some(time)) => time.now(),
            (None, None) => Timestamp::now(),
        }
    }

    /// Returns when a job was created. The due time of a job that is due immediately is when the store created it.
    fn created_at(&self, job: JobSummary, new: &NewJob) -> Timestamp {
        match new.schedule {
            DueTime::Now => job.due_at,
            DueTime::At(_) | DueTime::After(_) => self.now(),
        }
    }

    fn about(&self, job: JobSummary, job_type: &TypeName, chain_type: &TypeName) -> About {
        About::new(self.now(), Arc::new(about_job(job, job_type, chain_type)))
    }

    fn about_closed(&self, closed: &ClosedChain) -> About {
        let at = self.now();
        let (job, chain) = ((closed.job, closed.job_type.clone()), (closed.chain, closed.chain_type.clone()));
        let shared = AboutJob { chain_trace: closed.trace.clone(), ..AboutJob::new(job, chain) };
        About { chain_age: Some(at.since(closed.created_at)), ..About::new(at, Arc::new(shared)) }
    }

    fn event(&mut self, event: Event) {
        match &self.committed {
            Some(committed) => committed.dispatcher.report(&event, committed.is_watched),
            None if self.unobserved => {}
            None => self.notes.push(Note::Event(Box::new(event))),
        }
    }
}

fn about_job(job: JobSummary, job_type: &TypeName, chain_type: &TypeName) -> AboutJob {
    AboutJob::new((job.job, job_type.clone()), (job.chain, chain_type.clone()))
}

/// Describes a job that was created.
fn about_new(job: JobSummary, new: &NewJob, chain_type: &TypeName) -> AboutJob {
    AboutJob {
        trace: new.trace.clone(),
        wait_traces: wait_traces(new),
        ..about_job(job, &new.job_type, chain_type)
    }
}

/// Runs a hook. Catches a panic, so that the other hooks run too.
pub(super) fn run(hook: Hook) {
    let _ = catch_unwind(AssertUnwindSafe(hook));
}

/// Returns the trace contexts of a new job's waits.
fn wait_traces(job: &NewJob) -> Vec<TraceContext> {
    job.blockers.iter().filter_map(|blocker| blocker.trace.clone()).collect()
}

/// Returns the event for the end of an attempt.
fn ended(outcome: &Outcome, about: About, applied: &Applied) -> Event {
    match (outcome, applied.job.status) {
        (_, Status::Cancelled) => Event::JobCancelled(about),
        (Outcome::Retry { error, .. } | Outcome::Fail { error, .. }, Status::Failed) => {
            Event::JobFailed(about, error.clone())
        }
        (Outcome::Retry { error, .. }, _) => Event::AttemptFailed(about, error.clone(), applied.job.due_at),
        (Outcome::Reschedule { .. }, _) => Event::AttemptRescheduled(about, applied.job.due_at),
        (Outcome::Release, _) => Event::AttemptReleased(about),
        _ => Event::JobCompleted(about, applied.next.map(|next| next.job)),
    }
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").field("notes", &self.notes.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
