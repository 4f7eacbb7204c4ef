//! Detects network and cluster file systems.

use std::path::Path;

/// File systems on which neither locks nor the order in which other machines see writes are reliable.
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

/// Returns the type of the file system of a path, if it is a network or cluster file system, on which locks are not
/// reliable. Returns `None` on systems other than Linux. For implementations of a store on disk.
#[must_use]
pub fn shared_file_system(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    find(&mounts, &path).map(str::to_owned)
}

/// Finds the file system of a path in the text of `/proc/self/mounts`.
fn find<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let mut words = line.split(' ').skip(1);
        Some((unescaped(words.next()?), words.next()?))
    };
    let holding = mounts.lines().filter_map(mount).filter(|(mount_point, _)| path.starts_with(mount_point));
    // If several mounts have the same path, the last one is visible, and `max_by_key` returns the last maximum.
    let (_, kind) = holding.max_by_key(|(mount_point, _)| mount_point.len())?;
    SHARED.contains(&kind).then_some(kind)
}

/// Decodes the characters that the system escapes in the path of a mount.
fn unescaped(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")];
    escapes.into_iter().fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_detected_by_its_mount() {
        let mounts = "/dev/vda / ext4 rw 0 0\nserver:/export /srv/jobs nfs4 rw 0 0\n/dev/vdb /srv/jobs/own xfs rw 0 0\n";
        let on = |path| find(mounts, Path::new(path));
        assert_eq!(on("/srv/jobs/queue"), Some("nfs4"));
        assert_eq!(on("/srv/jobs/own/queue"), None);
        assert_eq!(on("/srv/queue"), None);
        assert_eq!(find("", Path::new("/srv/jobs/queue")), None);
    }

    #[test]
    fn a_mount_point_may_contain_special_characters() {
        let check = |escaped: &str, path: &str| {
            let mounts = format!("/dev/vda / ext4 rw 0 0\nserver:/export {escaped} nfs4 rw 0 0\n");
            assert_eq!(find(&mounts, Path::new(path)), Some("nfs4"), "{path}");
        };
        check("/srv/my\\040jobs", "/srv/my jobs/queue");
        check("/srv/team\\043\\0407", "/srv/team# 7/queue");
        check("/srv/tab\\011line\\012", "/srv/tab\tline\n/queue");
        check("/srv/back\\134040slash", "/srv/back\\040slash/queue");
    }
}
