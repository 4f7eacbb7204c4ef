//! The instruments of OpenTelemetry, declared once.

use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};

use crate::attributes::{
    BATCH, CHAIN_TYPE, COMMAND, DESTINATION, ERROR_TYPE, OPERATION, OPERATION_TYPE, RESULT, STATUS, SYSTEM,
    WORKER_NAME,
};
use crate::catalogue::{Instrument, Kind};

/// Bounds of durations in seconds, from a call of a millisecond to a chain that takes a day.
const SECONDS: [f64; 18] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0,
    21_600.0, 86_400.0,
];

/// Bounds that the semantic conventions for messaging recommend, in seconds.
const CONVENTIONAL: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Bounds of the number of items in a batch.
const ITEMS: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1_000.0];

const JOB: &[&str] = &[DESTINATION, CHAIN_TYPE];
const JOB_RESULT: &[&str] = &[DESTINATION, CHAIN_TYPE, RESULT];
const CHAIN: &[&str] = &[CHAIN_TYPE];
const CHAIN_STATUS: &[&str] = &[CHAIN_TYPE, STATUS];
const WORKER: &[&str] = &[WORKER_NAME];
const TYPE: &[&str] = &[DESTINATION];
const MESSAGING: &[&str] = &[SYSTEM, OPERATION, DESTINATION];

/// Declares a field for each instrument, the constructor, and the catalogue.
macro_rules! instruments {
    (recorded { $($field:ident: $kind:ident $name:literal $unit:literal $description:literal $attributes:expr;)* }
     queried { $($gauge:literal $gauge_unit:literal $gauge_description:literal $gauge_attributes:expr;)* }) => {
        #[derive(Debug)]
        pub(crate) struct Instruments {
            $(pub(crate) $field: instruments!(@type $kind),)*
        }

        impl Instruments {
            pub(crate) fn new(meter: &Meter) -> Self {
                Self { $($field: instruments!(@build $kind meter $name $unit $description),)* }
            }
        }

        /// All instruments.
        pub const INSTRUMENTS: &[Instrument] = &[
            $(Instrument {
                name: $name,
                kind: instruments!(@kind $kind),
                unit: $unit,
                description: $description,
                attributes: $attributes,
            },)*
            $(Instrument {
                name: $gauge,
                kind: Kind::StateGauge,
                unit: $gauge_unit,
                description: $gauge_description,
                attributes: $gauge_attributes,
            },)*
        ];
    };
    (@type counter) => { Counter<u64> };
    (@type level) => { UpDownCounter<i64> };
    (@type seconds) => { Histogram<f64> };
    (@type conventional) => { Histogram<f64> };
    (@type items) => { Histogram<u64> };
    (@kind counter) => { Kind::Counter };
    (@kind level) => { Kind::UpDownCounter };
    (@kind seconds) => { Kind::Histogram };
    (@kind conventional) => { Kind::Histogram };
    (@kind items) => { Kind::Histogram };
    (@build counter $meter:ident $name:literal $unit:literal $description:literal) => {
        $meter.u64_counter($name).with_unit($unit).with_description($description).build()
    };
    (@build level $meter:ident $name:literal $unit:literal $description:literal) => {
        $meter.i64_up_down_counter($name).with_unit($unit).with_description($description).build()
    };
    (@build seconds $meter:ident $name:literal $unit:literal $description:literal) => {
        $meter
            .f64_histogram($name)
            .with_unit($unit)
            .with_description($description)
            .with_boundaries(SECONDS.to_vec())
            .build()
    };
    (@build conventional $meter:ident $name:literal $unit:literal $description:literal) => {
        $meter
            .f64_histogram($name)
            .with_unit($unit)
            .with_description($description)
            .with_boundaries(CONVENTIONAL.to_vec())
            .build()
    };
    (@build items $meter:ident $name:literal $unit:literal $description:literal) => {
        $meter
            .u64_histogram($name)
            .with_unit($unit)
            .with_description($description)
            .with_boundaries(ITEMS.to_vec())
            .build()
    };
}

instruments! {
    recorded {
    worker_started: counter "windlass.worker.started" "{worker}" "Workers that started." WORKER;
    worker_error: counter "windlass.worker.error" "{error}" "Errors in a worker's main loop. The worker continues." WORKER;
    worker_stopping: counter "windlass.worker.stopping" "{worker}" "Workers that were asked to stop." WORKER;
    worker_stopped: counter "windlass.worker.stopped" "{worker}" "Workers that stopped." WORKER;
    job_created: counter "windlass.job.created" "{job}" "Jobs created." JOB;
    job_completed: counter "windlass.job.completed" "{job}" "Jobs completed. `windlass.result` is `completed`, or `continued` if another job follows." JOB_RESULT;
    job_failed: counter "windlass.job.failed" "{job}" "Jobs that failed permanently." JOB;
    job_cancelled: counter "windlass.job.cancelled" "{job}" "Jobs cancelled." JOB;
    job_reaped: counter "windlass.job.reaped" "{job}" "Jobs whose lease expired because their worker crashed or hangs." JOB;
    job_blocked: counter "windlass.job.blocked" "{job}" "Jobs that were created with open blockers." JOB;
    job_unblocked: counter "windlass.job.unblocked" "{job}" "Jobs whose last blocker ended." JOB;
    job_triggered: counter "windlass.job.triggered" "{job}" "Jobs made due immediately." JOB;
    attempt_started: counter "windlass.attempt.started" "{attempt}" "Attempts started." JOB;
    attempt_completed: counter "windlass.attempt.completed" "{attempt}" "Attempts that completed their job." JOB;
    attempt_failed: counter "windlass.attempt.failed" "{attempt}" "Attempts that failed. The job is retried or fails." JOB;
    attempt_rescheduled: counter "windlass.attempt.rescheduled" "{attempt}" "Attempts that rescheduled their job, or released it because the worker was stopping." JOB;
    attempt_cancelled: counter "windlass.attempt.cancelled" "{attempt}" "Attempts that ended because their chain was cancelled." JOB;
    attempt_lost: counter "windlass.attempt.lost" "{attempt}" "Attempts that lost their job before they ended. `windlass.result` is the reason." JOB_RESULT;
    attempt_timed_out: counter "windlass.attempt.timed_out" "{attempt}" "Attempts that exceeded the timeout of their type." JOB;
    lease_renewed: counter "windlass.attempt.lease_renewed" "{renewal}" "Lease renewals." JOB;
    chain_created: counter "windlass.chain.created" "{chain}" "Chains created." CHAIN;
    chain_existed: counter "windlass.chain.existed" "{chain}" "Starts that created no chain, because a chain with the same key exists." CHAIN;
    chain_closed: counter "windlass.chain.closed" "{chain}" "Chains closed. `windlass.status` is `completed`, `failed` or `cancelled`." CHAIN_STATUS;
    chain_retried: counter "windlass.chain.retried" "{chain}" "Failed or cancelled chains that were reopened." CHAIN;
    chain_deleted: counter "windlass.chain.deleted" "{chain}" "Chains that were deleted." CHAIN;
    chain_expired: counter "windlass.chain.expired" "{chain}" "Chains that were removed because their retention ended." CHAIN;
    store_error: counter "windlass.store.error" "{error}" "Store commands that failed." &[COMMAND, ERROR_TYPE];
    notifier_error: counter "windlass.notifier.error" "{error}" "Notifier calls that failed. The same failure of a call is counted at most once a minute." &[COMMAND];
    notifier_connected: counter "windlass.notifier.connected" "{subscription}" "Notifier subscriptions that were established." &[];
    notifier_lost: counter "windlass.notifier.lost" "{subscription}" "Notifier subscriptions that ended. The client subscribes again." &[];
    notifier_gap: counter "windlass.notifier.gap" "{gap}" "Interruptions of notifier subscriptions, in which hints may have been lost. The subscription continues." &[];
    reaper_requeued: counter "windlass.reaper.requeued" "{job}" "Jobs that this process requeued because their lease expired." &[];
    context_invalid: counter "windlass.trace_context.invalid" "{context}" "Stored trace contexts of chains, jobs and waits that could not be parsed, each time that one is read." &[];
    job_wait: seconds "windlass.job.wait" "s" "Time from the job's due time to the start of the attempt." JOB;
    attempt_duration: seconds "windlass.attempt.duration" "s" "Duration of attempts, by result." JOB_RESULT;
    job_duration: seconds "windlass.job.duration" "s" "Time from the creation of a job to its end." JOB;
    chain_duration: seconds "windlass.chain.duration" "s" "Time from the creation of a chain to its end." CHAIN_STATUS;
    store_duration: seconds "windlass.store.duration" "s" "Duration of store commands." &[COMMAND, ERROR_TYPE];
    batch_size: items "windlass.batch.size" "{item}" "Number of items that concurrent callers sent in one store command." &[BATCH];
    slots_idle: level "windlass.job_type.idle" "{slot}" "Worker slots minus running attempts, by job type. A worker's slots count for each type that it handles." TYPE;
    slots_busy: level "windlass.job_type.processing" "{attempt}" "Attempts that are running." TYPE;
    leaders: level "windlass.reaper.leader" "{reaper}" "Standalone reapers in this process that are the leader." &[];
    sent_messages: counter "messaging.client.sent.messages" "{message}" "Jobs created, as the semantic conventions count them." MESSAGING;
    consumed_messages: counter "messaging.client.consumed.messages" "{message}" "Jobs acquired, as the semantic conventions count them." MESSAGING;
    process_duration: conventional "messaging.process.duration" "s" "Duration of attempts, as the semantic conventions measure it." &[SYSTEM, OPERATION, DESTINATION, ERROR_TYPE];
    operation_duration: conventional "messaging.client.operation.duration" "s" "Duration of the store commands that create, acquire and settle jobs." &[SYSTEM, OPERATION, OPERATION_TYPE, ERROR_TYPE];
    }
    queried {
    "windlass.state.jobs" "{job}" "Stored jobs, by type and status." &[DESTINATION, STATUS];
    "windlass.state.oldest_ready.age" "s" "How long the oldest pending job of a type has been due." TYPE;
    "windlass.state.expired_leases" "{job}" "Running jobs whose lease has expired." TYPE;
    "windlass.state.blocked_by_failed" "{job}" "Blocked jobs that wait for a chain that failed or was cancelled." TYPE;
    "windlass.state.paused" "{type}" "1 for each paused type." TYPE;
    "windlass.state.reporter" "{process}" "1 in the process that reports the state, even if no jobs are stored." &[];
    }
}
