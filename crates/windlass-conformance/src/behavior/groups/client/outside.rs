//! Completing jobs from outside, without a worker: approvals and webhooks.

use std::time::Duration;

use windlass_core::{
    AbortReason, Chain, ChainId, ErrorKind, JobId, JobOptions, JobRecord, Transactional, Version,
};

use super::super::prelude::*;
use super::{OUTSIDE, end};
use crate::behavior::job::quick;

#[expect(clippy::too_many_lines, reason = "a list of cases")]
pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "outside.one",
            "A chain can be completed without a worker.",
            ["BS-073", "BS-221"],
            [OUTSIDE],
            one
        ),
        behavior!(
            "outside.steps",
            "One command can complete several steps of a chain.",
            ["BS-074", "BS-223"],
            [OUTSIDE],
            steps
        ),
        behavior!(
            "outside.then_worker",
            "A worker runs the next job of a chain that was continued without a worker.",
            ["BS-076"],
            [OUTSIDE],
            then_worker
        ),
        behavior!(
            "outside.completed",
            "A completed job cannot be completed again, whether it was queried before or after.",
            ["BS-077"],
            [OUTSIDE],
            completed
        ),
        behavior!(
            "outside.read",
            "Querying a chain's current job changes nothing.",
            ["BS-078"],
            [OUTSIDE],
            read
        ),
        behavior!(
            "outside.running",
            "An attempt whose job is completed from outside is asked to stop and changes nothing.",
            ["BS-079"],
            [OUTSIDE],
            running
        ),
        behavior!(
            "outside.blocked",
            "A blocked job can be completed before its blockers.",
            ["BS-073"],
            [OUTSIDE],
            blocked
        ),
        behavior!(
            "outside.narrow",
            "A chain's current job can only be narrowed to its own type.",
            ["BS-080"],
            [OUTSIDE],
            narrow
        ),
        behavior!(
            "outside.mismatch",
            "A step on a chain with a handle of the wrong type is refused.",
            ["BS-082"],
            [OUTSIDE],
            mismatch
        ),
        behavior!(
            "outside.wait_mismatch",
            "A wait for a chain with a handle of the wrong type fails immediately.",
            ["BS-083"],
            wait_mismatch
        ),
        behavior!(
            "outside.id",
            "The caller can choose the id of a continuation; if it is taken, nothing is written.",
            ["BS-031"],
            [OUTSIDE],
            id
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    // The sources require a transaction for this. Here it works with and without one.
    vec![behavior!(
        "outside.transaction",
        "A completion takes effect immediately, or when its transaction commits, or never if it is rolled back.",
        ["BS-081"],
        [OUTSIDE],
        transaction
    )]
}

job!(Approve { order: u32 } -> String, then(Ship), options JobOptions {
    lease: Some(Duration::from_secs(60)),
    renewal: Some(Duration::from_millis(100)),
    ..quick()
});
job!(Ship { order: u32 } -> String, then(Bill));
job!(Bill { amount: u32 } -> String);
job!(After {} -> String, blocked_by (Approve,));

async fn approval<S: Store>(scene: &Scene<S>) -> Chain<Approve> {
    scene.client.start(Approve { order: 7 }).await.unwrap()
}

async fn one<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let step = scene.other.step(chain).await.unwrap().of::<Approve>().unwrap();
    assert_eq!((step.input().order, step.job().id), (7, chain.id().first_job()));
    assert_eq!(step.done("by hand".into()).await.unwrap(), Status::Completed);
    assert_eq!(scene.output(chain).await, "by hand");
    let job = scene.job(chain).await;
    assert_eq!((job.attempt, job.closed_by, job.error), (0, None, None), "no attempt completed it");
}

async fn steps<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let all = step.then(Ship { order: 7 }).then(Bill { amount: 70 }).done("billed".into());
    assert_eq!(all.await.unwrap(), Status::Completed);
    assert_eq!(scene.output(chain).await, "billed");
    let record = scene.client.chain(chain).await.unwrap().unwrap();
    assert_eq!((record.latest.index, record.latest.job_type.as_str()), (2, "Bill"));
    assert_eq!(scene.client.input::<Bill>(record.latest.id).await.unwrap().unwrap().amount, 70);
    assert_eq!((record.first.status, record.first.output), (Status::Completed, None));
}

async fn then_worker<S: Store>(scene: Scene<S>) {
    async fn ship(job: Ctx<Ship>) -> Result<String> {
        Ok(format!("shipped {}", job.input().order))
    }
    let worker = scene.worker().handle(ship).start().await.unwrap();
    let chain = approval(&scene).await;
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let order = step.input().order;
    assert_eq!(step.then(Ship { order }).await.unwrap(), Status::Pending);
    assert_eq!(scene.output(chain).await, "shipped 7");
    scene.stop([worker]).await;
}

async fn completed<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let before = scene.other.step(chain).await.unwrap().of::<Approve>().unwrap();
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.done("first".into()).await.unwrap();
    let after = scene.other.step(chain).await.unwrap().of::<Approve>().unwrap();
    for late in [before, after] {
        let error = late.done("second".into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        assert!(error.to_string().contains("it has completed"), "{error}");
    }
    assert_eq!(scene.output(chain).await, "first");
}

async fn read<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let before = scene.job(chain).await;
    let step = scene.client.step(chain).await.unwrap();
    assert_eq!(step.job(), &before);
    drop(step.of::<Approve>().unwrap());
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    drop(step.done("never awaited".into()));
    assert_eq!(scene.job(chain).await, before);
}

async fn running<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let said = lines.clone();
    let approve = move |job: Ctx<Approve>| {
        let said = said.clone();
        async move {
            let reason = job.aborted().wait().await;
            said.add(format!("{reason:?}"));
            Ok::<_, BoxError>("by the worker".to_owned())
        }
    };
    let worker = scene.worker().handle(approve).start().await.unwrap();
    let chain = approval(&scene).await;
    scene.job_that("the attempt runs", chain, |job| job.status == Status::Running).await;
    let step = scene.other.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.done("from outside".into()).await.unwrap();
    scene.sees("the attempt finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    assert_eq!(lines.all(), [format!("{:?}", AbortReason::AlreadyClosed)]);
    assert_eq!(scene.output(chain).await, "from outside");
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobCompleted(..))), 1);
    scene.stop([worker]).await;
}

async fn blocked<S: Store>(scene: Scene<S>) {
    let blocker = approval(&scene).await;
    let chain = scene.client.start(After {}).blocked_by((blocker,)).await.unwrap();
    let step = scene.client.step(chain).await.unwrap().of::<After>().unwrap();
    assert_eq!(step.job().status, Status::Blocked);
    step.done("without it".into()).await.unwrap();
    assert_eq!(scene.output(chain).await, "without it");
    let step = scene.client.step(blocker).await.unwrap().of::<Approve>().unwrap();
    step.done("later".into()).await.unwrap();
    assert_eq!(scene.output(chain).await, "without it", "the blocker's end changes nothing");
}

async fn narrow<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let step = scene.client.step(chain).await.unwrap();
    assert!(step.is::<Approve>() && !step.is::<Ship>());
    let error = step.of::<Ship>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("`Approve`") && text.contains("`Ship`"), "it names both: {text}");
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.then(Ship { order: 1 }).await.unwrap();
    let step = scene.client.step(chain).await.unwrap();
    assert!(step.is::<Ship>() && !step.is::<Approve>(), "the chain's type stays, its current job's does not");
}

async fn mismatch<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let error = scene.client.step(Chain::<Ship>::from_id(chain.id())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`Approve`, expected `Ship`"), "{error}");
    let error = scene.client.step(ChainId::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(scene.job(chain).await.status, Status::Pending);
}

async fn wait_mismatch<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let wait = scene.client.wait(Chain::<Ship>::from_id(chain.id())).timeout(Duration::from_secs(3_600));
    let error = scene.soon("the wait ends", wait.into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`Approve`, expected `Ship`"), "{error}");
}

async fn id<S: Store>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let other = approval(&scene).await;
    let before = scene.job(chain).await;
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let taken = next(Ship { order: 7 }).id(other.id().first_job());
    assert_eq!(step.then(taken).await.unwrap_err().kind(), ErrorKind::Invalid);
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let taken = next(Bill { amount: 70 }).id(other.id().first_job());
    let error = step.then(Ship { order: 7 }).then(taken).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(scene.job(chain).await, before, "of several steps none is done");
    let id = JobId::new();
    let step = scene.client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.then(next(Ship { order: 7 }).id(id)).await.unwrap();
    assert_eq!(scene.job(chain).await.id, id);
}

async fn transaction<S: Transactional>(scene: Scene<S>) {
    let chain = approval(&scene).await;
    let is_untouched = |job: &JobRecord| job.status == Status::Pending && job.version == Version(0);
    for commits in [false, true] {
        let mut tx = scene.client.begin().await.unwrap();
        let step = tx.step(chain).await.unwrap().of::<Approve>().unwrap();
        step.then(Ship { order: 7 }).await.unwrap();
        assert!(tx.step(chain).await.unwrap().is::<Ship>(), "the transaction sees it");
        assert!(is_untouched(&scene.job(chain).await), "it is not visible outside before the commit");
        end(tx, commits).await;
        assert_eq!(scene.job(chain).await.index, u32::from(commits));
    }
    assert!(scene.other.step(chain).await.unwrap().is::<Ship>());
}
