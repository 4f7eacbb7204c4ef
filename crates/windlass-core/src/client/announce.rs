//! Collects what a write changed, and announces it after the commit.

mod results;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::store_time::StoreTime;
use super::trace::{RequestedJob, RequestedTraces, not_created};
use super::watch::{Fate, Written};
use super::{Dispatcher, Wanted};
use crate::command::{Created, NewChain};
use crate::error::Result;
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::TypeName;
use crate::notifier::Hint;
use crate::observer::{Event, NotWritten};
use crate::record::ClosedAs;
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
    wanted: Wanted,
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
        let wanted = dispatcher.wants_events();
        let committed = if wanted.is_any() { dispatcher.weak().upgrade() } else { None };
        let committed = committed.map(|dispatcher| Committed { at: dispatcher.now(), dispatcher, wanted });
        Self { unobserved: committed.is_none(), committed, ..Self::default() }
    }

    /// Creates a list of jobs that were scheduled, with the times at which they are due.
    pub(super) fn scheduled(jobs: impl Iterator<Item = (TypeName, Timestamp)>) -> Self {
        let notes = jobs.map(|(job_type, due_at)| Note::Scheduled(job_type, due_at)).collect();
        Self { unobserved: true, notes, ..Self::default() }
    }

    /// Removes the latest note if it schedules a job, and returns that job.
    pub(super) fn withhold(&mut self) -> Option<(TypeName, Timestamp)> {
        match self.notes.pop()? {
            Note::Scheduled(job_type, due_at) => Some((job_type, due_at)),
            other => {
                self.notes.push(other);
                None
            }
        }
    }

    /// Announces everything after the commit, then runs the commit hooks.
    ///
    /// Does not wait for the notifier: hints are published in the background. The hooks run last, so that a
    /// slow hook does not delay the hints.
    pub(crate) fn send(self, dispatcher: &Dispatcher) {
        let mut scheduled = BTreeMap::<TypeName, (u32, Timestamp)>::new();
        let (mut others, mut failed, mut hooks, mut resolve) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut schedules_changed = false;
        let mut wanted = None;
        for note in self.notes {
            match note {
                Note::Event(event) => {
                    let wanted = *wanted.get_or_insert_with(|| dispatcher.wants_events());
                    dispatcher.report(&event, wanted);
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
                (Note::Traced(job), Fate::Lost) => dispatcher.untrace(&job, Some(NotWritten::RolledBack)),
                (Note::Traced(job), Fate::Unknown) => dispatcher.unreported(&job),
                // A change of schedules notes no write of its own. The write before it says nothing about it, and may have
                // been rolled back to a savepoint.
                (note @ Note::SchedulesChanged, _) if end != TxEnd::RolledBack => stored.notes.push(note),
                (note, Fate::Stored) => stored.notes.push(note),
                (
                    note @ (Note::Scheduled(..) | Note::Closed(_) | Note::RunReopened(_) | Note::Lost(..)),
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
        self.cut(0, Some(NotWritten::RolledBack), dispatcher);
    }

    /// Handles the result of a commit. After a lost reply, it is unknown whether the commit happened. The rollback hooks run
    /// nevertheless, and the observers are notified that no event will follow, not that nothing was written.
    pub(crate) fn commit_ended(mut self, ended: &Result<()>, dispatcher: &Dispatcher) {
        match ended {
            Ok(()) => self.send(dispatcher),
            Err(error) => self.cut(0, NotWritten::of(error.kind()), dispatcher),
        }
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
    fn cut(&mut self, kept: usize, why: Option<NotWritten>, dispatcher: &Dispatcher) {
        let mut hooks = Vec::new();
        for note in self.notes.drain(kept.min(self.notes.len())..) {
            match note {
                Note::Traced(job) => dispatcher.untrace(&job, why),
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
        if self.committed.is_some() {
            // The events have been passed on, and a committed write is not rolled back.
            traces.forget();
        } else if self.unobserved {
            // An observer was switched on after the transaction had begun. It was asked for the contexts, but no event
            // follows, so the drop notifies it.
            drop(traces);
        } else {
            self.notes.extend(traces.into_jobs().into_iter().map(|job| Note::Traced(Box::new(job))));
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

    fn event(&mut self, event: Event) {
        match &self.committed {
            Some(committed) => committed.dispatcher.report(&event, committed.wanted),
            None if self.unobserved => {}
            None => self.notes.push(Note::Event(Box::new(event))),
        }
    }
}

/// Runs a hook. Catches a panic, so that the other hooks run too.
pub(super) fn run(hook: Hook) {
    let _ = catch_unwind(AssertUnwindSafe(hook));
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").field("notes", &self.notes.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
