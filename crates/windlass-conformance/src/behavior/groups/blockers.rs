//! Jobs that wait for whole chains.

use windlass_core::Rest;

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "blockers.long_chain",
            "A job waits for all steps of a blocker chain and receives its output.",
            ["BS-033"],
            long_chain
        ),
        behavior!(
            "blockers.completed_before",
            "A job whose blockers completed before it was started runs immediately.",
            ["BS-034"],
            completed_before
        ),
        behavior!(
            "blockers.other_worker",
            "A blocker and its dependent can run in different workers.",
            ["BS-036"],
            other_worker
        ),
        behavior!(
            "blockers.several",
            "The outputs of several blockers are typed and in the order in which they were declared.",
            ["BS-037"],
            several
        ),
        behavior!("blockers.continuation", "A continuation can wait for blockers.", ["BS-038"], continuation),
        behavior!(
            "blockers.batch",
            "A job can wait for blockers that were started in one batch, in whatever order they end.",
            ["BS-039"],
            batch
        ),
        behavior!(
            "blockers.shared",
            "A blocker with many dependents unblocks all of them.",
            ["BS-040"],
            shared
        ),
        behavior!(
            "blockers.due_when_unblocked",
            "An unblocked job is due at the time it is unblocked or later, so it does not overtake earlier jobs.",
            ["BS-041"],
            due_when_unblocked
        ),
    ]
}

job!(Part { number: u32 } -> u32, then(Part));
job!(Whole {} -> Vec<u32>, blocked_by Vec<Part>);
job!(Report { title: String } -> String, blocked_by (Part, Note, Rest<Part>));
job!(Note { text: String } -> String);
job!(Begin {} -> Vec<u32>, then(Whole));

/// Counts up to the next multiple of ten.
async fn part(job: Ctx<Part>) -> Result<Next<Part>> {
    let number = job.input().number + 1;
    Ok(if number.is_multiple_of(10) { Next::done(number) } else { Next::then(Part { number }) })
}

async fn whole(job: Ctx<Whole>) -> Result<Vec<u32>> {
    Ok(job.blockers().clone())
}

async fn long_chain<S: Store>(scene: Scene<S>) {
    let blocker = scene.client.start(Part { number: 3 }).await.unwrap();
    let chain = scene.client.start(Whole {}).blocked_by(vec![blocker]).await.unwrap();
    assert_eq!(scene.job(chain).await.status, Status::Blocked);
    let worker = scene.worker().concurrency(4).handle(part).handle(whole).start().await.unwrap();
    assert_eq!(scene.output(chain).await, [10]);
    let (blocker, job) = (scene.job(blocker).await, scene.job(chain).await);
    assert_eq!(blocker.index, 6, "seven steps");
    assert!(job.started_at >= blocker.closed_at, "it waited for the last of them");
    scene.stop([worker]).await;
}

async fn completed_before<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(part).handle(whole).start().await.unwrap();
    let blocker = scene.client.start(Part { number: 9 }).await.unwrap();
    scene.output(blocker).await;
    let chain = scene.client.start(Whole {}).blocked_by(vec![blocker]).await.unwrap();
    assert_eq!(scene.output(chain).await, [10]);
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobBlocked(_))), 0, "it never waited");
    scene.stop([worker]).await;
}

async fn other_worker<S: Store>(scene: Scene<S>) {
    let blocker = scene.client.start(Part { number: 8 }).await.unwrap();
    let chain = scene.other.start(Whole {}).blocked_by(vec![blocker]).await.unwrap();
    let worker = scene.worker().handle(part).start().await.unwrap();
    let other = scene.other_worker().handle(whole).start().await.unwrap();
    assert_eq!(scene.output(chain).await, [10]);
    assert_eq!(scene.job(chain).await.closed_by, Some(other.id()));
    scene.stop([worker, other]).await;
}

async fn several<S: Store>(scene: Scene<S>) {
    async fn note(job: Ctx<Note>) -> Result<String> {
        Ok(job.input().text.to_uppercase())
    }
    async fn report(job: Ctx<Report>) -> Result<String> {
        let (first, note, rest) = job.blockers();
        Ok(format!("{}: {first} {note} {rest:?}", job.input().title))
    }
    let start = async |number| scene.client.start(Part { number }).await.unwrap();
    let (first, rest) = (start(7).await, vec![start(26).await, start(15).await]);
    let note_chain = scene.client.start(Note { text: "hi".into() }).await.unwrap();
    let chain = scene.client.start(Report { title: "sums".into() });
    let chain = chain.blocked_by((first, note_chain, rest)).await.unwrap();
    let worker =
        scene.worker().concurrency(2).handle(part).handle(note).handle(report).start().await.unwrap();
    assert_eq!(scene.output(chain).await, "sums: 10 HI [30, 20]");
    scene.stop([worker]).await;
}

async fn continuation<S: Store>(scene: Scene<S>) {
    let client = scene.client.clone();
    let begin = move |_: Ctx<Begin>| {
        let client = client.clone();
        async move {
            let blockers = client.start_many([Part { number: 8 }, Part { number: 18 }]).await?;
            Ok::<_, BoxError>(Next::then(next(Whole {}).blocked_by(blockers)))
        }
    };
    let worker = scene.worker().handle(begin).handle(part).handle(whole).start().await.unwrap();
    let chain = scene.client.start(Begin {}).await.unwrap();
    assert_eq!(scene.output(chain).await, [10, 20]);
    assert_eq!(scene.job(chain).await.blockers.len(), 2);
    scene.stop([worker]).await;
}

async fn batch<S: Store>(scene: Scene<S>) {
    let blockers = scene.client.start_many((0..30).map(|number| Part { number })).await.unwrap();
    let chain = scene.client.start(Whole {}).blocked_by(blockers).await.unwrap();
    let workers = [
        scene.worker().concurrency(8).handle(part).handle(whole).start().await.unwrap(),
        scene.other_worker().concurrency(8).handle(part).handle(whole).start().await.unwrap(),
    ];
    let expected: Vec<_> = (0..30).map(|number| (number / 10 + 1) * 10).collect();
    assert_eq!(scene.output(chain).await, expected);
    scene.stop(workers).await;
}

async fn shared<S: Store>(scene: Scene<S>) {
    let blocker = scene.client.start(Part { number: 9 }).await.unwrap();
    let mut chains = Vec::new();
    for _ in 0..20 {
        chains.push(scene.client.start(Whole {}).blocked_by(vec![blocker]).await.unwrap());
    }
    let worker = scene.worker().concurrency(4).handle(part).handle(whole).start().await.unwrap();
    for chain in chains {
        assert_eq!(scene.output(chain).await, [10]);
    }
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobUnblocked(_))), 20);
    scene.stop([worker]).await;
}

async fn due_when_unblocked<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let said = lines.clone();
    let note = move |job: Ctx<Note>| {
        said.add(job.input().text.clone());
        async { Ok::<_, BoxError>(String::new()) }
    };
    let said = lines.clone();
    let whole = move |_: Ctx<Whole>| {
        said.add("unblocked");
        async { Ok::<_, BoxError>(Vec::new()) }
    };
    let blocker = scene.client.start(Part { number: 9 }).await.unwrap();
    let blocked = scene.client.start(Whole {}).blocked_by(vec![blocker]).await.unwrap();
    let waiting = scene.client.start(Note { text: "waiting".into() }).await.unwrap();
    scene.past(scene.job(waiting).await.due_at).await;
    let first = scene.worker().handle(part).start().await.unwrap();
    let job = scene.job_that("the job is unblocked", blocked, |job| job.status == Status::Pending).await;
    assert!(Some(job.due_at) >= scene.job(blocker).await.closed_at);
    let second = scene.worker().handle(whole).handle(note).start().await.unwrap();
    scene.output(blocked).await;
    assert_eq!(lines.all(), ["waiting", "unblocked"]);
    scene.stop([first, second]).await;
}
