//! Transactions.

use std::fmt;
use std::sync::{Arc, mpsc};

use tokio::sync::oneshot;
use windlass_core::command::{Command, Reply};
use windlass_core::{Error, ErrorKind, Result};

use crate::error::closed;
use crate::queue::{End, Work};
use crate::shared::Shared;

/// A transaction of the file store. Rolled back if it is dropped before the commit.
///
/// It holds the lock of the folder from its beginning to its end. Other writes, including those of other processes,
/// wait for it.
pub struct FileTx {
    shared: Arc<Shared>,
    /// Keeps the writer waiting. Dropping it rolls the transaction back.
    end: mpsc::Sender<End>,
    savepoints: Vec<usize>,
}

impl FileTx {
    pub(crate) async fn begin(shared: &Arc<Shared>) -> Result<Self> {
        let (reply, began) = oneshot::channel();
        shared.push(Work::Begin(reply))?;
        let end = began.await.map_err(|_| closed())??;
        Ok(Self { shared: Arc::clone(shared), end, savepoints: Vec::new() })
    }

    /// Fails if the transaction belongs to another folder. Any store on the same folder may use it.
    pub(crate) fn check_owner(&self, shared: &Shared) -> Result<()> {
        if self.shared.folder.id == shared.folder.id {
            return Ok(());
        }
        let text = "the transaction belongs to another folder: begin it with this store";
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Executes a command in the transaction.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the command is reserved for workers, or exceeds a limit. In that case nothing was
    /// changed.
    pub fn execute(&mut self, command: &Command) -> Result<Reply> {
        if !command.is_transactional() {
            let name = command.name();
            let text = format!("`{name}` cannot run in a transaction: run it outside");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.shared.is_closed() {
            return Err(closed());
        }
        self.shared.execute_in_transaction(command)
    }

    pub(crate) fn savepoint(&mut self) {
        let mark = self.shared.any_state().uncommitted.len();
        self.savepoints.push(mark);
    }

    /// Removes the latest savepoint, and returns how many effects came before it.
    pub(crate) fn pop_savepoint(&mut self) -> Result<usize> {
        let text = "the transaction has no savepoint: create one first";
        self.savepoints.pop().ok_or_else(|| Error::new(ErrorKind::Invalid, text))
    }

    pub(crate) fn roll_back_to(&self, mark: usize) {
        self.shared.roll_back_to(mark);
    }

    /// Commits the transaction, or rolls it back.
    pub(crate) async fn end(self, end: impl FnOnce(oneshot::Sender<Result<()>>) -> End) -> Result<()> {
        let (reply, ended) = oneshot::channel();
        self.end.send(end(reply)).map_err(|_| closed())?;
        ended.await.map_err(|_| closed())?
    }
}

impl fmt::Debug for FileTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTx").field("savepoints", &self.savepoints.len()).finish_non_exhaustive()
    }
}
