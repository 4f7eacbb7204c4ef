//! Failing attempts: their writes are rolled back, and their jobs are retried.

use std::fmt;

use windlass_core::{Attempt, Done, Step};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![behavior!(
        "failures.texts",
        "An error is stored with the messages of its causes, and a panic with its message.",
        ["BS-187"],
        texts
    )]
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    use Mode::{Atomic, Staged};
    use Place::{AfterFinish, BeforeFinish, Begin, InFinish, PoisonedBegin, PoisonedFinish};
    vec![
        behavior!(
            "failures.begin.atomic",
            "If an atomic attempt fails at its beginning, the job is retried.",
            ["BS-171"],
            |scene| fails(scene, Atomic, Begin)
        ),
        behavior!(
            "failures.begin.staged",
            "If a staged attempt fails while it prepares, the preparation is rolled back and the job is retried.",
            ["BS-172"],
            |scene| fails(scene, Staged, Begin)
        ),
        behavior!(
            "failures.work.atomic",
            "If an atomic attempt fails while it works, its writes are rolled back.",
            ["BS-173"],
            |scene| fails(scene, Atomic, BeforeFinish)
        ),
        behavior!(
            "failures.work.staged",
            "If a staged attempt fails while it works, the job is retried and the preparation is kept.",
            ["BS-174"],
            |scene| fails(scene, Staged, BeforeFinish)
        ),
        behavior!(
            "failures.finish.atomic",
            "If an atomic attempt fails while it finishes, its writes are rolled back.",
            ["BS-175"],
            |scene| fails(scene, Atomic, InFinish)
        ),
        behavior!(
            "failures.finish.staged",
            "If a staged attempt fails while it finishes, the writes of that transaction are rolled back.",
            ["BS-176"],
            |scene| fails(scene, Staged, InFinish)
        ),
        behavior!(
            "failures.finished.atomic",
            "If an atomic attempt fails after it has finished, the completion is rolled back.",
            ["BS-177"],
            |scene| fails(scene, Atomic, AfterFinish)
        ),
        behavior!(
            "failures.finished.staged",
            "If a staged attempt fails after it has finished, the completion is rolled back.",
            ["BS-178"],
            |scene| fails(scene, Staged, AfterFinish)
        ),
        behavior!(
            "failures.poisoned.begin.atomic",
            "A failed statement at the beginning of an atomic attempt affects only that attempt.",
            ["BS-179"],
            |scene| fails(scene, Atomic, PoisonedBegin)
        ),
        behavior!(
            "failures.poisoned.begin.staged",
            "A failed statement while a staged attempt prepares affects only that attempt.",
            ["BS-180"],
            |scene| fails(scene, Staged, PoisonedBegin)
        ),
        behavior!(
            "failures.poisoned.finish.atomic",
            "A failed statement while an atomic attempt finishes affects only that attempt.",
            ["BS-181"],
            |scene| fails(scene, Atomic, PoisonedFinish)
        ),
        behavior!(
            "failures.poisoned.finish.staged",
            "A failed statement while a staged attempt finishes affects only that attempt.",
            ["BS-182"],
            |scene| fails(scene, Staged, PoisonedFinish)
        ),
        behavior!(
            "failures.continued.atomic",
            "If an atomic attempt fails after it has continued its chain, the continuation is rolled back.",
            ["BS-183"],
            |scene| continued(scene, Atomic)
        ),
        behavior!(
            "failures.continued.staged",
            "If a staged attempt fails after it has continued its chain, the continuation is rolled back.",
            ["BS-184"],
            |scene| continued(scene, Staged)
        ),
        behavior!(
            "failures.blocker.atomic",
            "A blocker that fails after an atomic finish unblocks no job.",
            ["BS-185"],
            |scene| blocker(scene, Atomic)
        ),
        behavior!(
            "failures.blocker.staged",
            "A blocker that fails after a staged finish unblocks no job.",
            ["BS-186"],
            |scene| blocker(scene, Staged)
        ),
    ]
}

/// How an attempt uses transactions.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Mode {
    Atomic,
    Staged,
}

/// Where the first attempt fails.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Place {
    Begin,
    PoisonedBegin,
    BeforeFinish,
    InFinish,
    PoisonedFinish,
    AfterFinish,
}

job!(Risky { mode: Mode, place: Place } -> String);

async fn fails<S: Transactional>(scene: Scene<S>, mode: Mode, place: Place) {
    let stage = scene.clone();
    let worker =
        scene.worker().handle(move |a: Attempt<Risky, S>| risky(a, stage.clone())).start().await.unwrap();
    let chain = scene.client.start(Risky { mode, place }).await.unwrap();
    assert_eq!(scene.output(chain).await, "attempt 2 after Some(\"broken\")");
    assert!(!scene.is_marked("finish 1").await, "the writes of the failed attempt are rolled back");
    assert!(scene.is_marked("finish 2").await && scene.is_marked("begin 2").await);
    let prepared = mode == Mode::Staged && !matches!(place, Place::Begin | Place::PoisonedBegin);
    assert_eq!(scene.is_marked("begin 1").await, prepared, "only the preparation is kept");
    let about = |event: &Event| matches!(event, Event::JobCompleted(..) | Event::ChainClosed(..));
    scene.sees("the end is reported", 2, about).await;
    assert_eq!(scene.seen.count(about), 2, "it is reported once");
    scene.stop([worker]).await;
}

async fn risky<S: Transactional>(a: Attempt<Risky, S>, scene: Scene<S>) -> Result<Done<Risky, S>> {
    let fails = |place| if a.attempt() == 1 && a.input().place == place { Err("broken") } else { Ok(()) };
    let begin = format!("begin {}", a.attempt());
    let mut step = match a.input().mode {
        Mode::Staged => {
            let mut prepare = a.prepare().await?;
            scene.mark(prepare.tx(), &begin).await?;
            fails(Place::Begin)?;
            if fails(Place::PoisonedBegin).is_err() {
                scene.poison(prepare.tx()).await;
            }
            fails(Place::PoisonedBegin)?;
            prepare.commit().await?;
            fails(Place::BeforeFinish)?;
            a.begin().await?
        }
        Mode::Atomic => {
            fails(Place::Begin)?;
            let mut step = a.atomic().await?;
            scene.mark(step.tx(), &begin).await?;
            if fails(Place::PoisonedBegin).is_err() {
                scene.poison(step.tx()).await;
            }
            fails(Place::PoisonedBegin)?;
            fails(Place::BeforeFinish)?;
            step
        }
    };
    scene.mark(step.tx(), &format!("finish {}", a.attempt())).await?;
    fails(Place::InFinish)?;
    if fails(Place::PoisonedFinish).is_err() {
        scene.poison(step.tx()).await;
    }
    fails(Place::PoisonedFinish)?;
    let done = step.done(format!("attempt {} after {:?}", a.attempt(), a.job().error))?;
    fails(Place::AfterFinish)?;
    Ok(done)
}

/// Begins the transaction that completes the job.
async fn begin<S: Transactional, J: windlass_core::Job>(a: &Attempt<J, S>, mode: Mode) -> Result<Step<J, S>> {
    if mode == Mode::Atomic {
        return Ok(a.atomic().await?);
    }
    a.prepare().await?.commit().await?;
    Ok(a.begin().await?)
}

job!(First { mode: Mode } -> u32, then(Second));
job!(Second { from: u32 } -> u32);

async fn continued<S: Transactional>(scene: Scene<S>, mode: Mode) {
    async fn first<S: Transactional>(a: Attempt<First, S>) -> Result<Done<First, S>> {
        let done = begin(&a, a.input().mode).await?.then(Second { from: a.attempt() })?;
        if a.attempt() == 1 { Err("on second thought".into()) } else { Ok(done) }
    }
    async fn second(job: Ctx<Second>) -> Result<u32> {
        Ok(job.input().from)
    }
    let worker = scene.worker().handle(first::<S>).handle(second).start().await.unwrap();
    let chain = scene.client.start(First { mode }).await.unwrap();
    assert_eq!(scene.output(chain).await, 2, "the continuation of the second attempt");
    assert_eq!(scene.job(chain).await.index, 1, "there is no other continuation");
    let created = |event: &Event| matches!(event, Event::JobCreated(_));
    assert_eq!(scene.seen.count(created), 2);
    scene.stop([worker]).await;
}

job!(Blocker { mode: Mode } -> u32);
job!(Waits {} -> u32, blocked_by (Blocker,));

async fn blocker<S: Transactional>(scene: Scene<S>, mode: Mode) {
    let (reached, go) = (Gate::new(), Gate::new());
    let (at, gate) = (reached.clone(), go.clone());
    let blocker = move |a: Attempt<Blocker, S>| {
        let (at, gate) = (at.clone(), gate.clone());
        async move {
            if a.attempt() == 2 {
                at.open(1);
                gate.pass().await;
            }
            let done = begin(&a, a.input().mode).await?.done(a.attempt())?;
            if a.attempt() == 1 { Err(BoxError::from("broken")) } else { Ok(done) }
        }
    };
    async fn waits(job: Ctx<Waits>) -> Result<u32> {
        Ok(job.blockers().0)
    }
    let blocking = scene.client.start(Blocker { mode }).await.unwrap();
    let chain = scene.client.start(Waits {}).blocked_by((blocking,)).await.unwrap();
    let worker = scene.worker().concurrency(2).handle(blocker).handle(waits).start().await.unwrap();
    scene.soon("the blocker is retried", reached.pass()).await;
    assert_eq!(scene.job(chain).await.status, Status::Blocked);
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobUnblocked(_))), 0);
    go.open(1);
    assert_eq!(scene.output(chain).await, 2);
    scene.stop([worker]).await;
}

job!(Throw { how: u32 } -> (), options JobOptions { max_attempts: Some(1), ..quick() });

#[derive(Debug)]
struct Outer(Inner);

#[derive(Debug)]
struct Inner;

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the page is not read")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk is wet")
    }
}

impl std::error::Error for Inner {}

async fn texts<S: Store>(scene: Scene<S>) {
    async fn throw(job: Ctx<Throw>) -> Result<()> {
        match job.input().how {
            0 => Err("plain text".into()),
            1 => Err(String::new().into()),
            2 => Err(Box::new(Outer(Inner))),
            3 => Err("ä\0\u{1F600}".into()),
            4 => panic!("a text"),
            5 => panic!("number {}", job.input().how),
            _ => std::panic::panic_any(7),
        }
    }
    let expected = [
        "plain text",
        "",
        "the page is not read: the disk is wet",
        "ä\u{fffd}\u{1F600}",
        "the handler panicked: a text",
        "the handler panicked: number 5",
        "the handler panicked: no message",
    ];
    let worker = scene.worker().handle(throw).start().await.unwrap();
    for (how, text) in (0..).zip(expected) {
        let chain = scene.client.start(Throw { how }).await.unwrap();
        let error = scene.result(chain).await.unwrap_err();
        assert_eq!(error.job_error().map(windlass_core::ErrorText::as_str), Some(text));
    }
    scene.stop([worker]).await;
}
