//! Triggering delayed jobs, so that they are due immediately.

use std::time::Duration;

use windlass_core::command::{TriggerReply, Triggered, Untriggerable};
use windlass_core::{Chain, ChainId, Target, Transactional, plan};

use super::super::prelude::*;
use super::{TRIGGER, end};

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!("trigger.due", "Triggering a scheduled job makes it due now.", ["BS-062"], [TRIGGER], due),
        behavior!("trigger.run", "A triggered job runs immediately.", ["BS-063"], [TRIGGER], run),
        behavior!(
            "trigger.unknown",
            "A job that is not stored cannot be triggered.",
            ["BS-064"],
            [TRIGGER],
            unknown
        ),
        behavior!(
            "trigger.completed",
            "A job that has completed cannot be triggered.",
            ["BS-065"],
            [TRIGGER],
            completed
        ),
        behavior!(
            "trigger.blocked",
            "A job that waits for blockers cannot be triggered.",
            ["BS-067"],
            [TRIGGER],
            blocked
        ),
        behavior!(
            "trigger.many",
            "One command can trigger many jobs and returns them in order.",
            ["BS-068"],
            [TRIGGER],
            many
        ),
        behavior!("trigger.none", "Triggering no jobs is not an error.", ["BS-069"], [TRIGGER], none),
        behavior!(
            "trigger.many.unknown",
            "If one of many jobs is not stored, none is triggered.",
            ["BS-070"],
            [TRIGGER],
            many_unknown
        ),
        behavior!(
            "trigger.many.not_pending",
            "If one of many jobs is not pending, none is triggered.",
            ["BS-071"],
            [TRIGGER],
            many_not_pending
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    // The sources require a transaction for this. Here it works with and without one.
    vec![behavior!(
        "trigger.transaction",
        "A trigger takes effect immediately, or when its transaction commits, or never if it is rolled back.",
        ["BS-066", "BS-072"],
        [TRIGGER],
        transaction
    )]
}

job!(Alarm { number: u32 } -> u32);
job!(Snooze {} -> u32, blocked_by (Alarm,));

const HOUR: Duration = Duration::from_secs(3_600);

async fn alarm(job: Ctx<Alarm>) -> Result<u32> {
    Ok(job.input().number)
}

async fn later<S: Store>(scene: &Scene<S>, count: u32) -> Vec<Chain<Alarm>> {
    let plans = (0..count).map(|number| plan(Alarm { number }).after(HOUR));
    scene.client.start_many(plans).await.unwrap()
}

/// Whether the job is still delayed by an hour.
async fn is_late<S: Store>(scene: &Scene<S>, chain: Chain<Alarm>) -> bool {
    let job = scene.job(chain).await;
    job.due_at.since(job.created_at) == HOUR
}

fn triggered(reply: TriggerReply) -> Vec<Triggered> {
    match reply {
        TriggerReply::Triggered(jobs) => jobs,
        TriggerReply::Refused(why) => panic!("refused: {why:?}"),
    }
}

async fn due<S: Store>(scene: Scene<S>) {
    let chain = later(&scene, 1).await[0];
    let before = scene.job(chain).await;
    let jobs = triggered(scene.client.trigger(chain).await.unwrap());
    let job = scene.job(chain).await;
    assert!(job.due_at < before.due_at && job.due_at >= job.created_at);
    assert_eq!((job.status, job.attempt, job.input == before.input), (Status::Pending, 0, true));
    assert_eq!((jobs[0].job.job, jobs[0].job.due_at), (job.id, job.due_at));
}

async fn run<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(alarm).start().await.unwrap();
    let chain = later(&scene, 1).await[0];
    triggered(scene.client.trigger(Target::Job(chain.id().first_job())).await.unwrap());
    assert_eq!(scene.output(chain).await, 0);
    scene.stop([worker]).await;
}

/// Tries to trigger only this target, and checks the refusal.
async fn refused<S: Store>(scene: &Scene<S>, target: Target, why: Untriggerable) {
    let reply = scene.client.trigger(target).await.unwrap();
    assert_eq!(reply, TriggerReply::Refused(vec![Some(why)]));
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobTriggered(_))), 0);
}

async fn unknown<S: Store>(scene: Scene<S>) {
    refused(&scene, ChainId::new().into(), Untriggerable::NotFound).await;
    refused(&scene, Target::Job(ChainId::new().first_job()), Untriggerable::NotFound).await;
}

async fn completed<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(alarm).start().await.unwrap();
    let chain = scene.client.start(Alarm { number: 1 }).await.unwrap();
    scene.output(chain).await;
    refused(&scene, chain.into(), Untriggerable::NotPending(Status::Completed)).await;
    scene.stop([worker]).await;
}

async fn blocked<S: Store>(scene: Scene<S>) {
    let blocker = later(&scene, 1).await[0];
    let chain = scene.client.start(Snooze {}).blocked_by((blocker,)).await.unwrap();
    refused(&scene, chain.into(), Untriggerable::NotPending(Status::Blocked)).await;
    assert_eq!(scene.job(chain).await.status, Status::Blocked);
}

async fn many<S: Store>(scene: Scene<S>) {
    let chains = later(&scene, 3).await;
    let order = [chains[2], chains[0], chains[1]];
    let jobs = triggered(scene.client.trigger_many(order.map(Target::from).to_vec()).await.unwrap());
    assert_eq!(jobs.iter().map(|job| job.job.chain).collect::<Vec<_>>(), order.map(|chain| chain.id()));
    for chain in chains {
        assert!(!is_late(&scene, chain).await);
    }
}

async fn none<S: Store>(scene: Scene<S>) {
    assert_eq!(triggered(scene.client.trigger_many(Vec::new()).await.unwrap()), []);
}

/// Tries to trigger a target that can be triggered together with one that cannot. Checks that neither is.
async fn all_or_none<S: Store>(scene: &Scene<S>, other: Target, why: Untriggerable) {
    let chain = later(scene, 1).await[0];
    let reply = scene.client.trigger_many(vec![chain.into(), other]).await.unwrap();
    assert_eq!(reply, TriggerReply::Refused(vec![None, Some(why)]));
    assert!(is_late(scene, chain).await);
}

async fn many_unknown<S: Store>(scene: Scene<S>) {
    all_or_none(&scene, ChainId::new().into(), Untriggerable::NotFound).await;
}

async fn many_not_pending<S: Store>(scene: Scene<S>) {
    let blocker = later(&scene, 1).await[0];
    let chain = scene.client.start(Snooze {}).blocked_by((blocker,)).await.unwrap();
    all_or_none(&scene, chain.into(), Untriggerable::NotPending(Status::Blocked)).await;
}

async fn transaction<S: Transactional>(scene: Scene<S>) {
    let chains = later(&scene, 3).await;
    triggered(scene.client.trigger(chains[0]).await.unwrap());
    assert!(!is_late(&scene, chains[0]).await);
    for commits in [false, true] {
        let mut tx = scene.client.begin().await.unwrap();
        triggered(tx.trigger_many(chains[1..].iter().map(|chain| (*chain).into()).collect()).await.unwrap());
        assert!(is_late(&scene, chains[1]).await, "it is not visible before the commit");
        end(tx, commits).await;
        for chain in &chains[1..] {
            assert_eq!(is_late(&scene, *chain).await, !commits);
        }
    }
}
