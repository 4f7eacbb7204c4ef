//! Where commands are carried out: at the store, at once; or in a transaction, told when it commits.

use std::future::Future;
use std::time::Duration;

use super::{Announcements, Client, InTx, Teller, commands, outside};
use crate::command::*;
use crate::error::{Error, ErrorKind, Result};
use crate::for_each_command;
use crate::record::{JobRecord, Status};
use crate::store::{BoxFuture, Store, Transactional};

/// How often a command is repeated whose reply was lost.
const REPEATS: u32 = 3;

/// How often, and after how long, a row is tried again that somebody's open transaction holds.
pub(crate) const BUSY_TRIES: u32 = 20;
pub(crate) const BUSY_DELAY: Duration = Duration::from_millis(50);

/// A place that a start or a completion from outside can go to without its type being known.
pub(super) trait Place: Send {
    /// Creates a chain.
    fn create_one(&mut self, new: NewChain) -> BoxFuture<'_, Result<Created>>;

    /// Ends a job that was looked at, and says where its chain stands then.
    fn complete(&mut self, job: JobRecord, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>>;
}

/// A place that carries any command out.
pub(super) trait Executor: Send {
    /// Carries a command out. Where it can be repeated it is, if its reply was lost.
    fn execute<R: Sendable>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send;

    /// The same, never repeated: for what a repetition may find changed by the first call.
    fn execute_once<R: Sendable>(&mut self, request: R) -> impl Future<Output = Result<R::Reply>> + Send;

    /// Notes what is to be told when it is committed.
    fn tell(&mut self, note: impl FnOnce(&mut Announcements));

    /// Who is told.
    fn teller(&self) -> &Teller;
}

impl<S: Store + ?Sized> Executor for &Client<S> {
    fn execute<R: Sendable>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        send(&*self.shared.store, request)
    }

    fn execute_once<R: Sendable>(&mut self, request: R) -> impl Future<Output = Result<R::Reply>> + Send {
        request.send(&*self.shared.store)
    }

    fn tell(&mut self, note: impl FnOnce(&mut Announcements)) {
        let mut announcements = Announcements::by(&self.shared.teller);
        note(&mut announcements);
        announcements.send(&self.shared.teller);
    }

    fn teller(&self) -> &Teller {
        &self.shared.teller
    }
}

impl<S: Transactional> Executor for InTx<'_, S> {
    fn execute<R: Sendable>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        self.run(request.clone())
    }

    fn execute_once<R: Sendable>(&mut self, request: R) -> impl Future<Output = Result<R::Reply>> + Send {
        self.run(request)
    }

    fn tell(&mut self, note: impl FnOnce(&mut Announcements)) {
        note(self.announcements_mut());
    }

    fn teller(&self) -> &Teller {
        Self::teller(self)
    }
}

impl<E: Executor> Executor for &mut E {
    fn execute<R: Sendable>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        (**self).execute(request)
    }

    fn execute_once<R: Sendable>(&mut self, request: R) -> impl Future<Output = Result<R::Reply>> + Send {
        (**self).execute_once(request)
    }

    fn tell(&mut self, note: impl FnOnce(&mut Announcements)) {
        (**self).tell(note);
    }

    fn teller(&self) -> &Teller {
        (**self).teller()
    }
}

/// Starts share writes with those of others; see [`Client::start`].
impl<S: Store + ?Sized> Place for &Client<S> {
    fn create_one(&mut self, mut new: NewChain) -> BoxFuture<'_, Result<Created>> {
        Box::pin(async move {
            // Asked here and not where the batch is written: the caller's trace is the caller's.
            let asked = self.shared.teller.ask(std::slice::from_mut(&mut new));
            let created = self.create_shared(new).await;
            if !matches!(created, Ok(Created::New { .. })) {
                self.shared.teller.rolled_back(&asked);
            }
            created
        })
    }

    fn complete(&mut self, job: JobRecord, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>> {
        Box::pin(outside::complete(*self, job, steps))
    }
}

impl<S: ?Sized> Client<S> {
    /// Creates a chain together with others; again, for a while, if somebody's open transaction is in the way.
    async fn create_shared(&self, new: NewChain) -> Result<Created> {
        let tries = if new.key.is_some() || !new.job.blockers.is_empty() { BUSY_TRIES } else { 0 };
        // What is tried again holds nobody else up.
        let mut creates = self.shared.creates.clone();
        for _ in 0..tries {
            match creates.add(new.clone()).await? {
                Created::Busy => tokio::time::sleep(BUSY_DELAY).await,
                created => return Ok(created),
            }
            creates = self.shared.creates.apart();
        }
        creates.add(new).await
    }
}

impl<S: Transactional> Place for &mut InTx<'_, S> {
    fn create_one(&mut self, new: NewChain) -> BoxFuture<'_, Result<Created>> {
        Box::pin(async move { commands::create(&mut **self, vec![new]).await?.pop().ok_or_else(no_answer) })
    }

    fn complete(&mut self, job: JobRecord, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>> {
        Box::pin(outside::complete(&mut **self, job, steps))
    }
}

/// Sends a command, and again if its reply was lost.
pub(super) async fn send<S: Store + ?Sized, R: Sendable>(store: &S, request: &R) -> Result<R::Reply> {
    for tries in 1..=REPEATS {
        match request.clone().send(store).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(50) * tries).await;
            }
            answer => return answer,
        }
    }
    request.clone().send(store).await
}

/// A command that finds its method of the store.
pub(super) trait Sendable: Request<Reply: Send> + Clone + Send + Sync + 'static {
    fn send<S: Store + ?Sized>(self, store: &S) -> BoxFuture<'_, Result<Self::Reply>>;
}

macro_rules! sendable {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        $(impl Sendable for $request {
            fn send<S: Store + ?Sized>(self, store: &S) -> BoxFuture<'_, Result<$reply>> {
                store.$method(self)
            }
        })*
    };
}
for_each_command!(sendable);

fn no_answer() -> Error {
    Error::new(ErrorKind::Corrupt, "the store gave no answer for a chain")
}
