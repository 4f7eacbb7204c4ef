use std::collections::BTreeMap;

use super::Teller;
use crate::command::{
    Applied, Cancelled, Created, DeleteReply, NewChain, Outcome, Placed, Reaped, Retried, Ripple, Settled,
    Settlement, TriggerReply,
};
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::TypeName;
use crate::notifier::Hint;
use crate::observer::{About, Event};
use crate::record::Status;
use crate::time::Timestamp;

/// What is to be told once a write has been committed: hints for those who wait, events for the observer.
#[derive(Clone, Debug, Default)]
#[must_use = "forgetting these costs latency, never a job: send them after the commit"]
pub struct Announcements {
    scheduled: BTreeMap<TypeName, (u32, Timestamp)>,
    closed: Vec<ChainId>,
    lost: Vec<(WorkerId, JobId)>,
    events: Vec<Event>,
}

impl Announcements {
    /// Tells all of it, without waiting for anybody.
    pub(crate) fn send(self, teller: &Teller) {
        self.events.iter().for_each(|event| teller.observe(event));
        let scheduled = self.scheduled.into_iter();
        let scheduled =
            scheduled.map(|(job_type, (count, due_at))| Hint::Scheduled { job_type, count, due_at });
        let closed = self.closed.into_iter().map(Hint::ChainClosed);
        let lost = self.lost.into_iter().map(|(worker, job)| Hint::OwnershipLost { worker, job });
        teller.publish(scheduled.chain(closed).chain(lost));
    }

    pub(super) fn created(&mut self, new: &NewChain, created: &Created) {
        let Created::New { job, repeated: false } = created else { return };
        let about = about(*job, &new.job.job_type, &new.job.job_type);
        self.events.push(Event::ChainCreated(about.clone()));
        self.events.push(Event::JobCreated(about.clone()));
        if job.status == Status::Blocked {
            self.events.push(Event::JobBlocked(about));
        }
        self.placed(*job, &new.job.job_type);
    }

    pub(crate) fn ripple(&mut self, ripple: &Ripple) {
        for unblocked in &ripple.unblocked {
            let about = about(unblocked.job, &unblocked.job_type, &unblocked.chain_type);
            self.events.push(Event::JobUnblocked(about));
            self.placed(unblocked.job, &unblocked.job_type);
        }
        for closed in &ripple.closed {
            let about = About {
                job: closed.job,
                job_type: closed.job_type.clone(),
                chain: closed.chain,
                chain_type: closed.chain_type.clone(),
                attempt: None,
                worker: None,
            };
            self.events.push(Event::ChainClosed(about, closed.closed_as));
            self.closed.push(closed.chain);
        }
    }

    pub(super) fn cancelled(&mut self, cancelled: Cancelled) {
        if let Cancelled::Asked { job, worker, .. } = cancelled {
            self.lost.push((worker, job));
        }
    }

    /// What an attempt's settlement did.
    pub(crate) fn settled(&mut self, settlement: &Settlement, about: &About, settled: &Settled) {
        let Settled::Applied(applied) = settled else {
            if matches!(settled, Settled::Lost(_)) {
                self.events.push(Event::AttemptLost(about.clone()));
            }
            return;
        };
        self.events.push(ended(settlement, about, applied));
        self.placed(applied.job, &about.job_type);
        if let (Some(next), Outcome::Continue { next: job, .. }) = (applied.next, &settlement.outcome) {
            self.events.push(Event::JobCreated(self::about(next, &job.job.job_type, &about.chain_type)));
            self.placed(next, &job.job.job_type);
        }
        for (new, created) in settlement.outcome.carried().iter().zip(&applied.created) {
            self.created(new, created);
        }
    }

    /// An expired lease.
    pub(crate) fn reaped(&mut self, reaped: &Reaped) {
        let mut about = about(reaped.job, &reaped.job_type, &reaped.chain_type);
        about.attempt = Some(reaped.attempt);
        about.worker = Some(reaped.worker);
        self.events.push(Event::AttemptReaped(about));
        self.lost.push((reaped.worker, reaped.job.job));
        self.placed(reaped.job, &reaped.job_type);
    }

    pub(super) fn triggered(&mut self, reply: &TriggerReply) {
        let TriggerReply::Triggered(jobs) = reply else { return };
        for triggered in jobs {
            let about = about(triggered.job, &triggered.job_type, &triggered.chain_type);
            self.events.push(Event::JobTriggered(about));
            self.placed(triggered.job, &triggered.job_type);
        }
    }

    pub(super) fn retried(&mut self, retried: &Retried) {
        let Retried::Retried { job, job_type, chain_type } = retried else { return };
        self.events.push(Event::ChainRetried(about(*job, job_type, chain_type)));
        self.placed(*job, job_type);
    }

    pub(super) fn deleted(&mut self, reply: &DeleteReply) {
        let DeleteReply::Deleted(deleted) = reply else { return };
        for chain in &deleted.chains {
            self.events.push(Event::ChainDeleted(chain.chain, chain.chain_type.clone()));
            self.lost.extend(chain.running.map(|(job, worker)| (worker, job)));
            self.closed.push(chain.chain);
        }
    }

    /// Only a job that can be acquired wakes anybody.
    fn placed(&mut self, job: Placed, job_type: &TypeName) {
        if job.status == Status::Pending {
            self.schedule(job_type.clone(), 1, job.due_at);
        }
    }

    fn schedule(&mut self, job_type: TypeName, count: u32, due_at: Timestamp) {
        let entry = self.scheduled.entry(job_type).or_insert((0, due_at));
        *entry = (entry.0.saturating_add(count), entry.1.min(due_at));
    }
}

fn about(job: Placed, job_type: &TypeName, chain_type: &TypeName) -> About {
    About {
        job: job.job,
        job_type: job_type.clone(),
        chain: job.chain,
        chain_type: chain_type.clone(),
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
