//! Stores that break the contract on purpose. The conformance suite must catch each of them.
//!
//! They run the real scripts with one change in the text.

use windlass_core::Result;

use crate::options::Options;
use crate::script::{Call, Scripts};
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
        match (self, name) {
            (Self::FenceIgnored, "renew" | "settle" | "exchange") => {
                Call::new(&replace(text, "if row.fence == fence then", "if true then"))
            }
            (Self::KeyNotUnique, "create") => {
                let found = "local found = existing(new)";
                let look = replace(
                    &replace(text, found, &format!("{found}\n  seen[new.job.id] = found")),
                    "commit()\nreturn cmsgpack.pack({ chains = replies })",
                    "return cmsgpack.pack(seen)",
                );
                let write = replace(text, found, "local found = seen[new.job.id]");
                Call::new(&format!("{SEEN_BEFORE}{write}")).after_look(&format!("{SEEN_NOW}{look}"))
            }
            (Self::UnblockLost, "settle") => {
                let resolved = "row.waits = row.waits - 1";
                let look = replace(
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
                Call::new(&format!("{SEEN_BEFORE}{write}")).after_look(&format!("{SEEN_NOW}{look}"))
            }
            (Self::SettleHalfApplied, "settle" | "exchange") => Call::new(&replace(text, "    undo()\n", "")),
            (Self::BatchHalfWritten, "settle" | "exchange") => {
                let settled = "replies[at] = settle_one(item)\n";
                let written = format!(
                    "{settled}    commit()\n    journal, indexes, dirty, counts = {{}}, {{}}, {{}}, {{}}\n"
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
