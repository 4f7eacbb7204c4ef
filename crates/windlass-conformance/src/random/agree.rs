use windlass_core::command::{Command, CompleteFromOutsideReply, Cursor, Durability, Page, Reply, Ripple};

/// Removes from the reply to a command what may differ between stores: how durable a creation is, whether consequences are
/// deferred to a later command, whether a count is estimated, the order of consequences and of expired chains, the text of a
/// cursor, and whether a full page has one: a store that knows that no further row matches ends the list earlier than one
/// that has to query again.
pub(super) fn normalized(command: &Command, mut reply: Reply) -> Reply {
    let page = match command {
        Command::ListChains(list) => Some(&list.page),
        Command::ListJobs(list) => Some(&list.page),
        Command::ListDependents(list) => Some(&list.page),
        _ => None,
    };
    match &mut reply {
        Reply::Create(reply) => {
            reply.durability = Durability::Volatile;
            reply.deferred = false;
        }
        Reply::Retry(reply) => reply.deferred = false,
        Reply::Acquire(reply) => sort(&mut reply.ripple),
        Reply::Settle(reply) => sort(&mut reply.ripple),
        Reply::Exchange(reply) => {
            sort(&mut reply.settle.ripple);
            sort(&mut reply.acquire.ripple);
        }
        Reply::CreateAndAcquire(reply) => {
            reply.create.durability = Durability::Volatile;
            reply.create.deferred = false;
            sort(&mut reply.acquire.ripple);
        }
        Reply::Reap(reply) => sort(&mut reply.ripple),
        Reply::Cancel(reply) => sort(&mut reply.ripple),
        Reply::CompleteFromOutside(CompleteFromOutsideReply::Applied(applied)) => sort(&mut applied.ripple),
        Reply::Expire(reply) => reply.chains.sort_by_key(|expired| expired.chain),
        Reply::ListChains(reply) => hide(&mut reply.next, page, reply.chains.len()),
        Reply::ListJobs(reply) => hide(&mut reply.next, page, reply.jobs.len()),
        Reply::ListDependents(reply) => hide(&mut reply.next, page, reply.jobs.len()),
        Reply::Count(reply) => reply.closed_estimated = false,
        _ => {}
    }
    reply
}

fn sort(ripple: &mut Ripple) {
    ripple.unblocked.sort_by_key(|unblocked| unblocked.job.job);
    ripple.closed.sort_by_key(|closed| closed.chain);
    ripple.deferred = false;
}

fn hide(next: &mut Option<Cursor>, page: Option<&Page>, listed: usize) {
    if page.is_some_and(|page| listed >= page.max as usize) {
        *next = None;
    } else if let Some(Cursor(text)) = next {
        text.clear();
    }
}
