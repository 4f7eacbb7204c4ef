//! The commands of clients and transactions. Each is implemented once, for any [`Executor`].

use std::time::Duration;

use super::executor::Executor;
use super::send::Repeat;
use crate::chain::{Chain, ChainRef, is_of};
use crate::command::{
    Cancel, CancelMode, Cancelled, Delete, DeleteReply, GetChains, GetJobs, ListAttempts, ListDependents,
    ListJobs, Order, Page, Pause, RetentionSet, Retried, Retry, RetryTarget, SetRetention, Target, Trigger,
    TriggerReply,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::JobId;
use crate::job::{Entry, Job, decode_output};
use crate::limit::PAGE_MAX;
use crate::name::TypeName;
use crate::record::{AttemptRecord, ChainRecord, JobRecord};
use crate::time::Millis;

/// The methods that clients and transactions share. Only their receivers differ.
macro_rules! commands {
    ([$($receiver:tt)+] $self:ident) => {
        /// Starts chains of one type and returns their handles in order. Takes jobs, or
        /// [plans](crate::plan()) with options. Sends one command per 1,000 chains, or more if the chains are
        /// large.
        ///
        /// # Errors
        ///
        /// If a plan is invalid, no chain is started. If chains are refused, the error names the first of them, and the
        /// others are started anyway. Use [`create`](Self::create) to get the result for each chain.
        pub async fn start_many<P: $crate::IntoPlan>(
            $($receiver)+,
            plans: impl IntoIterator<Item = P> + Send,
        ) -> $crate::Result<Vec<$crate::Chain<P::Job>>> {
            start::start_many($self, plans.into_iter().map(P::into_plan)).await
        }

        /// Creates chains of any type with one command and returns the result for each chain.
        /// [`Plan::build`](crate::Plan::build) returns a `NewChain`.
        ///
        /// If another open transaction has locked a row that a chain needs, that chain is retried up to 20 times, every
        /// 50 ms. On PostgreSQL, each try also waits for the row, so this takes up to about 1.7 s.
        pub async fn create(
            $($receiver)+,
            chains: Vec<$crate::command::NewChain>,
        ) -> $crate::Result<Vec<$crate::command::Created>> {
            start::create($self, chains).await
        }

        /// Returns a chain's current job, to complete or continue it without a worker, for example after an
        /// approval or a webhook. This call itself changes nothing. See [`Outside`](crate::Outside) for an
        /// example.
        ///
        /// # Errors
        ///
        /// - [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the chain is not stored.
        /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the chain is not of the type of its handle.
        pub async fn step(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<$crate::Outside<'_>> {
            $crate::Outside::query($self, chain.into()).await
        }

        /// Returns a chain by its handle, its id, one of its jobs, or the key that points at it. Returns
        /// `None` if the chain is not stored.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the chain is not of the type of its handle.
        pub async fn chain(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<Option<$crate::ChainRecord>> {
            commands::chain($self, &chain.into()).await
        }

        /// Returns chains by their ids, one of their jobs, or the keys that point at them. The list has `None` for each
        /// chain that is not stored. Sends one command, with at most 1,000 chains.
        pub async fn chains(
            $($receiver)+,
            chains: Vec<$crate::Target>,
        ) -> $crate::Result<Vec<Option<$crate::ChainRecord>>> {
            Ok(commands::run($self, $crate::command::GetChains { chains }).await?.chains)
        }

        /// Returns a chain's output, or `None` if the chain is still open.
        ///
        /// # Errors
        ///
        /// - [`ErrorKind::ChainFailed`](crate::ErrorKind::ChainFailed) if the chain failed.
        /// - [`ErrorKind::ChainCancelled`](crate::ErrorKind::ChainCancelled) if the chain was cancelled.
        /// - [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the chain is not stored.
        pub async fn output<J: $crate::Entry>(
            $($receiver)+,
            chain: $crate::Chain<J>,
        ) -> $crate::Result<Option<J::Output>> {
            commands::output($self, chain).await
        }

        /// Returns the jobs of a chain, in order. The list is empty if the chain is not stored.
        pub async fn chain_jobs(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<Vec<$crate::JobRecord>> {
            commands::chain_jobs($self, &chain.into()).await
        }

        /// Returns a job, or `None` if it is not stored.
        pub async fn job($($receiver)+, job: $crate::JobId) -> $crate::Result<Option<$crate::JobRecord>> {
            commands::job($self, job).await
        }

        /// Returns the input of a job, or `None` if the job is not stored.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the job is not of type `J`.
        pub async fn input<J: $crate::Job>($($receiver)+, job: $crate::JobId) -> $crate::Result<Option<J>> {
            commands::input($self, job).await
        }

        /// Returns the chains that a job waits or waited for, in the order in which they were declared. The list has
        /// `None` for each chain that is no longer stored. It is empty if the job is not stored.
        pub async fn blockers(
            $($receiver)+,
            job: $crate::JobId,
        ) -> $crate::Result<Vec<Option<$crate::ChainRecord>>> {
            commands::blockers($self, job).await
        }

        /// Returns the jobs that wait or waited for a chain, in order of creation. The list is empty if the
        /// chain is not stored.
        pub async fn dependents(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<Vec<$crate::JobRecord>> {
            commands::dependents($self, &chain.into()).await
        }

        /// Returns the latest attempts of a job, oldest first.
        pub async fn attempts(
            $($receiver)+,
            job: $crate::JobId,
        ) -> $crate::Result<Vec<$crate::AttemptRecord>> {
            commands::attempts($self, job).await
        }

        /// Returns one page of the chains that match a filter.
        pub async fn list_chains(
            $($receiver)+,
            list: $crate::command::ListChains,
        ) -> $crate::Result<$crate::command::ListChainsReply> {
            commands::run($self, list).await
        }

        /// Returns one page of the jobs that match a filter.
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

        /// Cancels a chain. If its job is running, `mode` decides whether the job is left alone or asked to
        /// stop.
        pub async fn cancel(
            $($receiver)+,
            chain: impl Into<$crate::Target> + Send,
            mode: $crate::CancelMode,
        ) -> $crate::Result<$crate::Cancelled> {
            commands::cancel($self, chain.into(), mode).await
        }

        /// Cancels a chain, unless its job is running.
        pub async fn cancel_unless_running(
            $($receiver)+,
            chain: impl Into<$crate::Target> + Send,
        ) -> $crate::Result<$crate::Cancelled> {
            $self.cancel(chain, $crate::CancelMode::UnlessRunning).await
        }

        /// Makes a pending job due now: the latest job of a chain, or the given job.
        pub async fn trigger(
            $($receiver)+,
            job: impl Into<$crate::Target> + Send,
        ) -> $crate::Result<$crate::command::TriggerReply> {
            commands::trigger($self, vec![job.into()]).await
        }

        /// Makes pending jobs due now, all or none.
        pub async fn trigger_many(
            $($receiver)+,
            jobs: Vec<$crate::Target>,
        ) -> $crate::Result<$crate::command::TriggerReply> {
            commands::trigger($self, jobs).await
        }

        /// Reopens a chain that failed or was cancelled. Its latest job runs again, with a new count of attempts. To
        /// retry many chains, call [`Client::retry_all`](crate::Client::retry_all).
        pub async fn retry(
            $($receiver)+,
            chain: impl Into<$crate::ChainRef> + Send,
        ) -> $crate::Result<$crate::command::Retried> {
            commands::retry($self, &chain.into()).await
        }

        /// Like [`retry`](Self::retry), but for the failure that the caller has read: the target is the chain's latest
        /// job with its version. If the chain was retried since, nothing is done, even if it has failed again.
        pub async fn retry_seen(
            $($receiver)+,
            target: $crate::command::RetryTarget,
        ) -> $crate::Result<$crate::command::Retried> {
            commands::retry_seen($self, target).await
        }

        /// Removes chains with all their jobs, all or none.
        pub async fn delete(
            $($receiver)+,
            chains: Vec<$crate::Target>,
        ) -> $crate::Result<$crate::command::DeleteReply> {
            commands::delete($self, $crate::command::Delete { chains, cascade: false, seen: None }).await
        }

        /// Like [`delete`](Self::delete), but also removes the chains that the removed jobs wait or waited for,
        /// recursively.
        pub async fn delete_cascading(
            $($receiver)+,
            chains: Vec<$crate::Target>,
        ) -> $crate::Result<$crate::command::DeleteReply> {
            commands::delete($self, $crate::command::Delete { chains, cascade: true, seen: None }).await
        }

        /// Like [`delete`](Self::delete), with all options of the command. With
        /// [`seen`](crate::command::Delete::seen), it removes the chains only in the states that the caller has read. For
        /// example, a job that a worker has acquired in the meantime is kept.
        pub async fn delete_with(
            $($receiver)+,
            delete: $crate::command::Delete,
        ) -> $crate::Result<$crate::command::DeleteReply> {
            commands::delete($self, delete).await
        }

        /// Sets how long closed chains are kept, counted from now.
        pub async fn set_retention(
            $($receiver)+,
            chains: Vec<$crate::Target>,
            retention: std::time::Duration,
        ) -> $crate::Result<Vec<$crate::command::RetentionSet>> {
            commands::set_retention($self, chains, retention).await
        }

        /// Pauses job types. Workers acquire no jobs of a paused type; running jobs continue. For each type, returns
        /// whether it was paused before.
        pub async fn pause($($receiver)+, types: Vec<$crate::TypeName>) -> $crate::Result<Vec<bool>> {
            commands::pause($self, types, true).await
        }

        /// Resumes job types. For each type, returns whether it was paused before.
        pub async fn resume($($receiver)+, types: Vec<$crate::TypeName>) -> $crate::Result<Vec<bool>> {
            commands::pause($self, types, false).await
        }
    };
}
pub(super) use commands;

pub(super) async fn chain(mut on: impl Executor, chain: &ChainRef) -> Result<Option<ChainRecord>> {
    let mut reply = on.execute(&GetChains { chains: vec![chain.target.clone()] }).await?;
    let found = reply.chains.pop().flatten();
    if let Some(record) = &found {
        chain.check(record.id, &record.chain_type)?;
    }
    Ok(found)
}

/// Returns a chain, or an error of kind `NotFound` if it is not stored.
pub(super) async fn stored(mut on: impl Executor, named: &ChainRef) -> Result<ChainRecord> {
    chain(&mut on, named).await?.ok_or_else(|| {
        let what = match &named.target {
            Target::Chain(chain) => format!("chain {chain}"),
            Target::Job(job) => format!("job {job}"),
            Target::Key(job_type, key) => format!("a chain of type `{job_type}` with the key `{key}`"),
        };
        Error::new(
            ErrorKind::NotFound,
            format!(
                "{what} was not found: its transaction is not committed yet, or it was deleted or expired"
            ),
        )
    })
}

pub(super) async fn output<J: Entry>(mut on: impl Executor, chain: Chain<J>) -> Result<Option<J::Output>> {
    let record = stored(&mut on, &chain.into()).await?;
    if record.closed.is_some() { output_of::<J>(&record).map(Some) } else { Ok(None) }
}

/// Returns the output of a closed chain, or an error if it failed or was cancelled.
pub(super) fn output_of<J: Entry>(record: &ChainRecord) -> Result<J::Output> {
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

/// Returns the input of a job, or an error of kind `Invalid` if the job is not of type `J`.
pub(super) fn narrow<J: Job>(job: &JobRecord) -> Result<J> {
    if !is_of::<J>(&job.job_type) {
        let (id, stored): (JobId, &TypeName) = (job.id, &job.job_type);
        let text = format!("job {id} has type `{stored}`, expected `{}`", J::NAME);
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

/// Executes a command that needs no announcement.
pub(super) async fn run<R: Repeat>(mut on: impl Executor, request: R) -> Result<R::Reply> {
    on.execute(&request).await
}

fn oldest_first() -> Page {
    let max = u32::try_from(PAGE_MAX).expect("`PAGE_MAX` fits in a `u32`");
    Page { order: Order::Oldest, after: None, max }
}

pub(super) async fn cancel(mut on: impl Executor, chain: Target, mode: CancelMode) -> Result<Cancelled> {
    let reply = on.execute(&Cancel { chains: vec![chain], mode }).await?;
    let cancelled = reply.chains.first().copied().unwrap_or(Cancelled::NotFound);
    on.announce(|announcements| {
        announcements.cancelled(cancelled, &reply.ripple);
        announcements.ripple(&reply.ripple);
    });
    Ok(cancelled)
}

pub(super) async fn trigger(mut on: impl Executor, jobs: Vec<Target>) -> Result<TriggerReply> {
    let reply = on.execute(&Trigger { jobs }).await?;
    on.announce(|announcements| announcements.triggered(&reply));
    Ok(reply)
}

pub(super) async fn retry(mut on: impl Executor, named: &ChainRef) -> Result<Retried> {
    let Some(record) = chain(&mut on, named).await? else { return Ok(Retried::NotFound) };
    // The version makes the retry idempotent: if another caller retries the chain after this query, the reply
    // is `AlreadyRetried`.
    retry_seen(on, RetryTarget { job: record.latest.id, version: record.latest.version }).await
}

pub(super) async fn retry_seen(mut on: impl Executor, target: RetryTarget) -> Result<Retried> {
    let mut reply = on.execute(&Retry { chains: vec![target] }).await?;
    let retried = reply.chains.pop().unwrap_or(Retried::NotFound);
    on.announce(|announcements| announcements.retried(&retried));
    Ok(retried)
}

pub(super) async fn delete(mut on: impl Executor, delete: Delete) -> Result<DeleteReply> {
    let reply = on.execute(&delete).await?;
    on.announce(|announcements| announcements.deleted(&reply));
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
