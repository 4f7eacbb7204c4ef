//! Health checks of the database file.

use std::path::{Path, PathBuf};

use windlass_core::{Finding, Result};

use crate::provider::{Provider, Row, Statement};

/// A write-ahead log above this size is a finding. SQLite checkpoints it every few megabytes unless an open reader or
/// transaction prevents that.
const LOG_MAX_BYTES: u64 = 64 << 20;

/// A file with at least this much free space, and more than half of it free, is a finding.
const FREE_MAX_BYTES: i64 = 16 << 20;

/// Network and cluster file systems, on which SQLite's locks do not work.
const SHARED: [&str; 12] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "gfs2",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
];

/// Returns present and likely problems of the file.
pub(crate) async fn findings<P: Provider>(
    provider: &P,
    synchronous: i64,
    look_for_damage: bool,
) -> Result<Vec<Finding>> {
    let look = async |text: &'static str| -> Result<Vec<Row>> {
        provider.run(&Statement::new(text), Vec::new()).await
    };
    let mut findings = Vec::new();
    for row in look("select journal_mode from pragma_journal_mode where journal_mode != 'wal'").await? {
        findings.push(finding(
            format!("the journal mode is {}", row.text("journal_mode")?),
            "run `pragma journal_mode = wal`: without it readers and writers wait for each other",
        ));
    }
    if synchronous == 0 {
        findings.push(finding(
            "SQLite never waits for the disk: `synchronous` is off",
            "set it to `full`, or to `normal` if the latest commits may be lost with the power: as it is, the whole file may be",
        ));
    }
    for row in look("select file from pragma_database_list where name = 'main'").await? {
        findings.extend(of_the_place(Path::new(row.text("file")?)));
    }
    for row in look(FREE_PAGES).await? {
        let (free, all): (i64, i64) = (row.number("free")?, row.number("all_pages")?);
        findings.extend(free_room(free, all));
    }
    if look_for_damage {
        for row in look("select quick_check from pragma_quick_check where quick_check != 'ok'").await? {
            findings.push(finding(
                format!("the file is damaged: {}", row.text("quick_check")?),
                "restore it from a backup",
            ));
        }
    }
    Ok(findings)
}

const FREE_PAGES: &str = "\
    select freelist_count * page_size as free, page_count * page_size as all_pages \
    from pragma_freelist_count, pragma_page_count, pragma_page_size";

fn finding(what: impl Into<String>, cure: &str) -> Finding {
    Finding { what: what.into(), cure: cure.to_owned() }
}

/// Checks the file system that the file is on, and the size of the log.
fn of_the_place(file: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let bytes = PathBuf::from(log).metadata().map_or(0, |found| found.len());
    if bytes > LOG_MAX_BYTES {
        findings.push(finding(
            format!("the write-ahead log has {} MiB", bytes >> 20),
            "end the reader or the transaction that has been open for long, then run `pragma wal_checkpoint(truncate)`: until \
             then the log grows with every write",
        ));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let place = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    if let Some(shared) = shared_file_system(&mounts, &place) {
        findings.push(finding(
            format!("the file is on a file system that machines share ({shared})"),
            "move it to a disk of this machine: SQLite's locks do not hold there, and the file will be damaged",
        ));
    }
    findings
}

fn free_room(free: i64, all: i64) -> Option<Finding> {
    (free > FREE_MAX_BYTES && free > all / 2).then(|| {
        finding(
            format!("{} of the file's {} MiB are free", free >> 20, all >> 20),
            "nothing, if the file will fill again; else run `vacuum` at a quiet time, which gives the room back",
        )
    })
}

/// Returns the type of the file system that a path is on, if machines share it. `mounts` is the text of
/// `/proc/self/mounts`, empty if the system has none.
fn shared_file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    };
    let holding = mounts.lines().filter_map(mount).filter(|(place, _)| path.starts_with(place));
    // Of several mounts on the same path the last one is visible, and `max_by_key` returns the last maximum.
    let (_, kind) = holding.max_by_key(|(place, _)| place.len())?;
    SHARED.contains(&kind).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_file_system_is_known_by_its_mount() {
        let mounts = "/dev/vda / ext4 rw 0 0\nserver:/export /srv/jobs nfs4 rw 0 0\n/dev/vdb /srv/jobs/own xfs rw 0 0\n";
        let on = |path| shared_file_system(mounts, Path::new(path));
        assert_eq!(on("/srv/jobs/jobs.db"), Some("nfs4"));
        assert_eq!(on("/srv/jobs/own/jobs.db"), None);
        assert_eq!(on("/srv/jobs.db"), None);
        assert_eq!(shared_file_system("", Path::new("/srv/jobs/jobs.db")), None);
    }

    #[test]
    fn room_is_a_finding_if_it_is_most_of_a_large_file() {
        assert!(free_room(17 << 20, 30 << 20).is_some());
        assert!(free_room(17 << 20, 40 << 20).is_none());
        assert!(free_room(1 << 20, 1 << 20).is_none());
    }
}
