//! Health checks of the folder.

use std::time::Duration;

use windlass_core::{Finding, Result};

use crate::committed::Committed;
use crate::folder::Files;
use crate::open::is_harmless;
use crate::shared::Shared;

/// Journals above this size and above four times the size of the snapshot are a finding: compactions must have failed.
const JOURNAL_MAX_BYTES: u64 = 256 << 20;

/// Returns current and likely future problems of the folder.
pub(crate) fn findings(shared: &Shared, checks_integrity: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if let Some(kind) = shared.folder.disk.shared_file_system() {
        findings.push(finding(
            format!("the folder is on a network or cluster file system ({kind})"),
            "move it to a local disk, or make sure that only this machine uses it: its locks do not work between machines",
        ));
    }
    let files = Files::list(&*shared.folder.disk)?;
    let foreign: Vec<_> = files.foreign.iter().filter(|name| !is_harmless(name)).cloned().collect();
    if !foreign.is_empty() {
        findings.push(finding(
            format!("the folder contains files that do not belong to the store: {}", foreign.join(", ")),
            "move them to another folder: the folder of a store should contain nothing else",
        ));
    }
    let (journal_bytes, snapshot_bytes, lead) = {
        let mut state = shared.state()?;
        shared.follow(&mut state)?;
        (state.journal_bytes, state.snapshot_bytes, state.time.lead(shared.now()))
    };
    findings.extend(lead.map(|lead| clock_finding(shared, lead)));
    if journal_bytes > JOURNAL_MAX_BYTES.max(4 * snapshot_bytes) {
        findings.push(finding(
            format!(
                "the journal is {} MiB large, although the stored jobs take only {} MiB",
                journal_bytes >> 20,
                snapshot_bytes >> 20
            ),
            "free some space on the disk, and check the log for failed compactions",
        ));
    }
    if checks_integrity {
        findings.extend(damage(shared)?);
    }
    Ok(findings)
}

fn clock_finding(shared: &Shared, lead: Duration) -> Finding {
    let lead = Duration::from_secs(lead.as_secs());
    let problem = format!(
        "the store's time is {lead:?} ahead of this machine's clock ({}): a process wrote while the clock was wrong, or \
         the clock is wrong now",
        shared.now()
    );
    let remedy = "check the machine's clock and its time synchronization; leases, delays and retention still last as long as \
                  they should, but jobs that are scheduled for a date start too early; the lead shrinks by one sixteenth of \
                  the time that passes, and ends when the store is erased; if that takes too long, let the jobs finish and \
                  use a new folder";
    finding(problem, remedy)
}

fn finding(problem: impl Into<String>, remedy: &str) -> Finding {
    Finding { problem: problem.into(), remedy: remedy.to_owned() }
}

/// Checks the records of all files that opening the folder would read.
fn damage(shared: &Shared) -> Result<Vec<Finding>> {
    let checked = Committed::open(shared)?.verify(&shared.folder);
    let damaged = checked.into_iter().filter_map(Result::err);
    Ok(damaged.map(|error| finding(error.to_string(), "restore the folder from a backup")).collect())
}
