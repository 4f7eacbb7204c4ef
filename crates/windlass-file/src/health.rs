//! Health checks of the folder.

use std::time::Duration;

use windlass_core::{ErrorKind, Finding, Result};

use crate::folder::{Files, journal_name, snapshot_name, verify};
use crate::frame::{HEADER_BYTES, Kind, Reader};
use crate::open::is_harmless;
use crate::shared::Shared;

/// Journals above this size and above four times the size of the snapshot are a finding: compactions must have failed.
const JOURNAL_MAX_BYTES: u64 = 256 << 20;

/// The number of tries to check the files if one of them is missing.
const CHECK_TRIES: usize = 10;

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
        findings.extend(all_damage(shared)?);
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

/// Checks all files. Starts again if a compaction by another process removed some of them.
fn all_damage(shared: &Shared) -> Result<Vec<Finding>> {
    let mut tries = 1;
    loop {
        let files = Files::list(&*shared.folder.disk)?;
        let position = {
            let mut state = shared.state()?;
            shared.follow(&mut state)?;
            state.position
        };
        match damage(shared, &files, position) {
            Err(error)
                if error.kind() == ErrorKind::Corrupt && error.inner().is_some() && tries < CHECK_TRIES =>
            {
                tries += 1;
            }
            checked => return checked,
        }
    }
}

/// Checks the records of all files that opening the folder would read.
fn damage(shared: &Shared, files: &Files, end: crate::folder::Position) -> Result<Vec<Finding>> {
    let (folder, base) = (&shared.folder, files.base());
    let mut found = Vec::new();
    let mut check = |checked: Result<u64>| match checked {
        Ok(_) => {}
        Err(error) => found.push(finding(error.to_string(), "restore the folder from a backup")),
    };
    let mut number = 1;
    if files.snapshots.contains(&base) {
        let (file, header) = folder.open_snapshot(base)?;
        let bytes = file.size().map_err(|error| folder.io("cannot read a snapshot", error))?;
        number = header.first;
        let mut reader = Reader::new(file, folder.origin(Kind::Snapshot, base), HEADER_BYTES, 1, bytes);
        check(verify(&mut reader, folder.path(), &snapshot_name(base)));
    }
    for generation in base..=end.generation {
        let file = folder.open_journal(generation)?;
        let bytes = match generation == end.generation {
            true => end.offset,
            false => file.size().map_err(|error| folder.io("cannot read the journal", error))?,
        };
        let origin = folder.origin(Kind::Journal, generation);
        let mut reader = Reader::new(file, origin, HEADER_BYTES, number, bytes);
        check(verify(&mut reader, folder.path(), &journal_name(generation)));
        number = reader.number();
    }
    Ok(found)
}
