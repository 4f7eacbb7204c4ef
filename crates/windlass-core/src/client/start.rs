use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::batch::fitting;
use crate::chain::Chain;
use crate::command::{Created, NewBlocker, NewChain, NewJob, NewKey, Schedule};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::job::{Blockers, Entry, Job, NeedsBlockedBy, Ready};
use crate::name::{Key, TypeName};
use crate::payload::Payload;
use crate::record::{KeyHold, Retention};
use crate::store::BoxFuture;
use crate::time::{Millis, Timestamp};

/// Where a start goes: the client, or a transaction.
pub trait Creator: Send {
    /// Creates a chain.
    fn create_one<'a>(&'a mut self, new: NewChain) -> BoxFuture<'a, Result<Created>>;
}

/// A chain to be started, with its options. Await it to start it; a type with blockers must be given them
/// first.
#[must_use = "a start does nothing until it is awaited"]
pub struct Start<'c, J, State> {
    creator: Box<dyn Creator + 'c>,
    /// The first thing that was wrong is told when it is awaited.
    new: Result<NewChain>,
    job: PhantomData<fn() -> (J, State)>,
}

impl<'c, J: Entry> Start<'c, J, <J::Blockers as Blockers>::Initial> {
    #[expect(clippy::needless_pass_by_value, reason = "a start takes its job")]
    pub(super) fn new(creator: impl Creator + 'c, job: J) -> Self {
        Self { creator: Box::new(creator), new: chain(&job), job: PhantomData }
    }
}

impl<J: Entry, State> Start<'_, J, State> {
    /// A fresh id of the caller's choice, so that the whole start can be repeated after an error.
    pub fn id(self, id: ChainId) -> Self {
        self.with(|new| {
            new.id = id;
            Ok(())
        })
    }

    /// A deduplication key: while another chain of this type holds it, that one is given instead.
    pub fn key(self, key: impl AsRef<str>) -> Self {
        self.with(|new| {
            new.key = Some(NewKey::new(Key::new(key)?));
            Ok(())
        })
    }

    /// Which outcomes hold the key after the chain closed.
    pub fn hold(self, hold: KeyHold) -> Self {
        self.with_key(|key| {
            key.hold = hold;
            Ok(())
        })
    }

    /// The key is held no longer than this.
    pub fn window(self, window: Duration) -> Self {
        self.with_key(|key| {
            key.window = Some(Millis::try_from(window)?);
            Ok(())
        })
    }

    /// If this chain holds the key, the new one takes it over.
    pub fn replaces(self, chain: impl Into<ChainId>) -> Self {
        self.with_key(|key| {
            key.replaces = Some(chain.into());
            Ok(())
        })
    }

    /// Not before this long from now.
    pub fn after(self, delay: Duration) -> Self {
        self.with(|new| {
            new.job.schedule = Schedule::After(Millis::try_from(delay)?);
            Ok(())
        })
    }

    /// Not before this time.
    pub fn at(self, at: Timestamp) -> Self {
        self.with(|new| {
            new.job.schedule = Schedule::At(at);
            Ok(())
        })
    }

    /// Higher runs first.
    pub fn priority(self, priority: i8) -> Self {
        self.with(|new| {
            new.job.priority = priority;
            Ok(())
        })
    }

    /// After this many attempts a failure is final.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|new| {
            new.job.max_attempts = Some(attempts);
            Ok(())
        })
    }

    /// How long the chain stays after it closed.
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

    fn with(mut self, change: impl FnOnce(&mut NewChain) -> Result<()>) -> Self {
        if let Ok(new) = &mut self.new
            && let Err(error) = change(new)
        {
            self.new = Err(error);
        }
        self
    }
}

impl<'c, J: Entry> Start<'c, J, NeedsBlockedBy> {
    /// The chains that the first job waits for.
    #[expect(clippy::needless_pass_by_value, reason = "handles are copied, and the call reads better")]
    pub fn blocked_by(self, chains: <J::Blockers as Blockers>::Chains) -> Start<'c, J, Ready> {
        let Self { creator, mut new, .. } = self;
        if let Ok(new) = &mut new {
            new.job.blockers = J::Blockers::ids(&chains).into_iter().map(NewBlocker::from).collect();
        }
        Start { creator, new, job: PhantomData }
    }
}

impl<'c, J: Entry> IntoFuture for Start<'c, J, Ready> {
    type Output = Result<Chain<J>>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { mut creator, new, .. } = self;
        Box::pin(async move { handle(creator.create_one(new?).await?) })
    }
}

impl<J: Job, State> fmt::Debug for Start<'_, J, State> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("job_type", &J::NAME).finish_non_exhaustive()
    }
}

/// The chain that a job starts, with its type's options.
fn chain<J: Entry>(job: &J) -> Result<NewChain> {
    let options = J::options();
    Ok(NewChain { retention: options.retention, ..NewChain::new(ChainId::new(), new_job(job)?) })
}

/// The job with its type's options.
pub(crate) fn new_job<J: Job>(job: &J) -> Result<NewJob> {
    let options = J::options();
    Ok(NewJob {
        priority: options.priority,
        max_attempts: options.max_attempts,
        on_blocker_failure: J::Blockers::policy().unwrap_or(options.on_blocker_failure),
        ..NewJob::new(TypeName::new(J::NAME)?, Payload::encode(job)?)
    })
}

/// The chains that jobs start, in commands that keep their limits.
pub(super) fn batches<J: Entry>(jobs: impl IntoIterator<Item = J>) -> Result<Vec<Vec<NewChain>>> {
    let mut left: Vec<_> = jobs.into_iter().map(|job| chain(&job)).collect::<Result<_>>()?;
    let mut batches = Vec::new();
    while !left.is_empty() {
        let rest = left.split_off(fitting(left.iter().map(|new| new.job.size())));
        batches.push(std::mem::replace(&mut left, rest));
    }
    Ok(batches)
}

pub(super) fn handle<J>(created: Created) -> Result<Chain<J>> {
    match created {
        Created::New { job, .. } => Ok(Chain::started(job.chain, true)),
        Created::Existing(existing) => Ok(Chain::started(existing.chain, false)),
        Created::Busy => Err(Error::new(
            ErrorKind::Busy,
            "somebody's open transaction holds the key or a blocker: try again when it has ended",
        )),
        Created::Refused(refusal) => Err(refusal.into()),
    }
}
