//! Callbacks at the end of a transaction, and savepoints.

use windlass_core::{Attempt, Client, Done, Error, ErrorKind, Transactional, Tx};

use super::super::prelude::*;
use super::end;

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "hooks.end",
            "Commit and rollback hooks run at the end of the transaction, not earlier.",
            ["A1.16"],
            ends
        ),
        behavior!(
            "hooks.order",
            "Commit hooks run in the order in which they were added, when the writes are visible to everyone.",
            ["A1.16"],
            order
        ),
        behavior!(
            "hooks.panic",
            "A hook that panics affects neither the other hooks nor the commit.",
            ["A1.16"],
            panics
        ),
        behavior!(
            "hooks.savepoint",
            "A rollback to a savepoint discards later writes and hooks, and nothing else.",
            ["A1.16"],
            savepoint
        ),
        behavior!(
            "hooks.savepoint.release",
            "Releasing a savepoint keeps everything done since.",
            ["A1.16"],
            release
        ),
        behavior!(
            "hooks.savepoint.nested",
            "A rollback to an outer savepoint discards what was released into it.",
            ["A1.16"],
            nested
        ),
        behavior!(
            "hooks.savepoint.none",
            "A rollback without a savepoint is an error and has no effect.",
            ["A1.16"],
            no_savepoint
        ),
        behavior!(
            "hooks.theirs",
            "In a transaction that the caller ends, hooks follow its actual outcome.",
            ["A1.16"],
            theirs
        ),
        behavior!(
            "hooks.attempt",
            "In the transactions of an attempt, hooks follow the worker's commit or rollback.",
            ["A1.16"],
            attempt
        ),
    ]
}

job!(Post { text: String } -> u32);

fn post(text: &str) -> Post {
    Post { text: text.to_owned() }
}

impl Lines {
    /// Returns a callback that records this line.
    pub(super) fn note(&self, line: &'static str) -> impl FnOnce() + Send + use<> {
        let lines = self.clone();
        move || lines.add(line)
    }
}

async fn begin<S: Transactional>(client: &Client<S>, lines: &Lines) -> Tx<S> {
    let mut tx = client.begin().await.unwrap();
    tx.after_commit(lines.note("committed"));
    tx.after_rollback(lines.note("rolled back"));
    tx
}

async fn ends<S: Transactional>(scene: Scene<S>) {
    for (commits, expected) in [(true, "committed"), (false, "rolled back")] {
        let lines = Lines::default();
        let tx = begin(&scene.client, &lines).await;
        assert!(lines.all().is_empty(), "not before the end");
        end(tx, commits).await;
        assert_eq!(lines.all(), [expected]);
    }
    let lines = Lines::default();
    drop(begin(&scene.client, &lines).await);
    assert_eq!(lines.all(), ["rolled back"], "a transaction that is dropped is rolled back");
}

async fn order<S: Transactional>(scene: Scene<S>) {
    let lines = Lines::default();
    let mut tx = scene.client.begin().await.unwrap();
    tx.after_commit(lines.note("first"));
    tx.start(post("a")).await.unwrap();
    tx.after_commit(lines.note("second"));
    let (seen, noted) = (scene.seen.clone(), lines.clone());
    tx.after_commit(move || noted.add(format!("{} reported", seen.count(|_| true))));
    tx.commit().await.unwrap();
    assert_eq!(lines.all(), ["first", "second", "2 reported"]);
}

async fn panics<S: Transactional>(scene: Scene<S>) {
    for commits in [true, false] {
        let lines = Lines::default();
        let mut tx = begin(&scene.client, &lines).await;
        let chain = tx.start(post("a")).await.unwrap();
        tx.after_commit(|| panic!("a hook"));
        tx.after_rollback(|| panic!("a hook"));
        tx.after_commit(lines.note("last"));
        tx.after_rollback(lines.note("last"));
        end(tx, commits).await;
        assert_eq!(lines.all(), [if commits { "committed" } else { "rolled back" }, "last"]);
        assert_eq!(scene.client.chain(chain).await.unwrap().is_some(), commits);
    }
}

async fn savepoint<S: Transactional>(scene: Scene<S>) {
    let lines = Lines::default();
    let mut tx = begin(&scene.client, &lines).await;
    let kept = tx.start(post("kept")).await.unwrap();
    tx.savepoint().await.unwrap();
    let lost = tx.start(post("lost")).key("a").await.unwrap();
    tx.after_commit(lines.note("lost"));
    tx.after_rollback(lines.note("rolled back to the savepoint"));
    tx.rollback_to().await.unwrap();
    assert_eq!(lines.all(), ["rolled back to the savepoint"]);
    let again = tx.start(post("again")).key("a").await.unwrap();
    assert!(again.is_new() && again != lost, "the key is free again");
    tx.commit().await.unwrap();
    assert_eq!(lines.all(), ["rolled back to the savepoint", "committed"]);
    for (chain, is_stored) in [(kept, true), (lost, false), (again, true)] {
        assert_eq!(scene.other.chain(chain).await.unwrap().is_some(), is_stored);
    }
    assert_eq!(scene.seen.count(|event| matches!(event, Event::ChainCreated(_))), 2);
}

async fn release<S: Transactional>(scene: Scene<S>) {
    let lines = Lines::default();
    let mut tx = begin(&scene.client, &lines).await;
    tx.savepoint().await.unwrap();
    let chain = tx.start(post("kept")).await.unwrap();
    tx.after_commit(lines.note("kept"));
    tx.release().await.unwrap();
    assert!(lines.all().is_empty(), "a release is no end");
    tx.commit().await.unwrap();
    assert_eq!(lines.all(), ["committed", "kept"]);
    assert!(scene.other.chain(chain).await.unwrap().is_some());
}

async fn nested<S: Transactional>(scene: Scene<S>) {
    let lines = Lines::default();
    let mut tx = scene.client.begin().await.unwrap();
    tx.after_commit(lines.note("outermost"));
    tx.savepoint().await.unwrap();
    tx.after_rollback(lines.note("outer"));
    tx.savepoint().await.unwrap();
    let lost = tx.start(post("inner")).await.unwrap();
    tx.after_commit(lines.note("never"));
    tx.after_rollback(lines.note("inner"));
    tx.release().await.unwrap();
    tx.rollback_to().await.unwrap();
    assert_eq!(lines.all(), ["outer", "inner"]);
    tx.commit().await.unwrap();
    assert_eq!(lines.all(), ["outer", "inner", "outermost"]);
    assert!(scene.other.chain(lost).await.unwrap().is_none());
    assert_eq!(scene.seen.all(), []);
}

async fn no_savepoint<S: Transactional>(scene: Scene<S>) {
    let lines = Lines::default();
    let mut tx = begin(&scene.client, &lines).await;
    assert_eq!(tx.rollback_to().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(tx.release().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(lines.all().is_empty());
    tx.rollback().await.unwrap();
    assert_eq!(lines.all(), ["rolled back"]);
}

async fn theirs<S: Transactional>(scene: Scene<S>) {
    for (commits, expected) in [(true, "committed"), (false, "rolled back")] {
        let (store, lines) = (scene.client.store(), Lines::default());
        let reported = scene.seen.all().len();
        let mut tx = store.begin().await.unwrap();
        let mut inside = scene.client.in_tx(S::tx_ref(&mut tx));
        let chain = inside.start(post("a")).await.unwrap();
        inside.after_commit(lines.note("committed"));
        inside.after_rollback(lines.note("rolled back"));
        let announcements = inside.announcements();
        assert!(lines.all().is_empty());
        let ended = announcements.announce_after(async {
            if commits {
                return store.commit(tx).await;
            }
            store.rollback(tx).await?;
            Err(Error::new(ErrorKind::Invalid, "rolled back"))
        });
        assert_eq!(ended.await.is_ok(), commits);
        assert_eq!(lines.all(), [expected]);
        assert_eq!(scene.seen.all().len() - reported, if commits { 2 } else { 0 });
        assert_eq!(scene.other.chain(chain).await.unwrap().is_some(), commits);
    }
}

async fn attempt<S: Transactional>(scene: Scene<S>) {
    let lines = Lines::default();
    let noted = lines.clone();
    let write = move |a: Attempt<Post, S>| {
        let lines = noted.clone();
        async move {
            let mut prepare = a.prepare().await?;
            prepare.client().after_commit(lines.note("prepared"));
            prepare.client().after_rollback(lines.note("not prepared"));
            if a.attempt() == 1 {
                return Err(BoxError::from("while it prepares"));
            }
            prepare.commit().await?;
            let mut step = a.begin().await?;
            step.client().after_commit(lines.note("finished"));
            step.client().after_rollback(lines.note("not finished"));
            let done: Done<Post, S> = step.done(a.attempt())?;
            if a.attempt() == 2 { Err("after it has finished".into()) } else { Ok(done) }
        }
    };
    let worker = scene.worker().handle(write).start().await.unwrap();
    let chain = scene.client.start(post("a")).await.unwrap();
    assert_eq!(scene.output(chain).await, 3);
    scene.stop([worker]).await;
    assert_eq!(lines.all(), ["not prepared", "prepared", "not finished", "prepared", "finished"]);
}
