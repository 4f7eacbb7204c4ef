//! Stores that break the contract on purpose. The conformance suite must catch each of them.
//!
//! They run the real scripts, but for one change in their text.

use windlass_core::Result;

use crate::script::{Call, Scripts};
use crate::store::{Options, RedisStore};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBad {
    /// Settlements and renewals do not look at the fence.
    FenceIgnored,
    /// Whether a key is free is found out by one script, and the key is taken by another.
    KeyNotUnique,
    /// How many blockers a job still waits for is read by one script, and written by another.
    UnblockLost,
    /// A settlement that is refused leaves the chains that it had created before it was.
    SettleHalfApplied,
    /// Each settlement is written before the next is looked at. Redis takes nothing back when a script is stopped, so
    /// that an error in the middle of a batch leaves what stood before it.
    BatchHalfWritten,
}

/// In front of a script that looks: what it sees.
const SEEN_NOW: &str = "local seen = {}\n";

/// In front of the script that writes: what the one before it had seen.
const SEEN_BEFORE: &str = "local seen = cmsgpack.unpack(ARGV[#ARGV])\n";

/// Opens a store that is broken so.
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
                let settled = "replies[at] = settle(item)\n";
                let written = format!(
                    "{settled}    commit()\n    journal, indexes, dirty, counts = {{}}, {{}}, {{}}, {{}}\n"
                );
                Call::new(&replace(text, settled, &written))
            }
            _ => Call::new(text),
        }
    }
}

/// The text with a part replaced, which must be there: a change of the scripts may not make a bad store good.
fn replace(text: &str, part: &str, by: &str) -> String {
    assert!(text.contains(part), "the script no longer has {part:?}: break it in another place");
    text.replace(part, by)
}
