//! What an attempt can see, and how handlers use transactions.

use windlass_core::command::ListAttempts;
use windlass_core::{Attempt, Backoff, Capability, Done, ErrorKind, ErrorText, JobOptions};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "process.attempt",
            "A handler receives its attempt number and the error of the previous attempt.",
            ["BS-161"],
            attempt
        ),
        behavior!("process.error_cleared", "A success clears the error.", ["BS-162"], error_cleared),
        behavior!(
            "process.backoff",
            "The delay between attempts grows with each failure.",
            ["BS-163"],
            [Need::Store(Capability::Attempts)],
            backoff
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "process.order",
            "Repeated or misordered calls of an attempt are errors and have no effect.",
            ["BS-160"],
            order
        ),
        behavior!(
            "process.modes.atomic.plain",
            "An atomic attempt that writes nothing ends its job.",
            ["BS-165", "BS-170"],
            |scene| mode(scene, Mode { atomic: true, prepares: false, writes: false })
        ),
        behavior!(
            "process.modes.atomic.writes",
            "The writes of an atomic attempt are visible when its job has ended, not earlier.",
            ["BS-169"],
            |scene| mode(scene, Mode { atomic: true, prepares: false, writes: true })
        ),
        behavior!(
            "process.modes.staged.plain",
            "A staged attempt can skip the preparation.",
            ["BS-166"],
            |scene| { mode(scene, Mode { atomic: false, prepares: false, writes: true }) }
        ),
        behavior!(
            "process.modes.staged.prepared",
            "The preparation of a staged attempt is visible while it works.",
            ["BS-167"],
            |scene| mode(scene, Mode { atomic: false, prepares: true, writes: true })
        ),
        behavior!(
            "process.modes.staged.prepared.plain",
            "A staged attempt can prepare without writing.",
            ["BS-168"],
            |scene| mode(scene, Mode { atomic: false, prepares: true, writes: false })
        ),
    ]
}

job!(Try { failures: u32 } -> String);

/// Fails its first `failures` attempts, then returns its attempt number and the previous error.
async fn try_hard(job: Ctx<Try>) -> Result<String> {
    let error = job.job().error.clone();
    assert_eq!(error, (job.attempt() > 1).then(|| ErrorText::new(format!("no {}", job.attempt() - 1))));
    if job.attempt() <= job.input().failures {
        return Err(format!("no {}", job.attempt()).into());
    }
    Ok(format!("attempt {} after {error:?}", job.attempt()))
}

async fn attempt<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(try_hard).start().await.unwrap();
    let chain = scene.client.start(Try { failures: 0 }).await.unwrap();
    assert_eq!(scene.output(chain).await, "attempt 1 after None");
    let chain = scene.client.start(Try { failures: 3 }).await.unwrap();
    assert_eq!(scene.output(chain).await, "attempt 4 after Some(\"no 3\")");
    scene.stop([worker]).await;
}

async fn error_cleared<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(try_hard).start().await.unwrap();
    let chain = scene.client.start(Try { failures: 1 }).await.unwrap();
    scene.output(chain).await;
    let job = scene.job(chain).await;
    assert_eq!((job.status, job.attempt, job.error), (Status::Completed, 2, None));
    scene.stop([worker]).await;
}

const FIRST_DELAY: Duration = Duration::from_millis(100);

job!(Patient {} -> u32, options JobOptions {
    backoff: Some(Backoff { initial: FIRST_DELAY, multiplier: 2.0, max: FIRST_DELAY * 8, jitter: 0.0 }),
    ..quick()
});

async fn backoff<S: Store>(scene: Scene<S>) {
    async fn patient(job: Ctx<Patient>) -> Result<u32> {
        if job.attempt() < 4 { Err("not yet".into()) } else { Ok(job.attempt()) }
    }
    let worker = scene.worker().handle(patient).start().await.unwrap();
    let chain = scene.client.start(Patient {}).await.unwrap();
    assert_eq!(scene.output(chain).await, 4);
    let list = ListAttempts { job: chain.id().first_job() };
    let attempts = scene.client.store().list_attempts(list).await.unwrap().attempts;
    assert_eq!(attempts.len(), 4);
    for (factor, pair) in [1, 2, 4].into_iter().zip(attempts.windows(2)) {
        let pause = pair[1].started_at.since(pair[0].ended_at.unwrap());
        assert!(pause >= FIRST_DELAY * factor, "{pause:?} after failure {}", pair[0].attempt);
    }
    scene.stop([worker]).await;
}

job!(Work { mode: Mode } -> String);

async fn order<S: Transactional>(scene: Scene<S>) {
    async fn confused<S: Transactional>(a: Attempt<Work, S>) -> Result<Done<Work, S>> {
        let refused = |what: &str, error: Option<windlass_core::Error>| {
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Invalid), "{what}");
        };
        a.prepare().await?.commit().await?;
        refused("prepare twice", a.prepare().await.err());
        refused("atomic after prepare", a.atomic().await.err());
        let step = a.begin().await?;
        refused("finish twice", a.begin().await.err());
        refused("prepare after finish", a.prepare().await.err());
        Ok(step.done("fine".into())?)
    }
    let worker = scene.worker().handle(confused::<S>).start().await.unwrap();
    let mode = Mode { atomic: false, prepares: true, writes: false };
    let chain = scene.client.start(Work { mode }).await.unwrap();
    assert_eq!(scene.output(chain).await, "fine");
    assert_eq!(scene.job(chain).await.attempt, 1);
    scene.stop([worker]).await;
}

/// How an attempt uses transactions.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Mode {
    atomic: bool,
    prepares: bool,
    writes: bool,
}

async fn mode<S: Transactional>(scene: Scene<S>, mode: Mode) {
    let stage = scene.clone();
    let worker =
        scene.worker().handle(move |a: Attempt<Work, S>| work(a, stage.clone())).start().await.unwrap();
    let chain = scene.client.start(Work { mode }).await.unwrap();
    assert_eq!(scene.output(chain).await, "done");
    assert_eq!(scene.job(chain).await.attempt, 1);
    assert_eq!(scene.is_marked("prepared").await, mode.prepares && mode.writes);
    assert_eq!(scene.is_marked("finished").await, mode.writes);
    scene.stop([worker]).await;
}

async fn work<S: Transactional>(a: Attempt<Work, S>, scene: Scene<S>) -> Result<Done<Work, S>> {
    let Mode { atomic, prepares, writes } = a.input().mode;
    if prepares {
        let mut prepare = a.prepare().await?;
        if writes {
            scene.mark(prepare.tx(), "prepared").await?;
            assert!(!scene.is_marked("prepared").await, "it has not committed");
        }
        prepare.commit().await?;
        assert_eq!(scene.is_marked("prepared").await, writes, "it has committed");
    }
    let mut step = if atomic { a.atomic().await? } else { a.begin().await? };
    if writes {
        scene.mark(step.tx(), "finished").await?;
        assert!(!scene.is_marked("finished").await, "the worker commits last");
    }
    Ok(step.done("done".into())?)
}
