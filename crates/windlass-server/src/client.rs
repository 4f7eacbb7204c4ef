//! The client, with boxed futures.
//!
//! The compiler cannot prove that a future which calls a `Client<dyn Store>` is `Send` (rust-lang/rust#102211), but axum and
//! `tokio::spawn` need that. In the generic context of this module it can. So each call is boxed here, once.

use std::time::Duration;

use windlass_core::command::{
    CancelMode, Cancelled, ChainFilter, CountReply, Created, Delete, DeleteReply, ListChains,
    ListChainsReply, ListDependents, ListDependentsReply, ListJobs, ListJobsReply, ListSchedules,
    ListSchedulesReply, NewChain, NextDue, Order, Retried, RetryTarget, SeenJob, Step, TriggerReply, Types,
    WorkerInfo,
};
use windlass_core::schedule::{Schedule, ScheduleId, ScheduleSpec};
use windlass_core::{
    AttemptRecord, BoxFuture, ChainId, ChainPages, ChainRecord, Client, Error, ErrorKind, JobEvents, JobId,
    JobRecord, Result, ScheduleName, Status, Store, Target, Timestamp, TypeName,
};

type Boxed<'a, T> = BoxFuture<'a, Result<T>>;

/// A client of any store.
#[derive(Debug)]
pub(crate) struct BoxedClient<S: ?Sized + Store = dyn Store>(pub(crate) Client<S>);

/// The chains that match a filter, page by page.
#[derive(Debug)]
pub(crate) struct BoxedPages<S: ?Sized + Store = dyn Store>(ChainPages<S>);

impl<S: Store + ?Sized> Clone for BoxedClient<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Store + ?Sized> BoxedClient<S> {
    pub(crate) fn chain(&self, target: Target) -> Boxed<'_, Option<ChainRecord>> {
        Box::pin(self.0.chain(target))
    }

    pub(crate) fn chains(&self, targets: Vec<Target>) -> Boxed<'_, Vec<Option<ChainRecord>>> {
        Box::pin(self.0.chains(targets))
    }

    pub(crate) fn job(&self, id: JobId) -> Boxed<'_, Option<JobRecord>> {
        Box::pin(self.0.job(id))
    }

    pub(crate) fn attempts(&self, id: JobId) -> Boxed<'_, Vec<AttemptRecord>> {
        Box::pin(self.0.attempts(id))
    }

    pub(crate) fn list_jobs(&self, list: ListJobs) -> Boxed<'_, ListJobsReply> {
        Box::pin(self.0.list_jobs(list))
    }

    pub(crate) fn list_chains(&self, list: ListChains) -> Boxed<'_, ListChainsReply> {
        Box::pin(self.0.list_chains(list))
    }

    pub(crate) fn list_dependents(&self, list: ListDependents) -> Boxed<'_, ListDependentsReply> {
        self.0.store().list_dependents(list)
    }

    pub(crate) fn count(&self, types: Types) -> Boxed<'_, CountReply> {
        Box::pin(self.0.count(types))
    }

    pub(crate) fn workers(&self) -> Boxed<'_, Vec<WorkerInfo>> {
        Box::pin(self.0.workers())
    }

    /// Returns the time of the store.
    pub(crate) fn now(&self) -> Boxed<'_, Timestamp> {
        let request = NextDue { types: Types::Only(Vec::new()) };
        Box::pin(async { Ok(self.0.store().next_due(request).await?.now) })
    }

    pub(crate) fn create(&self, chains: Vec<NewChain>) -> Boxed<'_, Vec<Created>> {
        Box::pin(self.0.create(chains))
    }

    pub(crate) fn closed(&self, chain: ChainId, timeout: Duration) -> Boxed<'_, ChainRecord> {
        self.0.closed(chain, timeout)
    }

    /// Ends the latest job of a chain, if it is still as it was queried.
    pub(crate) fn complete<'a>(&'a self, chain: &'a ChainRecord, step: Step) -> Boxed<'a, Status> {
        Box::pin(async move {
            let outside = self.0.step(chain.id).await?;
            let job = outside.job();
            if (job.id, job.version) != (chain.latest.id, chain.latest.version) {
                return Err(Error::new(
                    ErrorKind::Changed,
                    "the job has changed in the meantime: query it again",
                ));
            }
            outside.steps(vec![step]).await
        })
    }

    pub(crate) fn cancel(&self, chain: ChainId, mode: CancelMode) -> Boxed<'_, Cancelled> {
        Box::pin(self.0.cancel(chain, mode))
    }

    /// Retries a chain, unless it has changed since it was queried.
    pub(crate) fn retry(&self, chain: &ChainRecord) -> Boxed<'_, Retried> {
        let target = RetryTarget { job: chain.latest.id, version: chain.latest.version };
        Box::pin(self.0.retry_seen(target))
    }

    pub(crate) fn trigger(&self, target: Target) -> Boxed<'_, TriggerReply> {
        Box::pin(self.0.trigger(target))
    }

    /// Returns the states of the chains that a delete would remove, or the id of one that is running.
    pub(crate) fn idle_states(
        &self,
        chain: ChainId,
        cascade: bool,
    ) -> Boxed<'_, std::result::Result<Vec<SeenJob>, ChainId>> {
        Box::pin(self.0.idle_states(vec![chain], cascade))
    }

    pub(crate) fn delete(&self, delete: Delete) -> Boxed<'_, DeleteReply> {
        Box::pin(self.0.delete_with(delete))
    }

    /// Pauses or resumes a type. Returns whether it was paused before.
    pub(crate) fn set_paused(&self, job_type: TypeName, paused: bool) -> Boxed<'_, bool> {
        let types = vec![job_type];
        Box::pin(async move {
            let before = if paused { self.0.pause(types).await? } else { self.0.resume(types).await? };
            Ok(before.first() == Some(&true))
        })
    }

    pub(crate) fn chain_pages(&self, filter: ChainFilter, order: Order) -> Boxed<'_, BoxedPages<S>> {
        Box::pin(async move { Ok(BoxedPages(self.0.chain_pages(filter, order).await?)) })
    }

    pub(crate) fn job_events(&self) -> Boxed<'_, JobEvents> {
        Box::pin(self.0.job_events())
    }

    pub(crate) fn list_schedules(&self, list: ListSchedules) -> Boxed<'_, ListSchedulesReply> {
        self.0.store().list_schedules(list)
    }

    pub(crate) fn schedule<'a>(&'a self, name: &'a str) -> Boxed<'a, Option<Schedule>> {
        Box::pin(async move { self.0.schedules().get(name).await })
    }

    pub(crate) fn schedule_by_id(&self, id: ScheduleId) -> Boxed<'_, Option<Schedule>> {
        Box::pin(async move { self.0.schedules().get_by_id(id).await })
    }

    pub(crate) fn put_schedule<'a>(
        &'a self,
        name: &'a ScheduleName,
        spec: ScheduleSpec,
        chain: &'a NewChain,
    ) -> Boxed<'a, ()> {
        Box::pin(async move { self.0.schedules().put_chain(name, spec, chain).await })
    }

    pub(crate) fn pause_schedule<'a>(&'a self, name: &'a str) -> Boxed<'a, bool> {
        Box::pin(async move { self.0.schedules().pause(name).await })
    }

    pub(crate) fn resume_schedule<'a>(&'a self, name: &'a str) -> Boxed<'a, bool> {
        Box::pin(async move { self.0.schedules().resume(name).await })
    }

    pub(crate) fn accept_schedule<'a>(&'a self, name: &'a str) -> Boxed<'a, bool> {
        Box::pin(async move { self.0.schedules().accept(name).await })
    }

    pub(crate) fn run_schedule<'a>(&'a self, name: &'a str) -> Boxed<'a, ChainId> {
        Box::pin(async move { self.0.schedules().run_now(name).await })
    }

    pub(crate) fn delete_schedule<'a>(&'a self, name: &'a str) -> Boxed<'a, bool> {
        Box::pin(async move { self.0.schedules().delete(name).await })
    }
}

impl<S: Store + ?Sized> BoxedPages<S> {
    pub(crate) fn next(&mut self) -> Boxed<'_, Option<Vec<ChainRecord>>> {
        Box::pin(self.0.next())
    }
}
