//! Leases that are kept regardless of what the handlers do.

use std::thread;

use windlass_core::command::{NextDue, Outcome, Renew, RenewLease, Types};
use windlass_core::{
    AnyAttempt, Attempt, BoxFuture, Capability, Done, HandlerOptions, Job, JobRecord, Millis, Payload,
    Timestamp, TypeName,
};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "leases.renewed",
            "A lease is renewed while its attempt runs, so that no other worker takes the job.",
            ["never 11"],
            renewed
        ),
        behavior!(
            "leases.from_the_start",
            "A running job always has a lease.",
            ["A8.7", "never 7"],
            from_the_start
        ),
        behavior!(
            "leases.blocked_executor",
            "A handler that blocks its thread for a second affects no other job, and completes once.",
            ["never 11", "bad input"],
            blocked_executor
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "leases.long_transaction",
            "If a transaction locks a job's row for longer than a lease, the worker loses no lease.",
            ["never 11"],
            [Need::Store(Capability::NextDue)],
            long_transaction
        ),
        behavior!(
            "leases.no_transaction",
            "A staged attempt has no open transaction while it works.",
            ["A8.6"],
            no_transaction
        ),
    ]
}

job!(Leased { number: u32 } -> u32, options JobOptions {
    lease: Some(Duration::from_secs(10)),
    renewal: Some(Duration::from_millis(100)),
    ..quick()
});

/// Returns a handler that opens `started`, waits at `go`, and returns its attempt number.
fn waits(
    started: &Gate,
    go: &Gate,
) -> impl Fn(Ctx<Leased>) -> BoxFuture<'static, Result<u32>> + Clone + use<> {
    let (started, go) = (started.clone(), go.clone());
    move |job: Ctx<Leased>| {
        let (started, go) = (started.clone(), go.clone());
        Box::pin(async move {
            started.open(1);
            go.pass().await;
            Ok(job.attempt())
        })
    }
}

async fn renewed<S: Store>(scene: Scene<S>) {
    let (started, go) = (Gate::new(), Gate::new());
    let worker = scene.worker().handle(waits(&started, &go)).start().await.unwrap();
    let chain = scene.client.start(Leased { number: 1 }).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    let reaper = scene.other_worker().handle(waits(&started, &go)).start().await.unwrap();
    let first = scene.job(chain).await.lease.unwrap().until;
    let later = |until: Timestamp| until.since(first) > Duration::from_millis(250);
    let moved = |job: &JobRecord| job.lease.as_ref().is_some_and(|lease| later(lease.until));
    scene.job_that("the lease is renewed", chain, moved).await;
    go.open(1);
    assert_eq!(scene.output(chain).await, 1);
    scene.stop([worker, reaper]).await;
}

async fn from_the_start<S: Store>(scene: Scene<S>) {
    let stage = scene.clone();
    let look = move |job: Ctx<Leased>| {
        let stage = stage.clone();
        async move {
            let stored = stage.other.job(job.job().id).await?.unwrap();
            assert_eq!(stored.status, Status::Running);
            assert!(stored.lease.is_some_and(|lease| lease.until > stored.started_at.unwrap()));
            Ok::<_, BoxError>(job.input().number)
        }
    };
    let worker = scene.worker().concurrency(3).handle(look).start().await.unwrap();
    let chains = scene.client.start_many((0..6).map(|number| Leased { number })).await.unwrap();
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
        assert_eq!(scene.job(chain).await.attempt, 1);
    }
    scene.stop([worker]).await;
}

async fn blocked_executor<S: Store>(scene: Scene<S>) {
    async fn blocks(job: Ctx<Leased>) -> Result<u32> {
        if job.input().number == 0 {
            thread::sleep(Duration::from_secs(1));
        }
        Ok(job.input().number)
    }
    let workers = [
        scene.worker().concurrency(2).handle(blocks).start().await.unwrap(),
        scene.other_worker().concurrency(2).handle(blocks).start().await.unwrap(),
    ];
    let chains = scene.client.start_many((0..10).map(|number| Leased { number })).await.unwrap();
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
    }
    let completed = |event: &Event| matches!(event, Event::JobCompleted(..));
    scene.sees("each end is reported", 10, completed).await;
    scene.stop(workers).await;
    assert_eq!(scene.seen.count(completed), 10, "each ended once");
}

/// Lease of the jobs in the case whose transaction lasts longer. It is long enough for a slow process to renew in time.
const LEASE: Duration = Duration::from_secs(4);

/// Renewal interval of the other worker. Its reaps leave owners this much time to renew after the transaction, which is
/// enough for a slow process.
const GRACE: Duration = Duration::from_secs(5);

job!(Held { number: u32 } -> u32, options JobOptions { lease: Some(LEASE), renewal: Some(LEASE / 10), ..quick() });

async fn long_transaction<S: Transactional>(scene: Scene<S>) {
    async fn held(attempt: AnyAttempt) -> Result<Outcome> {
        Ok(Outcome::complete(Payload::encode(&(100 + attempt.attempt()))?))
    }
    let lease_left = Millis::try_from(LEASE / 2).unwrap();
    let (stage, started, go) = (scene.clone(), Gate::new(), Gate::new());
    let (at, gate) = (started.clone(), go.clone());
    let handler = move |a: Attempt<Held, S>| {
        let (stage, at, gate) = (stage.clone(), at.clone(), gate.clone());
        async move {
            if a.input().number > 0 {
                at.open(1);
                gate.pass().await;
                return Ok::<Done<Held, S>, BoxError>(a.begin().await?.done(a.attempt())?);
            }
            // Begin the transaction when the three other attempts and the other worker run, and hold the row of this
            // attempt's job until the end.
            for _ in 0..4 {
                at.pass().await;
            }
            let mut step = a.atomic().await?;
            let (job, fence, lease) = (a.job().id, a.job().fence, Millis::try_from(LEASE)?);
            let renew = Renew { leases: vec![RenewLease { job, fence, lease }] };
            let now = stage.store.run_in(step.tx().into(), renew).await?.now;
            stage.reads_past(now + Millis::try_from(LEASE + LEASE / 5)?).await;
            Ok(step.done(a.attempt())?)
        }
    };
    let chains = scene.client.start_many((0..4).map(|number| Held { number })).await.unwrap();
    let worker = scene.worker().concurrency(4).handle(handler).start().await.unwrap();
    scene.sees("all run", 4, |event| matches!(event, Event::AttemptStarted(_))).await;
    let rarely = HandlerOptions::new().lease(2 * GRACE).renewal(GRACE);
    let held_type = TypeName::new(Held::NAME).unwrap();
    let reaper = scene.other_worker().handle_any(&held_type, rarely, held).start().await.unwrap();
    started.open(1);
    assert_eq!(scene.output(chains[0]).await, 1);
    let ended = scene.job(chains[0]).await.closed_at.unwrap();
    for chain in &chains[1..] {
        let is_settled =
            |job: &JobRecord| job.lease.as_ref().is_none_or(|lease| lease.until > ended + lease_left);
        scene.job_that("its lease is renewed after that, or was lost", *chain, is_settled).await;
    }
    go.open(3);
    for chain in chains {
        assert_eq!(scene.output(chain).await, 1, "no other worker had to run it");
    }
    scene.stop([worker, reaper]).await;
}

impl<S: Store> Scene<S> {
    /// Waits until the store's clock has passed this time, without writing.
    pub(super) async fn reads_past(&self, time: Timestamp) {
        while self.reads_time().await <= time {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the store's current time.
    pub(super) async fn reads_time(&self) -> Timestamp {
        self.other.store().next_due(NextDue { types: Types::All }).await.unwrap().now
    }
}

job!(Staged { number: u32 } -> u32);

async fn no_transaction<S: Transactional>(scene: Scene<S>) {
    let (stage, started, go) = (scene.clone(), Gate::new(), Gate::new());
    let (at, gate) = (started.clone(), go.clone());
    let staged = move |a: Attempt<Staged, S>| {
        let (stage, at, gate) = (stage.clone(), at.clone(), gate.clone());
        async move {
            let mut prepare = a.prepare().await?;
            let name = format!("prepared {} in attempt {}", a.input().number, a.attempt());
            stage.mark(prepare.tx(), &name).await?;
            prepare.commit().await?;
            at.open(1);
            gate.pass().await;
            Ok::<Done<Staged, S>, BoxError>(a.begin().await?.done(a.input().number)?)
        }
    };
    let worker = scene.worker().concurrency(30).handle(staged).start().await.unwrap();
    let chains = scene.client.start_many((0..30).map(|number| Staged { number })).await.unwrap();
    for _ in 0..30 {
        scene.soon("all handlers run concurrently", started.pass()).await;
    }
    let mut tx = scene.soon("a transaction begins meanwhile", scene.other.begin()).await.unwrap();
    scene.mark(tx.tx(), "meanwhile").await.unwrap();
    scene.soon("and commits", tx.commit()).await.unwrap();
    assert!(scene.is_marked("meanwhile").await);
    go.open(30);
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
    }
    scene.stop([worker]).await;
}
