//! Detects network and cluster file systems.

use std::path::Path;

/// File systems on which locks, and the order in which other machines see writes, are not reliable.
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

/// Returns the type of the file system that a path is on, if machines share it. `mounts` is the text of
/// `/proc/self/mounts`, empty if the system has none.
pub(crate) fn shared_file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    };
    let holding = mounts.lines().filter_map(mount).filter(|(mount_point, _)| path.starts_with(mount_point));
    // Of several mounts on the same path the last one is visible, and `max_by_key` returns the last maximum.
    let (_, kind) = holding.max_by_key(|(mount_point, _)| mount_point.len())?;
    SHARED.contains(&kind).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_detected_by_its_mount() {
        let mounts = "/dev/vda / ext4 rw 0 0\nserver:/export /srv/jobs nfs4 rw 0 0\n/dev/vdb /srv/jobs/own xfs rw 0 0\n";
        let on = |path| shared_file_system(mounts, Path::new(path));
        assert_eq!(on("/srv/jobs/queue"), Some("nfs4"));
        assert_eq!(on("/srv/jobs/own/queue"), None);
        assert_eq!(on("/srv/queue"), None);
        assert_eq!(shared_file_system("", Path::new("/srv/jobs/queue")), None);
    }
}
