//! Health checks of the database file.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use windlass_core::{Finding, Result, shared_file_system};

use crate::error::from_sqlite;

/// A write-ahead log above this size is a finding. SQLite checkpoints it every few megabytes unless an open reader or
/// transaction prevents that.
const LOG_MAX_BYTES: u64 = 64 << 20;

/// A file with at least this much free space, and more than half of it free, is a finding.
const FREE_MAX_BYTES: i64 = 16 << 20;

/// Returns current and likely future problems of the file.
pub(crate) fn findings(
    connection: &Connection,
    synchronous: i64,
    check_integrity: bool,
) -> Result<Vec<Finding>> {
    let texts = |query: &str| -> Result<Vec<String>> {
        let texts = connection.prepare(query).and_then(|mut statement| {
            let rows = statement.query_map([], |row| row.get(0))?;
            rows.collect::<rusqlite::Result<Vec<String>>>()
        });
        texts.map_err(|error| from_sqlite(&error))
    };
    let mut findings = Vec::new();
    for mode in texts("select journal_mode from pragma_journal_mode where journal_mode != 'wal'")? {
        findings.push(finding(
            format!("the journal mode is {mode}"),
            "run `pragma journal_mode = wal`: in other modes, readers and writers wait for each other",
        ));
    }
    if synchronous == 0 {
        findings.push(finding(
            "SQLite never waits for the disk: `synchronous` is off",
            "set it to `full`, or to `normal` if a power failure may lose the latest commits: with `off`, it may damage the \
             file",
        ));
    }
    for file in texts("select file from pragma_database_list where name = 'main'")? {
        findings.extend(of_location(Path::new(&file)));
    }
    let pages = connection.query_row(FREE_PAGES, [], |row| Ok((row.get(0)?, row.get(1)?)));
    let (free, all) = pages.map_err(|error| from_sqlite(&error))?;
    findings.extend(free_space(free, all));
    if check_integrity {
        for damage in texts("select quick_check from pragma_quick_check where quick_check != 'ok'")? {
            findings.push(finding(format!("the file is damaged: {damage}"), "restore it from a backup"));
        }
    }
    Ok(findings)
}

const FREE_PAGES: &str = "\
    select freelist_count * page_size as free, page_count * page_size as all_pages \
    from pragma_freelist_count, pragma_page_count, pragma_page_size";

fn finding(problem: impl Into<String>, remedy: &str) -> Finding {
    Finding { problem: problem.into(), remedy: remedy.to_owned() }
}

/// Checks the file system that the file is on, and the size of the log.
fn of_location(file: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let bytes = PathBuf::from(log).metadata().map_or(0, |found| found.len());
    if bytes > LOG_MAX_BYTES {
        findings.push(finding(
            format!("the write-ahead log is {} MiB", bytes >> 20),
            "end the reader or transaction that has been open for a long time, then run `pragma wal_checkpoint(truncate)`: \
             until then, every write makes the log longer",
        ));
    }
    if let Some(shared) = shared_file_system(file) {
        findings.push(finding(
            format!("the file is on a network or cluster file system ({shared})"),
            "move it to a local disk: SQLite's locks do not work on such a file system, and the file will be damaged",
        ));
    }
    findings
}

fn free_space(free: i64, all: i64) -> Option<Finding> {
    (free > FREE_MAX_BYTES && free > all / 2).then(|| {
        finding(
            format!("{} of the file's {} MiB are free", free >> 20, all >> 20),
            "nothing if the file will grow again; otherwise run `vacuum` when there is little load, to shrink it",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mostly_free_large_files_are_a_finding() {
        assert!(free_space(17 << 20, 30 << 20).is_some());
        assert!(free_space(17 << 20, 40 << 20).is_none());
        assert!(free_space(1 << 20, 1 << 20).is_none());
    }
}
