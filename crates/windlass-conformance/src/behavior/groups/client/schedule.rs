//! Delayed jobs.

use std::time::Duration;

use windlass_core::{JobRecord, Key, Millis, Target, Timestamp, TypeName, plan};

use super::super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    use Later::{After, At, Past};
    vec![
        behavior!(
            "schedule.start.after",
            "A chain started with a delay runs after that delay.",
            ["BS-052"],
            |scene| starts(scene, After)
        ),
        behavior!(
            "schedule.start.at",
            "A chain started for a time runs at that time.",
            ["BS-053"],
            |scene| starts(scene, At)
        ),
        behavior!(
            "schedule.continue.after",
            "A continuation with a delay runs after that delay.",
            ["BS-054"],
            |scene| continues(scene, After)
        ),
        behavior!(
            "schedule.continue.at",
            "A continuation scheduled for a time runs at that time.",
            ["BS-055"],
            |scene| { continues(scene, At) }
        ),
        behavior!(
            "schedule.again.after",
            "A job rescheduled with a delay runs again after it, and the attempt does not count.",
            ["BS-056"],
            |scene| runs_again(scene, After)
        ),
        behavior!(
            "schedule.recurring",
            "A recurring job starts its successor when it completes, and the successor takes over its key.",
            ["BS-057"],
            recurring
        ),
        behavior!(
            "schedule.again.at",
            "A job rescheduled for a time runs again at that time, and the attempt does not count.",
            ["BS-058"],
            |scene| runs_again(scene, At)
        ),
        behavior!(
            "schedule.start.past",
            "A start for a time in the past is due now and does not overtake other jobs.",
            ["BS-059"],
            |scene| starts(scene, Past)
        ),
        behavior!(
            "schedule.continue.past",
            "A continuation scheduled for a time in the past is due now.",
            ["BS-060"],
            |scene| continues(scene, Past)
        ),
        behavior!(
            "schedule.again.past",
            "A job rescheduled for a time in the past runs again immediately.",
            ["BS-061"],
            |scene| runs_again(scene, Past)
        ),
    ]
}

/// How a job is delayed.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Later {
    After,
    At,
    Past,
}

const DELAY: Duration = Duration::from_millis(80);

/// Returns a time in the future, relative to a time of the store's clock.
fn to_come(now: Timestamp) -> Timestamp {
    now + Millis::try_from(DELAY).unwrap()
}

/// Asserts that a job that was delayed at `asked_at` or later was due and ran when it should.
fn assert_in_time(later: Later, asked_at: Timestamp, job: &JobRecord) {
    let started_at = job.started_at.expect("it was run");
    assert!(started_at >= job.due_at, "{job:?}");
    let earliest = if later == Later::Past { asked_at } else { to_come(asked_at) };
    assert!(job.due_at >= earliest, "{job:?}");
}

job!(First { later: Later } -> i64, then(Second));
job!(Second { asked_at: i64 } -> i64);
job!(Again { later: Later } -> u32);

async fn second(job: Ctx<Second>) -> Result<i64> {
    Ok(job.input().asked_at)
}

async fn starts<S: Store>(scene: Scene<S>, later: Later) {
    let worker = scene.worker().handle(second).start().await.unwrap();
    let clock = scene.client.start(Second { asked_at: 0 }).await.unwrap();
    let now = scene.job(clock).await.created_at;
    let start = scene.client.start(Second { asked_at: 1 });
    let start = match later {
        Later::After => start.after(DELAY),
        Later::At => start.at(to_come(now)),
        Later::Past => start.at(Timestamp::default()),
    };
    let chain = start.await.unwrap();
    scene.output(chain).await;
    let job = scene.job(chain).await;
    assert_in_time(later, now, &job);
    if later == Later::Past {
        assert_eq!(job.due_at, job.created_at);
    }
    scene.stop([worker]).await;
}

async fn continues<S: Store>(scene: Scene<S>, later: Later) {
    async fn first(job: Ctx<First>) -> Result<Next<First>> {
        let asked_at = job.job().started_at.unwrap();
        let second = next(Second { asked_at: asked_at.as_millis() });
        Ok(Next::then(match job.input().later {
            Later::After => second.after(DELAY),
            Later::At => second.at(to_come(asked_at)),
            Later::Past => second.at(Timestamp::default()),
        }))
    }
    let worker = scene.worker().handle(first).handle(second).start().await.unwrap();
    let chain = scene.client.start(First { later }).await.unwrap();
    let asked_at = Timestamp::from_millis(scene.output(chain).await).unwrap();
    assert_in_time(later, asked_at, &scene.job(chain).await);
    scene.stop([worker]).await;
}

async fn runs_again<S: Store>(scene: Scene<S>, later: Later) {
    let runs = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&runs);
    let again = move |job: Ctx<Again>| {
        let mut runs = noted.lock().unwrap();
        runs.push(job.job().clone());
        let (count, now) = (runs.len(), job.job().started_at.unwrap());
        let next = match job.input().later {
            _ if count == 3 => Next::<Again>::done(job.attempt()),
            Later::After => Next::reschedule(DELAY).because("not yet"),
            Later::At => Next::reschedule_at(to_come(now)).because("not yet"),
            Later::Past => Next::reschedule_at(Timestamp::default()).because("not yet"),
        };
        async move { Ok::<_, BoxError>(next) }
    };
    let worker = scene.worker().handle(again).start().await.unwrap();
    let chain = scene.client.start(Again { later }).await.unwrap();
    assert_eq!(scene.output(chain).await, 1, "none of the attempts before counts");
    let runs = runs.lock().unwrap().clone();
    for pair in runs.windows(2) {
        assert_in_time(later, pair[0].started_at.unwrap(), &pair[1]);
        assert_eq!(pair[1].error.as_ref().map(windlass_core::ErrorText::as_str), Some("not yet"));
    }
    scene.stop([worker]).await;
}

job!(Tick { count: u32 } -> u32);

async fn recurring<S: Store>(scene: Scene<S>) {
    async fn tick(job: Ctx<Tick>) -> Result<Next<Tick>> {
        let count = job.input().count;
        let done = Next::done(count);
        if count == 3 {
            return Ok(done);
        }
        let next = plan(Tick { count: count + 1 }).key("tick").replaces(job.chain::<Tick>());
        Ok(done.start(next.after(Duration::from_millis(10))))
    }
    let first = scene.client.start(Tick { count: 0 }).key("tick").await.unwrap();
    let worker = scene.worker().handle(tick).start().await.unwrap();
    let key = Target::Key(TypeName::new("Tick").unwrap(), Key::new("tick").unwrap());
    let last = scene
        .soon("the last run completes", async {
            loop {
                let chain =
                    scene.client.chain(key.clone()).await.unwrap().expect("a chain always holds the key");
                let output = chain.output().map(|output| output.decode::<u32>().unwrap());
                if output == Some(3) {
                    return chain;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    assert_ne!(last.id, first.id());
    assert_eq!(scene.output(first).await, 0);
    let created = |event: &Event| matches!(event, Event::ChainCreated(_));
    assert_eq!(scene.seen.count(created), 4, "each run is its own chain, and no run has two successors");
    scene.stop([worker]).await;
}
