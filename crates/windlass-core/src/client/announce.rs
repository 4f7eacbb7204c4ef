use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Teller;
use super::trace::Asked;
use crate::LEASE_EXPIRED;
use crate::command::{
    Applied, Cancelled, ClosedChain, Created, DeleteReply, NewChain, Outcome, OutsideApplied, Placed, Reaped,
    Retried, Ripple, Settled, Settlement, Step, TriggerReply,
};
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::{ErrorText, TypeName};
use crate::notifier::Hint;
use crate::observer::{About, Event, Traced};
use crate::record::Status;
use crate::time::Timestamp;

/// What is to be told once a write has been committed: events for the observers, hints for those who wait,
/// and hooks. A log in the order in which things were done, so that a savepoint is a place in it and a
/// roll-back cuts it there.
#[derive(Default)]
#[must_use = "forgetting these costs latency, never a job: send them after the commit"]
pub(crate) struct Announcements {
    /// Whether nobody wants events, so that none are made.
    unobserved: bool,
    notes: Vec<Note>,
    savepoints: Vec<usize>,
}

/// What is to be told after a commit. Dropped before it, by a panic or with its task, it was rolled back.
pub(crate) struct Untold {
    pub(crate) announcements: Announcements,
    pub(crate) teller: Arc<Teller>,
}

impl Untold {
    pub(crate) fn take(mut self) -> Announcements {
        std::mem::take(&mut self.announcements)
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        std::mem::take(&mut self.announcements).end(false, &self.teller);
    }
}

enum Note {
    Event(Event),
    Scheduled(TypeName, Timestamp),
    Closed(ChainId),
    Lost(WorkerId, JobId),
    /// A trace context was asked for it: not told after a commit, but after a roll-back.
    Traced(Traced, About),
    AfterCommit(Hook),
    AfterRollback(Hook),
    /// Waits were left to a later command: this sends one.
    ResolveWaits(Hook),
}

/// What the application wants done at the end of a transaction.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

impl Announcements {
    /// What is to be told by this one.
    pub(crate) fn by(teller: &Teller) -> Self {
        Self { unobserved: !teller.is_observed(), ..Self::default() }
    }

    /// It is committed. Tells all of it, without waiting for anybody; then runs the hooks.
    pub(crate) fn send(self, teller: &Teller) {
        let mut scheduled = BTreeMap::<TypeName, (u32, Timestamp)>::new();
        let (mut others, mut hooks, mut resolve) = (Vec::new(), Vec::new(), None);
        for note in self.notes {
            match note {
                Note::Event(event) => teller.observe(&event),
                Note::Scheduled(job_type, due_at) => {
                    let entry = scheduled.entry(job_type).or_insert((0, due_at));
                    *entry = (entry.0.saturating_add(1), entry.1.min(due_at));
                }
                Note::Closed(chain) => others.push(Hint::ChainClosed(chain)),
                Note::Lost(worker, job) => others.push(Hint::OwnershipLost { worker, job }),
                Note::AfterCommit(hook) => hooks.push(hook),
                // One command resolves the waits that all commands of the transaction have left.
                Note::ResolveWaits(hook) => resolve = Some(hook),
                Note::Traced(..) | Note::AfterRollback(_) => {}
            }
        }
        let scheduled = scheduled.into_iter();
        let scheduled =
            scheduled.map(|(job_type, (count, due_at))| Hint::Scheduled { job_type, count, due_at });
        teller.publish(scheduled.chain(others));
        resolve.into_iter().for_each(run);
        hooks.into_iter().for_each(run);
    }

    /// The transaction has ended, by a commit or a roll-back.
    pub(crate) fn end(self, is_committed: bool, teller: &Teller) {
        if is_committed { self.send(teller) } else { self.roll_back(teller) }
    }

    /// It is rolled back. Nothing of it happened, and those who have to know are told.
    pub(super) fn roll_back(mut self, teller: &Teller) {
        self.cut(0, teller);
    }

    /// Marks a place to return to.
    pub(super) fn savepoint(&mut self) {
        self.savepoints.push(self.notes.len());
    }

    /// Forgets the latest place.
    pub(super) fn release(&mut self) {
        self.savepoints.pop();
    }

    /// Takes out what was noted since the latest savepoint, and that savepoint.
    pub(super) fn split_off(&mut self) -> Self {
        let kept = self.savepoints.pop().unwrap_or_default().min(self.notes.len());
        Self { unobserved: self.unobserved, notes: self.notes.split_off(kept), savepoints: Vec::new() }
    }

    /// Puts it back.
    pub(super) fn put_back(&mut self, part: Self) {
        self.savepoints.push(self.notes.len());
        self.notes.extend(part.notes);
    }

    fn cut(&mut self, kept: usize, teller: &Teller) {
        let mut hooks = Vec::new();
        for note in self.notes.drain(kept.min(self.notes.len())..) {
            match note {
                Note::Traced(traced, about) => teller.untrace(traced, &about),
                Note::AfterRollback(hook) => hooks.push(hook),
                _ => {}
            }
        }
        hooks.into_iter().for_each(run);
    }

    pub(super) fn after_commit(&mut self, hook: Hook) {
        self.notes.push(Note::AfterCommit(hook));
    }

    /// Waits were left to a later command, which `resolve` sends: after the commit, so that dependents need
    /// not wait for the next poll.
    pub(crate) fn resolve_waits(&mut self, resolve: impl FnOnce() + Send + 'static) {
        self.notes.push(Note::ResolveWaits(Box::new(resolve)));
    }

    pub(super) fn after_rollback(&mut self, hook: Hook) {
        self.notes.push(Note::AfterRollback(hook));
    }

    /// Trace contexts were asked for these, and they are written.
    pub(crate) fn traced(&mut self, asked: Asked) {
        self.notes.extend(asked.into_iter().map(|(traced, about)| Note::Traced(traced, about)));
    }

    pub(super) fn created(&mut self, new: &NewChain, created: &Created) {
        let Created::New { job, repeated } = created else { return };
        if !repeated && !self.unobserved {
            let key = new.key.as_ref().map(|key| key.key.clone());
            let about = About { key, ..about(*job, &new.job.job_type, &new.job.job_type) };
            self.event(Event::ChainCreated(about.clone()));
            self.job_created(about, *job);
        }
        // If the first reply was lost, nobody has been woken yet.
        self.placed(*job, &new.job.job_type);
    }

    pub(crate) fn ripple(&mut self, ripple: &Ripple) {
        for unblocked in &ripple.unblocked {
            let about = about(unblocked.job, &unblocked.job_type, &unblocked.chain_type);
            self.event(Event::JobUnblocked(about));
            self.placed(unblocked.job, &unblocked.job_type);
        }
        for closed in &ripple.closed {
            if !self.unobserved {
                self.event(Event::ChainClosed(about_closed(closed), closed.closed_as));
            }
            self.notes.push(Note::Closed(closed.chain));
        }
    }

    pub(super) fn cancelled(&mut self, cancelled: Cancelled, ripple: &Ripple) {
        match cancelled {
            Cancelled::Asked { job, worker, .. } => self.notes.push(Note::Lost(worker, job)),
            Cancelled::Cancelled { chain, .. } => {
                if let Some(closed) = ripple.closed.iter().find(|closed| closed.chain == chain) {
                    self.event(Event::JobCancelled(about_closed(closed)));
                }
            }
            _ => {}
        }
    }

    /// What an attempt's settlement did.
    pub(crate) fn settled(&mut self, settlement: &Settlement, about: &About, settled: &Settled) {
        match settled {
            Settled::Applied(applied) => self.applied(settlement, about, applied),
            Settled::AlreadyApplied(job) => self.applied_before(settlement, about, *job),
            Settled::Lost(_) => self.event(Event::AttemptLost(about.clone())),
            Settled::Busy | Settled::Refused(_) => {}
        }
    }

    fn applied(&mut self, settlement: &Settlement, about: &About, applied: &Applied) {
        if !self.unobserved {
            self.event(ended(settlement, about, applied));
        }
        self.placed(applied.job, &about.job_type);
        if let (Some(next), Outcome::Continue { next: job, .. }) = (applied.next, &settlement.outcome) {
            self.job_created(self::about(next, &job.job.job_type, &about.chain_type), next);
            self.placed(next, &job.job.job_type);
        }
        for (new, created) in settlement.outcome.carried().iter().zip(&applied.created) {
            self.created(new, created);
        }
    }

    /// A settlement whose first answer was lost, and with it what there was to tell. Others may have gone on with
    /// the job since, so only a job that is closed as this attempt closed it is told as such.
    fn applied_before(&mut self, settlement: &Settlement, about: &About, job: Placed) {
        match (&settlement.outcome, job.status) {
            (Outcome::Continue { next, .. }, Status::Completed) => {
                // Where the next job stands is not known: if it waits, it is looked for in vain.
                let next = Placed { job: next.id, status: Status::Pending, ..job };
                self.applied(settlement, about, &Applied { job, next: Some(next), created: Vec::new() });
            }
            (Outcome::Complete { .. }, Status::Completed) | (Outcome::Fail { .. }, Status::Failed) => {
                self.applied(settlement, about, &Applied { job, next: None, created: Vec::new() });
                if let Some(closed_as) = job.status.closed_as() {
                    self.event(Event::ChainClosed(about.clone(), closed_as));
                    self.notes.push(Note::Closed(about.chain));
                }
            }
            _ => self.placed(job, &about.job_type),
        }
    }

    /// What a completion from outside did with the job that `about` is of.
    pub(super) fn outside(&mut self, mut about: About, steps: &[Step], applied: &OutsideApplied) {
        let job = about.job;
        let mut created = applied.created.iter();
        if applied.latest.status == Status::Cancelled {
            // It was asked to stop before, and goes on no longer.
            self.event(Event::JobCancelled(about.clone()));
        } else {
            for step in steps {
                for (new, created) in step.carried().iter().zip(&mut created) {
                    self.created(new, created);
                }
                about = self.step(about, step, applied.latest);
            }
        }
        self.placed(applied.latest, &about.job_type);
        self.notes.extend(applied.displaced.map(|worker| Note::Lost(worker, job)));
        self.ripple(&applied.ripple);
    }

    /// One step from outside. Gives the job that the chain is at then.
    fn step(&mut self, about: About, step: &Step, latest: Placed) -> About {
        match step {
            Step::Continue { next, .. } => {
                let (id, job_type) = (next.id, next.job.job_type.clone());
                self.event(Event::JobCompleted(about.clone(), Some(id)));
                let next = About { job: id, job_type, ..about };
                // Where a job stood that a later step completed is not told.
                let status = if latest.job == id { latest.status } else { Status::Completed };
                self.job_created(next.clone(), Placed { status, ..latest });
                return next;
            }
            Step::Complete { .. } => self.event(Event::JobCompleted(about.clone(), None)),
            Step::Fail { error, .. } => self.event(Event::JobFailed(about.clone(), error.clone())),
        }
        about
    }

    /// An expired lease.
    pub(crate) fn reaped(&mut self, reaped: &Reaped) {
        let mut about = about(reaped.job, &reaped.job_type, &reaped.chain_type);
        about.attempt = Some(reaped.attempt);
        about.worker = Some(reaped.worker);
        self.event(Event::AttemptReaped(about.clone()));
        match reaped.job.status {
            Status::Failed => self.event(Event::JobFailed(about, ErrorText::new(LEASE_EXPIRED))),
            Status::Cancelled => self.event(Event::JobCancelled(about)),
            _ => {}
        }
        self.notes.push(Note::Lost(reaped.worker, reaped.job.job));
        self.placed(reaped.job, &reaped.job_type);
    }

    pub(super) fn triggered(&mut self, reply: &TriggerReply) {
        let TriggerReply::Triggered(jobs) = reply else { return };
        for triggered in jobs {
            let about = about(triggered.job, &triggered.job_type, &triggered.chain_type);
            self.event(Event::JobTriggered(about));
            self.placed(triggered.job, &triggered.job_type);
        }
    }

    pub(super) fn retried(&mut self, retried: &Retried) {
        let Retried::Retried { job, job_type, chain_type } = retried else { return };
        self.event(Event::ChainRetried(about(*job, job_type, chain_type)));
        self.placed(*job, job_type);
    }

    pub(super) fn deleted(&mut self, reply: &DeleteReply) {
        let DeleteReply::Deleted(deleted) = reply else { return };
        for chain in &deleted.chains {
            self.event(Event::ChainDeleted(chain.chain, chain.chain_type.clone()));
            self.notes.extend(chain.running.map(|(job, worker)| Note::Lost(worker, job)));
            self.notes.push(Note::Closed(chain.chain));
        }
    }

    /// Only a job that can be acquired wakes anybody.
    fn placed(&mut self, job: Placed, job_type: &TypeName) {
        if job.status == Status::Pending {
            self.notes.push(Note::Scheduled(job_type.clone(), job.due_at));
        }
    }

    fn job_created(&mut self, about: About, job: Placed) {
        let blocked = (job.status == Status::Blocked).then(|| about.clone());
        self.event(Event::JobCreated(about));
        if let Some(about) = blocked {
            self.event(Event::JobBlocked(about));
        }
    }

    fn event(&mut self, event: Event) {
        if !self.unobserved {
            self.notes.push(Note::Event(event));
        }
    }
}

/// Runs a hook. If it panics, the others are run all the same.
fn run(hook: Hook) {
    let _ = catch_unwind(AssertUnwindSafe(hook));
}

fn about(job: Placed, job_type: &TypeName, chain_type: &TypeName) -> About {
    About {
        job: job.job,
        job_type: job_type.clone(),
        chain: job.chain,
        chain_type: chain_type.clone(),
        key: None,
        attempt: None,
        worker: None,
    }
}

fn about_closed(closed: &ClosedChain) -> About {
    About {
        job: closed.job,
        job_type: closed.job_type.clone(),
        chain: closed.chain,
        chain_type: closed.chain_type.clone(),
        key: None,
        attempt: None,
        worker: None,
    }
}

/// How the attempt ended.
fn ended(settlement: &Settlement, about: &About, applied: &Applied) -> Event {
    let about = about.clone();
    match (&settlement.outcome, applied.job.status) {
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
