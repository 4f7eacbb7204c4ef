//! Records metrics from events, activities and the ends of attempts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter};
use windlass_core::{
    AbortReason, About, AboutWorker, Activity, ClosedAs, Ended, ErrorKind, Event, StoreCall,
};

use crate::attributes::{
    BATCH, COMMAND, DESTINATION, ERROR_TYPE, OPERATION, OPERATION_TYPE, RESULT, STATUS, SYSTEM,
    TypeAttributes, Types, WORKER_NAME, value,
};
use crate::instruments::Instruments;

pub(crate) struct Metrics {
    instruments: Instruments,
    types: Arc<Types>,
}

impl Metrics {
    pub(crate) fn new(meter: &Meter, types: Arc<Types>) -> Self {
        Self { instruments: Instruments::new(meter), types }
    }

    pub(crate) fn observe(&self, event: &Event) {
        let this = &self.instruments;
        match event {
            Event::WorkerStarted(worker) => count_worker(&this.worker_started, worker),
            Event::WorkerFailed(worker, _) => count_worker(&this.worker_error, worker),
            Event::WorkerStopping(worker) => count_worker(&this.worker_stopping, worker),
            Event::WorkerStopped(worker) => count_worker(&this.worker_stopped, worker),
            Event::ChainCreated(about) => this.chain_created.add(1, &*self.types.chain(&about.chain_type)),
            Event::JobCreated(about) => self.created(about),
            Event::JobBlocked(about) => this.job_blocked.add(1, &self.types.of(about).job),
            Event::JobUnblocked(about) => this.job_unblocked.add(1, &self.types.of(about).job),
            Event::JobTriggered(about) => this.job_triggered.add(1, &self.types.of(about).job),
            Event::AttemptStarted(about) => self.started(about),
            Event::LeaseRenewed(about) => this.lease_renewed.add(1, &self.types.of(about).job),
            Event::AttemptTimedOut(about) => this.attempt_timed_out.add(1, &self.types.of(about).job),
            Event::AttemptReaped(about) => this.job_reaped.add(1, &self.types.of(about).job),
            Event::JobCompleted(about, next) => {
                let types = self.types.of(about);
                let result = if next.is_some() { "continued" } else { "completed" };
                this.job_completed.add(1, &types.job_and(RESULT, result));
                self.job_ended(about, &types);
            }
            Event::JobFailed(about, _) => {
                let types = self.types.of(about);
                this.job_failed.add(1, &types.job);
                self.job_ended(about, &types);
            }
            Event::JobCancelled(about) => {
                let types = self.types.of(about);
                this.job_cancelled.add(1, &types.job);
                self.job_ended(about, &types);
            }
            Event::ChainClosed(about, closed_as) => self.closed(about, *closed_as),
            Event::ChainRetried(about) => this.chain_retried.add(1, &*self.types.chain(&about.chain_type)),
            Event::ChainDeleted(_, chain_type) => {
                this.chain_deleted.add(1, &*self.types.chain(chain_type));
            }
            Event::ChainExpired(_, chain_type) => {
                this.chain_expired.add(1, &*self.types.chain(chain_type));
            }
            // Other commands are measured, and have a kind of error.
            Event::StoreFailed(command @ ("rollback" | "due_schedules" | "change_schedules"), _) => {
                let attributes = [KeyValue::new(COMMAND, *command), KeyValue::new(ERROR_TYPE, "_OTHER")];
                this.store_error.add(1, &attributes);
            }
            Event::NotifierFailed(call, _) => this.notifier_error.add(1, &[KeyValue::new(COMMAND, *call)]),
            _ => {}
        }
    }

    /// Counts a start that found a chain with the same key.
    pub(crate) fn existed(&self, about: &About) {
        self.instruments.chain_existed.add(1, &*self.types.chain(&about.chain_type));
    }

    /// Counts a stored trace context that could not be read.
    pub(crate) fn context_invalid(&self) {
        self.instruments.context_invalid.add(1, &[]);
    }

    pub(crate) fn measure(&self, activity: &Activity) {
        let this = &self.instruments;
        match activity {
            Activity::StoreCalled(call) => self.called(call),
            Activity::Flushed { batch, items } => {
                this.batch_size.record(*items as u64, &[KeyValue::new(BATCH, *batch)]);
            }
            Activity::NotifierConnected => this.notifier_connected.add(1, &[]),
            Activity::NotifierLost | Activity::NotifierGap { .. } => this.notifier_lost.add(1, &[]),
            Activity::Leadership { leads, .. } => this.leaders.add(if *leads { 1 } else { -1 }, &[]),
            Activity::Reaped { jobs } => this.reaper_requeued.add(*jobs as u64, &[]),
            Activity::WorkerCapacity { types, concurrency, is_running, .. } => {
                let slots = if *is_running { i64::from(*concurrency) } else { -i64::from(*concurrency) };
                for job_type in types {
                    let attributes = [KeyValue::new(DESTINATION, value(self.types.name(job_type)))];
                    this.slots_idle.add(slots, &attributes);
                    // So that the series exists before the first attempt.
                    this.slots_busy.add(0, &attributes);
                }
            }
            _ => {}
        }
    }

    fn created(&self, about: &About) {
        let types = self.types.of(about);
        self.instruments.job_created.add(1, &types.job);
        self.instruments.sent_messages.add(1, &types.messaging("create"));
    }

    fn started(&self, about: &About) {
        let types = self.types.of(about);
        self.instruments.attempt_started.add(1, &types.job);
        self.instruments.consumed_messages.add(1, &types.messaging("process"));
        if let Some(waited) = about.waited {
            self.instruments.job_wait.record(waited.as_secs_f64(), &types.job);
        }
    }

    /// Counts a slot as busy until the returned guard is released or dropped.
    pub(crate) fn occupy(this: &Arc<Self>, about: &About) -> BusySlot {
        let types = this.types.of(about);
        this.move_slot(&types, 1);
        BusySlot { metrics: Arc::clone(this), types, is_released: AtomicBool::new(false) }
    }

    /// Records the end of an attempt.
    pub(crate) fn ended(&self, about: &About, ended: &Ended) {
        let (this, types) = (&self.instruments, self.types.of(about));
        match ended {
            Ended::Completed | Ended::Continued(_) => this.attempt_completed.add(1, &types.job),
            Ended::Retried { .. } | Ended::Failed { .. } => this.attempt_failed.add(1, &types.job),
            Ended::Lost(reason) => this.attempt_lost.add(1, &types.job_and(RESULT, lost_as(*reason))),
            Ended::Rescheduled { .. } | Ended::Released => this.attempt_rescheduled.add(1, &types.job),
            Ended::Cancelled => this.attempt_cancelled.add(1, &types.job),
            _ => {}
        }
        let Some(ran) = about.ran else { return };
        this.attempt_duration.record(ran.as_secs_f64(), &types.job_and(RESULT, result(ended)));
        let [system, operation, destination] = types.messaging("process");
        match error_type(ended) {
            Some(error) => {
                let error = KeyValue::new(ERROR_TYPE, error);
                this.process_duration.record(ran.as_secs_f64(), &[system, operation, destination, error]);
            }
            None => this.process_duration.record(ran.as_secs_f64(), &[system, operation, destination]),
        }
    }

    /// Moves a slot between idle and busy.
    fn move_slot(&self, types: &TypeAttributes, by: i64) {
        let [job_type, _] = &types.job;
        let job_type = std::slice::from_ref(job_type);
        self.instruments.slots_busy.add(by, job_type);
        self.instruments.slots_idle.add(-by, job_type);
    }

    fn job_ended(&self, about: &About, types: &TypeAttributes) {
        if let Some(age) = about.job_age {
            self.instruments.job_duration.record(age.as_secs_f64(), &types.job);
        }
    }

    fn closed(&self, about: &About, closed_as: ClosedAs) {
        let attributes = self.types.chain_and(&about.chain_type, STATUS, status(closed_as));
        self.instruments.chain_closed.add(1, &attributes);
        if let Some(age) = about.chain_age {
            self.instruments.chain_duration.record(age.as_secs_f64(), &attributes);
        }
    }

    fn called(&self, call: &StoreCall) {
        let (this, took) = (&self.instruments, call.took.as_secs_f64());
        let command = KeyValue::new(COMMAND, call.command);
        let error = call.error.map(|kind| KeyValue::new(ERROR_TYPE, error_name(kind)));
        let operation = match call.command {
            "create" => Some("create"),
            "acquire" => Some("receive"),
            "settle" | "exchange" => Some("settle"),
            _ => None,
        };
        match error {
            Some(error) => {
                this.store_error.add(1, &[command.clone(), error.clone()]);
                this.store_duration.record(took, &[command, error.clone()]);
                self.operated(operation, took, Some(error));
            }
            None => {
                this.store_duration.record(took, &[command]);
                self.operated(operation, took, None);
            }
        }
    }

    fn operated(&self, operation: Option<&'static str>, took: f64, error: Option<KeyValue>) {
        let Some(operation) = operation else { return };
        let mut attributes = vec![
            KeyValue::new(SYSTEM, "windlass"),
            KeyValue::new(OPERATION, operation),
            KeyValue::new(OPERATION_TYPE, operation),
        ];
        attributes.extend(error);
        self.instruments.operation_duration.record(took, &attributes);
    }
}

/// A slot that an attempt occupies.
#[derive(Debug)]
pub(crate) struct BusySlot {
    metrics: Arc<Metrics>,
    types: Arc<TypeAttributes>,
    is_released: AtomicBool,
}

impl BusySlot {
    /// Counts the slot as idle. Does nothing the second time.
    pub(crate) fn release(&self) {
        if !self.is_released.swap(true, Ordering::AcqRel) {
            self.metrics.move_slot(&self.types, -1);
        }
    }
}

/// The attempt was dropped, without an end that was stored.
impl Drop for BusySlot {
    fn drop(&mut self) {
        self.release();
    }
}

fn count_worker(counter: &Counter<u64>, worker: &AboutWorker) {
    match &worker.name {
        Some(name) => counter.add(1, &[KeyValue::new(WORKER_NAME, name.as_str().to_owned())]),
        None => counter.add(1, &[]),
    }
}

/// Returns the name of a result.
pub(crate) const fn result(ended: &Ended) -> &'static str {
    match ended {
        Ended::Completed => "completed",
        Ended::Continued(_) => "continued",
        Ended::Retried { .. } => "retried",
        Ended::Rescheduled { .. } => "rescheduled",
        Ended::Failed { .. } => "failed",
        Ended::Cancelled => "cancelled",
        Ended::Released => "released",
        Ended::Lost(_) => "lost",
        _ => "other",
    }
}

/// Returns the low-cardinality type of an attempt's error, or `None` if it did not fail.
pub(crate) const fn error_type(ended: &Ended) -> Option<&'static str> {
    match ended {
        Ended::Retried { .. } | Ended::Failed { .. } => Some("handler"),
        Ended::Lost(reason) => Some(lost_as(*reason)),
        _ => None,
    }
}

pub(crate) const fn lost_as(reason: AbortReason) -> &'static str {
    match reason {
        AbortReason::TakenOver => "taken_over",
        AbortReason::AlreadyClosed => "already_closed",
        AbortReason::NotFound => "not_found",
        AbortReason::Cancelled => "cancelled",
        AbortReason::TimedOut => "timed_out",
        AbortReason::StoreError => "store_error",
        AbortReason::WorkerStopping => "worker_stopping",
        _ => "other",
    }
}

pub(crate) const fn status(closed_as: ClosedAs) -> &'static str {
    match closed_as {
        ClosedAs::Completed => "completed",
        ClosedAs::Failed => "failed",
        ClosedAs::Cancelled => "cancelled",
    }
}

fn error_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Busy => "busy",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::AccessDenied => "access_denied",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Closed => "closed",
        ErrorKind::TimedOut => "timed_out",
        _ => "other",
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
