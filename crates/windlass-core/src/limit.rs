//! Every limit of the contract, in one place. A request over a limit is refused, never cut, except for error
//! texts, which are shortened with a mark.

/// The longest name of a job type or of a leader lock, in bytes.
pub const NAME_MAX_BYTES: usize = 200;
/// The longest deduplication key, in bytes.
pub const KEY_MAX_BYTES: usize = 1_000;
/// The longest codec name, in bytes.
pub const CODEC_MAX_BYTES: usize = 32;
/// The longest trace context, in bytes.
pub const TRACE_MAX_BYTES: usize = 512;
/// The largest input or output of a job, in bytes.
pub const PAYLOAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// The longest stored error text, in bytes. Longer ones are shortened and end in a mark that says so.
pub const ERROR_MAX_BYTES: usize = 10_000;
/// The longest duration, in milliseconds: a hundred years.
pub const DURATION_MAX_MS: u64 = 100 * 36_525 * 24 * 60 * 60 * 10;
/// The latest time, in milliseconds since the Unix epoch: the end of the year 9999.
pub const TIMESTAMP_MAX_MS: i64 = 253_402_300_799_999;
/// The most items of one command: chains to create (carried ones too), jobs to acquire, settle or renew, ids
/// to look up.
pub const BATCH_MAX_ITEMS: usize = 1_000;
/// The most bytes of payload in one command.
pub const BATCH_MAX_BYTES: usize = 16 * 1024 * 1024;
/// The most blockers of one job.
pub const BLOCKERS_MAX: usize = 1_000;
/// The most blockers of all jobs of one command.
pub const BATCH_MAX_BLOCKERS: usize = 10_000;
/// The most chains that a settlement or a step from outside may carry.
pub const CARRIED_MAX: usize = 100;
/// The most steps of one completion from outside.
pub const STEPS_MAX: usize = 100;
/// The most chains that are looked at in the search for a chain that waits for itself.
pub const CYCLE_SEARCH_MAX: usize = 1_000;
/// The most dependents that one command unblocks; a stored mark lets later commands go on with the rest.
pub const RIPPLE_MAX: usize = 1_000;
/// The most running jobs that a reap leaves out.
pub const REAP_EXCEPT_MAX: usize = 10_000;
/// The most chains that one delete removes, cascade included.
pub const DELETE_MAX_CHAINS: usize = 1_000;
/// How many ended attempts a job remembers; the oldest leave first.
pub const HISTORY_MAX: usize = 20;
/// How long after its end a chain or job stays stored at least, whatever its retention, so that a command
/// repeated after a lost reply is recognized: ten minutes.
pub const REPEAT_WINDOW_MS: u64 = 10 * 60 * 1_000;
/// The most rows of one page of a list; the least is 1.
pub const PAGE_MAX: usize = 1_000;
/// The most rows that one page of a list looks at; a page may be short because of it.
pub const PAGE_SCAN_MAX: usize = 10_000;
