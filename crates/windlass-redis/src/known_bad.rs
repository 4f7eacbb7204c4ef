//! Stores that break the contract on purpose. The conformance suite must catch each of them.
//!
//! They run the real scripts with one change in the text.

use windlass_core::Result;

use crate::options::Options;
use crate::script::{Call, Scripts, TEXTS};
use crate::store::RedisStore;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBad {
    /// Settlements and renewals do not check the fence.
    FenceIgnored,
    /// One script checks whether a key is free, and another takes it.
    KeyNotUnique,
    /// One script reads how many blockers a job still waits for, and another writes it.
    UnblockLost,
    /// A refused settlement leaves the chains that it had created before the refusal.
    SettleHalfApplied,
    /// Each settlement is written before the next one is processed. Redis does not roll back a script that is stopped,
    /// so an error in the middle of a batch leaves the settlements before it applied.
    BatchHalfWritten,
}

/// A deliberate fault of a short path, which the library does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// A settlement with a stale fence is applied.
    FenceIgnored,
    /// A chain with dependents or several jobs counts as plain.
    ExtraIgnored,
    /// A settlement does not increase the version.
    VersionKept,
    /// A settlement keeps the error of an earlier attempt.
    ErrorKept,
    /// A paused type is acquired.
    PauseIgnored,
    /// Priorities are ignored.
    PriorityIgnored,
    /// A repeated acquire gets other jobs.
    RepeatIgnored,
    /// A chain that is already stored is created again.
    ExistingIgnored,
    /// A time in the past is stored as the due time.
    DueInThePast,
    /// Settled jobs stay in the list of unfinished ones.
    OrderForgotten,
    /// A chain leaves without the window for repeated commands.
    WindowForgotten,
    /// A large input is stored in the row.
    LargeInputInRow,
    /// A large output is stored in the row.
    LargeOutputInRow,
    /// A row does not have the length of its output.
    OutputLengthForgotten,
}

impl BadPath {
    /// All faults.
    pub const ALL: [Self; 14] = [
        Self::FenceIgnored,
        Self::ExtraIgnored,
        Self::VersionKept,
        Self::ErrorKept,
        Self::PauseIgnored,
        Self::PriorityIgnored,
        Self::RepeatIgnored,
        Self::ExistingIgnored,
        Self::DueInThePast,
        Self::OrderForgotten,
        Self::WindowForgotten,
        Self::LargeInputInRow,
        Self::LargeOutputInRow,
        Self::OutputLengthForgotten,
    ];

    /// The text that the fault replaces, and its replacement.
    const fn replacement(self) -> (&'static str, &'static str) {
        match self {
            Self::FenceIgnored => ("or fence ~= wanted or", "or"),
            Self::ExtraIgnored => {
                ("status ~= 3 or fence ~= wanted or extra_length ~= 0", "status ~= 3 or fence ~= wanted")
            }
            Self::VersionKept => ("attempt, version + 1, fence, due, -1", "attempt, version, fence, due, -1"),
            Self::ErrorKept => ("if flags >= HAS_ERROR then", "if false then"),
            Self::PauseIgnored => ("(paused[at] == 1 or quota == 0)", "quota == 0"),
            Self::PriorityIgnored => ("if one.set.priority ~= other.set.priority then", "if false then"),
            Self::RepeatIgnored => ("types > 0 and tag .. ':request:' .. ARGV[5] or rippling", "rippling"),
            Self::ExistingIgnored => (" or try(unpack(keys)) ~= 0", ""),
            Self::DueInThePast => ("schedule == AT and math.max(time, now)", "schedule == AT and time"),
            Self::OrderForgotten => ("open[block] = (open[block] or 0) - 1", ""),
            Self::WindowForgotten => {
                ("math.max(retain_until, math.min(now + REPEAT_WINDOW, TIME_MAX))", "retain_until")
            }
            Self::LargeInputInRow => ("if #input > INLINE_MAX then", "if false then"),
            Self::LargeOutputInRow => ("if #output > INLINE_MAX then", "if false then"),
            Self::OutputLengthForgotten => ("input_length, #output, 4", "input_length, 0, 4"),
        }
    }
}

/// Opens a store whose scripts have no short paths.
pub async fn open_without_short_paths(url: &str, options: Options) -> Result<RedisStore> {
    let store = RedisStore::open(url, options).await?;
    Ok(store.with_scripts(Scripts::new(|_, text| Call::new(&without_short_path(text)))))
}

/// Opens a store with a fault in its short paths.
pub async fn open_with_bad_path(url: &str, options: Options, bad: BadPath) -> Result<RedisStore> {
    let (part, by) = bad.replacement();
    assert!(
        TEXTS.iter().any(|(_, text)| text.contains(part)),
        "no script has {part:?}: break it in another place"
    );
    let store = RedisStore::open(url, options).await?;
    Ok(store.with_scripts(Scripts::new(|_, text| Call::new(&text.replace(part, by)))))
}

fn without_short_path(text: &str) -> String {
    text.replace("return hot() or full()", "return full()")
}

/// Prefix of the script that reads: a table for the values it reads.
const SEEN_NOW: &str = "local seen = {}\n";

/// Prefix of the script that writes: the values that the reading script returned.
const SEEN_BEFORE: &str = "local seen = cmsgpack.unpack(ARGV[#ARGV])\n";

/// Opens a store with this fault.
pub async fn open(url: &str, options: Options, known_bad: KnownBad) -> Result<RedisStore> {
    let store = RedisStore::open(url, options).await?;
    Ok(store.with_scripts(Scripts::new(|name, text| known_bad.spoil(name, text))))
}

impl KnownBad {
    fn spoil(self, name: &str, text: &str) -> Call {
        // The short paths leave everything unusual to the library.
        let text = &without_short_path(text);
        match (self, name) {
            (Self::FenceIgnored, "renew" | "settle" | "exchange") => {
                Call::new(&replace(text, "if row.fence == fence then", "if true then"))
            }
            (Self::KeyNotUnique, "create") => {
                let found = "local found = existing(new)";
                let read = replace(
                    &replace(text, found, &format!("{found}\n  seen[new.job.id] = found")),
                    "commit()\nreturn cmsgpack.pack({ chains = replies })",
                    "return cmsgpack.pack(seen)",
                );
                let write = replace(text, found, "local found = seen[new.job.id]");
                Call::new(&format!("{SEEN_BEFORE}{write}")).after_read(&format!("{SEEN_NOW}{read}"))
            }
            (Self::UnblockLost, "settle") => {
                let resolved = "row.waits = row.waits - 1";
                let read = replace(
                    &replace(
                        text,
                        resolved,
                        &format!("seen[row.id] = seen[row.id] or row.waits\n  {resolved}"),
                    ),
                    "commit()\nreturn cmsgpack.pack(reply)",
                    "return cmsgpack.pack(seen)",
                );
                let stale = "row.waits = (seen[row.id] or row.waits) - 1\n  seen[row.id] = row.waits";
                let write = replace(text, resolved, stale);
                Call::new(&format!("{SEEN_BEFORE}{write}")).after_read(&format!("{SEEN_NOW}{read}"))
            }
            (Self::SettleHalfApplied, "settle" | "exchange") => Call::new(&replace(text, "    undo()\n", "")),
            (Self::BatchHalfWritten, "settle" | "exchange") => {
                let settled = "replies[at] = settle_one(item)\n";
                let written = format!(
                    "{settled}    commit()\n    journal, indexes, dirty, counts, blocks, held_by = {{}}, {{}}, {{}}, {{}}, {{}}, {{}}\n"
                );
                Call::new(&replace(text, settled, &written))
            }
            _ => Call::new(text),
        }
    }
}

/// Replaces `part` of the text. Panics if it is missing: otherwise a change of the scripts could turn a faulty store
/// into a correct one unnoticed.
fn replace(text: &str, part: &str, by: &str) -> String {
    assert!(text.contains(part), "the script no longer has {part:?}: break it in another place");
    text.replace(part, by)
}
