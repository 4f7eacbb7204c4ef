//! Every limit of the contract. A request that exceeds a limit is refused, never truncated. The exception is
//! error texts, which are shortened and end with a marker.

/// The maximum length of the name of a job type, worker, leader lock or schedule, in bytes.
pub const NAME_MAX_BYTES: usize = 200;
/// The maximum length of a deduplication key, in bytes.
pub const KEY_MAX_BYTES: usize = 1_000;
/// The maximum length of a codec name, in bytes.
pub const CODEC_MAX_BYTES: usize = 32;
/// The maximum length of a trace context, in bytes.
pub const TRACE_MAX_BYTES: usize = 512;
/// The maximum size of the input or output of a job, in bytes.
pub const PAYLOAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// The maximum length of a stored error text, in bytes. Longer texts are shortened and end with a marker.
pub const ERROR_MAX_BYTES: usize = 10_000;
/// The longest duration, in milliseconds: 100 years.
pub const DURATION_MAX_MS: u64 = 100 * 36_525 * 24 * 60 * 60 * 10;
/// The latest timestamp, in milliseconds since the Unix epoch: the end of the year 9999.
pub const TIMESTAMP_MAX_MS: i64 = 253_402_300_799_999;
/// The maximum number of items in one command: chains to create (including carried ones), jobs to acquire,
/// settle or renew, ids to get.
pub const BATCH_MAX_ITEMS: usize = 1_000;
/// The maximum total size of the payloads in one command, in bytes.
pub const BATCH_MAX_BYTES: usize = 16 * 1024 * 1024;
/// The maximum total size of the inputs, and of the outputs of blockers, that an acquire returns, in bytes. A single job may
/// have more.
pub const ACQUIRE_MAX_BYTES: usize = BATCH_MAX_BYTES;
/// The maximum number of blockers of one job.
pub const BLOCKERS_MAX: usize = 1_000;
/// The maximum number of blockers of all jobs in one command.
pub const BATCH_MAX_BLOCKERS: usize = 10_000;
/// The maximum number of chains that a settlement or a step from outside can carry.
pub const CARRIED_MAX: usize = 100;
/// The maximum number of steps in one completion from outside.
pub const STEPS_MAX: usize = 100;
/// The maximum number of chains that the search for a cycle of waiting chains visits.
pub const CYCLE_SEARCH_MAX: usize = 1_000;
/// The maximum number of dependents that one command resolves. It stores a mark, so that later commands resolve the
/// rest.
pub const RIPPLE_MAX: usize = 1_000;
/// The maximum number of running jobs that a reap can exclude.
pub const REAP_EXCEPT_MAX: usize = 10_000;
/// The maximum number of chains that one delete removes, including cascaded ones.
pub const DELETE_MAX_CHAINS: usize = 1_000;
/// The number of ended attempts that a job remembers. The oldest are dropped first.
pub const HISTORY_MAX: usize = 30;
/// The minimum time that a chain or job stays stored after its end, regardless of its retention: 10 minutes.
/// A command repeated after a lost reply is recognized within this time.
pub const REPEAT_WINDOW_MS: u64 = 10 * 60 * 1_000;
/// The maximum size of the definition or the state of a schedule, in bytes.
pub const SCHEDULE_TEXT_MAX_BYTES: usize = 64 * 1024;
/// The maximum number of schedules that one query returns.
pub const SCHEDULE_PAGE_MAX: usize = 100;
/// The maximum number of rows on one page of a list. The minimum is 1.
pub const PAGE_MAX: usize = 1_000;
/// The maximum number of rows that one page of a list scans. A page may be short because of this limit.
pub const PAGE_SCAN_MAX: usize = 10_000;
