//! The commands that a client has at once and a transaction has inside it: each is written once, over an
//! [`Executor`].

use std::time::Duration;

use super::executor::Executor;
use super::plan::{Plan, batches, handle};
use super::send::{BusyRetries, Repeat};
use crate::chain::{Chain, ChainRef, is_of};
use crate::command::{
    Cancel, CancelMode, Cancelled, Create, Created, Delete, DeleteReply, GetChains, GetJobs, ListAttempts,
    ListDependents, ListJobs, NewChain, Order, Page, Pause, RetentionSet, Retried, Retry, RetryTarget,
    SetRetention, Target, Trigger, TriggerReply,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};
use crate::job::{Entry, Job, decode_output};
use crate::limit::PAGE_MAX;
use crate::name::TypeName;
use crate::record::{AttemptRecord, ChainRecord, JobRecord};
use crate::time::Millis;

/// The methods of a client and of a transaction, which differ in their receiver only.
macro_rules! commands {
    ([$($receiver:tt)+] $self:ident) => {
        /// Starts chains of one type, jobs or [plans](crate::plan()) with options, and gives their handles in
        /// order: one command per thousand.
        ///
        /// If one is refused, the error names the first such; the others are started all the same. Outside a
        /// transaction, [`create`](Self::create) tells what became of each.
        pub async fn start_many<P: $crate::IntoPlan>(
            $($receiver)+,
            plans: impl IntoIterator<Item = P> + Send,
        ) -> $crate::Result<Vec<$crate::Chain<P::Job>>> {
            commands::start_many($self, plans.into_iter().map(P::into_plan)).await
        }

        /// Creates chains of any types with one command; [`Plan::build`](crate::Plan::build) makes one. What
        /// became of each is told apart.
        pub async fn create(
            $($receiver)+,
            chains: Vec<$crate::command::NewChain>,
        ) -> $crate::Result<Vec<$crate::command::Created>> {
            commands::create($self, chains).await
        }

        /// Looks at a chain's current job, to complete or continue it without a worker: an approval, a webhook.
        /// Only looking changes nothing.
        ///
        /// A chain that is not stored is an error of kind `NotFound`; one of another type than its handle says
        /// is one of kind `Invalid`. See [`Outside`](crate::Outside) for an example.
        pub async fn step(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<$crate::Outside<'_>> {
            $crate::Outside::look($self, chain.into()).await
        }

        /// A chain, by handle, id, one of its jobs, or the key that points at it. One of another type than its
        /// handle says is an error.
        pub async fn chain(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<Option<$crate::ChainRecord>> {
            commands::chain($self, &chain.into()).await
        }

        /// Chains, each by its id, one of its jobs, or the key that points at it: one command, for a thousand at
        /// most. None for one that is not stored.
        pub async fn chains(
            $($receiver)+,
            chains: Vec<$crate::Target>,
        ) -> $crate::Result<Vec<Option<$crate::ChainRecord>>> {
            Ok(commands::run($self, $crate::command::GetChains { chains }).await?.chains)
        }

        /// What a chain gave, if it has completed. An error if it failed, was cancelled or is not stored.
        pub async fn output<J: $crate::Entry>(
            $($receiver)+,
            chain: $crate::Chain<J>,
        ) -> $crate::Result<Option<J::Output>> {
            commands::output($self, chain).await
        }

        /// The jobs of a chain, in order.
        pub async fn chain_jobs(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<Vec<$crate::JobRecord>> {
            commands::chain_jobs($self, &chain.into()).await
        }

        /// A job.
        pub async fn job($($receiver)+, job: $crate::JobId) -> $crate::Result<Option<$crate::JobRecord>> {
            commands::job($self, job).await
        }

        /// What a job takes, which must be of type `J`.
        pub async fn input<J: $crate::Job>($($receiver)+, job: $crate::JobId) -> $crate::Result<Option<J>> {
            commands::input($self, job).await
        }

        /// The chains that a job waits or waited for, in the order given; none for one that is gone.
        pub async fn blockers(
            $($receiver)+,
            job: $crate::JobId,
        ) -> $crate::Result<Vec<Option<$crate::ChainRecord>>> {
            commands::blockers($self, job).await
        }

        /// The jobs that wait or waited for a chain, earliest created first.
        pub async fn dependents(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<Vec<$crate::JobRecord>> {
            commands::dependents($self, &chain.into()).await
        }

        /// The latest attempts of a job, oldest first.
        pub async fn attempts(
            $($receiver)+,
            job: $crate::JobId,
        ) -> $crate::Result<Vec<$crate::AttemptRecord>> {
            commands::attempts($self, job).await
        }

        /// One page of the chains that a filter lets through.
        pub async fn list_chains(
            $($receiver)+,
            list: $crate::command::ListChains,
        ) -> $crate::Result<$crate::command::ListChainsReply> {
            commands::run($self, list).await
        }

        /// One page of the jobs that a filter lets through.
        pub async fn list_jobs(
            $($receiver)+,
            list: $crate::command::ListJobs,
        ) -> $crate::Result<$crate::command::ListJobsReply> {
            commands::run($self, list).await
        }

        /// Counts jobs by type and status.
        pub async fn count(
            $($receiver)+,
            types: $crate::command::Types,
        ) -> $crate::Result<$crate::command::CountReply> {
            commands::run($self, $crate::command::Count { types }).await
        }

        /// Calls a chain off. A running job is left alone or asked to stop, as `mode` says.
        pub async fn cancel(
            $($receiver)+,
            chain: impl Into<$crate::Target> + Send,
            mode: $crate::CancelMode,
        ) -> $crate::Result<$crate::Cancelled> {
            commands::cancel($self, chain.into(), mode).await
        }

        /// Calls a chain off, unless a worker runs its job.
        pub async fn cancel_unless_running(
            $($receiver)+,
            chain: impl Into<$crate::Target> + Send,
        ) -> $crate::Result<$crate::Cancelled> {
            $self.cancel(chain, $crate::CancelMode::UnlessRunning).await
        }

        /// Makes pending jobs due at once, all or none.
        pub async fn trigger(
            $($receiver)+,
            jobs: Vec<$crate::Target>,
        ) -> $crate::Result<$crate::command::TriggerReply> {
            commands::trigger($self, jobs).await
        }

        /// Opens a chain again that failed or was cancelled.
        pub async fn retry(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<$crate::command::Retried> {
            commands::retry($self, &chain.into()).await
        }

        /// Removes chains with all their jobs, all or none; with `cascade` also the chains that they wait or
        /// waited for.
        pub async fn delete(
            $($receiver)+,
            chains: Vec<$crate::Target>,
            cascade: bool,
        ) -> $crate::Result<$crate::command::DeleteReply> {
            commands::delete($self, chains, cascade).await
        }

        /// Lets closed chains stay for so long from now.
        pub async fn set_retention(
            $($receiver)+,
            chains: Vec<$crate::Target>,
            retention: std::time::Duration,
        ) -> $crate::Result<Vec<$crate::command::RetentionSet>> {
            commands::set_retention($self, chains, retention).await
        }

        /// Lets no worker take jobs of these types, or lets them again. Jobs that run go on. Tells for each
        /// whether it was paused before.
        pub async fn pause(
            $($receiver)+,
            types: Vec<$crate::TypeName>,
            paused: bool,
        ) -> $crate::Result<Vec<bool>> {
            commands::pause($self, types, paused).await
        }
    };
}
pub(super) use commands;

pub(super) async fn start_many<J: Entry>(
    mut on: impl Executor,
    plans: impl Iterator<Item = Plan<J>>,
) -> Result<Vec<Chain<J>>> {
    let chains: Vec<_> = plans.map(Plan::build).collect::<Result<_>>()?;
    let count = chains.len();
    let mut created: Vec<Created> = Vec::with_capacity(count);
    for batch in batches(chains) {
        created.extend(create(&mut on, batch).await?);
    }
    let started = created.into_iter().enumerate().map(|(index, created)| {
        handle(created).map_err(|error| {
            let text = format!("start {} of {count} was refused: {error}", index + 1);
            Error::new(error.kind(), text).with_source(error)
        })
    });
    started.collect()
}

/// Creates chains. Busy ones are tried again for about a second. What was created meanwhile is announced at once, and stays
/// whatever becomes of the rest.
pub(super) async fn create(mut on: impl Executor, mut chains: Vec<NewChain>) -> Result<Vec<Created>> {
    // Once, however often a chain is tried: an observer begins a span for each request.
    let asked = on.teller().ask(&mut chains);
    let mut created = vec![Created::Busy; chains.len()];
    let ended = create_until_free(&mut on, &chains, &mut created).await;
    let missing: Vec<_> = not_created(&chains, &created).collect();
    let asked = on.teller().keep(asked, &missing);
    on.tell(|announcements| announcements.traced(asked));
    ended.map(|()| created)
}

async fn create_until_free(
    on: &mut impl Executor,
    chains: &[NewChain],
    created: &mut [Created],
) -> Result<()> {
    let mut retries = BusyRetries::new();
    loop {
        let request = Create { chains: busy(chains, created) };
        if request.chains.is_empty() {
            return Ok(());
        }
        let replies = on.execute(&request).await?.chains;
        on.tell(|announcements| {
            request
                .chains
                .iter()
                .zip(&replies)
                .for_each(|(new, created)| announcements.created(new, created));
        });
        let tried = created.iter_mut().filter(|created| matches!(created, Created::Busy));
        tried.zip(replies).for_each(|(created, reply)| *created = reply);
        if !created.contains(&Created::Busy) || !retries.wait().await {
            return Ok(());
        }
    }
}

/// The chains that are still to be created. One may wait for another of the same command whose key a third chain holds:
/// it then waits for the third, since a retry without the second cannot resolve that alias.
fn busy(chains: &[NewChain], created: &[Created]) -> Vec<NewChain> {
    let pairs = || chains.iter().zip(created);
    let busy = pairs().filter(|(_, created)| matches!(created, Created::Busy));
    let mut busy: Vec<_> = busy.map(|(new, _)| new.clone()).collect();
    for blocker in busy.iter_mut().flat_map(|new| &mut new.job.blockers) {
        let meant = pairs().find_map(|(new, created)| match created {
            Created::Existing(existing) if new.id == blocker.chain => Some(existing.chain),
            _ => None,
        });
        blocker.chain = meant.unwrap_or(blocker.chain);
    }
    busy
}

/// The chains that exist no more than before.
pub(super) fn not_created(chains: &[NewChain], created: &[Created]) -> impl Iterator<Item = ChainId> {
    let pairs = chains.iter().zip(created);
    pairs.filter(|(_, created)| !matches!(created, Created::New { .. })).map(|(new, _)| new.id)
}

pub(super) async fn chain(mut on: impl Executor, chain: &ChainRef) -> Result<Option<ChainRecord>> {
    let mut reply = on.execute(&GetChains { chains: vec![chain.target.clone()] }).await?;
    let found = reply.chains.pop().flatten();
    if let Some(record) = &found {
        chain.check(record.id, &record.chain_type)?;
    }
    Ok(found)
}

/// A chain that must be there.
pub(super) async fn stored(mut on: impl Executor, named: &ChainRef) -> Result<ChainRecord> {
    chain(&mut on, named).await?.ok_or_else(|| {
        let what = match &named.target {
            Target::Chain(chain) => format!("chain {chain}"),
            Target::Job(job) => format!("job {job}"),
            Target::Key(job_type, key) => format!("a chain of type `{job_type}` with the key `{key}`"),
        };
        Error::new(
            ErrorKind::NotFound,
            format!("{what} is not stored: its transaction is not committed, or it is gone"),
        )
    })
}

pub(super) async fn output<J: Entry>(mut on: impl Executor, chain: Chain<J>) -> Result<Option<J::Output>> {
    let record = stored(&mut on, &chain.into()).await?;
    if record.closed.is_some() { given::<J>(&record).map(Some) } else { Ok(None) }
}

/// What a chain gave that is closed.
pub(super) fn given<J: Entry>(record: &ChainRecord) -> Result<J::Output> {
    let JobRecord { job_type, output, error, status, .. } = &record.latest;
    match output {
        Some(output) => decode_output::<J>(job_type.as_str(), output),
        None => Err(Error::chain_failed(record.id, *status, error.clone())),
    }
}

pub(super) async fn chain_jobs(mut on: impl Executor, chain: &ChainRef) -> Result<Vec<JobRecord>> {
    let Some(record) = self::chain(&mut on, chain).await? else { return Ok(Vec::new()) };
    let mut list = ListJobs { page: oldest_first(), ..ListJobs::default() };
    list.filter.chain = Some(record.id);
    let mut jobs = Vec::new();
    loop {
        let reply = on.execute(&list).await?;
        jobs.extend(reply.jobs);
        let Some(next) = reply.next else { return Ok(jobs) };
        list.page.after = Some(next);
    }
}

pub(super) async fn job(mut on: impl Executor, job: JobId) -> Result<Option<JobRecord>> {
    let mut reply = on.execute(&GetJobs { jobs: vec![job] }).await?;
    Ok(reply.jobs.pop().flatten())
}

pub(super) async fn input<J: Job>(mut on: impl Executor, id: JobId) -> Result<Option<J>> {
    let Some(record) = job(&mut on, id).await? else { return Ok(None) };
    narrow::<J>(&record).map(Some)
}

/// What a job takes, if it is of type `J`.
pub(super) fn narrow<J: Job>(job: &JobRecord) -> Result<J> {
    if !is_of::<J>(&job.job_type) {
        let (id, stored): (JobId, &TypeName) = (job.id, &job.job_type);
        let text = format!("job {id} is of type `{stored}`, and `{}` was expected", J::NAME);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    job.input.decode()
}

pub(super) async fn blockers(mut on: impl Executor, id: JobId) -> Result<Vec<Option<ChainRecord>>> {
    let Some(record) = job(&mut on, id).await? else { return Ok(Vec::new()) };
    let chains = record.blockers.iter().map(|blocker| blocker.chain.into()).collect();
    Ok(on.execute(&GetChains { chains }).await?.chains)
}

pub(super) async fn dependents(mut on: impl Executor, chain: &ChainRef) -> Result<Vec<JobRecord>> {
    let Some(record) = self::chain(&mut on, chain).await? else { return Ok(Vec::new()) };
    let mut list = ListDependents { chain: record.id, page: oldest_first() };
    let mut jobs = Vec::new();
    loop {
        let reply = on.execute(&list).await?;
        jobs.extend(reply.jobs);
        let Some(next) = reply.next else { return Ok(jobs) };
        list.page.after = Some(next);
    }
}

pub(super) async fn attempts(on: impl Executor, job: JobId) -> Result<Vec<AttemptRecord>> {
    Ok(run(on, ListAttempts { job }).await?.attempts)
}

/// A command that is its own method.
pub(super) async fn run<R: Repeat>(mut on: impl Executor, request: R) -> Result<R::Reply> {
    on.execute(&request).await
}

fn oldest_first() -> Page {
    let max = u32::try_from(PAGE_MAX).expect("the limit of a page is small");
    Page { order: Order::Oldest, after: None, max }
}

pub(super) async fn cancel(mut on: impl Executor, chain: Target, mode: CancelMode) -> Result<Cancelled> {
    let reply = on.execute(&Cancel { chains: vec![chain], mode }).await?;
    let cancelled = reply.chains.first().copied().unwrap_or(Cancelled::NotFound);
    on.tell(|announcements| {
        announcements.cancelled(cancelled, &reply.ripple);
        announcements.ripple(&reply.ripple);
    });
    Ok(cancelled)
}

pub(super) async fn trigger(mut on: impl Executor, jobs: Vec<Target>) -> Result<TriggerReply> {
    let reply = on.execute(&Trigger { jobs }).await?;
    on.tell(|announcements| announcements.triggered(&reply));
    Ok(reply)
}

pub(super) async fn retry(mut on: impl Executor, named: &ChainRef) -> Result<Retried> {
    let Some(record) = chain(&mut on, named).await? else { return Ok(Retried::NotFound) };
    let target = RetryTarget { job: record.latest.id, version: record.latest.version };
    let mut reply = on.execute(&Retry { chains: vec![target] }).await?;
    let retried = reply.chains.pop().unwrap_or(Retried::NotFound);
    on.tell(|announcements| announcements.retried(&retried));
    Ok(retried)
}

pub(super) async fn delete(mut on: impl Executor, chains: Vec<Target>, cascade: bool) -> Result<DeleteReply> {
    let reply = on.execute(&Delete { chains, cascade }).await?;
    on.tell(|announcements| announcements.deleted(&reply));
    Ok(reply)
}

pub(super) async fn set_retention(
    mut on: impl Executor,
    chains: Vec<Target>,
    retention: Duration,
) -> Result<Vec<RetentionSet>> {
    let request = SetRetention { chains, retention: Millis::try_from(retention)? };
    Ok(on.execute(&request).await?.chains)
}

pub(super) async fn pause(mut on: impl Executor, types: Vec<TypeName>, paused: bool) -> Result<Vec<bool>> {
    Ok(on.execute(&Pause { types, paused }).await?.were_paused)
}
