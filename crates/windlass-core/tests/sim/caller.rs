//! Simulated clients, which start, wait for and manage chains.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::command::{CancelMode, CompleteFromOutside, CompleteFromOutsideReply, Step};
use windlass_core::{
    Chain, ChainId, Client, Entry, ErrorKind, KeyHold, Payload, Ready, RequestId, Result, Start, Store,
};

use super::invariant::Invariant;
use super::jobs::{Act, Approval, Gather, Hop, Lenient, Mark, Pay, Plain, Plan, Strict, Timed};
use super::schedules::MANUAL;
use super::store::SimStore;
use super::world::{World, pass, short};

/// The timeout of waits that must see the chain's end. Longer than any simulation lasts.
const UNTIL_THE_END: Duration = Duration::from_secs(6 * 60 * 60);

/// What the store has promised to clients.
#[derive(Default)]
pub(crate) struct Promises {
    /// Chains whose start was acknowledged.
    pub(crate) started: Vec<ChainId>,
    /// Chains that were acknowledged as new under a key, with their type and key.
    pub(crate) keyed: Vec<(&'static str, u64, ChainId)>,
    /// Chains started in transactions that were rolled back.
    pub(crate) rolled_back: Vec<ChainId>,
    plain: Vec<Chain<Plain>>,
    approvals: Vec<ChainId>,
    /// Running waits and the chains they wait for.
    pub(crate) waits: Vec<(ChainId, JoinHandle<()>)>,
}

/// One client.
pub(crate) struct Caller {
    pub(crate) world: Arc<World>,
    pub(crate) client: Client<SimStore>,
    pub(crate) promises: Arc<std::sync::Mutex<Promises>>,
}

impl Caller {
    /// Performs random actions, one after the other.
    pub(crate) async fn run(self) {
        for _ in 0..self.world.settings.actions {
            pass(self.world.between(Duration::ZERO, Duration::from_secs(4))).await;
            let what = match self.world.below(21) {
                0..9 => self.start_one().await,
                9..11 => self.start_many().await,
                11..14 => self.start_in_tx().await,
                14 => self.cancel().await,
                15 => self.trigger().await,
                16 => self.retry().await,
                17 => self.delete().await,
                20 => self.run_now().await,
                _ => self.approve().await,
            };
            match what {
                Ok(what) => self.world.count(format!("client {what}")),
                Err(error) => self.world.count(format!("client error {:?}", error.kind())),
            }
        }
    }

    async fn start_one(&self) -> Result<&'static str> {
        let plan = self.plan();
        match self.world.below(10) {
            0 => self.start(self.client.start(Timed(plan))).await,
            1 => self.start(self.client.start(Pay(self.payment(plan)))).await,
            2 | 3 => self.start(self.client.start(Hop(self.travel(plan)))).await,
            4..7 => self.start_blocked(plan).await,
            7 => self.start(self.client.start(Approval(plan))).await.map(|_| "start approval"),
            _ => {
                let start = self.client.start(Plain(plan));
                let delay = self.world.between(Duration::ZERO, Duration::from_secs(5));
                let start = if self.world.percent(30) { start.after(delay) } else { start };
                self.start(start).await
            }
        }
    }

    /// Starts a job that waits for other chains.
    async fn start_blocked(&self, plan: Plan) -> Result<&'static str> {
        let blockers = self.some_plain();
        match self.world.below(3) {
            0 => self.start(self.client.start(Gather(plan)).blocked_by(blockers)).await,
            1 => self.start(self.client.start(Lenient(plan)).blocked_by(blockers)).await,
            _ => self.start(self.client.start(Strict(plan)).blocked_by(blockers)).await,
        }
        .map(|_| "start blocked")
    }

    /// Starts a chain, sometimes with a key.
    async fn start<J: Entry>(&self, start: Start<'_, J, Ready>) -> Result<&'static str> {
        let key = self.world.percent(30).then(|| self.world.below(3));
        let start = match key {
            Some(key) if self.world.percent(30) => start.key(key.to_string()).hold(KeyHold::Completed),
            Some(key) => start.key(key.to_string()),
            None => start,
        };
        let chain = start.await?;
        self.started(chain, key);
        Ok("start")
    }

    async fn start_many(&self) -> Result<&'static str> {
        let plans: Vec<_> = (0..self.world.below(6)).map(|_| Plain(self.plan())).collect();
        for chain in self.client.start_many(plans).await? {
            self.started(chain, None);
        }
        Ok("start many")
    }

    async fn start_in_tx(&self) -> Result<&'static str> {
        let mut tx = self.client.begin().await?;
        let first = tx.start(Plain(self.plan())).await?;
        let savepoint = self.world.percent(30);
        if savepoint {
            tx.savepoint().await?;
        }
        let second = tx.start(Pay(self.payment(self.plan()))).await?;
        if savepoint {
            tx.rollback_to().await?;
            self.promises().rolled_back.push(second.id());
        }
        pass(self.world.between(Duration::ZERO, Duration::from_millis(300))).await;
        match self.world.below(4) {
            0 => {
                self.promises().rolled_back.extend([first.id(), second.id()]);
                tx.rollback().await?;
                Ok("rollback")
            }
            1 => {
                self.promises().rolled_back.extend([first.id(), second.id()]);
                drop(tx);
                Ok("dropped transaction")
            }
            _ => {
                tx.commit().await?;
                self.started(first, None);
                if !savepoint {
                    self.started(second, None);
                }
                Ok("commit")
            }
        }
    }

    async fn cancel(&self) -> Result<&'static str> {
        let Some(chain) = self.some_chain() else { return Ok("nothing to cancel") };
        let mode = if self.world.percent(60) { CancelMode::Ask } else { CancelMode::UnlessRunning };
        self.client.cancel(chain, mode).await.map(|_| "cancel")
    }

    async fn trigger(&self) -> Result<&'static str> {
        let Some(chain) = self.some_chain() else { return Ok("nothing to trigger") };
        self.client.trigger(chain).await.map(|_| "trigger")
    }

    async fn run_now(&self) -> Result<&'static str> {
        let chain = self.client.schedules().run_now(MANUAL).await?;
        self.started(Chain::<Plain>::from_id(chain), None);
        Ok("run now")
    }

    async fn retry(&self) -> Result<&'static str> {
        let Some(chain) = self.some_chain() else { return Ok("nothing to retry") };
        self.client.retry(chain).await.map(|_| "retry")
    }

    async fn delete(&self) -> Result<&'static str> {
        let Some(chain) = self.some_chain() else { return Ok("nothing to delete") };
        let chains = vec![chain.into()];
        let deleted = match self.world.percent(50) {
            true => self.client.delete_cascading(chains).await,
            false => self.client.delete(chains).await,
        };
        deleted.map(|_| "delete")
    }

    /// Completes an approval from outside, or another open chain if there is no approval.
    pub(crate) async fn approve(&self) -> Result<&'static str> {
        let approval = self.promises().approvals.pop();
        let Some(chain) = approval.or_else(|| self.some_chain()) else { return Ok("nothing to approve") };
        let completed = self.complete(chain).await;
        if completed.is_err() {
            self.promises().approvals.extend(approval);
        }
        completed
    }

    pub(crate) async fn complete(&self, chain: ChainId) -> Result<&'static str> {
        let Some(record) = self.client.chain(chain).await? else { return Ok("approval of nothing") };
        let step = Step::Complete {
            output: Payload::encode(&Mark { fence: 0 })?,
            retention: None,
            create: Vec::new(),
        };
        let request = CompleteFromOutside {
            request: RequestId::new(),
            job: record.latest.id,
            version: record.latest.version,
            steps: vec![step],
        };
        Ok(match self.client.store().complete_from_outside(request).await? {
            CompleteFromOutsideReply::Applied(_) => "completion from outside",
            _ => "completion from outside without effect",
        })
    }

    /// Records an acknowledged start as a promise. Waits for some of the chains.
    fn started<J: Entry>(&self, chain: Chain<J>, key: Option<u64>) {
        let mut promises = self.promises();
        promises.started.push(chain.id());
        if let Some(key) = key.filter(|_| chain.is_new()) {
            promises.keyed.push((J::NAME, key, chain.id()));
        }
        match J::NAME {
            "plain" => promises.plain.push(Chain::from_id(chain.id())),
            "approval" => promises.approvals.push(chain.id()),
            _ => {}
        }
        drop(promises);
        if self.world.percent(40) {
            let (world, client) = (Arc::clone(&self.world), self.client.clone());
            let waiting = tokio::spawn(wait(world, client, chain));
            self.promises().waits.push((chain.id(), waiting));
        }
    }

    fn promises(&self) -> std::sync::MutexGuard<'_, Promises> {
        self.promises.lock().unwrap()
    }

    fn some_chain(&self) -> Option<ChainId> {
        let promises = self.promises();
        let index = self.world.below(promises.started.len() as u64);
        promises.started.get(usize::try_from(index).unwrap()).copied()
    }

    fn some_plain(&self) -> Vec<Chain<Plain>> {
        let promises = self.promises();
        let count = self.world.below(4);
        let pick =
            |_| promises.plain.get(usize::try_from(self.world.below(promises.plain.len() as u64)).unwrap());
        (0..count).filter_map(pick).copied().collect()
    }

    /// Returns a random plan for the runs of a job. Runs beyond the plan succeed.
    fn plan(&self) -> Plan {
        let acts = (0..self.world.below(4)).map(|_| match self.world.below(12) {
            0..3 => Act::Work(self.world.below(2_000)),
            3 | 4 => Act::Leases(self.world.below(25)),
            5 => Act::Deaf(self.world.below(8_000)),
            6 | 7 => Act::Fail,
            8 => Act::Panic,
            9 => Act::Reschedule(self.world.below(3_000)),
            10 => Act::Regret,
            _ if self.world.percent(30) => Act::GiveUp,
            _ => Act::Work(0),
        });
        Plan { by: 0, acts: acts.collect(), hops: 0, waits_for: Vec::new() }
    }

    /// Returns the plan of a chain that starts with a `Pay` job and has one or two jobs.
    fn payment(&self, plan: Plan) -> Plan {
        Plan { hops: u32::from(self.world.percent(50)), ..plan }
    }

    /// Returns the plan of a chain of several jobs.
    fn travel(&self, plan: Plan) -> Plan {
        let hops = u32::try_from(self.world.below(4)).unwrap();
        let waits_for = if self.world.percent(30) { self.some_plain() } else { Vec::new() };
        Plan { hops, waits_for: waits_for.iter().map(|chain| chain.id().to_string()).collect(), ..plan }
    }
}

/// Waits for a chain to close and compares the answer with the journal.
async fn wait<J: Entry>(world: Arc<World>, client: Client<SimStore>, chain: Chain<J>) {
    use windlass_core::ClosedAs::{Cancelled, Completed, Failed};
    let answer = client.wait(chain).timeout(UNTIL_THE_END).await;
    let state = world.state();
    let life = state.journal.chains.get(&chain.id());
    let ended = |closed_as| life.is_some_and(|life| life.ends.contains(&closed_as));
    let is_true = match &answer {
        Ok(_) => ended(Completed),
        Err(error) => match error.kind() {
            ErrorKind::ChainFailed => ended(Failed),
            ErrorKind::ChainCancelled => ended(Cancelled),
            ErrorKind::NotFound => life.is_some_and(|life| life.deleted),
            _ => false,
        },
    };
    drop(state);
    match &answer {
        Ok(_) => world.count("wait completed"),
        Err(error) => world.count(format!("wait {:?}", error.kind())),
    }
    if !is_true {
        let what =
            format!("a wait for chain {} got {answer:?}", short(chain.id().as_uuid()), answer = answer.err());
        world.violate(Invariant::WaitsAreAnswered, what);
    }
}
