use std::pin::pin;
use std::task::{Context, Poll, Waker};

use windlass_core::command::{JobFilter, ListJobs, Order, Page};
use windlass_core::limit::PAGE_MAX;
use windlass_core::{JobRecord, MemoryStore, Payload, Store};

/// The output of a future that never waits, as the memory store's queries do not. So assertions need no
/// `.await`, and a failed one points at the line of the test.
pub(crate) fn immediately<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("readers of the memory store never wait"),
    }
}

/// All jobs of the store that pass the filter, oldest first.
pub(crate) fn jobs(store: &MemoryStore, filter: &JobFilter) -> Vec<JobRecord> {
    let max = u32::try_from(PAGE_MAX).unwrap_or(u32::MAX);
    let mut page = Page { order: Order::Oldest, after: None, max };
    let mut jobs = Vec::new();
    loop {
        let list = ListJobs { filter: filter.clone(), page: page.clone() };
        let reply = immediately(store.list_jobs(list)).expect("the memory store is open");
        jobs.extend(reply.jobs);
        page.after = reply.next;
        if page.after.is_none() {
            return jobs;
        }
    }
}

/// A job for a message: its type and its input.
pub(crate) fn describe(job: &JobRecord) -> String {
    format!("`{}` {}", job.job_type, text(&job.input))
}

/// A payload for a message.
pub(crate) fn text(payload: &Payload) -> String {
    String::from_utf8_lossy(payload.bytes()).into_owned()
}
