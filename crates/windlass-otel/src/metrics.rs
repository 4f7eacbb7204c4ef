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
    BATCH, COMMAND, DESTINATION, ERROR_TYPE, OPERATION, OPERATION_TYPE, RESULT, STATUS, SYSTEM, WORKER_NAME,
};
use crate::instruments::Instruments;
use crate::types::{JobSeries, Types, value};

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
            Event::ChainCreated(about) => {
                let series = self.types.chain(&about.chain_type);
                series.created.get_or_init(|| this.chain_created.bind(&series.chain)).add(1);
            }
            Event::JobCreated(about) => self.created(about),
            Event::JobBlocked(about) => this.job_blocked.add(1, &self.types.of(about).job),
            Event::JobUnblocked(about) => this.job_unblocked.add(1, &self.types.of(about).job),
            Event::JobTriggered(about) => this.job_triggered.add(1, &self.types.of(about).job),
            Event::LeaseRenewed(about) => this.lease_renewed.add(1, &self.types.of(about).job),
            Event::AttemptTimedOut(about) => this.attempt_timed_out.add(1, &self.types.of(about).job),
            Event::AttemptReaped(about) => this.job_reaped.add(1, &self.types.of(about).job),
            Event::JobCompleted(about, next) => {
                let series = self.types.of(about);
                let index = usize::from(next.is_some());
                if let Some((cell, result)) = series.completed.iter().zip(DONE).nth(index) {
                    cell.get_or_init(|| this.job_completed.bind(&series.job_and(RESULT, result))).add(1);
                }
                self.job_ended(about, &series);
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
            Event::ChainRetried(about) => {
                this.chain_retried.add(1, &self.types.chain(&about.chain_type).chain);
            }
            Event::ChainDeleted(_, chain_type) => {
                this.chain_deleted.add(1, &self.types.chain(chain_type).chain);
            }
            Event::ChainExpired(_, chain_type) => {
                this.chain_expired.add(1, &self.types.chain(chain_type).chain);
            }
            Event::NotifierFailed(call, _) => this.notifier_error.add(1, &[KeyValue::new(COMMAND, *call)]),
            _ => {}
        }
    }

    /// Counts a start that found a chain with the same key.
    pub(crate) fn existed(&self, about: &About) {
        self.instruments.chain_existed.add(1, &self.types.chain(&about.chain_type).chain);
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
        let (this, series) = (&self.instruments, self.types.of(about));
        series.created.get_or_init(|| this.job_created.bind(&series.job)).add(1);
        series.sent.get_or_init(|| this.sent_messages.bind(&series.messaging("send"))).add(1);
    }

    /// Counts an attempt that starts. Its slot is busy until the returned guard is released or dropped.
    pub(crate) fn attempt(this: &Arc<Self>, about: &About) -> BusySlot {
        let (instruments, series) = (&this.instruments, this.types.of(about));
        series.started.get_or_init(|| instruments.attempt_started.bind(&series.job)).add(1);
        let consumed = || instruments.consumed_messages.bind(&series.messaging("process"));
        series.consumed.get_or_init(consumed).add(1);
        if let Some(waited) = about.waited {
            let histogram = series.waited.get_or_init(|| instruments.job_wait.bind(&series.job));
            histogram.record(waited.as_secs_f64());
        }
        this.move_slot(&series, 1);
        BusySlot { metrics: Arc::clone(this), series, is_released: AtomicBool::new(false) }
    }

    /// Records the end of an attempt.
    fn ended(&self, series: &JobSeries, about: &About, ended: &Ended) {
        let this = &self.instruments;
        match ended {
            Ended::Completed | Ended::Continued(_) => {
                series.attempt_completed.get_or_init(|| this.attempt_completed.bind(&series.job)).add(1);
            }
            Ended::Retried { .. } | Ended::Failed { .. } => this.attempt_failed.add(1, &series.job),
            Ended::Lost(reason) => this.attempt_lost.add(1, &series.job_and(RESULT, lost_as(*reason))),
            Ended::Rescheduled { .. } | Ended::Released => this.attempt_rescheduled.add(1, &series.job),
            Ended::Cancelled => this.attempt_cancelled.add(1, &series.job),
            _ => {}
        }
        let Some(ran) = about.ran else { return };
        let (ran, result) = (ran.as_secs_f64(), result(ended));
        let bound = series.attempt_duration.iter().zip(DONE).find(|(_, done)| *done == result);
        match bound {
            Some((cell, _)) => {
                cell.get_or_init(|| this.attempt_duration.bind(&series.job_and(RESULT, result))).record(ran);
            }
            None => this.attempt_duration.record(ran, &series.job_and(RESULT, result)),
        }
        match error_type(ended) {
            Some(error) => {
                let [system, operation, destination] = series.messaging("process");
                let error = KeyValue::new(ERROR_TYPE, error);
                this.process_duration.record(ran, &[system, operation, destination, error]);
            }
            None => {
                let bind = || this.process_duration.bind(&series.messaging("process"));
                series.processed.get_or_init(bind).record(ran);
            }
        }
    }

    /// Moves a slot between idle and busy.
    fn move_slot(&self, series: &JobSeries, by: i64) {
        let (this, destination) = (&self.instruments, series.destination());
        series.busy.get_or_init(|| this.slots_busy.bind(destination)).add(by);
        series.idle.get_or_init(|| this.slots_idle.bind(destination)).add(-by);
    }

    fn job_ended(&self, about: &About, series: &JobSeries) {
        if let Some(age) = about.job_age {
            let bind = || self.instruments.job_duration.bind(&series.job);
            series.job_duration.get_or_init(bind).record(age.as_secs_f64());
        }
    }

    fn closed(&self, about: &About, closed_as: ClosedAs) {
        let (this, series) = (&self.instruments, self.types.chain(&about.chain_type));
        let attributes = || series.chain_and(STATUS, status(closed_as));
        let age = about.chain_age.map(|age| age.as_secs_f64());
        if closed_as == ClosedAs::Completed {
            series.completed.get_or_init(|| this.chain_closed.bind(&attributes())).add(1);
            if let Some(age) = age {
                series.duration.get_or_init(|| this.chain_duration.bind(&attributes())).record(age);
            }
            return;
        }
        this.chain_closed.add(1, &attributes());
        if let Some(age) = age {
            this.chain_duration.record(age, &attributes());
        }
    }

    fn called(&self, call: &StoreCall) {
        let (this, took) = (&self.instruments, call.took.as_secs_f64());
        let command = KeyValue::new(COMMAND, call.command);
        let error = call.error.map(|kind| KeyValue::new(ERROR_TYPE, error_name(kind)));
        let operation = match call.command {
            "create" => Some("send"),
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

/// The results of attempts that completed their job.
const DONE: [&str; 2] = ["completed", "continued"];

/// A slot that an attempt occupies.
#[derive(Debug)]
pub(crate) struct BusySlot {
    metrics: Arc<Metrics>,
    series: Arc<JobSeries>,
    is_released: AtomicBool,
}

impl BusySlot {
    /// Records the end of the attempt, and counts the slot as idle.
    pub(crate) fn end(&self, about: &About, ended: &Ended) {
        self.release();
        self.metrics.ended(&self.series, about, ended);
    }

    /// Counts the slot as idle. Does nothing the second time.
    fn release(&self) {
        if !self.is_released.swap(true, Ordering::AcqRel) {
            self.metrics.move_slot(&self.series, -1);
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

pub(crate) const fn error_name(kind: ErrorKind) -> &'static str {
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
