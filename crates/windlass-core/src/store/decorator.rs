use std::sync::Arc;

use super::{BoxFuture, Capabilities, Counters, Finding, Store, Transactional, TxEnd, TxId};
use crate::command::*;
use crate::error::Result;
use crate::for_each_command;
use crate::notifier::Notifier;

/// A wrapper around a store, for example for metrics, throttling, or fault injection in tests.
///
/// Every decorator implements [`Store`]: [`call`](Self::call) receives each command, and everything else is
/// forwarded to the inner store. Implement [`TransactionDecorator`] too if the inner store is
/// [`Transactional`].
///
/// A decorator can change a command before it forwards it, delay or fail it, change or drop the reply, or
/// return its own reply. It must keep the contract of [`Store`], and in particular return the reply of
/// the command that was called. Another reply makes the call fail with an error of kind
/// [`Corrupt`](crate::ErrorKind::Corrupt).
///
/// Two commands combine others: [`Exchange`](crate::command::Exchange) settles and acquires, and
/// [`CreateAndAcquire`](crate::command::CreateAndAcquire) creates and acquires. A decorator that handles one of their parts
/// must handle them too. Otherwise, remove their capabilities in [`supported`](Self::supported), for example with
/// `self.inner().capabilities().without(Capability::Exchange).without(Capability::CreateAndAcquire)`. The client then sends
/// the parts as separate commands.
///
/// # Examples
///
/// A store that counts the commands that fail:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use windlass::command::{Command, GetJobs, Reply};
/// use windlass::store::{BoxFuture, Decorator, TransactionDecorator};
/// use windlass::{MemoryStore, Result, Store, Transactional};
///
/// #[derive(Debug)]
/// struct Counted<S> {
///     inner: S,
///     failures: AtomicU64,
/// }
///
/// impl<S: Store> Decorator for Counted<S> {
///     type Inner = S;
///
///     fn inner(&self) -> &S {
///         &self.inner
///     }
///
///     fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
///         Box::pin(async move {
///             let reply = self.forward(command).await;
///             if reply.is_err() {
///                 self.failures.fetch_add(1, Ordering::Relaxed);
///             }
///             reply
///         })
///     }
/// }
///
/// // Transactions are not counted: the default methods forward them.
/// impl<S: Transactional> TransactionDecorator for Counted<S> {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let store = Counted { inner: MemoryStore::new(), failures: AtomicU64::new(0) };
/// store.get_jobs(GetJobs { jobs: Vec::new() }).await?;
/// store.close().await?;
/// assert!(store.get_jobs(GetJobs { jobs: Vec::new() }).await.is_err());
/// assert_eq!(store.failures.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait Decorator: Send + Sync + std::fmt::Debug + 'static {
    /// The type of the inner store.
    type Inner: Store + ?Sized;

    /// Returns the inner store.
    fn inner(&self) -> &Self::Inner;

    /// Returns the optional features that the decorated store supports. Default: those of the inner store.
    fn supported(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// Executes a command outside transactions. Default: [`forward`](Self::forward).
    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        self.forward(command)
    }

    /// Executes a command on the inner store. Not meant to be overridden.
    fn forward(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        execute(self.inner(), command)
    }
}

/// A [`Decorator`] of a store with transactions. Every such decorator implements [`Transactional`], with the
/// transaction type of the inner store.
///
/// Each method decorates the method of [`Transactional`] in its name. All of them forward to the inner store
/// by default, so an empty implementation leaves transactions as they are.
///
/// A decorator that needs a transaction type of its own implements [`Transactional`] instead of this trait.
pub trait TransactionDecorator: Decorator<Inner: Transactional> {
    /// Decorates [`Transactional::begin`], which begins the transactions of clients. See also
    /// [`call_begin_attempt`](Self::call_begin_attempt).
    fn call_begin(&self) -> BoxFuture<'_, Result<Tx<Self>>> {
        self.inner().begin()
    }

    /// Decorates [`Transactional::begin_attempt`], which begins the transactions of handlers. It does not call
    /// [`call_begin`](Self::call_begin).
    fn call_begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<Tx<Self>>> {
        self.inner().begin_attempt(attempt)
    }

    /// Decorates [`Transactional::commit`].
    fn call_commit(&self, tx: Tx<Self>) -> BoxFuture<'_, Result<()>> {
        self.inner().commit(tx)
    }

    /// Decorates [`Transactional::rollback`].
    fn call_rollback(&self, tx: Tx<Self>) -> BoxFuture<'_, Result<()>> {
        self.inner().rollback(tx)
    }

    /// Decorates [`Transactional::identify`].
    fn call_identify<'a>(&'a self, tx: TxRef<'a, Self>) -> BoxFuture<'a, Result<TxId>> {
        self.inner().identify(tx)
    }

    /// Decorates [`Transactional::ends`].
    fn call_ends(&self, transactions: Vec<TxId>) -> BoxFuture<'_, Result<Vec<TxEnd>>> {
        self.inner().ends(transactions)
    }

    /// Decorates [`Transactional::savepoint`].
    fn call_savepoint<'a>(&'a self, tx: TxRef<'a, Self>) -> BoxFuture<'a, Result<()>> {
        self.inner().savepoint(tx)
    }

    /// Decorates [`Transactional::release`].
    fn call_release<'a>(&'a self, tx: TxRef<'a, Self>) -> BoxFuture<'a, Result<()>> {
        self.inner().release(tx)
    }

    /// Decorates [`Transactional::rollback_to`].
    fn call_rollback_to<'a>(&'a self, tx: TxRef<'a, Self>) -> BoxFuture<'a, Result<()>> {
        self.inner().rollback_to(tx)
    }

    /// Decorates [`Transactional::execute_in`].
    fn call_in<'a>(&'a self, tx: TxRef<'a, Self>, command: Command) -> BoxFuture<'a, Result<Reply>> {
        self.inner().execute_in(tx, command)
    }
}

type Tx<D> = <<D as Decorator>::Inner as Transactional>::Tx;
type TxRef<'t, D> = <<D as Decorator>::Inner as Transactional>::TxRef<'t>;

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl<D: Decorator> Store for D {
            fn capabilities(&self) -> Capabilities {
                self.supported()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                let reply = self.call(request.into());
                Box::pin(async move { reply.await?.try_into() })
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                self.inner().erase()
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                self.inner().health()
            }

            fn counters(&self) -> Counters {
                self.inner().counters()
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                self.inner().notifier()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                self.inner().close()
            }
        }

        fn execute<S: Store + ?Sized>(store: &S, command: Command) -> BoxFuture<'_, Result<Reply>> {
            match command {
                $(Command::$request(request) => {
                    let reply = store.$method(request);
                    Box::pin(async move { reply.await.map(Reply::$request) })
                })*
            }
        }
    };
}
for_each_command!(store);

impl<D: TransactionDecorator> Transactional for D {
    type Tx = Tx<D>;
    type TxRef<'t> = TxRef<'t, D>;
    type Connection<'t> = <D::Inner as Transactional>::Connection<'t>;

    fn tx_ref(tx: &mut Self::Tx) -> Self::TxRef<'_> {
        D::Inner::tx_ref(tx)
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        D::Inner::connection(tx)
    }

    fn reborrow<'t>(tx: &'t mut Self::TxRef<'_>) -> Self::TxRef<'t> {
        D::Inner::reborrow(tx)
    }

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>> {
        self.call_begin()
    }

    fn begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<Self::Tx>> {
        self.call_begin_attempt(attempt)
    }

    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        self.call_commit(tx)
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        self.call_rollback(tx)
    }

    fn identify<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<TxId>> {
        self.call_identify(tx)
    }

    fn ends(&self, transactions: Vec<TxId>) -> BoxFuture<'_, Result<Vec<TxEnd>>> {
        self.call_ends(transactions)
    }

    fn savepoint<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        self.call_savepoint(tx)
    }

    fn release<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        self.call_release(tx)
    }

    fn rollback_to<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        self.call_rollback_to(tx)
    }

    fn execute_in<'a>(&'a self, tx: Self::TxRef<'a>, command: Command) -> BoxFuture<'a, Result<Reply>> {
        self.call_in(tx, command)
    }
}
