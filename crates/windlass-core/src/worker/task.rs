//! One attempt, from its acquisition to its settlement.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::BoxError;
use super::abort::{Abort, AbortReason};
use super::handler::{AnyHandler, Ending, Run};
use super::run::RECOVERY;
use super::slot::Engine;
use crate::client::Announcements;
use crate::command::{Acquired, Outcome, Schedule, SettleReply, Settled, Settlement};
use crate::error::Result;
use crate::id::{Fence, JobId};
use crate::job::Backoff;
use crate::name::ErrorText;
use crate::observer::{About, Event};
use crate::store::{BoxFuture, Store};
use crate::time::Millis;

/// Starts an attempt in a task of its own; or gives the job back, if the worker is stopping.
pub(super) fn start<S: Store + ?Sized>(engine: &Arc<Engine<S>>, acquired: Acquired, asked_at: Instant) {
    let name = acquired.job.job_type.as_str();
    let found = engine.handlers.iter().position(|handler| handler.names.contains(&name));
    let Some((index, handler)) = found.and_then(|index| Some((index, engine.handlers.get(index)?))) else {
        return;
    };
    let lease = Millis::try_from(handler.options.lease).unwrap_or_default();
    let Some(abort) = engine.occupy(&acquired, index, lease, asked_at) else { return };
    let id = (acquired.job.id, acquired.job.fence);
    let task = if engine.stopping.is_cancelled() {
        tokio::spawn(give_back(Arc::clone(engine), id))
    } else {
        tokio::spawn(attempt(Arc::clone(engine), acquired, Arc::clone(handler), abort, lease))
    };
    if let Some(slot) = engine.slots().get_mut(&id) {
        slot.task = Some(task.abort_handle());
    }
}

/// Frees the slot of an attempt, however its task ends.
struct Occupied<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    attempt: (JobId, Fence),
}

impl<S: Store + ?Sized> Drop for Occupied<S> {
    fn drop(&mut self) {
        self.engine.vacate(self.attempt);
    }
}

async fn give_back<S: Store + ?Sized>(engine: Arc<Engine<S>>, (job, fence): (JobId, Fence)) {
    let occupied = Occupied { engine, attempt: (job, fence) };
    occupied.engine.settle(Settlement { job, fence, outcome: Outcome::Release }).await;
}

/// Runs one attempt to its end.
async fn attempt<S: Store + ?Sized>(
    engine: Arc<Engine<S>>,
    acquired: Acquired,
    handler: Arc<AnyHandler<S>>,
    abort: Abort,
    lease: Millis,
) {
    let (job, fence, number) = (acquired.job.id, acquired.job.fence, acquired.job.attempt);
    let occupied = Occupied { engine: Arc::clone(&engine), attempt: (job, fence) };
    let Some(about) = engine.about((job, fence)) else { return };
    engine.teller().observe(&Event::AttemptStarted(about.clone()));
    let failed = |error: ErrorText| failure(error, &handler.options.backoff, number, &abort);
    let run = Run { client: engine.client.clone(), acquired, abort: abort.clone(), lease };
    let ending = {
        let handler = Arc::clone(&handler);
        AbortOnDrop(tokio::spawn(async move { (handler.call)(run).await })).join().await
    };
    engine.mark_settling((job, fence));
    let outcome = match ending {
        Ok(Ending::Plain(outcome)) => Some(outcome),
        Ok(Ending::InTx(finish, outcome)) => {
            let settlement = Settlement { job, fence, outcome };
            engine.finish(finish, &settlement, &about).await.unwrap_or_else(|error| Some(failed(error)))
        }
        Ok(Ending::Unreadable(error)) => {
            Some(Outcome::Fail { error: ErrorText::new(error.to_string()), retention: None })
        }
        Ok(Ending::Failed(error, undo)) => {
            if let Some(undo) = undo
                && let Err(error) = undo.await
            {
                engine.teller().observe(&Event::StoreFailed("rollback", ErrorText::new(error.to_string())));
            }
            Some(failed(error))
        }
        Err(error) => Some(failed(ErrorText::new(error.to_string()))),
    };
    match outcome {
        Some(_) if abort.reason().is_some_and(AbortReason::is_lost) => {
            engine.teller().observe(&Event::AttemptLost(about));
        }
        Some(outcome) => engine.settle(Settlement { job, fence, outcome }).await,
        None => {}
    }
    drop(occupied);
}

/// What becomes of a job whose attempt failed. One that failed because the worker stops is given back.
fn failure(error: ErrorText, backoff: &Backoff, attempt: u32, abort: &Abort) -> Outcome {
    if abort.reason() == Some(AbortReason::WorkerStopping) {
        return Outcome::Release;
    }
    let delay = Millis::try_from(backoff.delay(attempt, fastrand::f64())).unwrap_or(Millis::MAX);
    Outcome::Retry { schedule: Schedule::After(delay), error }
}

impl<S: Store + ?Sized> Engine<S> {
    fn about(&self, attempt: (JobId, Fence)) -> Option<About> {
        self.slots().get(&attempt).map(|slot| slot.about.clone())
    }

    /// The handler has ended: from here on neither its timeout nor the end of its lease stops the writing of
    /// that.
    fn mark_settling(&self, attempt: (JobId, Fence)) {
        if let Some(slot) = self.slots().get_mut(&attempt) {
            slot.settling = true;
            slot.timeout_at = None;
        }
    }

    /// Settles and commits a handler's transaction. Gives an outcome to settle if that was refused, and an
    /// error if the attempt is to be tried again.
    async fn finish(
        &self,
        finish: BoxFuture<'static, Result<SettleReply>>,
        settlement: &Settlement,
        about: &About,
    ) -> Result<Option<Outcome>, ErrorText> {
        // If the commit failed it may have happened all the same: then the retry finds the attempt settled, and changes
        // nothing.
        let reply = finish.await.map_err(|error| ErrorText::new(error.to_string()))?;
        let mut announcements = Announcements::default();
        reply.settled.iter().for_each(|settled| announcements.settled(settlement, about, settled));
        announcements.ripple(&reply.ripple);
        announcements.send(self.teller());
        match reply.settled.into_iter().next() {
            Some(Settled::Refused(refusal)) => {
                Ok(Some(Outcome::Fail { error: ErrorText::new(refusal.to_string()), retention: None }))
            }
            Some(Settled::Busy) => Err(ErrorText::new("somebody's open transaction held the job at its end")),
            _ => Ok(None),
        }
    }

    /// Settles an attempt, and repeats that until the store has answered: a lease that has expired may still
    /// be settled as long as nobody has reaped it, and afterwards the store says so.
    async fn settle(&self, mut settlement: Settlement) {
        let Some(about) = self.about((settlement.job, settlement.fence)) else { return };
        let mut tries = 0;
        loop {
            match self.settles.add((settlement.clone(), about.clone())).await {
                Ok(Settled::Refused(refusal)) => {
                    let error = ErrorText::new(refusal.to_string());
                    settlement.outcome = Outcome::Fail { error, retention: None };
                    continue;
                }
                Ok(Settled::Busy) => {}
                Ok(_) => return,
                Err(error) => {
                    self.teller().observe(&Event::StoreFailed("settle", ErrorText::new(error.to_string())));
                }
            }
            tries += 1;
            sleep(RECOVERY.delay(tries, fastrand::f64())).await;
        }
    }
}

/// Ends the handler's task when the attempt's task ends.
struct AbortOnDrop(JoinHandle<Ending>);

impl AbortOnDrop {
    async fn join(mut self) -> Result<Ending, BoxError> {
        match (&mut self.0).await {
            Ok(ending) => Ok(ending),
            Err(error) if error.is_panic() => {
                let panic = error.into_panic();
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
                Err(format!("the handler panicked: {text}").into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
