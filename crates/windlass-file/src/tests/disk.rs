//! A disk in memory that records every operation, forgets what was not synced, and fails on demand.
//!
//! Several *processes* use one disk. They share the files, as they share the page cache of a machine, and exclude each
//! other with locks. A process can be killed at any of its operations. A power failure is simulated afterwards: the
//! recorded operations are applied up to one of them, and those that were not synced are dropped, torn or applied in part.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use fastrand::Rng;
use tokio::sync::oneshot;

use crate::disk::{Disk, DiskFile};

/// The unit in which a disk writes. A write is torn between two of them.
const SECTOR: usize = 512;

type Inode = usize;

/// A recorded operation, or a note of the test.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(String, Inode),
    Write(Inode, u64, Vec<u8>),
    SetSize(Inode, u64),
    Sync(Inode),
    /// The data since the last sync may be lost, whatever later syncs report.
    SyncFailed(Inode),
    Rename(String, String, Inode),
    Remove(String),
    SyncFolder,
    /// The test has got the reply to this many steps.
    Acknowledged(usize),
}

/// How an operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process ends before the operation.
    Killed,
    /// The process ends in the middle of a write.
    KilledWithin,
    /// The operation fails. A write is done in part.
    Fails(io::ErrorKind),
}

/// When operations go wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) process: usize,
    /// The numbers of the operations of this process, from and to.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) fault: Fault,
}

#[derive(Debug, Default)]
struct Core {
    files: HashMap<Inode, Vec<u8>>,
    names: BTreeMap<String, Inode>,
    /// The file handle that has the lock of a file.
    locks: HashMap<Inode, (usize, usize)>,
    log: Vec<Op>,
    next_inode: Inode,
    next_handle: usize,
    /// The number of operations of each process so far.
    counts: HashMap<usize, usize>,
    dead: Vec<usize>,
    plan: Option<Plan>,
    capacity: Option<usize>,
    /// Above this, syncs fail instead of writes.
    sync_capacity: Option<usize>,
    file_system: Option<String>,
    refusal: Option<Refusal>,
    /// A process that cannot read a file with this name.
    unreadable: Option<(usize, String)>,
    /// A process that cannot write to a file with this name.
    unwritable: Option<(usize, String)>,
    /// A file whose next opening waits.
    held: Option<Held>,
    /// The number of syncs so far, of files and of the folder.
    syncs: usize,
    /// The number of the sync that the disk reports but does not do.
    lost_sync: Option<usize>,
    /// The number of operations before that sync.
    lost_at: usize,
}

impl Core {
    /// Records a sync, unless the disk loses it.
    fn log_sync(&mut self, sync: Op) {
        if self.lost_sync == Some(self.syncs) {
            self.lost_at = self.log.len();
        } else {
            self.log.push(sync);
        }
        self.syncs += 1;
    }
}

#[derive(Debug)]
struct Held {
    name: String,
    reached: oneshot::Sender<()>,
    /// Resolves when the test drops the other end.
    released: mpsc::Receiver<()>,
}

/// Opening or locking a file fails.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) process: usize,
    pub(crate) name: String,
    pub(crate) error: io::ErrorKind,
    /// How often.
    pub(crate) times: usize,
}

/// The disk, as one process sees it.
#[derive(Clone, Debug)]
pub(crate) struct TestDisk {
    core: Arc<Mutex<Core>>,
    process: usize,
    path: PathBuf,
}

#[derive(Debug)]
struct TestFile {
    disk: TestDisk,
    inode: Inode,
    handle: usize,
}

impl TestDisk {
    pub(crate) fn new() -> Self {
        Self { core: Arc::default(), process: 0, path: PathBuf::from("disk") }
    }

    /// Makes a file unreadable for this process, or all files readable again.
    pub(crate) fn set_unreadable(&self, name: Option<&str>) {
        self.core().unreadable = name.map(|name| (self.process, name.to_owned()));
    }

    /// Lets writes of this process to a file fail, without an effect. `None` ends this.
    pub(crate) fn set_unwritable(&self, name: Option<&str>) {
        self.core().unwritable = name.map(|name| (self.process, name.to_owned()));
    }

    /// Makes the next opening of a file wait until the returned sender is dropped. The returned receiver resolves when it
    /// waits.
    pub(crate) fn hold(&self, name: &str) -> (oneshot::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, reaches), (release, released)) = (oneshot::channel(), mpsc::channel());
        self.core().held = Some(Held { name: name.to_owned(), reached, released });
        (reaches, release)
    }

    fn wait_if_held(&self, name: &str) {
        // Without the lock of the disk while it waits: the other threads continue.
        let held = self.core().held.take_if(|held| held.name == name);
        if let Some(Held { reached, released, .. }) = held {
            let _ = reached.send(());
            let _ = released.recv();
        }
    }

    /// A disk with these files. They are synced.
    pub(crate) fn with_files(files: BTreeMap<String, Vec<u8>>) -> Self {
        let disk = Self::new();
        let mut core = disk.core();
        for (inode, (name, bytes)) in files.into_iter().enumerate() {
            let operations = [Op::Create(name.clone(), inode), Op::Write(inode, 0, bytes.clone())];
            core.log.extend(operations.into_iter().chain([Op::Sync(inode), Op::SyncFolder]));
            core.names.insert(name, inode);
            core.files.insert(inode, bytes);
            core.next_inode = inode + 1;
        }
        drop(core);
        disk
    }

    /// The same disk, as another process sees it.
    pub(crate) fn process(&self, process: usize) -> Self {
        Self { process, ..self.clone() }
    }

    /// Returns the content of all files.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let core = self.core();
        core.names.iter().map(|(name, inode)| (name.clone(), core.files[inode].clone())).collect()
    }

    /// Makes operations go wrong from now on. Their numbers begin at 0.
    pub(crate) fn plan(&self, plan: Option<Plan>) {
        let mut core = self.core();
        core.counts.clear();
        core.plan = plan;
    }

    /// Lets writes fail that would make all files together larger than this.
    pub(crate) fn limit(&self, capacity: Option<usize>) {
        self.core().capacity = capacity;
    }

    /// Lets syncs fail while all files together are larger than this. Writes succeed, as on a file system or volume that
    /// allocates space late.
    pub(crate) fn limit_syncs(&self, capacity: Option<usize>) {
        self.core().sync_capacity = capacity;
    }

    /// Makes the disk report one of its syncs without doing it. Their numbers begin at 0.
    pub(crate) fn lose_sync(&self, number: usize) {
        self.core().lost_sync = Some(number);
    }

    /// Returns the number of recorded operations before the sync that was lost.
    pub(crate) fn lost_at(&self) -> usize {
        self.core().lost_at
    }

    /// Returns the number of syncs so far.
    pub(crate) fn syncs(&self) -> usize {
        self.core().syncs
    }

    /// Lets a process fail to open or lock a file.
    pub(crate) fn refuse(&self, refusal: Option<Refusal>) {
        self.core().refusal = refusal;
    }

    fn check_refusal(&self, core: &mut Core, inode: Inode) -> io::Result<()> {
        let name = core.names.iter().find(|(_, found)| **found == inode).map(|(name, _)| name.clone());
        let refusal = core.refusal.as_mut().filter(|refusal| refusal.process == self.process);
        match refusal.filter(|refusal| Some(&refusal.name) == name.as_ref() && refusal.times > 0) {
            Some(refusal) => {
                refusal.times -= 1;
                Err(refusal.error.into())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn set_file_system(&self, kind: &str) {
        self.core().file_system = Some(kind.to_owned());
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.core().dead.contains(&self.process)
    }

    /// Records that the test has got the reply to this many steps.
    pub(crate) fn acknowledge(&self, steps: usize) {
        self.core().log.push(Op::Acknowledged(steps));
    }

    pub(crate) fn log(&self) -> Vec<Op> {
        self.core().log.clone()
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap()
    }

    /// Counts an operation, and says whether it goes wrong.
    fn step(&self, core: &mut Core) -> io::Result<Option<Fault>> {
        if core.dead.contains(&self.process) {
            return Err(killed());
        }
        let count = core.counts.entry(self.process).or_default();
        let number = *count;
        *count += 1;
        let plan = core.plan.filter(|plan| plan.process == self.process);
        let fault = plan.filter(|plan| (plan.from..plan.to).contains(&number)).map(|plan| plan.fault);
        if matches!(fault, Some(Fault::Killed | Fault::KilledWithin)) {
            core.dead.push(self.process);
            core.locks.retain(|_, (process, _)| *process != self.process);
        }
        match fault {
            Some(Fault::Killed) => Err(killed()),
            fault => Ok(fault),
        }
    }

    /// Does an operation, unless it goes wrong.
    fn run<T>(&self, act: impl FnOnce(&mut Core) -> io::Result<T>) -> io::Result<T> {
        let mut core = self.core();
        match self.step(&mut core)? {
            None => act(&mut core),
            Some(Fault::Fails(kind)) => Err(kind.into()),
            Some(_) => Err(killed()),
        }
    }

    fn handle(&self, core: &mut Core, inode: Inode) -> Arc<dyn DiskFile> {
        core.next_handle += 1;
        Arc::new(TestFile { disk: self.clone(), inode, handle: core.next_handle })
    }
}

fn killed() -> io::Error {
    io::Error::other("this process was killed")
}

impl Disk for TestDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn create_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.core().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut core = self.core();
        let inode = *core.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        self.check_refusal(&mut core, inode)?;
        Ok(self.handle(&mut core, inode))
    }

    fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.wait_if_held(name);
        match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        self.run(|core| {
            let inode = core.next_inode;
            core.next_inode += 1;
            core.names.insert(name.to_owned(), inode);
            core.files.insert(inode, Vec::new());
            core.log.push(Op::Create(name.to_owned(), inode));
            Ok(self.handle(core, inode))
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.run(|core| {
            let inode = core.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            core.names.insert(to.to_owned(), inode);
            core.log.push(Op::Rename(from.to_owned(), to.to_owned(), inode));
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.run(|core| {
            core.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
            core.log.push(Op::Remove(name.to_owned()));
            Ok(())
        })
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.run(|core| {
            core.log_sync(Op::SyncFolder);
            Ok(())
        })
    }

    fn shared_file_system(&self) -> Option<String> {
        self.core().file_system.clone()
    }

    fn is_current(&self, name: &str, file: &dyn DiskFile) -> bool {
        let core = self.core();
        let open = file.identity().unwrap();
        core.names.get(name).is_some_and(|inode| (0, *inode as u64) == open)
    }
}

impl TestFile {
    fn apply(core: &mut Core, inode: Inode, offset: u64, bytes: &[u8]) {
        write(core.files.get_mut(&inode).unwrap(), offset, bytes);
        core.log.push(Op::Write(inode, offset, bytes.to_vec()));
    }
}

impl DiskFile for TestFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.core().files[&self.inode].len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let core = self.disk.core();
        let is_unreadable = |(process, name): &(usize, String)| {
            *process == self.disk.process && core.names.get(name) == Some(&self.inode)
        };
        if core.unreadable.as_ref().is_some_and(is_unreadable) {
            return Err(io::ErrorKind::Other.into());
        }
        let rest = core.files[&self.inode].get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut core = self.disk.core();
        let fault = self.disk.step(&mut core)?;
        let is_unwritable = |(process, name): &(usize, String)| {
            *process == self.disk.process && core.names.get(name) == Some(&self.inode)
        };
        if core.unwritable.as_ref().is_some_and(is_unwritable) {
            return Err(io::ErrorKind::Other.into());
        }
        let all: usize = core.files.values().map(Vec::len).sum();
        let grows = (offset as usize + bytes.len()).saturating_sub(core.files[&self.inode].len());
        let is_full = core.capacity.is_some_and(|capacity| all + grows > capacity) && grows > 0;
        if fault.is_none() && !is_full {
            Self::apply(&mut core, self.inode, offset, bytes);
            return Ok(());
        }
        // A part is written.
        Self::apply(&mut core, self.inode, offset, &bytes[..bytes.len() / 2]);
        Err(match fault {
            Some(Fault::Fails(kind)) => kind.into(),
            Some(_) => killed(),
            None => io::ErrorKind::StorageFull.into(),
        })
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.disk.run(|core| {
            core.files.get_mut(&self.inode).unwrap().resize(size as usize, 0);
            core.log.push(Op::SetSize(self.inode, size));
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        let mut core = self.disk.core();
        let fault = self.disk.step(&mut core)?;
        let all: usize = core.files.values().map(Vec::len).sum();
        let is_full = core.sync_capacity.is_some_and(|capacity| all > capacity);
        if fault.is_none() && !is_full {
            core.log_sync(Op::Sync(self.inode));
            return Ok(());
        }
        core.log.push(Op::SyncFailed(self.inode));
        Err(match fault {
            Some(Fault::Fails(kind)) => kind.into(),
            Some(_) => killed(),
            None => io::ErrorKind::StorageFull.into(),
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut core = self.disk.core();
        if core.dead.contains(&self.disk.process) {
            return Err(killed());
        }
        self.disk.check_refusal(&mut core, self.inode)?;
        let own = (self.disk.process, self.handle);
        Ok(*core.locks.entry(self.inode).or_insert(own) == own)
    }

    fn unlock(&self) -> io::Result<()> {
        let mut core = self.disk.core();
        if core.locks.get(&self.inode) == Some(&(self.disk.process, self.handle)) {
            core.locks.remove(&self.inode);
        }
        Ok(())
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        Ok((0, self.inode as u64))
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = self.unlock();
    }
}

fn write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if file.len() < end {
        file.resize(end, 0);
    }
    file[start..end].copy_from_slice(bytes);
}

/// What happens to operations that were not synced before a power failure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unsynced {
    Kept,
    Dropped,
    /// Each is kept, dropped or torn, as this seed says. So some are kept although earlier ones were dropped.
    Mixed(u64),
}

/// Returns the files after a power failure after the first operations of a log.
pub(crate) fn power_failure(log: &[Op], unsynced: Unsynced) -> BTreeMap<String, Vec<u8>> {
    let mut random = Rng::with_seed(if let Unsynced::Mixed(seed) = unsynced { seed } else { 0 });
    let mut files: HashMap<Inode, Vec<u8>> = HashMap::new();
    let mut names: BTreeMap<String, Inode> = BTreeMap::new();
    for (at, op) in log.iter().enumerate() {
        let is_synced = is_synced(log, at);
        let keep = match unsynced {
            _ if is_synced => true,
            Unsynced::Kept => true,
            Unsynced::Dropped => false,
            Unsynced::Mixed(_) => random.bool(),
        };
        match op {
            // A file that was created but has no name is lost. Its content does not matter then.
            Op::Create(name, inode) => {
                files.entry(*inode).or_default();
                if keep {
                    names.insert(name.clone(), *inode);
                }
            }
            Op::Rename(from, to, inode) if keep => {
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
            Op::Remove(name) if keep => drop(names.remove(name)),
            Op::SetSize(inode, size) if keep => {
                files.entry(*inode).or_default().resize(*size as usize, 0);
            }
            Op::Write(inode, offset, bytes) => {
                let file = files.entry(*inode).or_default();
                match unsynced {
                    Unsynced::Mixed(_) if !is_synced => tear(file, *offset, bytes, &mut random),
                    _ if keep => write(file, *offset, bytes),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let content = |(name, inode): (String, Inode)| (name, files.get(&inode).cloned().unwrap_or_default());
    names.into_iter().map(content).collect()
}

/// Writes some sectors of a write, in any order, or cuts it off.
fn tear(file: &mut Vec<u8>, offset: u64, bytes: &[u8], random: &mut Rng) {
    match random.u8(..4) {
        0 => {}
        1 => write(file, offset, bytes),
        2 => write(file, offset, &bytes[..random.usize(..=bytes.len())]),
        _ => {
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if random.bool() {
                    write(file, offset + (number * SECTOR) as u64, sector);
                }
            }
        }
    }
}

/// Whether an operation was synced before the end of the log.
fn is_synced(log: &[Op], at: usize) -> bool {
    let inode = match &log[at] {
        Op::Create(..) | Op::Rename(..) | Op::Remove(_) => None,
        Op::Write(inode, ..) | Op::SetSize(inode, _) => Some(*inode),
        _ => return true,
    };
    log[at..].iter().find_map(|op| match (op, inode) {
        (Op::Sync(synced), Some(inode)) if *synced == inode => Some(true),
        (Op::SyncFailed(failed), Some(inode)) if *failed == inode => Some(false),
        (Op::SyncFolder, None) => Some(true),
        _ => None,
    }) == Some(true)
}
