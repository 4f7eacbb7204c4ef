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
use crate::series::{ChainSeries, JobSeries, Series};
use crate::types::{Types, value};

pub(crate) struct Metrics {
    instruments: Arc<Instruments>,
    types: Arc<Types>,
    series: Series,
    /// Whether attempts are reported. They are not if the observer is wrapped in another one that passes on only events.
    follows: AtomicBool,
}

impl Metrics {
    pub(crate) fn new(meter: &Meter, types: Arc<Types>) -> Self {
        let instruments = Arc::new(Instruments::new(meter));
        let series = Series::new(Arc::clone(&instruments), Arc::clone(&types));
        Self { instruments, types, series, follows: AtomicBool::new(false) }
    }

    fn follows(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    pub(crate) fn observe(&self, event: &Event) {
        let this = &self.instruments;
        match event {
            Event::WorkerStarted(worker) => count_worker(&this.worker_started, worker),
            Event::WorkerFailed(worker, _) => count_worker(&this.worker_error, worker),
            Event::WorkerStopping(worker) => count_worker(&this.worker_stopping, worker),
            Event::WorkerStopped(worker) => count_worker(&this.worker_stopped, worker),
            Event::JobCreated(about) => self.series.with(about, |series| {
                series.created.get_or_init(|| this.job_created.bind(&series.job)).add(1);
                series.sent.get_or_init(|| this.sent_messages.bind(&series.messaging("send"))).add(1);
                // A chain is created with its first job: one lookup is enough for both.
                if about.job == about.chain.first_job() {
                    self.series.with_chain_of(series, about, |chain| {
                        chain.created.get_or_init(|| this.chain_created.bind(&chain.chain)).add(1);
                    });
                }
            }),
            Event::JobBlocked(about) => self.count(about, &this.job_blocked),
            Event::JobUnblocked(about) => self.count(about, &this.job_unblocked),
            Event::JobTriggered(about) => self.count(about, &this.job_triggered),
            Event::LeaseRenewed(about) => self.count(about, &this.lease_renewed),
            Event::AttemptTimedOut(about) => self.count(about, &this.attempt_timed_out),
            Event::AttemptReaped(about) => self.count(about, &this.job_reaped),
            // If an attempt completed it, the end of the attempt reports it.
            Event::JobCompleted(about, next) if about.worker.is_none() || !self.follows() => {
                self.series.with(about, |series| job_completed(series, about, next.is_some()));
            }
            Event::JobFailed(about, _) => {
                self.count(about, &this.job_failed);
                self.series.with(about, |series| job_ended(about, series));
            }
            Event::JobCancelled(about) => {
                self.count(about, &this.job_cancelled);
                self.series.with(about, |series| job_ended(about, series));
            }
            Event::ChainClosed(about, closed_as) => {
                self.series.with_chain(about, |series| self.closed(about, series, *closed_as));
            }
            Event::ChainRetried(about) => {
                self.series.with_chain(about, |series| this.chain_retried.add(1, &series.chain));
            }
            Event::ChainDeleted(_, chain_type) => {
                this.chain_deleted.add(1, &self.series.chain(chain_type).chain);
            }
            Event::ChainExpired(_, chain_type) => {
                this.chain_expired.add(1, &self.series.chain(chain_type).chain);
            }
            Event::NotifierFailed(call, _) => this.notifier_error.add(1, &[KeyValue::new(COMMAND, *call)]),
            _ => {}
        }
    }

    /// Counts a start that found a chain with the same key.
    pub(crate) fn existed(&self, about: &About) {
        self.instruments.chain_existed.add(1, &self.series.chain(&about.chain_type).chain);
    }

    /// Returns the counter of stored trace contexts that could not be parsed.
    pub(crate) fn contexts_invalid(&self) -> Counter<u64> {
        self.instruments.context_invalid.clone()
    }

    pub(crate) fn measure(&self, activity: &Activity) {
        let this = &self.instruments;
        match activity {
            Activity::StoreCalled(call) => self.called(call),
            Activity::Flushed { batch, items } => {
                this.batch_size.record(*items as u64, &[KeyValue::new(BATCH, *batch)]);
            }
            Activity::NotifierConnected => this.notifier_connected.add(1, &[]),
            Activity::NotifierLost => this.notifier_lost.add(1, &[]),
            Activity::NotifierGap { .. } => this.notifier_gap.add(1, &[]),
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

    /// Adds one to a counter that is seldom used.
    fn count(&self, about: &About, counter: &Counter<u64>) {
        self.series.with(about, |series| counter.add(1, &series.job));
    }

    /// Counts an attempt that starts. Its slot is busy until the returned guard is released or dropped.
    pub(crate) fn attempt(&self, about: &About) -> BusySlot {
        if !self.follows() {
            self.follows.store(true, Ordering::Relaxed);
        }
        self.series.with(about, |series| {
            let this = &self.instruments;
            series.started.get_or_init(|| this.attempt_started.bind(&series.job)).add(1);
            let consumed = || this.consumed_messages.bind(&series.messaging("process"));
            series.consumed.get_or_init(consumed).add(1);
            if let Some(waited) = about.waited {
                let histogram = series.waited.get_or_init(|| this.job_wait.bind(&series.job));
                histogram.record(waited.as_secs_f64());
            }
            // The capacity of a worker counts for each type, also if the pairs of types are too many to be distinguished.
            let name = || [KeyValue::new(DESTINATION, value(self.types.name(&about.job_type)))];
            let slot = BusySlot {
                series: Arc::clone(series),
                job_type: series.is_shared().then(name),
                is_released: AtomicBool::new(false),
            };
            slot.take(1);
            slot
        })
    }

    fn closed(&self, about: &About, series: &ChainSeries, closed_as: ClosedAs) {
        let this = &self.instruments;
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
        let operation = operation(call.command);
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

/// Returns the operation of the semantic conventions that a store command executes. A command that does two things counts
/// as the one that it cannot omit: it creates or settles jobs, and may acquire others.
fn operation(command: &str) -> Option<&'static str> {
    match command {
        "create" | "create_and_acquire" => Some("send"),
        "acquire" => Some("receive"),
        "settle" | "exchange" => Some("settle"),
        _ => None,
    }
}

/// Records the end of an attempt.
fn attempt_ended(series: &JobSeries, about: &About, ended: &Ended) {
    let this = &series.instruments;
    match ended {
        Ended::Completed | Ended::Continued(_) => {
            series.attempt_completed.get_or_init(|| this.attempt_completed.bind(&series.job)).add(1);
            job_completed(series, about, matches!(ended, Ended::Continued(_)));
        }
        Ended::Retried { .. } | Ended::Failed { .. } => this.attempt_failed.add(1, &series.job),
        Ended::Lost(reason) => this.attempt_lost.add(1, &series.job_and(RESULT, lost_as(*reason))),
        Ended::Rescheduled { .. } | Ended::Released => this.attempt_rescheduled.add(1, &series.job),
        Ended::Cancelled => this.attempt_cancelled.add(1, &series.job),
        _ => {}
    }
    let Some(ran) = about.ran else { return };
    let (ran, result) = (ran.as_secs_f64(), result(ended));
    let bound = match ended {
        Ended::Completed => series.attempt_duration.first(),
        Ended::Continued(_) => series.attempt_duration.last(),
        _ => None,
    };
    match bound {
        Some(cell) => {
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

/// Records that a job completed its chain or continued it.
fn job_completed(series: &JobSeries, about: &About, has_continued: bool) {
    let [completed, continued] = &series.completed;
    let (cell, result) = if has_continued { (continued, "continued") } else { (completed, "completed") };
    let bind = || series.instruments.job_completed.bind(&series.job_and(RESULT, result));
    cell.get_or_init(bind).add(1);
    job_ended(about, series);
}

fn job_ended(about: &About, series: &JobSeries) {
    if let Some(age) = about.job_age {
        let bind = || series.instruments.job_duration.bind(&series.job);
        series.job_duration.get_or_init(bind).record(age.as_secs_f64());
    }
}

/// A slot that an attempt occupies.
#[derive(Debug)]
pub(crate) struct BusySlot {
    series: Arc<JobSeries>,
    /// The job type, if several types share the series.
    job_type: Option<[KeyValue; 1]>,
    is_released: AtomicBool,
}

impl BusySlot {
    /// Records the end of the attempt, and counts the slot as idle.
    pub(crate) fn end(&self, about: &About, ended: &Ended) {
        self.release();
        attempt_ended(&self.series, about, ended);
    }

    /// Counts the slot as idle. Does nothing the second time.
    fn release(&self) {
        if !self.is_released.swap(true, Ordering::AcqRel) {
            self.take(-1);
        }
    }

    /// Moves slots from idle to busy.
    fn take(&self, slots: i64) {
        let (series, this) = (&self.series, &self.series.instruments);
        if let Some(job_type) = &self.job_type {
            this.slots_busy.add(slots, job_type);
            this.slots_idle.add(-slots, job_type);
            return;
        }
        let destination = series.destination();
        series.busy.get_or_init(|| this.slots_busy.bind(destination)).add(slots);
        series.idle.get_or_init(|| this.slots_idle.bind(destination)).add(-slots);
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
        ErrorKind::Outdated => "outdated",
        ErrorKind::Incompatible => "incompatible",
        ErrorKind::Closed => "closed",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Changed => "changed",
        ErrorKind::LeaseLost => "lease_lost",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::ChainCancelled => "chain_cancelled",
        _ => "other",
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new command must be added to one of these lists.
    #[test]
    fn each_command_of_the_store_is_an_operation_or_none() {
        macro_rules! names {
            ($($method:ident: $request:ident => $reply:ident,)*) => { [$(stringify!($method)),*] };
        }
        let of = |wanted: Option<&str>| -> Vec<_> {
            let commands = windlass_core::for_each_command!(names);
            commands.into_iter().filter(|command| operation(command) == wanted).collect()
        };
        assert_eq!(of(Some("send")), ["create", "create_and_acquire"]);
        assert_eq!(of(Some("receive")), ["acquire"]);
        assert_eq!(of(Some("settle")), ["settle", "exchange"]);
        let others = "renew reap next_due expire complete_from_outside cancel trigger retry delete set_retention pause \
            get_chains get_jobs list_chains list_jobs list_dependents list_attempts count beat retire list_workers \
            leader_lock change_schedules get_schedules list_schedules due_schedules";
        assert_eq!(of(None), others.split_whitespace().collect::<Vec<_>>());
    }
}
