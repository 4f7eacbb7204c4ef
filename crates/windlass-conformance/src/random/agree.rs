use windlass_core::command::{CompleteFromOutsideReply, Durability, Reply, Ripple};

/// Removes from a reply what may differ between stores: the cursor of a list (a store that knows that no further row
/// matches ends the list earlier than one that has to look), how durable a creation is, whether consequences are deferred to
/// a later command, whether a count is estimated, and the order of consequences and of expired chains.
pub(super) fn normalized(mut reply: Reply) -> Reply {
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
        Reply::Reap(reply) => sort(&mut reply.ripple),
        Reply::Cancel(reply) => sort(&mut reply.ripple),
        Reply::CompleteFromOutside(CompleteFromOutsideReply::Applied(applied)) => sort(&mut applied.ripple),
        Reply::Expire(reply) => reply.chains.sort_by_key(|expired| expired.chain),
        Reply::ListChains(reply) => reply.next = None,
        Reply::ListJobs(reply) => reply.next = None,
        Reply::ListDependents(reply) => reply.next = None,
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
