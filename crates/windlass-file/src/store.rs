//! The store: passes commands to the writer, and answers queries from memory.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Counters, Error, ErrorKind, Finding, InProcessNotifier, Notifier, Result, Store,
    Transactional, for_each_command,
};

use crate::backup::{BackupStats, back_up};
use crate::compact::CompactionStats;
use crate::disk::{Disk, RealDisk};
use crate::error::{closed, from_io};
use crate::health::findings;
use crate::notifier::FileNotifier;
use crate::open::open_folder;
use crate::options::Options;
use crate::queue::{End, Work};
use crate::shared::Shared;
use crate::transaction::FileTx;
use crate::writer::Writer;

/// How long closing waits for work in progress.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often closing checks whether a compaction has ended.
const CLOSE_TICK: Duration = Duration::from_millis(2);

/// A store of job chains in a folder. See the [crate docs](crate).
pub struct FileStore {
    options: Options,
    shared: Arc<Shared>,
    notifier: FileNotifier,
    /// Resolves when the writer has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl FileStore {
    /// Opens the store, and creates the folder if it is missing. Any number of stores, in any number of processes on
    /// this machine, may open the same folder.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the path is not a folder, or if the folder contains other files but no store.
    /// [`ErrorKind::AccessDenied`] if this user may not read and write the folder. [`ErrorKind::Corrupt`] if a file is
    /// damaged. [`ErrorKind::Incompatible`] if a newer version wrote the files, or if the folder is on a network file
    /// system. [`ErrorKind::Busy`] if another process keeps the folder locked.
    pub async fn open(mut options: Options) -> Result<Self> {
        options.check()?;
        // The process may change its current directory later.
        options.path = std::path::absolute(&options.path)
            .map_err(|error| from_io("cannot find the folder", &options.path, error))?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(options.folder()));
        spawn_blocking(move || Self::open_on(&disk, options)).await.map_err(stopped)?
    }

    /// Opens the store on a disk. Blocks the thread.
    pub(crate) fn open_on(disk: &Arc<dyn Disk>, options: Options) -> Result<Self> {
        let shared = Arc::new(open_folder(disk, &options)?);
        let (alive, ended) = oneshot::channel();
        let writer = Writer::new(Arc::clone(&shared));
        let guard = Ended { shared: Arc::clone(&shared), _alive: alive };
        let work = move || {
            let _guard = guard;
            writer.run();
        };
        let spawned = std::thread::Builder::new().name("windlass-file".to_owned()).spawn(work);
        spawned.map_err(|error| shared.folder.io("cannot start the thread that writes", error))?;
        Arc::clone(&shared).compact_if_needed();
        let notifier = FileNotifier::new(InProcessNotifier::new(), &shared);
        Ok(Self { options, shared, notifier, ended: Mutex::new(Some(ended)) })
    }

    /// Returns how often this store has compacted the folder, and how long that kept writers waiting.
    #[must_use]
    pub fn compaction(&self) -> CompactionStats {
        self.shared.compaction.stats()
    }

    /// Compacts the folder now, and waits until this is done. The store also compacts the folder automatically when
    /// needed.
    ///
    /// # Errors
    ///
    /// An error of the disk, or `Busy` if another process is compacting the folder for longer than the busy timeout.
    pub async fn compact(&self) -> Result<()> {
        self.check_open()?;
        self.blocking(Shared::compact_now).await
    }

    /// Copies the store to a new folder, while processes go on using it. The copy contains everything that was committed
    /// before the call, and may contain what was committed during it. To restore it, open it, or move it to where the
    /// folder was. Returns what the copy contains.
    ///
    /// The folder is copied without its lock, so writers do not wait. If the journal contains a record after its last
    /// published end, the backup first waits for the lock, as a write does, to find out whether that record is
    /// committed. At the end, the copy is loaded as a check, which needs the memory of a second open store.
    ///
    /// On Unix, the copy has the mode of the folder.
    ///
    /// The backup has the name `DESTINATION.tmp-…` until it is complete and synced. If the process is killed, such a folder
    /// is left behind, and can be removed. If the store has a [namespace](Options::namespace), only that is copied: the copy
    /// is a store without a namespace.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the destination exists, if it is inside the folder of the store, or if the folder that is
    /// to contain it is missing. [`ErrorKind::Corrupt`] if a file of the store is damaged. [`ErrorKind::Busy`] if the lock
    /// is needed, and another process keeps it. Otherwise an error of one of the disks.
    pub async fn backup(&self, destination: impl Into<PathBuf>) -> Result<BackupStats> {
        self.check_open()?;
        let (outer, destination) = (self.options.path.clone(), destination.into());
        self.blocking(move |shared| back_up(shared, &outer, &destination)).await
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn check_open(&self) -> Result<()> {
        if self.shared.is_closed() { Err(closed()) } else { Ok(()) }
    }

    async fn run<R: Request>(&self, request: R) -> Result<R::Reply> {
        self.check_open()?;
        let command: Command = request.into();
        if command.is_query() { self.query(command).await } else { self.write(command).await }?.try_into()
    }

    async fn query(&self, query: Command) -> Result<Reply> {
        self.shared.counted.round_trip();
        match self.shared.try_query(&query) {
            Some(reply) => reply,
            None => self.blocking(move |shared| shared.query(&query)).await,
        }
    }

    async fn write(&self, command: Command) -> Result<Reply> {
        let (reply, answer) = oneshot::channel();
        self.shared.push(Work::Command(command, reply))?;
        answer.await.map_err(|_| self.writer_ended())?
    }

    async fn erase_all(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.shared.push(Work::Erase(reply))?;
        answer.await.map_err(|_| self.writer_ended())?
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        spawn_blocking(move || work(&shared)).await.map_err(stopped)?
    }

    /// Returns the reason why the writer dropped a command.
    fn writer_ended(&self) -> Error {
        self.shared.state().err().unwrap_or_else(closed)
    }

    async fn close_all(&self) {
        self.shared.close();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            let _ = timeout(CLOSE_TIMEOUT, ended).await;
        }
        // A compaction must not write to the folder after the store is closed: the caller may remove the folder.
        while self.shared.compaction.is_running() {
            sleep(CLOSE_TICK).await;
        }
    }

    fn check_owner(&self, tx: &FileTx) -> Result<()> {
        tx.check_owner(&self.shared)
    }
}

impl Shared {
    /// Refuses further work, and lets the writer end after it has done the queued work.
    fn close(&self) {
        let queue = self.queue();
        self.is_closed.store(true, Ordering::Release);
        drop(queue);
        self.wake.notify_all();
        self.watch.stop();
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Reports that the writer has ended, even if a command panicked.
struct Ended {
    shared: Arc<Shared>,
    /// Dropped with this.
    _alive: oneshot::Sender<()>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.shared.close();
        // Callers that wait for this work receive an error when it is dropped.
        drop(self.shared.queue().take_all());
    }
}

fn stopped(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the command was not executed: the runtime is shutting down")
        .with_source(error)
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("options", &self.options).finish_non_exhaustive()
    }
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for FileStore {
            fn capabilities(&self) -> Capabilities {
                // While one exchange is synced, the worker runs the jobs of the other.
                Capabilities::all().exchanges_in_flight(2).joining()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(self.run(request))
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(self.erase_all())
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                Box::pin(async {
                    self.check_open()?;
                    let checks_integrity = self.options.checks_integrity;
                    self.blocking(move |shared| findings(shared, checks_integrity)).await
                })
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                Arc::new(self.notifier.clone())
            }

            fn counters(&self) -> Counters {
                self.shared.counted.counters()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.close_all().await;
                    Ok(())
                })
            }
        }
    };
}
for_each_command!(store);

impl Transactional for FileStore {
    type Tx = FileTx;
    type TxRef<'t> = &'t mut FileTx;
    type Connection<'t> = &'t mut FileTx;

    fn tx_ref(tx: &mut FileTx) -> &mut FileTx {
        tx
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        tx
    }

    fn reborrow<'t>(tx: &'t mut &mut FileTx) -> &'t mut FileTx {
        tx
    }

    fn begin(&self) -> BoxFuture<'_, Result<FileTx>> {
        Box::pin(FileTx::begin(&self.shared))
    }

    fn commit(&self, tx: FileTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_owner(&tx)?;
            self.check_open()?;
            tx.end(End::Commit).await
        })
    }

    fn rollback(&self, tx: FileTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_owner(&tx)?;
            tx.end(End::Rollback).await
        })
    }

    fn savepoint<'a>(&'a self, tx: &'a mut FileTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            self.check_owner(tx)?;
            tx.savepoint();
            Ok(())
        })
    }

    fn release<'a>(&'a self, tx: &'a mut FileTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            self.check_owner(tx)?;
            tx.pop_savepoint().map(drop)
        })
    }

    fn rollback_to<'a>(&'a self, tx: &'a mut FileTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            self.check_owner(tx)?;
            let mark = tx.pop_savepoint()?;
            tx.roll_back_to(mark);
            Ok(())
        })
    }

    fn execute_in<'a>(&'a self, tx: &'a mut FileTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            self.check_owner(tx)?;
            tx.execute(&command)
        })
    }
}
