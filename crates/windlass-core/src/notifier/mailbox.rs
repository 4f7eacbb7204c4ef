//! Carries events between processes through files.
//!
//! A process with subscribers to events has a mailbox: a file in a folder that the processes share. The process keeps the
//! file locked. Other processes append their events to it. If there is no folder, there are no subscribers.
//!
//! A file name consists of its owner and a number. The owner is the in-process notifier that the events are for;
//! several notifiers may share it. If an owner has several mailboxes, only the latest receives events.
//!
//! A mailbox that is not locked belongs to a process that was killed, and other processes remove it. Nothing is synced:
//! events are lossy, and a mailbox is useless after a crash.

use std::collections::BTreeMap;
#[cfg(unix)]
use std::fs::Permissions;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

/// How often a process searches for the mailboxes of other processes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// The size from which a mailbox is replaced by an empty one.
const REPLACE_BYTES: u64 = 1 << 20;

/// The size at which a mailbox is full, because its process does not read it.
const FULL_BYTES: u64 = 16 << 20;

/// How long a replaced mailbox is still read. Other processes find the new one within [`REFRESH_INTERVAL`].
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// The maximum size of an event.
const EVENT_MAX_BYTES: usize = 1 << 20;

/// The number of tries to create a mailbox while other processes remove the folder or the file.
const CREATE_TRIES: u32 = 5;

/// The number of the next mailbox of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The mailboxes in a folder.
pub(super) struct Mailboxes {
    folder: PathBuf,
    /// The file or folder of the store. The mailboxes get its permissions and its group, so that the same users can
    /// write to both.
    store: PathBuf,
    owner: Uuid,
    others: Mutex<Others>,
    own: Mutex<Option<Own>>,
}

/// The mailboxes of other owners.
#[derive(Default)]
struct Others {
    refreshed_at: Option<Instant>,
    files: Vec<File>,
}

/// The owner's mailbox, and the one it replaced.
struct Own {
    current: Mailbox,
    replaced: Option<(Mailbox, Instant)>,
}

struct Mailbox {
    path: PathBuf,
    file: File,
    /// The number of bytes that were read.
    read: u64,
    /// The beginning of an event that was not complete yet.
    partial: Vec<u8>,
    /// Whether something other than an event was found. The rest is not read.
    is_damaged: bool,
}

/// The content of a mailbox.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) events: Vec<Bytes>,
    /// Whether events were lost, because the mailbox was damaged.
    pub(super) has_gap: bool,
}

impl Mailboxes {
    /// Does not access files.
    pub(super) fn new(folder: PathBuf, store: PathBuf, owner: Uuid) -> Self {
        Self { folder, store, owner, others: Mutex::default(), own: Mutex::default() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether another process may have subscribers to events.
    pub(super) fn has_others(&self) -> bool {
        !self.others().files.is_empty()
    }

    /// Appends an event to the mailboxes of the other owners. Returns an error if one of them did not take it.
    pub(super) fn send(&self, event: &[u8]) -> io::Result<()> {
        let too_large = || io::Error::new(ErrorKind::FileTooLarge, "the event is too large");
        let length = u32::try_from(event.len()).ok().filter(|_| event.len() <= EVENT_MAX_BYTES);
        // One write per event, because the system does not interleave a single append with those of other processes.
        let message = [&length.ok_or_else(too_large)?.to_le_bytes(), event].concat();
        let mut sent = Ok(());
        self.others().files.retain_mut(|file| match append(file, &message) {
            Ok(()) => true,
            Err(error) => {
                // A full mailbox is found again at the next refresh.
                sent = Err(error);
                false
            }
        });
        sent
    }

    /// Creates the owner's mailbox, unless it exists.
    pub(super) fn open(&self) -> io::Result<()> {
        let mut own = self.own();
        if own.is_none() {
            *own = Some(Own { current: self.create()?, replaced: None });
        }
        Ok(())
    }

    /// Removes the owner's mailbox.
    pub(super) fn close(&self) {
        if self.own().take().is_some() {
            // Fails if there is another mailbox.
            let _ = fs::remove_dir(&self.folder);
        }
    }

    /// Returns the events that have arrived since the last call.
    pub(super) fn receive(&self) -> Received {
        let mut received = Received::default();
        let mut own = self.own();
        let Some(Own { current, replaced }) = own.as_mut() else { return received };
        if let Some((mailbox, until)) = replaced {
            mailbox.read(&mut received);
            if Instant::now() >= *until {
                *replaced = None;
            }
        }
        current.read(&mut received);
        let is_large = current.read >= REPLACE_BYTES && replaced.is_none();
        if (current.is_damaged || is_large)
            && let Ok(next) = self.create()
        {
            received.has_gap |= current.is_damaged;
            *replaced = Some((std::mem::replace(current, next), Instant::now() + DRAIN_TIME));
        }
        received
    }

    /// Creates an empty mailbox.
    fn create(&self) -> io::Result<Mailbox> {
        let mut tries = 1;
        loop {
            match self.try_create() {
                // Another process has removed the folder or the file, because it was not locked yet.
                Err(error) if error.kind() == ErrorKind::NotFound && tries < CREATE_TRIES => tries += 1,
                created => return created,
            }
        }
    }

    fn try_create(&self) -> io::Result<Mailbox> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{}-{number}", self.owner));
        let store = fs::metadata(&self.store).ok();
        if !self.folder.exists() {
            fs::create_dir_all(&self.folder)?;
            if let Some(store) = &store {
                share(&self.folder, store, true)?;
            }
        }
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(&path)?;
        file.lock()?;
        let mailbox = Mailbox { path, file, read: 0, partial: Vec::new(), is_damaged: false };
        if let Some(store) = &store {
            share(&mailbox.path, store, false)?;
        }
        fs::metadata(&mailbox.path)?;
        Ok(mailbox)
    }

    fn own(&self) -> MutexGuard<'_, Option<Own>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mailboxes of the other owners. Searches for new ones if the last search is older than
    /// [`REFRESH_INTERVAL`].
    fn others(&self) -> MutexGuard<'_, Others> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if others.refreshed_at.is_none_or(|at| at.elapsed() >= REFRESH_INTERVAL) {
            others.refreshed_at = Some(Instant::now());
            others.files = find(&self.folder, self.owner).unwrap_or_default();
        }
        others
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens the latest mailbox of each owner but this one. Removes the mailboxes of killed processes.
fn find(folder: &Path, owner: Uuid) -> io::Result<Vec<File>> {
    let mut found = BTreeMap::<Uuid, (u64, File)>::new();
    let mut has_removed = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((of, number)) = name.to_str().and_then(|name| name.rsplit_once('-')) else { continue };
        let (Ok(of), Ok(number)) = (of.parse::<Uuid>(), number.parse::<u64>()) else { continue };
        if of == owner {
            continue;
        }
        // The file may have been removed in the meantime, or belong to a user who does not share the database.
        let Ok(file) = OpenOptions::new().append(true).open(entry.path()) else { continue };
        match file.try_lock_shared() {
            Ok(()) => has_removed |= fs::remove_file(entry.path()).is_ok(),
            Err(TryLockError::WouldBlock) => {
                if found.get(&of).is_none_or(|(latest, _)| number > *latest) {
                    found.insert(of, (number, file));
                }
            }
            Err(TryLockError::Error(_)) => {}
        }
    }
    if has_removed {
        // Fails if there is another mailbox.
        let _ = fs::remove_dir(folder);
    }
    Ok(found.into_values().map(|(_, file)| file).collect())
}

fn append(file: &mut File, message: &[u8]) -> io::Result<()> {
    if file.metadata()?.len() >= FULL_BYTES {
        let text = "a mailbox is full: the process that subscribes to events does not read them";
        return Err(io::Error::new(ErrorKind::StorageFull, text));
    }
    file.write_all(message)
}

/// Sets the group of a file or folder to that of the store, and copies the store's read and write permissions.
#[cfg(unix)]
fn share(path: &Path, store: &Metadata, is_folder: bool) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    // Fails if the user is not a member of the group. In that case, at least the permissions are right.
    let _ = chown(path, None, Some(store.gid()));
    let mode = store.mode() & 0o666;
    // Users that may read a folder may also search it. It keeps its special bits, such as an inherited group.
    let special = fs::metadata(path)?.mode() & 0o7000;
    let mode = if is_folder { special | mode | (mode & 0o444) >> 2 } else { mode };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn share(_: &Path, _: &Metadata, _: bool) -> io::Result<()> {
    Ok(())
}

impl Mailbox {
    /// Reads the events that were appended since the last call.
    fn read(&mut self, received: &mut Received) {
        if self.is_damaged {
            return;
        }
        let Ok(read) = self.file.read_to_end(&mut self.partial) else {
            self.is_damaged = true;
            return;
        };
        self.read += read as u64;
        let mut rest = self.partial.as_slice();
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            self.is_damaged = length > EVENT_MAX_BYTES;
            let Some((event, after)) = after.split_at_checked(length).filter(|_| !self.is_damaged) else {
                break;
            };
            received.events.push(Bytes::copy_from_slice(event));
            rest = after;
        }
        self.partial = rest.to_vec();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (tempfile::TempDir, Mailboxes, Mailboxes) {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (mailboxes(&folder, Uuid::now_v7()), mailboxes(&folder, Uuid::now_v7()));
        (folder, one, other)
    }

    fn mailboxes(folder: &tempfile::TempDir, owner: Uuid) -> Mailboxes {
        Mailboxes::new(folder.path().join("events"), folder.path().join("jobs.db"), owner)
    }

    /// Makes the next call search for mailboxes.
    fn refresh(mailboxes: &Mailboxes) {
        mailboxes.others.lock().unwrap().refreshed_at = None;
    }

    fn events(mailboxes: &Mailboxes) -> Vec<Bytes> {
        let received = mailboxes.receive();
        assert!(!received.has_gap);
        received.events
    }

    #[test]
    fn events_reach_other_mailboxes_and_not_the_own() {
        let (_folder, one, other) = pair();
        assert!(!one.has_others());
        other.open().unwrap();
        refresh(&one);
        assert!(one.has_others());
        assert!(!other.has_others());
        one.send(b"a").unwrap();
        one.send(b"").unwrap();
        other.send(b"own").unwrap();
        assert_eq!(events(&other), [&b"a"[..], b""]);
        assert_eq!(events(&other), [&b""[..]; 0]);
    }

    #[test]
    fn a_closed_mailbox_leaves_nothing_behind() {
        let (folder, one, other) = pair();
        other.open().unwrap();
        one.open().unwrap();
        other.close();
        assert!(folder.path().join("events").exists());
        drop(one);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn the_mailbox_of_a_dead_process_is_removed() {
        let (folder, one, _other) = pair();
        let left = folder.path().join("events").join(format!("{}-0", Uuid::now_v7()));
        fs::create_dir(left.parent().unwrap()).unwrap();
        fs::write(&left, b"").unwrap();
        assert!(!one.has_others());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn owners_with_several_mailboxes_receive_an_event_once() {
        let (folder, one, _) = pair();
        let owner = Uuid::now_v7();
        let [first, second] = [(), ()].map(|()| mailboxes(&folder, owner));
        first.open().unwrap();
        second.open().unwrap();
        one.send(b"a").unwrap();
        first.send(b"own").unwrap();
        assert_eq!([events(&first), events(&second)].concat(), [&b"a"[..]]);
        second.close();
        refresh(&one);
        one.send(b"b").unwrap();
        assert_eq!(events(&first), [&b"b"[..]]);
    }

    #[test]
    fn a_full_mailbox_is_an_error() {
        let (_folder, one, other) = pair();
        other.open().unwrap();
        one.others().files[0].set_len(FULL_BYTES).unwrap();
        let error = one.send(b"a").unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        let large = vec![0; EVENT_MAX_BYTES + 1];
        assert_eq!(one.send(&large).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[cfg(unix)]
    #[test]
    fn who_may_write_to_the_database_may_write_to_the_mailbox() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, one, _) = pair();
        let database = folder.path().join("jobs.db");
        fs::write(&database, b"").unwrap();
        fs::set_permissions(&database, Permissions::from_mode(0o660)).unwrap();
        one.open().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let mailbox = one.own().as_ref().map(|own| own.current.path.clone()).unwrap();
        assert_eq!((mode(&one.folder), mode(&mailbox)), (0o770, 0o660));
    }

    #[test]
    fn an_event_in_two_parts_is_received_once_it_is_whole() {
        let (_folder, one, other) = pair();
        other.open().unwrap();
        let append = |bytes: &[u8]| one.others().files[0].write_all(bytes).unwrap();
        append(&[3, 0]);
        assert_eq!(events(&other), [&b""[..]; 0]);
        append(&[0, 0, b'a', b'b']);
        assert_eq!(events(&other), [&b""[..]; 0]);
        append(b"c");
        assert_eq!(events(&other), [&b"abc"[..]]);
    }

    #[test]
    fn a_large_mailbox_is_replaced_without_losing_events() {
        let (folder, one, other) = pair();
        other.open().unwrap();
        let event = vec![b'x'; EVENT_MAX_BYTES];
        one.send(&event).unwrap();
        assert_eq!(events(&other).len(), 1);
        // Sent to the replaced mailbox: the sender has not found the new one yet.
        one.others().files[0].write_all(&[4, 0, 0, 0, b'l', b'a', b't', b'e']).unwrap();
        assert_eq!(events(&other), [&b"late"[..]]);
        refresh(&one);
        one.send(b"next").unwrap();
        assert_eq!(events(&other), [&b"next"[..]]);
        let files = || folder.path().join("events").read_dir().unwrap().count();
        assert_eq!(files(), 2, "the replaced one is still read");
        other.own.lock().unwrap().as_mut().unwrap().replaced.as_mut().unwrap().1 = Instant::now();
        assert_eq!(events(&other), [&b""[..]; 0]);
        assert_eq!(files(), 1);
    }

    #[test]
    fn a_damaged_mailbox_is_replaced_and_reported() {
        let (_folder, one, other) = pair();
        other.open().unwrap();
        one.send(b"good").unwrap();
        one.others().files[0].write_all(&[0xff; 8]).unwrap();
        let received = other.receive();
        assert_eq!((received.events, received.has_gap), (vec![Bytes::from("good")], true));
        assert_eq!(events(&other), [&b""[..]; 0], "events before the damage are not repeated");
        refresh(&one);
        one.send(b"a").unwrap();
        assert_eq!(events(&other), [&b"a"[..]]);
    }
}
