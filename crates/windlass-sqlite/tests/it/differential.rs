//! The store returns the same replies as the model.

use std::sync::Arc;

use fastrand::Rng;
use windlass_conformance::{Tally, random};
use windlass_core::command::{
    Acquired, Command, Create, CreateReply, Durability, Exchange, Expire, GetJobs, NewChain, NextJob,
    Outcome, Reap, Reply, Ripple, Settle, SettleReply, Settled, Settlement, Types,
};
use windlass_core::model::Model;
use windlass_core::{
    Capabilities, ChainId, Clock, ErrorText, JobId, Millis, OnBlockerFailure, Payload, Refusal, Retention,
    Store,
};

use crate::fixture::Sqlite;
use crate::{File, new_chain};

const POLICIES: [OnBlockerFailure; 3] =
    [OnBlockerFailure::Wait, OnBlockerFailure::Fail, OnBlockerFailure::Receive];

const SEEDS: u64 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_get_the_replies_of_the_model() {
    let commands = if std::env::var_os("WINDLASS_FULL").is_some() { 100_000 } else { 10_000 };
    let mut tally = Tally::default();
    for seed in 0..SEEDS {
        tally.add(&random(&Sqlite::default(), seed, commands / SEEDS as usize).await);
    }
    println!("{tally}");
    tally.assert_thorough(Capabilities::all());
    tally.assert_rolled_back();
}

/// If there are more dependents than one command resolves, later commands resolve the rest, in the same order as in the
/// model.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_dependents_are_resolved_as_in_the_model() {
    let mut both = Both::new().await;
    let mut random = Rng::with_seed(7);
    let mut blockers: Vec<_> = (0..4).map(|_| new_chain()).collect();
    both.create(blockers.clone()).await;
    let held = both.acquire(4).await;
    for _ in 0..4 {
        let dependents = (0..1_000).map(|_| {
            let count = random.usize(1..3);
            let of = (0..count).map(|_| blockers[random.usize(..blockers.len())].id).collect::<Vec<_>>();
            blocked_by(&of, POLICIES[random.usize(..3)])
        });
        let dependents: Vec<_> = dependents.collect();
        blockers.extend(dependents.iter().take(5).cloned());
        both.create(dependents).await;
    }
    // Both parts of an exchange share the limit on resolved dependents.
    let outcomes = [complete(Vec::new()), fail()];
    let settle = settle(held.iter().zip(outcomes.iter().cloned().cycle()));
    both.check(Exchange { settle, acquire: crate::acquire(5) }).await;
    let mut resolved = 0;
    loop {
        let Reply::Reap(reaped) = both.check(reap(9)).await else { panic!("a reap") };
        let Reply::Acquire(acquired) = both.check(crate::acquire(5)).await else { panic!("an acquire") };
        let count = |ripple: &Ripple| ripple.unblocked.len() + ripple.closed.len();
        let more = count(&reaped.ripple) + count(&acquired.ripple);
        resolved += more;
        if more == 0 {
            break;
        }
    }
    assert!(resolved > 500, "only {resolved} were left to later commands");
}

/// Commands with a small limit leave the same rest as in the model.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_limits_leave_the_same_rest_as_the_model() {
    let (mut both, mut random) = (Both::new().await, Rng::with_seed(11));
    let (mut chains, mut jobs): (Vec<ChainId>, Vec<JobId>) = (Vec::new(), Vec::new());
    let (mut cut_short, mut reaped) = (0, 0);
    for _ in 0..150 {
        let count = random.usize(..4);
        let of: Vec<_> = (0..count.min(chains.len())).map(|_| chains[random.usize(..chains.len())]).collect();
        let mut new = blocked_by(&of, POLICIES[random.usize(..3)]);
        let mut span = || Millis::new(random.u64(..4) * 400_000).unwrap();
        new.retention = Retention { completed: span(), failed: span(), cancelled: span() };
        chains.push(new.id);
        jobs.push(new.id.first_job());
        // Only use the latest chains as blockers. Older ones may be removed already, and creation would be refused.
        chains.drain(..chains.len().saturating_sub(6));
        both.create(vec![new]).await;

        let held = both.acquire(4).await;
        let outcome = |_: &Acquired| match random.u8(..8) {
            0..4 => Some(Outcome::Continue {
                next: NextJob { id: JobId::new(), job: new_chain().job },
                create: Vec::new(),
            }),
            4 => Some(complete(Vec::new())),
            5 => Some(fail()),
            _ => None,
        };
        let outcomes: Vec<_> = held.iter().map(outcome).collect();
        let next = outcomes.iter().flatten().filter_map(|outcome| match outcome {
            Outcome::Continue { next, .. } => Some(next.id),
            _ => None,
        });
        jobs.extend(next);
        both.settle(held.iter().zip(outcomes).filter_map(|(held, outcome)| Some((held, outcome?)))).await;
        both.file.clock.advance(Millis::new(random.u64(..200_000)).unwrap());
        let Reply::Reap(reap) = both.check(reap(random.u32(..3))).await else { panic!("a reap") };
        reaped += reap.reaped.len();
        let Reply::Expire(expire) = both.check(Expire { max: random.u32(2..7) }).await else {
            panic!("an expiry")
        };
        cut_short += usize::from(expire.more);
        let latest = jobs.iter().rev().take(100).copied().collect();
        both.check(GetJobs { jobs: latest }).await;
    }
    assert!(cut_short > 5 && reaped > 5, "{cut_short} expiries left something, {reaped} jobs were reaped");
}

/// The search for cycles sees the effects of earlier settlements in the same batch.
#[tokio::test]
async fn a_cycle_within_a_batch_is_detected_as_in_the_model() {
    let mut both = Both::new().await;
    let [circling, failing, ending] = [new_chain(), new_chain(), new_chain()];
    let failed = blocked_by(&[circling.id, failing.id], OnBlockerFailure::Fail);
    let received = blocked_by(&[failed.id], OnBlockerFailure::Receive);
    let roots = vec![circling.clone(), failing, ending, failed.clone(), received.clone()];
    both.create(roots).await;
    let held = both.acquire(3).await;
    both.settle([(&held[1], fail())]).await;
    let receiving = both.acquire(1).await;
    assert_eq!(receiving[0].job.chain, received.id);

    let wait_for = |chain: ChainId| Outcome::Continue {
        next: NextJob { id: JobId::new(), job: blocked_by(&[chain], OnBlockerFailure::Wait).job },
        create: Vec::new(),
    };
    let refused = |reply: SettleReply| match reply.settled.into_iter().next_back() {
        Some(Settled::Refused(refusal)) => refusal,
        other => panic!("no refusal: {other:?}"),
    };
    // The job that received the failure fails too. If it were retried, it would wait for a chain that waits for the
    // circling chain.
    let reply = both.settle([(&receiving[0], fail()), (&held[0], wait_for(received.id))]).await;
    assert_eq!(refused(reply), Refusal::WaitsForItself(received.id));
    let carried = blocked_by(&[failed.id], OnBlockerFailure::Wait);
    let id = carried.id;
    let reply = both.settle([(&held[2], complete(vec![carried])), (&held[0], wait_for(id))]).await;
    assert_eq!(refused(reply), Refusal::WaitsForItself(id));
}

/// The store and the model, side by side.
struct Both {
    file: File,
    store: Arc<dyn Store>,
    model: Model,
}

impl Both {
    async fn new() -> Self {
        let file = File::new();
        let store = Arc::new(file.open().await);
        Self { file, store, model: Model::new() }
    }

    /// Executes a command on both, one second after the previous one, and compares the replies.
    async fn check(&mut self, command: impl Into<Command>) -> Reply {
        let command = command.into();
        self.file.clock.advance(Millis::from_secs(1));
        let expected = self.model.apply(self.file.clock.now(), &command).unwrap().0;
        let reply = self.store.execute(command.clone()).await.unwrap();
        assert_eq!(comparable(reply.clone()), comparable(expected), "{command:#?}");
        reply
    }

    async fn create(&mut self, chains: Vec<NewChain>) {
        self.check(Create { chains }).await;
    }

    async fn acquire(&mut self, max: u32) -> Vec<Acquired> {
        let Reply::Acquire(reply) = self.check(crate::acquire(max)).await else { panic!("an acquire") };
        reply.jobs
    }

    async fn settle(&mut self, ends: impl IntoIterator<Item = (&Acquired, Outcome)>) -> SettleReply {
        let Reply::Settle(reply) = self.check(settle(ends)).await else { panic!("a settle") };
        reply
    }
}

fn blocked_by(chains: &[ChainId], on_blocker_failure: OnBlockerFailure) -> NewChain {
    let mut new = new_chain();
    new.job.blockers = chains.iter().map(|chain| (*chain).into()).collect();
    new.job.on_blocker_failure = on_blocker_failure;
    new
}

fn settle<'a>(ends: impl IntoIterator<Item = (&'a Acquired, Outcome)>) -> Settle {
    let settlement = |(Acquired { job, .. }, outcome): (&Acquired, _)| Settlement {
        job: job.id,
        fence: job.fence,
        outcome,
    };
    Settle { settlements: ends.into_iter().map(settlement).collect() }
}

fn complete(create: Vec<NewChain>) -> Outcome {
    Outcome::Complete { output: Payload::json("1").unwrap(), retention: None, create }
}

fn fail() -> Outcome {
    Outcome::Fail { error: ErrorText::new("boom"), retention: None }
}

fn reap(max: u32) -> Reap {
    Reap { types: Types::All, max, except: Vec::new(), renewal_interval: Millis::from_secs(20) }
}

/// Removes the fields that differ between the store and the model by design.
fn comparable(reply: Reply) -> Reply {
    match reply {
        Reply::Create(CreateReply { chains, .. }) => {
            Reply::Create(CreateReply { chains, durability: Durability::Volatile, deferred: false })
        }
        other => other,
    }
}
