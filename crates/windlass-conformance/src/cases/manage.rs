//! Retrying chains, deleting them, and changing their retention.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "retry.failed",
        "A retried chain is open: its failed job is due now, attempts restart at 0, the error is kept.",
        ["A8.11"],
        [Retry],
        failed
    ),
    case!(
        "retry.repeated",
        "A failure is retried once, however often the retry is repeated.",
        ["never 12"],
        [Retry],
        repeated
    ),
    case!(
        "retry.not_retriable",
        "A chain that neither failed nor was cancelled is not retried.",
        ["contract"],
        [Retry],
        not_retriable
    ),
    case!("retry.not_found", "A job that is not stored is not retried.", ["contract"], [Retry], not_found),
    case!(
        "retry.dependents",
        "Dependents that still wait for a failed chain continue when it is retried and completes.",
        ["never 5"],
        [Retry],
        dependents
    ),
    case!(
        "retry.blocked",
        "A retried job whose blocker has not completed waits for it again.",
        ["contract"],
        [Retry],
        blocked
    ),
    case!(
        "retry.blocker_failed",
        "A retry is refused if a blocker would make the job fail again immediately.",
        ["contract"],
        [Retry],
        blocker_failed
    ),
    case!(
        "retry.blocker_gone",
        "A retry whose blocker is no longer stored is refused.",
        ["contract"],
        [Retry, Delete],
        blocker_gone
    ),
    case!("retry.key", "A retried chain holds its key again.", ["never 6"], [Retry], retried_key),
    case!(
        "retry.key_taken",
        "A chain whose key is held by another chain is not retried.",
        ["never 6"],
        [Retry],
        key_taken
    ),
    case!("retry.fence", "An attempt from before the retry is stale.", ["never 2"], [Retry], fence),
    case!(
        "retry.retention",
        "A retried chain is not removed until its new retention ends.",
        ["never 8"],
        [Retry],
        retried_retention
    ),
    case!(
        "retry.continued",
        "A retry reopens the failed job of a long chain, not its first job.",
        ["A8.3"],
        [Retry],
        continued
    ),
    case!(
        "delete.chain",
        "A delete removes a chain with all its jobs, and its key becomes free.",
        ["SA-DC01", "SA-DC08"],
        [Delete],
        chain
    ),
    case!(
        "delete.others",
        "A delete does not affect other chains and skips targets that are not stored.",
        ["SA-DC02"],
        [Delete],
        others
    ),
    case!(
        "delete.needed",
        "If an open job outside depends on one chain, none is deleted, and the reply lists the references.",
        ["SA-DC03"],
        [Delete],
        needed
    ),
    case!(
        "delete.together",
        "A chain and its dependents can be deleted together.",
        ["SA-DC03"],
        [Delete],
        together
    ),
    case!(
        "delete.finished_dependents",
        "A chain whose dependents have ended can be deleted.",
        ["A8.16"],
        [Delete],
        finished_dependents
    ),
    case!(
        "delete.cascade",
        "A cascade also deletes the blockers of the deleted chains, recursively, each once.",
        ["SA-DC04", "SA-DC06", "SA-DC07"],
        [Delete],
        cascade
    ),
    case!(
        "delete.cascade.needed",
        "A cascade is refused if it includes a chain that other jobs need.",
        ["SA-DC05"],
        [Delete],
        cascade_needed
    ),
    case!(
        "delete.cascade.continuations",
        "A cascade follows the blockers of every job of a chain.",
        ["A8.4"],
        [Delete],
        cascade_continuations
    ),
    case!(
        "delete.running",
        "A running chain can be deleted: the reply names its worker, and its attempt is lost.",
        ["contract"],
        [Delete],
        running
    ),
    case!(
        "delete.seen",
        "A delete with states that the caller has read is refused if a chain has changed since, or was not read.",
        ["contract"],
        [Delete],
        seen
    ),
    case!(
        "delete.seen.cascade",
        "A delete with states that the caller has read compares the latest job of each chain, also in a cascade.",
        ["contract"],
        [Delete],
        seen_cascade
    ),
    case!("delete.too_many", "A cascade over too many chains is refused.", ["never 8"], [Delete], too_many),
    case!(
        "retention.set",
        "A closed chain is kept for the given time from now.",
        ["B4.8"],
        [SetRetention],
        set
    ),
    case!(
        "retention.key",
        "A longer retention extends the time for which the chain holds its key.",
        ["B4.8"],
        [SetRetention],
        set_key
    ),
    case!(
        "retention.others",
        "Chains that are open or not stored are not changed.",
        ["contract"],
        [SetRetention],
        set_others
    ),
];

async fn retry_target(s: &Subject, chain: ChainId) -> RetryTarget {
    let job = s.chain(chain).await.latest;
    RetryTarget { job: job.id, version: job.version }
}

async fn retry_one(s: &Subject, target: RetryTarget) -> Retried {
    s.run(Retry { chains: vec![target] }).await.chains.remove(0)
}

/// Returns a failed chain of this type.
async fn failed_chain(s: &Subject, name: &str) -> ChainId {
    let id = s.start(name).await;
    s.work(name, fail("no")).await;
    id
}

async fn failed(s: Subject) {
    let id = s.start("a").max_attempts(2).after(1_000).await;
    s.advance(1_000);
    s.work("a", retry("first")).await;
    s.work("a", retry("second")).await;
    s.advance(5_000);
    let reply = retry_one(&s, retry_target(&s, id).await).await;
    let job = JobSummary { job: id.first_job(), chain: id, status: Status::Pending, due_at: s.now() };
    assert_eq!(reply, Retried::Retried { job, job_type: type_name("a"), chain_type: type_name("a") });
    let chain = s.chain(id).await;
    assert_eq!((chain.closed, chain.latest.closed_at, chain.latest.closed_by), (None, None, None));
    assert_eq!((chain.latest.attempt, chain.latest.error), (0, Some(ErrorText::new("second"))));
    assert_eq!(s.work("a", retry("third")).await.job.attempt, 1);
    s.work("a", complete("1")).await;
    s.expect_status(id, Status::Completed).await;
}

async fn repeated(s: Subject) {
    let id = failed_chain(&s, "a").await;
    let target = retry_target(&s, id).await;
    assert!(matches!(retry_one(&s, target).await, Retried::Retried { .. }), "it has failed");
    assert_eq!(retry_one(&s, target).await, Retried::AlreadyRetried);
    s.work("a", fail("again")).await;
    assert_eq!(retry_one(&s, target).await, Retried::AlreadyRetried, "the caller saw another failure");
    s.expect_status(id, Status::Failed).await;
    let target = retry_target(&s, id).await;
    assert!(matches!(retry_one(&s, target).await, Retried::Retried { .. }), "the new failure is retried");
}

async fn not_retriable(s: Subject) {
    let id = s.start("a").await;
    assert_eq!(retry_one(&s, retry_target(&s, id).await).await, Retried::NotRetriable(Status::Pending));
    s.work("a", complete("1")).await;
    let before = s.chain(id).await;
    assert_eq!(retry_one(&s, retry_target(&s, id).await).await, Retried::NotRetriable(Status::Completed));
    assert_eq!(s.chain(id).await, before);
}

async fn not_found(s: Subject) {
    let target = RetryTarget { job: JobId::new(), version: windlass_core::Version(1) };
    assert_eq!(retry_one(&s, target).await, Retried::NotFound);
    assert_eq!(s.run(Retry { chains: Vec::new() }).await.chains, []);
}

async fn dependents(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    s.work("b", fail("no")).await;
    s.expect_status(id, Status::Blocked).await;
    retry_one(&s, retry_target(&s, blocker).await).await;
    s.expect_status(id, Status::Blocked).await;
    s.work("b", complete("1")).await;
    assert_eq!(s.acquire_one("a").await.blockers[0].output, Some(json("1")));
}

async fn blocked(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).on_failure(OnBlockerFailure::Fail).await;
    s.work("b", fail("no")).await;
    s.expect_status(id, Status::Failed).await;
    retry_one(&s, retry_target(&s, blocker).await).await;
    let reply = retry_one(&s, retry_target(&s, id).await).await;
    assert!(
        matches!(reply, Retried::Retried { job: JobSummary { status: Status::Blocked, .. }, .. }),
        "{reply:?}"
    );
    s.work("b", complete("1")).await;
    s.work("a", complete("2")).await;
    s.expect_status(id, Status::Completed).await;
}

async fn blocker_failed(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).on_failure(OnBlockerFailure::Fail).await;
    s.work("b", fail("no")).await;
    let before = s.chain(id).await;
    let reply = retry_one(&s, retry_target(&s, id).await).await;
    assert_eq!(reply, Retried::Refused(Refusal::BlockerFailed(blocker)));
    assert_eq!(s.chain(id).await, before);
}

async fn blocker_gone(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    s.work("b", complete("1")).await;
    s.work("a", fail("no")).await;
    assert_eq!(deleted(&delete(&s, &[blocker], false).await), [blocker]);
    let reply = retry_one(&s, retry_target(&s, id).await).await;
    assert_eq!(reply, Retried::Refused(Refusal::BlockerNotFound(blocker)));
    s.expect_status(id, Status::Failed).await;
}

async fn retried_key(s: Subject) {
    let id = s.start("a").key("k").await;
    s.work("a", fail("no")).await;
    assert_eq!(s.by_key("a", "k").await, Some(id));
    retry_one(&s, retry_target(&s, id).await).await;
    assert_eq!(s.by_key("a", "k").await, Some(id));
    assert_eq!(existing(s.start("a").key("k").created().await).chain, id);
}

async fn key_taken(s: Subject) {
    let id = s.start("a").key("k").await;
    s.work("a", fail("no")).await;
    let successor = s.start("a").key("k").await;
    let reply = retry_one(&s, retry_target(&s, id).await).await;
    assert_eq!(reply, Retried::Refused(Refusal::KeyTaken(successor)));
    s.expect_status(id, Status::Failed).await;
    assert_eq!(s.by_key("a", "k").await, Some(successor));
}

async fn fence(s: Subject) {
    let id = s.start("a").await;
    let old = s.work("a", fail("no")).await;
    retry_one(&s, retry_target(&s, id).await).await;
    assert_eq!(s.renew(&old).await, Renewed::Lost(Lost::Requeued));
    assert_eq!(s.settle(&old, complete("1")).await, Settled::Lost(Lost::Requeued));
    s.repeat(&old, fail("no")).await;
    let new = s.acquire_one("a").await;
    assert!(new.job.fence > old.job.fence, "attempts restart, fences do not");
    assert_eq!(s.settle(&old, complete("1")).await, Settled::Lost(Lost::TakenOver));
    s.complete(&new, "2").await;
}

async fn retried_retention(s: Subject) {
    let id = s.start("a").retention(HOUR).await;
    s.work("a", fail("no")).await;
    retry_one(&s, retry_target(&s, id).await).await;
    s.advance(2 * HOUR);
    assert_eq!(s.expire().await.chains, []);
    s.work("a", complete("1")).await;
    s.advance(HOUR - 1);
    assert_eq!(s.expire().await.chains, []);
    s.advance(2);
    assert_eq!(s.expire().await.chains.len(), 1);
}

async fn continued(s: Subject) {
    let id = s.start("a").await;
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    s.work("b", fail("no")).await;
    let reply = retry_one(&s, retry_target(&s, id).await).await;
    assert!(matches!(reply, Retried::Retried { job, .. } if job.job == next.id), "{reply:?}");
    s.expect_none_due("a").await;
    s.work("b", complete("1")).await;
}

async fn delete(s: &Subject, chains: &[ChainId], cascade: bool) -> DeleteReply {
    s.run(Delete { chains: chains.iter().map(|chain| Target::Chain(*chain)).collect(), cascade, seen: None })
        .await
}

#[track_caller]
fn deleted(reply: &DeleteReply) -> Vec<ChainId> {
    let DeleteReply::Deleted(deleted) = reply else { panic!("expected all to be deleted, got {reply:?}") };
    deleted.chains.iter().map(|one| one.chain).collect()
}

async fn chain(s: Subject) {
    let id = s.start("a").key("k").hold(KeyHold::Any).await;
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    let reply = delete(&s, &[id], true).await;
    let gone = DeletedChain { chain: id, chain_type: type_name("a"), status: Status::Pending, running: None };
    assert_eq!(reply, DeleteReply::Deleted(Deleted { chains: vec![gone] }));
    assert_eq!((s.find_chain(id).await, s.find_job(id.first_job()).await), (None, None));
    assert_eq!(s.find_job(next.id).await, None);
    s.expect_none_due("b").await;
    s.start("a").key("k").await;
}

async fn others(s: Subject) {
    let (one, two, three) = (s.start("a").await, s.start("a").key("k").await, s.start("a").await);
    let targets = vec![
        three.into(),
        Target::Chain(ChainId::new()),
        Target::Key(type_name("a"), key("k")),
        three.into(),
        Target::Job(JobId::new()),
    ];
    let reply = s.run(Delete { chains: targets, cascade: false, seen: None }).await;
    assert_eq!(deleted(&reply), [three, two]);
    assert_eq!(chains_of(&s.acquire("a", 10).await), [one]);
    assert_eq!(deleted(&delete(&s, &[], false).await), []);
}

async fn needed(s: Subject) {
    let (one, two, free) = (s.start("b").await, s.start("b").await, s.start("b").await);
    let waiting = s.start("a").blocked_by([one, two]).await;
    let reply = delete(&s, &[free, one, two], false).await;
    let by = waiting.first_job();
    let references = vec![Refusal::Needed { chain: one, by }, Refusal::Needed { chain: two, by }];
    assert_eq!(reply, DeleteReply::Refused(references));
    for chain in [one, two, free] {
        s.expect_status(chain, Status::Pending).await;
    }
}

async fn together(s: Subject) {
    let blocker = s.start("b").await;
    let waiting = s.start("a").blocked_by([blocker]).await;
    assert_eq!(deleted(&delete(&s, &[blocker, waiting], false).await), [blocker, waiting]);
    assert_eq!(s.find_chain(waiting).await, None);
}

async fn finished_dependents(s: Subject) {
    let blocker = s.start("b").await;
    let waiting = s.start("a").blocked_by([blocker]).await;
    s.work("b", complete("1")).await;
    s.work("a", complete("2")).await;
    assert_eq!(deleted(&delete(&s, &[blocker], false).await), [blocker]);
    assert_eq!(s.chain(waiting).await.output(), Some(&json("2")));
}

async fn cascade(s: Subject) {
    let bottom = s.start("b").await;
    let (left, right) = (s.start("b").blocked_by([bottom]).await, s.start("b").blocked_by([bottom]).await);
    let top = s.start("b").blocked_by([left, right]).await;
    let bystander = s.start("b").await;
    let mut gone = deleted(&delete(&s, &[top], true).await);
    assert_eq!(gone.remove(0), top);
    gone.sort_unstable();
    assert_eq!(gone, [bottom, left, right]);
    assert_eq!(chains_of(&s.acquire("b", 10).await), [bystander]);
}

async fn cascade_needed(s: Subject) {
    let shared = s.start("b").await;
    let (one, two) = (s.start("a").blocked_by([shared]).await, s.start("a").blocked_by([shared]).await);
    let refused = DeleteReply::Refused(vec![Refusal::Needed { chain: shared, by: two.first_job() }]);
    assert_eq!(delete(&s, &[one], true).await, refused);
    s.expect_status(one, Status::Blocked).await;
    assert_eq!(deleted(&delete(&s, &[one], false).await), [one]);
}

async fn cascade_continuations(s: Subject) {
    let (first, second) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").await;
    s.work("a", continue_with(s.start("a").blocked_by([first]).next_job())).await;
    s.work("b", complete("1")).await;
    s.work("a", continue_with(s.start("a").blocked_by([second]).next_job())).await;
    let mut gone = deleted(&delete(&s, &[id], true).await);
    gone.sort_unstable();
    assert_eq!(gone, [first, second, id]);
}

async fn running(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let DeleteReply::Deleted(deleted) = delete(&s, &[id], false).await else { panic!("no job needs it") };
    assert_eq!(
        (deleted.chains[0].status, deleted.chains[0].running),
        (Status::Running, Some((attempt.job.id, s.worker)))
    );
    assert_eq!(s.renew(&attempt).await, Renewed::Lost(Lost::NotFound));
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Lost(Lost::NotFound));
    s.advance(LEASE.get() + 1);
    assert_eq!(s.reap().await.reaped, []);
}

/// A chain that changed since it was read stays, and so do the others of the same request.
async fn seen(s: Subject) {
    let (waiting, taken) = (s.start("a").await, s.start("b").await);
    let read = [state(&s, waiting).await, state(&s, taken).await];
    s.acquire_one("b").await;
    let both = || vec![waiting.into(), taken.into()];
    let changed = DeleteReply::Refused(vec![Refusal::Changed(taken)]);
    assert_eq!(s.run(Delete { chains: both(), cascade: false, seen: Some(read.to_vec()) }).await, changed);
    s.expect_status(waiting, Status::Pending).await;
    s.expect_status(taken, Status::Running).await;
    let nothing = s.run(Delete { chains: both(), cascade: false, seen: Some(Vec::new()) }).await;
    let all = vec![Refusal::Changed(waiting), Refusal::Changed(taken)];
    assert_eq!(nothing, DeleteReply::Refused(all), "the caller has read no chain");
    let read = vec![read[0], state(&s, taken).await];
    let reply = s.run(Delete { chains: both(), cascade: false, seen: Some(read.clone()) }).await;
    assert_eq!(deleted(&reply), [waiting, taken]);
    let again = s.run(Delete { chains: both(), cascade: false, seen: Some(read) }).await;
    assert_eq!(deleted(&again), [], "chains that are not stored are skipped");
}

/// The latest job of the chain counts, and in a cascade each blocker.
async fn seen_cascade(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").await;
    let first = state(&s, id).await;
    s.work("a", continue_with(s.start("a").blocked_by([blocker]).next_job())).await;
    let delete =
        async |seen| s.run(Delete { chains: vec![id.into()], cascade: true, seen: Some(seen) }).await;
    let both = DeleteReply::Refused(vec![Refusal::Changed(id), Refusal::Changed(blocker)]);
    assert_eq!(delete(vec![first]).await, both, "another job is the latest");
    let (second, other) = (state(&s, id).await, state(&s, blocker).await);
    assert_eq!(delete(vec![second]).await, DeleteReply::Refused(vec![Refusal::Changed(blocker)]));
    assert_eq!(deleted(&delete(vec![other, second]).await), [id, blocker]);
}

/// Returns the latest job of a chain and its version.
async fn state(s: &Subject, chain: ChainId) -> SeenJob {
    SeenJob::from(&s.chain(chain).await)
}

async fn too_many(s: Subject) {
    let blockers: Vec<_> = (0..limit::DELETE_MAX_CHAINS).map(|_| s.start("b").build()).collect();
    let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
    s.create(blockers).await;
    let id = s.start("a").blocked_by(ids.clone()).await;
    assert_eq!(delete(&s, &[id], true).await, DeleteReply::Refused(vec![Refusal::TooManyChains]));
    s.expect_status(ids[0], Status::Pending).await;
    assert_eq!(deleted(&delete(&s, &[id], false).await), [id]);
    assert_eq!(deleted(&delete(&s, &ids, true).await), ids);
}

async fn set_one(s: &Subject, chain: ChainId, ms: u64) -> RetentionSet {
    s.run(SetRetention { chains: vec![chain.into()], retention: millis(ms) }).await.chains.remove(0)
}

async fn set(s: Subject) {
    let (longer, shorter) = (s.start("a").retention(HOUR).await, s.start("a").retention(9 * HOUR).await);
    s.work("a", complete("1")).await;
    s.work("a", fail("no")).await;
    s.advance(HOUR / 2);
    assert_eq!(set_one(&s, longer, 5 * HOUR).await, RetentionSet::Until(s.now() + millis(5 * HOUR)));
    assert_eq!(set_one(&s, shorter, HOUR).await, RetentionSet::Until(s.now() + millis(HOUR)));
    assert_eq!(s.chain(longer).await.closed.unwrap().retain_until, s.now() + millis(5 * HOUR));
    s.advance(HOUR + 1);
    assert_eq!(s.expire().await.chains.iter().map(|one| one.chain).collect::<Vec<_>>(), [shorter]);
    s.advance(4 * HOUR);
    assert_eq!(s.expire().await.chains.iter().map(|one| one.chain).collect::<Vec<_>>(), [longer]);
}

async fn set_key(s: Subject) {
    let id = s.start("a").key("k").hold(KeyHold::Any).retention(HOUR).await;
    s.work("a", complete("1")).await;
    let targets = vec![Target::Key(type_name("a"), key("k"))];
    s.run(SetRetention { chains: targets, retention: millis(5 * HOUR) }).await;
    s.advance(4 * HOUR);
    assert_eq!(existing(s.start("a").key("k").created().await).chain, id);
}

async fn set_others(s: Subject) {
    let id = s.start("a").await;
    let before = s.chain(id).await;
    assert_eq!(set_one(&s, id, 1).await, RetentionSet::NotClosed);
    assert_eq!(set_one(&s, ChainId::new(), 1).await, RetentionSet::NotFound);
    assert_eq!(s.chain(id).await, before);
}
