//! Random commands get the same replies from the store and from the model.

use std::sync::Arc;

use fastrand::Rng;
use windlass_core::command::{
    Acquire, AcquireReply, Acquired, Command, Create, CreateReply, Created, Durability, Exchange,
    ExchangeReply, Expire, GetChains, GetJobs, NewBlocker, NewChain, NewJob, NewKey, NextDue, NextJob,
    Outcome, Quota, Reap, Renew, RenewLease, Reply, Ripple, Schedule, Settle, Settled, Settlement, Target,
    Types,
};
use windlass_core::model::Model;
use windlass_core::{
    ChainId, Clock, Codec, ErrorText, Fence, JobId, Key, KeyHold, ManualClock, Millis, OnBlockerFailure,
    Payload, Refusal, RequestId, Retention, Store, TraceContext, TypeName, WorkerId,
};
use windlass_sqlite::{Options, SqliteStore};

use crate::{File, new_chain};

const SEEDS: u64 = 12;
const COMMANDS: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_get_the_replies_of_the_model() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut met = Met::default();
    for seed in 0..seeds {
        compare(seed, &mut met).await;
    }
    met.check();
}

/// More dependents than one command resolves are left to later ones, at the very places where the model leaves them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wide_ripple_goes_on_as_in_the_model() {
    let file = File::new();
    let store: Arc<dyn Store> = Arc::new(file.open().await);
    let mut model = Model::new();
    let mut random = Rng::with_seed(7);
    let mut check = async |command: Command| {
        file.clock.advance(Millis::from_secs(1));
        let expected = model.apply(file.clock.now(), &command).unwrap().0;
        let reply = store.execute(command).await.unwrap();
        assert_eq!(comparable(reply.clone()), comparable(expected));
        reply
    };
    let mut blockers: Vec<_> = (0..4).map(|_| new_chain()).collect();
    check(Create { chains: blockers.clone() }.into()).await;
    let Reply::Acquire(held) = check(crate::acquire(4).into()).await else { panic!("an acquire") };
    for _ in 0..4 {
        let dependents = (0..1_000).map(|_| {
            let mut new = new_chain();
            let count = random.usize(1..3);
            new.job.blockers =
                (0..count).map(|_| blockers[random.usize(..blockers.len())].id.into()).collect();
            new.job.on_blocker_failure =
                [OnBlockerFailure::Wait, OnBlockerFailure::Fail, OnBlockerFailure::Receive]
                    [random.usize(..3)];
            new
        });
        let dependents: Vec<_> = dependents.collect();
        blockers.extend(dependents.iter().take(5).cloned());
        check(Create { chains: dependents }.into()).await;
    }
    let outcomes = [
        Outcome::Complete { output: Payload::json("1").unwrap(), retention: None, create: Vec::new() },
        Outcome::Fail { error: ErrorText::new("boom"), retention: None },
    ];
    let settlement = |(acquired, outcome): (&Acquired, &Outcome)| Settlement {
        job: acquired.job.id,
        fence: acquired.job.fence,
        outcome: outcome.clone(),
    };
    let settlements: Vec<_> = held.jobs.iter().zip(outcomes.iter().cycle()).map(settlement).collect();
    check(Settle { settlements }.into()).await;
    let reap =
        Reap { types: Types::All, max: 9, except: Vec::new(), renewal_interval: Millis::from_secs(20) };
    let mut resolved = 0;
    loop {
        let Reply::Reap(reaped) = check(reap.clone().into()).await else { panic!("a reap") };
        let Reply::Acquire(acquired) = check(crate::acquire(5).into()).await else { panic!("an acquire") };
        let count = |ripple: &Ripple| ripple.unblocked.len() + ripple.closed.len();
        let more = count(&reaped.ripple) + count(&acquired.ripple);
        resolved += more;
        if more == 0 {
            break;
        }
    }
    assert!(resolved > 500, "only {resolved} were left to later commands");
}

async fn compare(seed: u64, met: &mut Met) {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let open = || SqliteStore::open(Options::new(folder.path().join("jobs.db")).clock(clock.clone()));
    let stores: [Arc<dyn Store>; 2] = [Arc::new(open().await.unwrap()), Arc::new(open().await.unwrap())];
    let mut model = Model::new();
    let mut world = World::new(seed);
    for step in 0..COMMANDS {
        clock.advance(world.pause());
        let command = world.command(clock.now());
        let expected = model.apply(clock.now(), &command).unwrap().0;
        let store = &stores[world.random.usize(..2)];
        let reply = store.execute(command.clone()).await.unwrap();
        world.learn(&expected);
        met.learn(&expected);
        assert_eq!(comparable(reply), comparable(expected), "seed {seed}, step {step}: {command:#?}");
        if step % 25 == 24 {
            for command in world.look_at_all() {
                let expected = model.apply(clock.now(), &command).unwrap().0;
                assert_eq!(store.execute(command).await.unwrap(), expected, "seed {seed}, after step {step}");
            }
        }
    }
}

/// How often what matters came up: a comparison of nothing but refusals would prove nothing.
#[derive(Debug, Default)]
struct Met {
    existing: usize,
    repeated: usize,
    unblocked: usize,
    failed_with_blocker: usize,
    applied: usize,
    already_applied: usize,
    lost: usize,
    circles: usize,
    reaped: usize,
    expired: usize,
}

impl Met {
    fn learn(&mut self, reply: &Reply) {
        let mut created = |chains: &[Created]| {
            self.existing += chains.iter().filter(|created| matches!(created, Created::Existing(_))).count();
            let repeated = |created: &&Created| matches!(created, Created::New { repeated: true, .. });
            self.repeated += chains.iter().filter(repeated).count();
        };
        match reply {
            Reply::Create(reply) => created(&reply.chains),
            Reply::Settle(reply) => {
                self.unblocked += reply.ripple.unblocked.len();
                let mut settled = 0;
                for item in &reply.settled {
                    match item {
                        Settled::Applied(applied) => {
                            created(&applied.created);
                            self.applied += 1;
                            settled += usize::from(!applied.job.status.is_open() && applied.next.is_none());
                        }
                        Settled::AlreadyApplied => self.already_applied += 1,
                        Settled::Lost(_) => self.lost += 1,
                        Settled::Refused(Refusal::WaitsForItself(_)) => self.circles += 1,
                        Settled::Refused(_) | Settled::Busy => {}
                    }
                }
                self.failed_with_blocker += reply.ripple.closed.len().saturating_sub(settled);
            }
            Reply::Reap(reply) => self.reaped += reply.reaped.len(),
            Reply::Expire(reply) => self.expired += reply.chains.len(),
            _ => {}
        }
    }

    fn check(&self) {
        let all = [
            self.existing,
            self.repeated,
            self.unblocked,
            self.failed_with_blocker,
            self.applied,
            self.already_applied,
            self.lost,
            self.circles,
            self.reaped,
            self.expired,
        ];
        assert!(all.iter().all(|count| *count > 0), "the commands did not reach all that matters: {self:?}");
    }
}

/// The reply without what differs by nature.
fn comparable(reply: Reply) -> Reply {
    match reply {
        Reply::Create(CreateReply { chains, .. }) => {
            Reply::Create(CreateReply { chains, durability: Durability::Volatile })
        }
        other => other,
    }
}

/// What a user of the store knows, and the dice.
struct World {
    random: Rng,
    chains: Vec<ChainId>,
    jobs: Vec<JobId>,
    attempts: Vec<(JobId, Fence)>,
    requests: Vec<RequestId>,
    worker: WorkerId,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            chains: Vec::new(),
            jobs: Vec::new(),
            attempts: Vec::new(),
            requests: Vec::new(),
            worker: WorkerId::new(),
        }
    }

    fn pause(&mut self) -> Millis {
        let ms = match self.random.u8(..20) {
            0 => 700_000,
            1..4 => 30_000,
            4..12 => 1,
            _ => 0,
        };
        Millis::new(ms).unwrap()
    }

    fn command(&mut self, now: windlass_core::Timestamp) -> Command {
        match self.random.u8(..22) {
            0..5 => {
                let count = self.random.usize(1..4);
                Create { chains: (0..count).map(|_| self.new_chain(now)).collect() }.into()
            }
            5..10 => self.acquire().into(),
            10 => {
                let leases = self.some_attempts().into_iter();
                let lease = |(job, fence)| RenewLease { job, fence, lease: Millis::from_secs(40) };
                Renew { leases: leases.map(lease).collect() }.into()
            }
            11..17 => {
                let attempts = self.some_attempts();
                let settle = |(job, fence)| Settlement { job, fence, outcome: self.outcome(now) };
                Settle { settlements: attempts.into_iter().map(settle).collect() }.into()
            }
            17 => {
                let types = if self.random.bool() { Types::All } else { Types::Only(vec![self.type_name()]) };
                let except =
                    if self.random.bool() { Vec::new() } else { self.one_job().into_iter().collect() };
                let renewal_interval = Millis::from_secs(20);
                Reap { types, max: self.random.u32(..4), except, renewal_interval }.into()
            }
            18 => Expire { max: self.random.u32(2..9) }.into(),
            19 => {
                let attempts = self.some_attempts();
                let settle = |(job, fence)| Settlement { job, fence, outcome: self.outcome(now) };
                let settle = Settle { settlements: attempts.into_iter().map(settle).collect() };
                Exchange { settle, acquire: self.acquire() }.into()
            }
            20 => {
                let types = if self.random.bool() { Types::All } else { Types::Only(vec![self.type_name()]) };
                NextDue { types }.into()
            }
            _ => GetChains { chains: (0..3).map(|_| self.target()).collect() }.into(),
        }
    }

    fn look_at_all(&self) -> [Command; 2] {
        let latest = self.chains.iter().rev().take(500).copied().map(Target::Chain).collect();
        let jobs = self.jobs.iter().rev().take(500).copied().collect();
        [GetChains { chains: latest }.into(), GetJobs { jobs }.into()]
    }

    fn learn(&mut self, reply: &Reply) {
        if let Reply::Acquire(AcquireReply { jobs, .. })
        | Reply::Exchange(ExchangeReply { acquire: AcquireReply { jobs, .. }, .. }) = reply
        {
            self.attempts.extend(jobs.iter().map(|acquired| (acquired.job.id, acquired.job.fence)));
        }
    }

    fn new_chain(&mut self, now: windlass_core::Timestamp) -> NewChain {
        let id = match self.random.u8(..12) {
            0 => self.one_chain().unwrap_or_else(ChainId::new),
            1 => self.one_job().map_or_else(ChainId::new, |job| ChainId::from_uuid(*job.as_uuid())),
            _ => ChainId::new(),
        };
        let mut new = NewChain::new(id, self.new_job(now));
        if self.random.u8(..3) == 0 {
            new.key = Some(self.key());
        }
        let mut span = || Millis::new(self.random.u64(..4) * 400_000).unwrap();
        new.retention = Retention { completed: span(), failed: span(), cancelled: span() };
        new.trace = self.trace();
        self.chains.push(id);
        self.jobs.push(id.first_job());
        new
    }

    fn new_job(&mut self, now: windlass_core::Timestamp) -> NewJob {
        let payload =
            Payload::new(Codec::new("raw").unwrap(), vec![self.random.u8(..); self.random.usize(..3)]);
        let mut job = NewJob::new(self.type_name(), payload.unwrap());
        job.schedule = self.schedule(now);
        job.priority = self.random.i8(-1..2);
        job.max_attempts = [None, None, Some(1), Some(2)][self.random.usize(..4)];
        job.on_blocker_failure = [OnBlockerFailure::Wait, OnBlockerFailure::Fail, OnBlockerFailure::Receive]
            [self.random.usize(..3)];
        job.trace = self.trace();
        if self.random.bool() {
            let count = self.random.usize(..4);
            job.blockers = (0..count).filter_map(|_| self.blocker()).collect();
        }
        job
    }

    fn key(&mut self) -> NewKey {
        let mut key = NewKey::new(Key::new(["a", "b"][self.random.usize(..2)]).unwrap());
        key.hold = [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed, KeyHold::Any]
            [self.random.usize(..4)];
        key.window = [None, Some(Millis::from_secs(30))][self.random.usize(..2)];
        if self.random.u8(..3) == 0 {
            key.replaces = self.one_chain();
        }
        key
    }

    fn acquire(&mut self) -> Acquire {
        let request = match self.random.u8(..5) {
            0 if !self.requests.is_empty() => self.requests[self.random.usize(..self.requests.len())],
            _ => RequestId::new(),
        };
        self.requests.push(request);
        let mut types = Vec::new();
        for name in ["x", "y", "z"] {
            if self.random.u8(..4) > 0 {
                let job_type = TypeName::new(name).unwrap();
                types.push(Quota { job_type, max: self.random.u32(..4), lease: Millis::from_secs(60) });
            }
        }
        Acquire { request, worker: self.worker, types, max: self.random.u32(..6) }
    }

    fn outcome(&mut self, now: windlass_core::Timestamp) -> Outcome {
        let carried = if self.random.u8(..3) == 0 { self.random.usize(..3) } else { 0 };
        let create: Vec<_> = (0..carried).map(|_| self.new_chain(now)).collect();
        let retention = [None, Some(Millis::from_secs(900))][self.random.usize(..2)];
        let error = ErrorText::new("boom");
        match self.random.u8(..10) {
            0..3 => Outcome::Complete { output: Payload::json("1").unwrap(), retention, create },
            3..6 => {
                let id = JobId::new();
                self.jobs.push(id);
                Outcome::Continue { next: NextJob { id, job: self.new_job(now) }, create }
            }
            6 => Outcome::Retry { schedule: self.schedule(now), error },
            7 => Outcome::Reschedule {
                schedule: self.schedule(now),
                error: self.random.bool().then_some(error),
            },
            8 => Outcome::Fail { error, retention },
            _ => Outcome::Release,
        }
    }

    fn schedule(&mut self, now: windlass_core::Timestamp) -> Schedule {
        match self.random.u8(..5) {
            0 => Schedule::After(Millis::from_secs(20)),
            1 => Schedule::At(now + Millis::from_secs(5)),
            2 => Schedule::At(windlass_core::Timestamp::default()),
            _ => Schedule::Now,
        }
    }

    fn trace(&mut self) -> Option<TraceContext> {
        (self.random.u8(..4) == 0)
            .then(|| TraceContext::new(format!("trace-{}", self.random.u8(..))).unwrap())
    }

    fn target(&mut self) -> Target {
        let key = Key::new(["a", "b"][self.random.usize(..2)]).unwrap();
        match self.random.u8(..4) {
            0 => self.one_chain().map_or_else(|| Target::Chain(ChainId::new()), Target::Chain),
            1 => Target::Job(self.one_job().unwrap_or_else(JobId::new)),
            _ => Target::Key(self.type_name(), key),
        }
    }

    fn type_name(&mut self) -> TypeName {
        TypeName::new(["x", "y", "z"][self.random.usize(..3)]).unwrap()
    }

    /// Mostly the latest ones, which are still open.
    fn some_attempts(&mut self) -> Vec<(JobId, Fence)> {
        let count = self.random.usize(1..5).min(self.attempts.len());
        let recent = |random: &mut Rng, length: usize| length - 1 - random.usize(..length.min(8));
        (0..count).map(|_| self.attempts[recent(&mut self.random, self.attempts.len())]).collect()
    }

    fn blocker(&mut self) -> Option<NewBlocker> {
        if self.random.u8(..15) == 0 {
            return Some(ChainId::new().into());
        }
        let trace = self.trace();
        self.one_chain().map(|chain| NewBlocker { chain, trace })
    }

    fn one_chain(&mut self) -> Option<ChainId> {
        let length = self.chains.len();
        (length > 0).then(|| self.chains[length - 1 - self.random.usize(..length.min(12))])
    }

    fn one_job(&mut self) -> Option<JobId> {
        let length = self.jobs.len();
        (length > 0).then(|| self.jobs[length - 1 - self.random.usize(..length.min(12))])
    }
}
