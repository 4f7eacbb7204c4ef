//! Transactions that the caller commits by its own means, without announcing them.

use windlass_core::command::RetentionSet;
use windlass_core::schedule::Every;
use windlass_core::{Capability, Chain};

use super::super::prelude::*;

job!(Letter {} -> u32);

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "caller_commit.end",
            "After a commit by the caller's own means, events are delivered and hooks run; after a rollback they are not.",
            ["A1.16"],
            end
        ),
        behavior!(
            "caller_commit.savepoint",
            "What the caller rolls back to a savepoint by its own means is not announced.",
            ["A1.16"],
            savepoint
        ),
        behavior!(
            "caller_commit.commands",
            "Every command in a transaction of the caller is announced after its commit, and none after a rollback.",
            ["A1.16"],
            commands
        ),
        behavior!(
            "caller_commit.changed_by_another_client",
            "A rolled back change is not announced, even if another client changes the same job before the outcome is checked.",
            ["never 3"],
            changed_by_another_client
        ),
        behavior!(
            "caller_commit.deleted",
            "A chain that is created and deleted in a transaction that is rolled back was never there.",
            ["never 3"],
            deleted
        ),
    ]
}

const HOUR: Duration = Duration::from_secs(3_600);

async fn end<S: Transactional>(scene: Scene<S>) {
    let (store, lines) = (scene.client.store(), Lines::default());
    for (commits, expected, events) in [(false, "rolled back", 0), (true, "committed", 2)] {
        let mut tx = store.begin().await.unwrap();
        let mut inside = scene.client.in_tx(S::tx_ref(&mut tx));
        inside.start(Letter {}).await.unwrap();
        inside.after_commit(lines.note("committed"));
        inside.after_rollback(lines.note("rolled back"));
        drop(inside);
        assert_eq!(scene.seen.all(), [], "nothing is announced before the end");
        match commits {
            true => store.commit(tx).await.unwrap(),
            false => store.rollback(tx).await.unwrap(),
        }
        scene.until("the hook runs", || lines.all().last().is_some_and(|line| line == expected)).await;
        assert_eq!(scene.seen.all().len(), events);
    }
    assert_eq!(lines.all(), ["rolled back", "committed"]);
}

async fn savepoint<S: Transactional>(scene: Scene<S>) {
    let (store, lines) = (scene.client.store(), Lines::default());
    let mut tx = store.begin().await.unwrap();
    let mut first = scene.client.in_tx(S::tx_ref(&mut tx));
    let kept = first.start(Letter {}).await.unwrap();
    first.after_commit(lines.note("kept"));
    drop(first);
    // The caller sets and rolls back to its savepoint without the client.
    store.savepoint(S::tx_ref(&mut tx)).await.unwrap();
    let mut second = scene.client.in_tx(S::tx_ref(&mut tx));
    let lost = second.start(Letter {}).await.unwrap();
    second.after_commit(lines.note("never"));
    second.after_rollback(lines.note("lost"));
    drop(second);
    store.rollback_to(S::tx_ref(&mut tx)).await.unwrap();
    store.commit(tx).await.unwrap();
    scene.until("the hooks run", || lines.all().len() >= 2).await;
    let mut lines = lines.all();
    lines.sort();
    assert_eq!(lines, ["kept", "lost"]);
    assert!(scene.other.chain(kept).await.unwrap().is_some());
    assert!(scene.other.chain(lost).await.unwrap().is_none());
    assert_eq!(scene.seen.all().len(), 2, "one chain and its job were created");
}

async fn commands<S: Transactional>(scene: Scene<S>) {
    let (store, client) = (scene.client.store(), &scene.client);
    let cancelled = client.start(Letter {}).after(HOUR).await.unwrap();
    let triggered = client.start(Letter {}).after(HOUR).await.unwrap();
    let deleted = client.start(Letter {}).after(HOUR).await.unwrap();
    let completed = client.start(Letter {}).after(HOUR).await.unwrap();
    let retried = client.start(Letter {}).after(HOUR).await.unwrap();
    client.cancel_unless_running(retried.id()).await.unwrap();
    let reported = scene.seen.all().len();
    for commits in [false, true] {
        let mut tx = store.begin().await.unwrap();
        let mut inside = client.in_tx(S::tx_ref(&mut tx));
        inside.cancel_unless_running(cancelled.id()).await.unwrap();
        inside.trigger(triggered).await.unwrap();
        inside.delete(vec![deleted.id().into()]).await.unwrap();
        inside.retry(retried).await.unwrap();
        inside.step(completed).await.unwrap().of::<Letter>().unwrap().done(7).await.unwrap();
        drop(inside);
        match commits {
            true => store.commit(tx).await.unwrap(),
            false => store.rollback(tx).await.unwrap(),
        }
        if !commits {
            noticed(&scene).await;
            assert_eq!(scene.seen.all().len(), reported);
        }
    }
    scene.until("all is announced", || scene.seen.all().len() >= reported + 7).await;
    other_commands(&scene, completed).await;
}

/// A schedule in a transaction of its own: no other command shows whether it was committed. A retention has no event.
async fn other_commands<S: Transactional>(scene: &Scene<S>, closed: Chain<Letter>) {
    let (store, client) = (scene.client.store(), &scene.client);
    if !store.capabilities().has(Capability::Schedules) {
        return;
    }
    let hourly = Every::new(HOUR).unwrap();
    client.schedules().put("hourly-letter", hourly, Letter {}).await.unwrap();
    let reported = scene.seen.all().len();
    for commits in [false, true] {
        let mut tx = store.begin().await.unwrap();
        let mut inside = client.in_tx(S::tx_ref(&mut tx));
        let set = inside.set_retention(vec![closed.id().into()], HOUR).await.unwrap();
        assert!(matches!(set[..], [RetentionSet::Until(_)]), "{set:?}");
        inside.schedules().run_now("hourly-letter").await.unwrap();
        drop(inside);
        match commits {
            true => store.commit(tx).await.unwrap(),
            false => store.rollback(tx).await.unwrap(),
        }
        if !commits {
            noticed(scene).await;
            assert_eq!(scene.seen.all().len(), reported, "the run was rolled back");
        }
    }
    scene.until("the run is announced", || scene.seen.all().len() >= reported + 2).await;
    client.schedules().delete("hourly-letter").await.unwrap();
}

/// Waits until the client has noticed the ends of all transactions so far.
async fn noticed<S: Transactional>(scene: &Scene<S>) {
    let (store, lines) = (scene.client.store(), Lines::default());
    let mut tx = store.begin().await.unwrap();
    let mut inside = scene.client.in_tx(S::tx_ref(&mut tx));
    inside.start(Letter {}).after(HOUR).await.unwrap();
    inside.after_rollback(lines.note("ended"));
    drop(inside);
    store.rollback(tx).await.unwrap();
    scene.until("the rollback is noticed", || !lines.all().is_empty()).await;
}

async fn changed_by_another_client<S: Transactional>(scene: Scene<S>) {
    let (store, lines) = (scene.client.store(), Lines::default());
    let chain = scene.client.start(Letter {}).after(HOUR).await.unwrap();
    let reported = scene.seen.all().len();
    let mut tx = store.begin().await.unwrap();
    let mut inside = scene.client.in_tx(S::tx_ref(&mut tx));
    inside.cancel_unless_running(chain.id()).await.unwrap();
    inside.after_commit(lines.note("committed"));
    inside.after_rollback(lines.note("rolled back"));
    drop(inside);
    store.rollback(tx).await.unwrap();
    // This gives the job the version that the rolled back change gave it.
    scene.other.trigger(chain).await.unwrap();
    noticed(&scene).await;
    scene.until("the hook runs", || !lines.all().is_empty()).await;
    assert_eq!(lines.all(), ["rolled back"]);
    let cancelled = |event: &Event| matches!(event, Event::JobCancelled(..) | Event::ChainClosed(..));
    assert!(!scene.seen.all().iter().skip(reported).any(cancelled));
}

async fn deleted<S: Transactional>(scene: Scene<S>) {
    let store = scene.client.store();
    let mut tx = store.begin().await.unwrap();
    let chain = scene.client.in_tx(S::tx_ref(&mut tx)).start(Letter {}).after(HOUR).await.unwrap();
    scene.client.in_tx(S::tx_ref(&mut tx)).delete(vec![chain.id().into()]).await.unwrap();
    store.rollback(tx).await.unwrap();
    noticed(&scene).await;
    assert_eq!(scene.seen.all(), []);
}
