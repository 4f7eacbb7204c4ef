//! The lock of the folder, which a process holds while it executes, writes and syncs a batch.
//!
//! With a single lock, a busy process would reacquire it immediately after releasing it, and others would rarely find
//! it free. So there are two: to acquire `lock`, a process first acquires `turn`, and releases it when it holds both.
//! While another process holds `turn` and waits, the process that held `lock` cannot acquire it again.
//!
//! The locks are advisory and belong to an open file. The system releases them when the process ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::{Result, Timestamp};

use crate::disk::{Disk, DiskFile};
use crate::error::{from_io, replaced};
use crate::folder::{HOLDER, LOCK, TURN};

/// The delay between two tries: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// How long to wait for `turn`. A process that was suspended while it held `turn` must not keep all others waiting.
const TURN_TIMEOUT: Duration = Duration::from_millis(200);

/// The size of the file `holder`.
const HOLDER_BYTES: usize = 256;

/// The lock files of a folder.
#[derive(Debug)]
pub(crate) struct Lock {
    disk: Arc<dyn Disk>,
    lock: Arc<dyn DiskFile>,
    turn: Arc<dyn DiskFile>,
    holder: Arc<dyn DiskFile>,
    /// The name of this process.
    own_name: String,
}

/// The lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    /// Opens the lock files, and creates them if they are missing.
    pub(crate) fn open(disk: Arc<dyn Disk>) -> Result<Self> {
        let open = |name: &str| {
            let opened = disk.open_or_create(name);
            opened.map_err(|error| from_io(&format!("cannot open `{name}`"), disk.path(), error))
        };
        let (lock, turn, holder) = (open(LOCK)?, open(TURN)?, open(HOLDER)?);
        let program = std::env::current_exe().ok();
        let program =
            program.as_ref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
        let own_name = format!("process {} ({program})", std::process::id());
        Ok(Self { disk, lock, turn, holder, own_name })
    }

    /// Waits for the lock while `keep_waiting` returns `true`. Returns `None` if the lock was not acquired.
    pub(crate) fn acquire(&self, mut keep_waiting: impl FnMut() -> bool) -> Result<Option<Held<'_>>> {
        let (asked_at, mut pause, mut has_turn) = (Instant::now(), PAUSE_MIN, false);
        let lock = |file: &dyn DiskFile| {
            file.try_lock().map_err(|error| from_io("cannot lock the folder", self.disk.path(), error))
        };
        let mut try_both = || -> Result<bool> {
            has_turn = has_turn || lock(&*self.turn)?;
            Ok((has_turn || asked_at.elapsed() > TURN_TIMEOUT) && lock(&*self.lock)?)
        };
        let held = loop {
            match try_both() {
                Ok(false) if keep_waiting() => {}
                Ok(is_held) => break Ok(is_held.then_some(Held(self))),
                Err(error) => break Err(error),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        };
        // Also after an error: otherwise all other processes would wait for the turn each time.
        if has_turn {
            let _ = self.turn.unlock();
        }
        let Some(held) = held? else { return Ok(None) };
        self.check_current()?;
        self.write_holder();
        Ok(Some(held))
    }

    /// Fails if the lock file was replaced or removed: another process could hold the lock of the new one.
    pub(crate) fn check_current(&self) -> Result<()> {
        if self.disk.is_current(LOCK, &*self.lock) { Ok(()) } else { Err(replaced(self.disk.path())) }
    }

    /// Returns the name of the process that holds the lock, for messages.
    pub(crate) fn holder(&self) -> String {
        let mut bytes = [0; HOLDER_BYTES];
        let read = self.holder.read_exact_at(&mut bytes, 0);
        let text = String::from_utf8_lossy(&bytes);
        match (read, text.trim()) {
            (Ok(Some(())), text) if !text.is_empty() => text.to_owned(),
            _ => "another process".to_owned(),
        }
    }

    /// Records which process holds the lock. This is only for messages, so errors are ignored.
    fn write_holder(&self) {
        let mut bytes = format!("{} since {}", self.own_name, Timestamp::now()).into_bytes();
        bytes.resize(HOLDER_BYTES, b' ');
        let _ = self.holder.write_at(&bytes, 0);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = self.0.lock.unlock();
    }
}
