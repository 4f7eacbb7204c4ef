//! The standalone reaper, which runs no jobs itself.

use windlass_core::command::{LeaderLock, LockAction, LockState};
use windlass_core::{Capability, LockName, Millis, Reaper, RequestId, RunningReaper};

use super::prelude::*;

/// TTL of a lock that is meant to expire.
const TTL: Duration = Duration::from_millis(600);
/// TTL of a lock that must not expire.
const LONG_TTL: Duration = Duration::from_secs(60);
/// TTL of a lock that even a slow process renews in time.
const RENEWED_TTL: Duration = Duration::from_secs(15);
const LOCK: &str = "the reaper's lock";

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.reaper.alone",
            "A reaper starts, leads immediately, stops and releases its lock; each reaper has its own id.",
            ["RE01", "LE02", "LE03", "LE04", "LF01", "LF02", "ST-36", "ST-41"],
            [Need::Store(Capability::LeaderLock)],
            alone
        ),
        behavior!(
            "queue.reaper.recovers",
            "A reaper requeues the jobs of workers that died before or after it started, and no others.",
            ["RE05", "RE10", "RE11", "LE05", "LF03", "E08", "B4.20", "B4.21"],
            [Need::Store(Capability::LeaderLock)],
            recovers
        ),
        behavior!(
            "queue.reaper.without_election",
            "A reaper also works without leader election.",
            ["LE01", "RE08", "RE09"],
            without_election
        ),
        behavior!(
            "queue.reaper.types",
            "A reaper for some queues does not affect the others.",
            ["issue: all types or some"],
            some
        ),
        behavior!(
            "queue.reaper.one_leads",
            "One of several reapers leads, beyond the TTL of its lock; when it stops, another takes over.",
            ["RE02", "LE06", "LE07", "LE09", "LF04", "LF05", "LF07", "ST-37", "ST-39", "ST-40", "ST-42"],
            [Need::Store(Capability::LeaderLock)],
            one_leads
        ),
        behavior!(
            "queue.reaper.takes_over",
            "If a leader stops renewing its lock, another reaper leads after the lock expires.",
            ["LE08", "LF06", "ST-38"],
            [Need::Store(Capability::LeaderLock)],
            takes_over
        ),
    ]
}

/// Returns a reaper with short intervals.
fn reaper<S: Store>(scene: &Scene<S>) -> Reaper<S> {
    let reaper = Reaper::new(&scene.other).lock(LOCK, TTL);
    reaper.interval(Duration::from_millis(30)).renewal(Duration::from_millis(30))
}

async fn leads<S: Store>(scene: &Scene<S>, reaper: &RunningReaper) {
    let mut leadership = reaper.leadership();
    scene.soon("it leads", leadership.wait_for(|leads| *leads)).await.unwrap();
}

/// Tries to hold or release the lock with this token, as another process would.
async fn lock<S: Store>(scene: &Scene<S>, token: RequestId, action: LockAction) -> LockState {
    let request = LeaderLock { name: LockName::new(LOCK).unwrap(), token, action };
    unless_busy(|| scene.store.leader_lock(request.clone())).await.state
}

async fn alone<S: Store>(scene: Scene<S>) {
    let first = reaper(&scene).lock(LOCK, LONG_TTL).start().await.unwrap();
    leads(&scene, &first).await;
    assert!(first.is_leader());
    let id = first.id();
    let held = lock(&scene, RequestId::new(), LockAction::Hold(Millis::from_secs(1))).await;
    assert!(matches!(held, LockState::HeldByAnother(_)), "{held:?}");
    let leadership = first.leadership();
    scene.soon("it stops", first.stop()).await;
    assert!(!*leadership.borrow(), "it leads no longer");
    let free = lock(&scene, RequestId::new(), LockAction::Release).await;
    assert_eq!(free, LockState::Free);
    let second = reaper(&scene).start().await.unwrap();
    assert_ne!(second.id(), id);
    leads(&scene, &second).await;
    second.stop().await;
    for refused in [
        reaper(&scene).interval(Duration::ZERO).start().await,
        reaper(&scene).lock("", TTL).start().await,
        reaper(&scene).lock(LOCK, Duration::ZERO).start().await,
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

async fn recovers<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).visibility(Duration::from_secs(60)).build().unwrap();
    for id in ["a", "b"] {
        queue.enqueue(id, "x".to_owned()).await.unwrap();
        take_and_die(&scene, &queue, Duration::from_millis(50)).await;
    }
    let reaper = reaper(&scene).start().await.unwrap();
    for id in ["a", "b"] {
        let back = state(&scene, &queue, id, ItemState::Failing).await;
        assert_eq!(back.attempts, 1, "the attempt counts");
    }
    queue.enqueue("urgent", "x".to_owned()).priority(9).await.unwrap();
    take_and_die(&scene, &queue, Duration::from_millis(50)).await;
    state(&scene, &queue, "urgent", ItemState::Failing).await;
    queue.enqueue("taken", "x".to_owned()).priority(10).await.unwrap();
    take_and_die(&scene, &queue, Duration::from_secs(60)).await;
    scene.sees("three were reaped", 3, |event| matches!(event, Event::AttemptReaped(_))).await;
    assert_eq!(status(&queue, "taken").await.state, ItemState::Processing, "its lease has not expired");
    let consumer = echo(&queue).await;
    for (id, attempt) in [("a", 2), ("b", 2), ("urgent", 2)] {
        let done = state(&scene, &queue, id, ItemState::Completed).await;
        assert_eq!(done.result().unwrap().unwrap(), echoed("x", attempt));
    }
    scene.stop_consumers([consumer]).await;
    reaper.stop().await;
}

async fn without_election<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(1).build().unwrap();
    let consumer = fail_before(&queue, u32::MAX).await;
    queue.enqueue("failed", "x".to_owned()).await.unwrap();
    state(&scene, &queue, "failed", ItemState::Failed).await;
    scene.stop_consumers([consumer]).await;
    let consumer = echo(&queue).await;
    queue.enqueue_and_wait("done", "x".to_owned()).poll(POLL).await.unwrap();
    scene.stop_consumers([consumer]).await;
    queue.enqueue("stalled", "x".to_owned()).attempts(2).await.unwrap();
    take_and_die(&scene, &queue, Duration::from_millis(50)).await;
    let reapers = [
        reaper(&scene).without_election().start().await.unwrap(),
        reaper(&scene).without_election().start().await.unwrap(),
    ];
    for reaper in &reapers {
        leads(&scene, reaper).await;
    }
    state(&scene, &queue, "stalled", ItemState::Failing).await;
    assert_eq!(status(&queue, "done").await.state, ItemState::Completed, "ended jobs are not reaped");
    assert_eq!(status(&queue, "failed").await.state, ItemState::Failed);
    let reaped = |event: &Event| matches!(event, Event::AttemptReaped(_));
    scene.sees("it is reported", 1, reaped).await;
    for reaper in reapers {
        reaper.stop().await;
    }
    assert_eq!(scene.seen.count(reaped), 1, "once");
}

async fn some<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), scene.client.queue("other").build().unwrap());
    for queue in [&queue, &other] {
        queue.enqueue("a", "x".to_owned()).await.unwrap();
        take_and_die(&scene, queue, Duration::from_millis(50)).await;
    }
    let both = reaper(&scene).without_election().types([queue.name().clone()]).start().await.unwrap();
    state(&scene, &queue, "a", ItemState::Failing).await;
    assert_eq!(status(&other, "a").await.state, ItemState::Processing);
    both.stop().await;
}

async fn one_leads<S: Store>(scene: Scene<S>) {
    let first = reaper(&scene).lock(LOCK, RENEWED_TTL).start().await.unwrap();
    leads(&scene, &first).await;
    let store = Faulty::new(&scene.store);
    let second = Reaper::new(&scene.client_on(store.clone())).lock(LOCK, TTL).start().await.unwrap();
    let mut leadership = second.leadership();
    leadership.mark_unchanged();
    let mut ends = Vec::new();
    scene
        .soon("the lock is renewed twice", async {
            while ends.len() < 3 {
                let state = lock(&scene, RequestId::new(), LockAction::Hold(Millis::from_secs(1))).await;
                let LockState::HeldByAnother(until) = state else { panic!("the lock is free: {state:?}") };
                if ends.last() != Some(&until) {
                    ends.push(until);
                }
                rest().await;
            }
        })
        .await;
    assert!(ends.is_sorted(), "it is renewed for longer: {ends:?}");
    scene.until("the second reaper has tried to lead", || store.calls("leader_lock") > 2).await;
    assert!(first.is_leader() && !second.is_leader(), "the lock was renewed");
    assert!(!leadership.has_changed().unwrap(), "and never held by another token");
    first.stop().await;
    leads(&scene, &second).await;
    second.stop().await;
}

async fn takes_over<S: Store>(scene: Scene<S>) {
    let dead = lock(&scene, RequestId::new(), LockAction::Hold(Millis::try_from(TTL).unwrap())).await;
    let LockState::Held(until) = dead else { panic!("the lock was free") };
    let reaper = reaper(&scene).start().await.unwrap();
    leads(&scene, &reaper).await;
    let taken = lock(&scene, reaper.id(), LockAction::Hold(Millis::from_secs(1))).await;
    assert!(matches!(taken, LockState::Held(next) if next > until), "{taken:?}");
    reaper.stop().await;
}
