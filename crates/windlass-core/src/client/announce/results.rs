//! Turns the results of commands into announcements: events, and hints for the workers and waits that they concern.

use std::sync::Arc;
use std::time::Duration;

use super::{Announcements, Note};
use crate::LEASE_EXPIRED;
use crate::command::{
    Applied, Cancelled, ClosedChain, Created, DeleteReply, DueTime, JobSummary, NewChain, NewJob, Outcome,
    OutsideApplied, Reaped, Retried, Ripple, Settled, Step, TriggerReply,
};
use crate::id::ChainId;
use crate::name::{ErrorText, Key, TraceContext, TypeName};
use crate::observer::{About, AboutJob, Described, Event, Frequent};
use crate::record::{ClosedAs, Status};
use crate::time::Timestamp;

impl Announcements {
    /// Announces a chain that was created. Does nothing for other results.
    pub(in crate::client) fn created(&mut self, new: &NewChain, created: &Created) {
        let Created::New { job, repeated } = created else { return };
        if !repeated && !self.unobserved {
            let (key, trace) = (new.key.as_ref().map(|key| &key.key), new.trace.as_ref());
            let mut about = self.about_new(*job, &new.job, &new.job.job_type, (key, trace));
            about.chain_age = Some(Duration::ZERO);
            let about = self.report_if_read(Frequent::ChainCreated, about, Event::ChainCreated);
            self.job_created(about, *job).keep();
        }
        // Also for a repeated creation: if the first reply was lost, no worker has been woken yet.
        self.wake_workers(*job, &new.job.job_type);
    }

    /// Announces a chain that the job in `about` has closed.
    pub(crate) fn closed_by(&mut self, about: About, closed: &ClosedChain) -> About {
        let about = self.report(about, |about| Event::ChainClosed(about, closed.closed_as));
        self.note_closed(closed.chain, closed.closed_as);
        about
    }

    /// Announces the unblocked jobs and the closed chains.
    pub(crate) fn ripple(&mut self, ripple: &Ripple) {
        self.ripple_after(ripple, 0);
    }

    /// Announces the unblocked jobs and the closed chains, except for the first ones, which have been announced.
    pub(crate) fn ripple_after(&mut self, ripple: &Ripple, announced: usize) {
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
        let closed = ripple.closed.get(announced..).unwrap_or_default();
        self.notes.reserve(closed.len());
        for closed in closed {
            if self.unobserved {
                self.notes.push(Note::Closed(closed.chain));
            } else {
                self.closed_by(self.about_closed(closed), closed).keep();
            }
        }
    }

    /// Announces a cancelled job, or notifies the worker of a job that was asked to stop. The closed chain is
    /// announced by [`ripple`](Self::ripple).
    pub(in crate::client) fn cancelled(&mut self, cancelled: Cancelled, ripple: &Ripple) {
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
    /// only if there is something to describe. Returns the description, if the attempt was settled.
    pub(crate) fn settled(
        &mut self,
        outcome: &Outcome,
        job_type: &TypeName,
        about: impl Fn(Timestamp) -> About,
        settled: &Settled,
    ) -> Option<About> {
        match settled {
            Settled::Applied(applied) => return self.applied(outcome, job_type, about, applied),
            Settled::AlreadyApplied(job) => self.applied_before(outcome, &about(self.now()), *job),
            Settled::Lost(_) if !self.unobserved => self.event(Event::AttemptLost(about(self.now()))),
            Settled::Lost(_) | Settled::Busy | Settled::Refused(_) => {}
        }
        None
    }

    fn applied(
        &mut self,
        outcome: &Outcome,
        job_type: &TypeName,
        about: impl FnOnce(Timestamp) -> About,
        applied: &Applied,
    ) -> Option<About> {
        let about = if self.unobserved {
            None
        } else {
            let (about, event) = (about(self.now()), |about| ended(outcome, about, applied));
            Some(match applied.job.status {
                // Without a worker, no scope reports the completion.
                Status::Completed if about.worker.is_some() => {
                    self.report_if_read(Frequent::JobCompleted, about, event)
                }
                _ => self.report(about, event),
            })
        };
        self.wake_workers(applied.job, job_type);
        if let (Some(next), Outcome::Continue { next: job, .. }) = (applied.next, outcome) {
            if let Some(before) = &about {
                let (key, trace) = (before.key.as_ref(), before.chain_trace.as_ref());
                let mut about = self.about_new(next, &job.job, &before.chain_type, (key, trace));
                about.chain_age = before.chain_age;
                about.shared_mut().cause_traces.extend(before.trace.clone());
                self.job_created(about, next);
            }
            self.wake_workers(next, &job.job.job_type);
        }
        for (new, created) in outcome.carried().iter().zip(&applied.created) {
            self.created(new, created);
        }
        about
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
                    self.event(Event::ChainClosed(about.clone(), closed_as));
                    self.note_closed(about.chain, closed_as);
                }
            }
            _ => self.wake_workers(job, &about.job_type),
        }
    }

    /// Announces a completion from outside of the job in `about`.
    pub(in crate::client) fn outside(&mut self, mut about: About, steps: &[Step], applied: &OutsideApplied) {
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
                shared.blockers = job.blockers.iter().map(|blocker| blocker.chain).collect();
                shared.wait_traces = wait_traces(job).collect();
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

    pub(in crate::client) fn triggered(&mut self, reply: &TriggerReply) {
        let TriggerReply::Triggered(jobs) = reply else { return };
        for triggered in jobs {
            let about = self.about(triggered.job, &triggered.job_type, &triggered.chain_type);
            self.event(Event::JobTriggered(about));
            self.wake_workers(triggered.job, &triggered.job_type);
        }
    }

    pub(in crate::client) fn retried(&mut self, retried: &Retried) {
        let Retried::Retried { job, job_type, chain_type } = retried else { return };
        self.event(Event::ChainRetried(self.about(*job, job_type, chain_type)));
        self.notes.extend(job.chain.occurrence().map(|_| Note::RunReopened(job.chain)));
        self.wake_workers(*job, job_type);
    }

    pub(in crate::client) fn deleted(&mut self, reply: &DeleteReply) {
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

    fn note_closed(&mut self, chain: ChainId, closed_as: ClosedAs) {
        if closed_as != ClosedAs::Completed && !self.unobserved {
            self.notes.push(Note::Failed(chain, closed_as));
        }
        self.notes.push(Note::Closed(chain));
    }

    fn job_created(&mut self, about: About, job: JobSummary) -> About {
        let about = self.report(about, Event::JobCreated);
        if job.status == Status::Blocked {
            self.event(Event::JobBlocked(about.clone()));
        }
        about
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
        let mut about = About::reuse(
            at,
            &Described {
                job: closed.job,
                job_type: &closed.job_type,
                chain: closed.chain,
                chain_type: &closed.chain_type,
                key: None,
                attempt: None,
                worker: None,
                trace: None,
                chain_trace: closed.trace.as_ref(),
            },
        );
        about.chain_age = Some(at.since(closed.created_at));
        about
    }

    /// Describes a job that was created. The chain has this key and this trace context.
    fn about_new(
        &self,
        job: JobSummary,
        new: &NewJob,
        chain_type: &TypeName,
        (key, chain_trace): (Option<&Key>, Option<&TraceContext>),
    ) -> About {
        let mut about = About::reuse(
            self.created_at(job, new),
            &Described {
                job: job.job,
                job_type: &new.job_type,
                chain: job.chain,
                chain_type,
                key,
                attempt: None,
                worker: None,
                trace: new.trace.as_ref(),
                chain_trace,
            },
        );
        about.job_age = Some(Duration::ZERO);
        if !new.blockers.is_empty() {
            let shared = about.shared_mut();
            shared.blockers.extend(new.blockers.iter().map(|blocker| blocker.chain));
            shared.wait_traces.extend(wait_traces(new));
        }
        about
    }

    /// Like [`report`](Self::report), unless nobody reads the event.
    fn report_if_read(&mut self, kind: Frequent, about: About, event: impl FnOnce(About) -> Event) -> About {
        match &self.committed {
            Some(committed) if !committed.dispatcher.wants(kind, committed.wanted) => about,
            _ => self.report(about, event),
        }
    }

    /// Announces an event about a job. Returns the description for the next event.
    fn report(&mut self, about: About, event: impl FnOnce(About) -> Event) -> About {
        match &self.committed {
            Some(committed) => {
                let event = event(about);
                committed.dispatcher.report(&event, committed.wanted);
                event.into_about().expect("the event was built from a description")
            }
            None => {
                self.event(event(about.clone()));
                about
            }
        }
    }
}

fn about_job(job: JobSummary, job_type: &TypeName, chain_type: &TypeName) -> AboutJob {
    AboutJob::new((job.job, job_type.clone()), (job.chain, chain_type.clone()))
}

/// Returns the trace contexts of a new job's waits.
fn wait_traces(job: &NewJob) -> impl Iterator<Item = TraceContext> {
    job.blockers.iter().filter_map(|blocker| blocker.trace.clone())
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
