//! Events and hints are not sent for writes that did not commit.

use std::time::Duration;

use windlass_core::{Attempt, Done, ErrorKind, JobOptions, Transactional, Worker};

use super::super::prelude::*;
use super::OUTSIDE;
use crate::behavior::faulty::{Fault, Faulty};
use crate::behavior::job::quick;
use crate::behavior::scene::POLL;

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "rollback.start",
            "A start that is rolled back is not reported and wakes no worker.",
            ["logging: creation rolled back", "never 3"],
            start
        ),
        behavior!(
            "rollback.blockers",
            "A start with blockers that is rolled back is not reported.",
            ["logging: creation with blockers rolled back", "never 3"],
            blockers
        ),
        behavior!(
            "rollback.outside",
            "A completion from outside that is rolled back is not reported.",
            ["logging: workerless completion rolled back", "never 3"],
            [OUTSIDE],
            outside
        ),
        behavior!(
            "rollback.completion",
            "A completion that its handler rolls back is not reported.",
            ["logging: worker completion rolled back", "never 3"],
            |scene| taken_back(scene, How::Done)
        ),
        behavior!(
            "rollback.reschedule",
            "A reschedule that its handler rolls back is not reported.",
            ["logging: reschedule rolled back", "never 3"],
            |scene| taken_back(scene, How::Reschedule)
        ),
        behavior!(
            "rollback.continuation",
            "A continuation that its handler rolls back is not reported.",
            ["logging: user throw after continueWith", "never 3"],
            |scene| taken_back(scene, How::Then)
        ),
        behavior!(
            "rollback.unblocked",
            "An unblocked job is not reported before the end of its blocker has committed.",
            ["logging: unblock failure", "never 3"],
            unblocked
        ),
        behavior!(
            "rollback.outside_refused",
            "A completion from outside that is refused is not reported.",
            ["logging: workerless internal failure", "never 3"],
            [OUTSIDE],
            outside_refused
        ),
        behavior!(
            "rollback.continuation_refused",
            "A refused continuation is not reported; the failure of its job is.",
            ["logging: continuation create failure", "never 3"],
            continuation_refused
        ),
    ]
}

/// How the first attempt ends its job before it returns an error.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum How {
    Done,
    Reschedule,
    Then,
    /// Returns no error, but continues with an id that is taken.
    ThenTaken,
}

job!(Cast { how: How } -> u32, then(Pull));
job!(Pull {} -> u32);
job!(Cook {} -> u32, blocked_by (Cast,));

async fn pull(_: Ctx<Pull>) -> Result<u32> {
    Ok(3)
}

async fn cast<S: Transactional>(a: Attempt<Cast, S>) -> Result<Done<Cast, S>> {
    let mut step = a.begin().await?;
    step.client().start(Pull {}).await?;
    let done = match a.input().how {
        How::Done => step.done(2)?,
        How::Reschedule if a.attempt() == 1 => step.reschedule(Duration::ZERO)?,
        How::ThenTaken => step.then(next(Pull {}).id(a.job().id))?,
        How::Then | How::Reschedule => step.then(Pull {})?,
    };
    let fails = a.attempt() == 1 && a.input().how != How::ThenTaken;
    if fails { Err("on second thought".into()) } else { Ok(done) }
}

/// Returns the numbers of created jobs, completed jobs, failed attempts and rescheduled attempts.
fn counts<S>(scene: &Scene<S>) -> [usize; 4] {
    [
        scene.seen.count(|event| matches!(event, Event::JobCreated(_))),
        scene.seen.count(|event| matches!(event, Event::JobCompleted(..))),
        scene.seen.count(|event| matches!(event, Event::AttemptFailed(..))),
        scene.seen.count(|event| matches!(event, Event::AttemptRescheduled(..))),
    ]
}

async fn start<S: Transactional>(scene: Scene<S>) {
    let mut tx = scene.client.begin().await.unwrap();
    tx.start(Pull {}).await.unwrap();
    tx.start_many([Pull {}, Pull {}]).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = scene.client.begin().await.unwrap();
    tx.start(Pull {}).await.unwrap();
    drop(tx);
    assert_eq!(scene.seen.all(), []);
    let mut tx = scene.client.begin().await.unwrap();
    let kept = tx.start(Cast { how: How::Done }).await.unwrap();
    tx.savepoint().await.unwrap();
    tx.start(Pull {}).await.unwrap();
    tx.rollback_to().await.unwrap();
    assert_eq!(scene.seen.all(), [], "not before the commit");
    tx.commit().await.unwrap();
    assert_eq!(counts(&scene), [1, 0, 0, 0], "only committed writes are reported");
    assert!(matches!(&scene.seen.all()[0], Event::ChainCreated(about) if about.chain == kept.id()));
}

async fn blockers<S: Transactional>(scene: Scene<S>) {
    let blocker = scene.client.start(Cast { how: How::Done }).await.unwrap();
    let before = scene.seen.all();
    let mut tx = scene.client.begin().await.unwrap();
    tx.start(Cook {}).blocked_by((blocker,)).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(scene.seen.all(), before);
}

async fn outside<S: Transactional>(scene: Scene<S>) {
    let chain = scene.client.start(Cast { how: How::Done }).await.unwrap();
    let waits = scene.client.start(Cook {}).blocked_by((chain,)).await.unwrap();
    let before = scene.seen.all();
    let mut tx = scene.client.begin().await.unwrap();
    let step = tx.step(chain).await.unwrap().of::<Cast>().unwrap();
    step.then(Pull {}).done(1).await.unwrap();
    assert_eq!(tx.chain(waits).await.unwrap().unwrap().status(), Status::Pending);
    tx.rollback().await.unwrap();
    assert_eq!(scene.seen.all(), before);
    assert_eq!(scene.job(waits).await.status, Status::Blocked);
}

async fn taken_back<S: Transactional>(scene: Scene<S>, how: How) {
    let worker = scene.worker().handle(cast::<S>).handle(pull).start().await.unwrap();
    let chain = scene.client.start(Cast { how }).await.unwrap();
    scene.output(chain).await;
    scene.stop([worker]).await;
    let closed = |event: &Event| matches!(event, Event::ChainClosed(about, _) if about.chain == chain.id());
    assert_eq!(scene.seen.count(closed), 1);
    let of_chain = |event: &Event| match event {
        Event::JobCreated(about) | Event::JobCompleted(about, _) => about.chain == chain.id(),
        _ => false,
    };
    // The first job, and the continuation from the second attempt: each is created and completed once.
    assert_eq!(scene.seen.count(of_chain), if how == How::Done { 2 } else { 4 });
    assert_eq!(counts(&scene)[2..], [1, 0]);
    let started = |event: &Event| matches!(event, Event::ChainCreated(about) if about.chain != chain.id());
    assert_eq!(
        scene.seen.count(started),
        1,
        "the chain that the first attempt started is not reported either"
    );
}

job!(Bait {} -> u32, options JobOptions { max_attempts: None, ..quick() });
job!(Bite {} -> u32, blocked_by (Bait,));

async fn unblocked<S: Transactional>(scene: Scene<S>) {
    async fn bait<S: Transactional>(a: Attempt<Bait, S>) -> Result<Done<Bait, S>> {
        Ok(a.begin().await?.done(a.attempt())?)
    }
    async fn bite(job: Ctx<Bite>) -> Result<u32> {
        Ok(job.blockers().0)
    }
    let blocker = scene.client.start(Bait {}).await.unwrap();
    let chain = scene.client.start(Bite {}).blocked_by((blocker,)).await.unwrap();
    let store = Faulty::new(&scene.store);
    store.fault(&["commit"], Fault::Fails, 2);
    let client = scene.client_on(store);
    let worker =
        Worker::new(&client).concurrency(1).poll(POLL).handle(bait).handle(bite).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 3, "two commits failed before");
    scene.stop([worker]).await;
    let events = scene.seen.all();
    let at = |is: fn(&Event) -> bool| events.iter().position(is).unwrap();
    let unblocked = at(|event| matches!(event, Event::JobUnblocked(_)));
    let failures = events[..unblocked].iter().filter(|event| matches!(event, Event::AttemptFailed(..)));
    assert_eq!(failures.count(), 2, "both were reported before");
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobUnblocked(_))), 1);
    assert_eq!(counts(&scene), [2, 2, 2, 0]);
}

async fn outside_refused<S: Transactional>(scene: Scene<S>) {
    let chain = scene.client.start(Cast { how: How::Done }).await.unwrap();
    let other = scene.client.start(Pull {}).await.unwrap();
    let before = scene.seen.all();
    let taken = || next(Pull {}).id(other.id().first_job());
    let step = scene.client.step(chain).await.unwrap().of::<Cast>().unwrap();
    assert_eq!(step.then(taken()).await.unwrap_err().kind(), ErrorKind::Invalid);
    let mut tx = scene.client.begin().await.unwrap();
    let step = tx.step(chain).await.unwrap().of::<Cast>().unwrap();
    assert_eq!(step.then(taken()).done(1).await.unwrap_err().kind(), ErrorKind::Invalid);
    tx.commit().await.unwrap();
    assert_eq!(scene.seen.all(), before);
    assert_eq!(scene.job(chain).await.status, Status::Pending);
}

async fn continuation_refused<S: Transactional>(scene: Scene<S>) {
    let worker = scene.worker().handle(cast::<S>).start().await.unwrap();
    let chain = scene.client.start(Cast { how: How::ThenTaken }).await.unwrap();
    assert_eq!(scene.result(chain).await.unwrap_err().kind(), ErrorKind::ChainFailed);
    scene.stop([worker]).await;
    assert_eq!(counts(&scene), [1, 0, 0, 0], "the chain's own start, and nothing of the attempt");
    let failed = |event: &Event| matches!(event, Event::JobFailed(about, _) if about.chain == chain.id());
    assert_eq!(scene.seen.count(failed), 1);
}
