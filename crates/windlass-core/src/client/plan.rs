//! Describes a chain to start, and starts it in a client or a transaction.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::executor::DynExecutor;
use super::{Client, InTx};
use crate::chain::Chain;
use crate::command::{Created, NewBlocker, NewChain, NewJob, NewKey};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::job::{Blockers, Entry, IsReady, Job, NeedsBlockedBy, Ready};
use crate::name::{Key, TypeName};
use crate::payload::Payload;
use crate::record::{KeyHold, Retention};
use crate::store::{Store, Transactional};
use crate::time::Millis;

/// A chain to start, with its options. See [`plan()`]. If the job type has blockers, the compiler requires a call to
/// [`blocked_by`](Plan::blocked_by) before the chain can be started.
///
/// Delay, priority and maximum attempts apply to the first job. Later jobs use the options of their own type, or those
/// set with [`next()`](crate::next()).
///
/// `To` is where the chain is started: `()` if not yet known; in a [`Start`], a client or a transaction.
#[must_use = "a plan does nothing until it is awaited or passed to a method that starts it"]
pub struct Plan<J, State = Ready, To = ()> {
    to: To,
    /// The chain, or the first error. The error is returned when the chain is started.
    new: Result<NewChain>,
    job: PhantomData<fn() -> (J, State)>,
}

/// A [`Plan`] with a destination. Await it to start the chain.
pub type Start<'c, J, State = Ready> = Plan<J, State, Destination<'c>>;

/// Where a chain is started: a client or a transaction.
pub struct Destination<'c>(pub(super) Box<dyn DynExecutor + 'c>);

impl Destination<'_> {
    /// Creates a chain at this destination.
    pub(crate) async fn create(mut self, new: NewChain) -> Result<Created> {
        self.0.create_one(new).await
    }
}

impl<'c, S: Store + ?Sized> From<&'c Client<S>> for Destination<'c> {
    fn from(client: &'c Client<S>) -> Self {
        Self(Box::new(client))
    }
}

impl<'c, S: Transactional> From<&'c mut InTx<'_, S>> for Destination<'c> {
    fn from(tx: &'c mut InTx<'_, S>) -> Self {
        Self(Box::new(tx))
    }
}

/// Plans a chain to start later or together with others: with
/// [`Client::start_many`](crate::Client::start_many), or in the write that ends a job
/// ([`Next::start`](crate::Next::start)).
///
/// ```
/// # use windlass::{Client, Entry, Job, MemoryStore, plan};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
/// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
/// # impl Entry for Mail {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let client = Client::new(MemoryStore::new());
/// let ada = plan(Mail { to: "ada".into() }).key("ada").priority(5);
/// let bob = plan(Mail { to: "bob".into() }).key("bob");
/// let known = ada.handle();                  // the handle is known before the start
/// let chains = client.start_many([ada, bob]).await?;
/// assert_eq!(chains[0], known);
/// # Ok(()) }
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the plan owns the job")]
pub fn plan<J: Entry>(job: J) -> Plan<J, <J::Blockers as Blockers>::Initial> {
    Plan { to: (), new: chain(&job), job: PhantomData }
}

impl<J: Entry, State> Plan<J, State> {
    /// Sets the destination of the plan.
    pub(super) fn to<'c>(self, executor: impl DynExecutor + 'c) -> Start<'c, J, State> {
        Plan { to: Destination(Box::new(executor)), new: self.new, job: PhantomData }
    }
}

impl<J: Entry> Plan<J> {
    /// Converts the plan into a request of the store contract. With [`create`](crate::Client::create), plans of several
    /// types can be started together.
    ///
    /// # Errors
    ///
    /// The first error of the job or its options.
    pub fn build(self) -> Result<NewChain> {
        self.new
    }
}

impl<'c, J: Entry> Start<'c, J> {
    /// Returns the destination, and the chain or the first error.
    pub(super) fn into_parts(self) -> (Destination<'c>, Result<NewChain>) {
        (self.to, self.new)
    }
}

impl<J: Entry, State, To> Plan<J, State, To> {
    /// Returns the handle of the chain before it is started.
    ///
    /// If another chain holds the key when the plan is started, the chain with this handle is not created. A job in the
    /// same command that waits for this handle then waits for the chain that holds the key.
    #[must_use]
    pub fn handle(&self) -> Chain<J> {
        // A plan with an error is never started, so any id will do.
        Chain::from_id(self.new.as_ref().map_or_else(|_| ChainId::new(), |new| new.id))
    }

    /// Sets the chain's id, which must be new. A caller that chooses the id can repeat the whole start after
    /// an error. Default: a generated id.
    pub fn id(self, id: ChainId) -> Self {
        self.with(|new| {
            new.id = id;
            Ok(())
        })
    }

    /// Sets the deduplication key. While another chain of this type holds the key, the start returns that
    /// chain and creates none.
    pub fn key(self, key: impl AsRef<str>) -> Self {
        self.with(|new| {
            new.key = Some(NewKey::new(Key::new(key)?));
            Ok(())
        })
    }

    /// Sets which outcomes hold the key after the chain has closed. Call [`key`](Self::key) first. Default:
    /// none.
    pub fn hold(self, hold: KeyHold) -> Self {
        self.with_key(|key| {
            key.hold = hold;
            Ok(())
        })
    }

    /// Sets the maximum time that the key is held, counted from the chain's creation. Call [`key`](Self::key)
    /// first. Default: no maximum.
    pub fn window(self, window: Duration) -> Self {
        self.with_key(|key| {
            key.window = Some(Millis::try_from(window)?);
            Ok(())
        })
    }

    /// Takes over the key if the given chain holds it. Call [`key`](Self::key) first.
    pub fn replaces(self, chain: impl Into<ChainId>) -> Self {
        self.with_key(|key| {
            key.replaces = Some(chain.into());
            Ok(())
        })
    }

    job_options!(max_attempts);

    /// Sets how long the chain is kept after it has closed. Default: the retention of the job type.
    pub fn retention(self, retention: Retention) -> Self {
        self.with(|new| {
            new.retention = retention;
            Ok(())
        })
    }

    fn with_key(self, change: impl FnOnce(&mut NewKey) -> Result<()>) -> Self {
        self.with(|new| match &mut new.key {
            Some(key) => change(key),
            None => Err(Error::new(ErrorKind::Invalid, "the start has no key: call `.key(…)` first")),
        })
    }

    fn with_job(self, change: impl FnOnce(&mut NewJob) -> Result<()>) -> Self {
        self.with(|new| change(&mut new.job))
    }

    fn with(mut self, change: impl FnOnce(&mut NewChain) -> Result<()>) -> Self {
        change_planned(&mut self.new, change);
        self
    }
}

impl<J: Entry, To> Plan<J, NeedsBlockedBy, To> {
    /// Sets the chains that the first job waits for.
    #[expect(clippy::needless_pass_by_value, reason = "passing handles by value reads better")]
    pub fn blocked_by(self, chains: <J::Blockers as Blockers>::Chains) -> Plan<J, Ready, To> {
        let Self { to, mut new, .. } = self;
        if let Ok(new) = &mut new {
            new.job.blockers = J::Blockers::ids(&chains).into_iter().map(NewBlocker::from).collect();
        }
        Plan { to, new, job: PhantomData }
    }
}

/// A value that can be started later or together with others: a plan, or a job whose type has no blockers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be started as a chain",
    label = "neither a job of an entry type nor a complete plan",
    note = "if the job type declares blockers, pass `plan(job).blocked_by(…)`"
)]
pub trait IntoPlan {
    /// The type of the job.
    type Job: Entry;

    /// Converts the value into a plan.
    fn into_plan(self) -> Plan<Self::Job>;
}

impl<J: Entry> IntoPlan for J
where
    <J::Blockers as Blockers>::Initial: IsReady,
{
    type Job = J;

    fn into_plan(self) -> Plan<J> {
        plan(self).into_plan()
    }
}

impl<J: Entry, State: IsReady> IntoPlan for Plan<J, State> {
    type Job = J;

    fn into_plan(self) -> Plan<J> {
        Plan { to: (), new: self.new, job: PhantomData }
    }
}

impl<J: Job, State, To> fmt::Debug for Plan<J, State, To> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("job_type", &J::NAME).field("new", &self.new).finish_non_exhaustive()
    }
}

impl fmt::Debug for Destination<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Destination")
    }
}

/// The options of every planned job: the first of a chain, a continuation, or a job in a queue. The type that
/// uses this macro has a method `with_job` that changes the job.
macro_rules! job_options {
    ($attempts:ident) => {
        /// Delays the job: it is due after this delay.
        pub fn after(self, delay: std::time::Duration) -> Self {
            self.with_job(|job| {
                job.schedule = $crate::command::DueTime::After($crate::Millis::try_from(delay)?);
                Ok(())
            })
        }

        /// Schedules the job: it is due at this time, or immediately if the time is in the past. Takes a
        /// [`SystemTime`](std::time::SystemTime) or a [`Timestamp`](crate::Timestamp).
        pub fn at(self, at: impl Into<$crate::Timestamp>) -> Self {
            self.with_job(|job| {
                job.schedule = $crate::command::DueTime::At(at.into());
                Ok(())
            })
        }

        /// Sets the priority. Jobs with a higher priority run first.
        pub fn priority(self, priority: i8) -> Self {
            self.with_job(|job| {
                job.priority = priority;
                Ok(())
            })
        }

        /// Sets the maximum number of attempts. A failure of the last attempt is final.
        pub fn $attempts(self, attempts: u32) -> Self {
            self.with_job(|job| {
                job.max_attempts = Some(attempts);
                Ok(())
            })
        }
    };
}
pub(crate) use job_options;

/// Changes a planned item. Keeps the first error: if there is one, does nothing.
pub(crate) fn change_planned<T>(planned: &mut Result<T>, change: impl FnOnce(&mut T) -> Result<()>) {
    if let Ok(good) = planned
        && let Err(error) = change(good)
    {
        *planned = Err(error);
    }
}

/// Returns a new chain that starts with this job, with the options of its type.
fn chain<J: Entry>(job: &J) -> Result<NewChain> {
    Ok(NewChain { retention: J::options().retention, ..NewChain::new(ChainId::new(), new_job(job)?) })
}

/// Encodes a job, with the options of its type.
pub(crate) fn new_job<J: Job>(job: &J) -> Result<NewJob> {
    let options = J::options();
    Ok(NewJob {
        priority: options.priority,
        max_attempts: options.max_attempts,
        on_blocker_failure: J::Blockers::policy().unwrap_or(options.on_blocker_failure),
        ..NewJob::new(TypeName::declared(J::NAME)?, Payload::encode(job)?)
    })
}
