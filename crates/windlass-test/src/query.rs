use std::pin::pin;
use std::task::{Context, Poll, Waker};

use windlass_core::command::{JobFilter, ListJobs, ListSchedules, Order, Page};
use windlass_core::limit::{PAGE_MAX, SCHEDULE_PAGE_MAX};
use windlass_core::schedule::Schedule;
use windlass_core::{JobRecord, MemoryStore, Payload, Result, Store, Timestamp};

/// Returns the output of a future that is ready on its first poll, as queries of the memory store are.
///
/// Assertions therefore need no `.await`, and a failed assertion points at the line in the test.
pub(crate) fn immediately<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("readers of the memory store never wait"),
    }
}

/// Returns all jobs of a memory store that match the filter, oldest first.
pub(crate) fn jobs(store: &MemoryStore, filter: &JobFilter) -> Vec<JobRecord> {
    immediately(list_jobs(store, filter)).expect("the memory store is open")
}

/// Returns all stored jobs that match the filter, oldest first.
pub(crate) async fn list_jobs<S: Store>(store: &S, filter: &JobFilter) -> Result<Vec<JobRecord>> {
    let max = u32::try_from(PAGE_MAX).unwrap_or(u32::MAX);
    let mut page = Page { order: Order::Oldest, after: None, max };
    let mut jobs = Vec::new();
    loop {
        let list = ListJobs { filter: filter.clone(), page: page.clone() };
        let reply = store.list_jobs(list).await?;
        jobs.extend(reply.jobs);
        page.after = reply.next;
        if page.after.is_none() {
            return Ok(jobs);
        }
    }
}

/// Returns when the next occurrence of each schedule of a memory store starts, with its jitter.
pub(crate) fn next_starts(store: &MemoryStore) -> Vec<Timestamp> {
    let max = u32::try_from(SCHEDULE_PAGE_MAX).unwrap_or(u32::MAX);
    let (mut after, mut next) = (None, Vec::new());
    loop {
        let request = ListSchedules { after, max };
        let reply = immediately(store.list_schedules(request)).expect("the memory store is open");
        let Some(last) = reply.schedules.last() else { return next };
        after = Some(last.name.clone());
        for row in &reply.schedules {
            let details = Schedule::read(row, reply.now).details.ok();
            next.extend(details.and_then(|details| Some(*details.next.first()? + details.jitter)));
        }
    }
}

/// Formats a job's type and input for a message.
pub(crate) fn describe(job: &JobRecord) -> String {
    format!("`{}` {}", job.job_type, text(&job.input))
}

/// Formats a payload for a message.
pub(crate) fn text(payload: &Payload) -> String {
    String::from_utf8_lossy(payload.bytes()).into_owned()
}
