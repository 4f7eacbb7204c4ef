//! Random commands for mostly plain jobs, in batches, with some of everything else.

use windlass_conformance::{json, key, millis, type_name};
use windlass_core::command::*;
use windlass_core::{
    ChainId, Fence, JobId, KeyHold, Millis, OnBlockerFailure, Payload, RequestId, Retention, Status,
    TraceContext, Version, WorkerId, WorkerName,
};

const TYPES: [&str; 4] = ["mail", "sms", "0:mail", "mail "];

/// Generates commands. It remembers what it needs to generate sensible ones.
pub(crate) struct Mixture {
    state: u64,
    workers: [WorkerId; 2],
    chains: Vec<ChainId>,
    running: Vec<(JobId, Fence)>,
    /// Attempts that were settled, for repeats and stale settlements.
    settled: Vec<(JobId, Fence)>,
    failed: Vec<(JobId, Version)>,
    acquires: Vec<Acquire>,
    completed: usize,
}

impl Mixture {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            workers: [WorkerId::new(), WorkerId::new()],
            chains: Vec::new(),
            running: Vec::new(),
            settled: Vec::new(),
            failed: Vec::new(),
            acquires: Vec::new(),
            completed: 0,
        }
    }

    pub(crate) const fn completed(&self) -> usize {
        self.completed
    }

    /// A number below `end` (xorshift).
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from((self.state >> 11) % end as u64).unwrap()
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())).cloned() }
    }

    pub(crate) fn pause(&mut self) -> Millis {
        millis(match self.below(100) {
            0..50 => 0,
            50..90 => self.below(50) as u64,
            90..98 => self.below(40_000) as u64,
            _ => self.below(4_000_000) as u64,
        })
    }

    pub(crate) fn command(&mut self) -> Command {
        match self.below(100) {
            0..25 => Create { chains: self.new_chains() }.into(),
            25..40 => self.acquire().into(),
            40..55 => Settle { settlements: self.settlements() }.into(),
            55..85 => {
                let settle = Settle { settlements: self.settlements() };
                Exchange { settle, acquire: self.acquire() }.into()
            }
            85..87 => self.cancel().into(),
            87..88 => {
                let (types, paused) = (vec![type_name(TYPES[self.below(TYPES.len())])], self.one_in(3));
                Pause { types, paused }.into()
            }
            88..90 => {
                let (types, except) = (Types::All, Vec::new());
                Reap { types, max: 10, except, renewal_interval: Millis::ZERO }.into()
            }
            90..91 => self.retry().into(),
            91..92 => Delete { chains: self.targets(), cascade: self.one_in(2), seen: None }.into(),
            92..93 => {
                let retention = millis(self.below(1_000_000) as u64);
                SetRetention { chains: self.targets(), retention }.into()
            }
            93..95 => Expire { max: 2 + u32::try_from(self.below(40)).unwrap() }.into(),
            95..96 => Trigger { jobs: self.targets() }.into(),
            96..97 => self.renew().into(),
            97..98 => Count { types: Types::All }.into(),
            98..99 => self.list().into(),
            _ => GetChains { chains: self.targets() }.into(),
        }
    }

    fn new_chains(&mut self) -> Vec<NewChain> {
        let unusual = self.one_in(6);
        (0..1 + self.below(12)).map(|_| self.new_chain(unusual)).collect()
    }

    fn new_job(&mut self) -> NewJob {
        let mut job = NewJob::new(type_name(TYPES[self.below(TYPES.len())]), json("[1,2,3]"));
        job.priority = [0, 0, 0, 0, 0, 5, -5][self.below(7)];
        job.schedule = match self.below(8) {
            0 => DueTime::After(millis(self.below(60_000) as u64)),
            1 => DueTime::At(windlass_core::Timestamp::from_millis(1_800_000_000_000).unwrap()),
            _ => DueTime::Now,
        };
        if self.one_in(4) {
            job.max_attempts = Some(2);
        }
        if self.one_in(5) {
            job.trace =
                Some(TraceContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap());
        }
        if self.one_in(8) {
            job.input = self.near_threshold();
        }
        if self.one_in(100) {
            job.input = json(&format!("\"{}\"", "x".repeat(20_000)));
        }
        job
    }

    /// A payload of the maximum size in a row, or slightly more or less. The codec counts too.
    fn near_threshold(&mut self) -> Payload {
        let codec = "json:".len();
        json(&"1".repeat(256 - codec - 1 + self.below(3)))
    }

    fn new_chain(&mut self, unusual: bool) -> NewChain {
        let mut chain = NewChain::new(ChainId::new(), self.new_job());
        if self.one_in(5) {
            chain.trace = chain.job.trace.clone();
            let time = millis(1_000 * self.below(2_000) as u64);
            chain.retention = Retention { completed: time, failed: time, cancelled: time };
        }
        if unusual && self.one_in(3) {
            let holds = [KeyHold::Open, KeyHold::Completed, KeyHold::Any];
            let text = format!("key {}", self.below(20));
            chain.key = Some(NewKey { hold: holds[self.below(3)], ..NewKey::new(key(&text)) });
        }
        let known = self.chains.clone();
        if unusual && self.one_in(3) {
            let blockers: Vec<_> = (0..1 + self.below(2)).filter_map(|_| self.pick(&known)).collect();
            chain.job.blockers =
                blockers.into_iter().map(|chain| NewBlocker { chain, trace: None }).collect();
            let policies = [OnBlockerFailure::Wait, OnBlockerFailure::Fail, OnBlockerFailure::Receive];
            chain.job.on_blocker_failure = policies[self.below(3)];
        }
        if self.one_in(60) {
            chain.id = self.pick(&known).unwrap_or(chain.id);
        }
        chain
    }

    fn acquire(&mut self) -> Acquire {
        let latest = self.acquires.iter().rev().take(4).cloned().collect::<Vec<_>>();
        if self.one_in(10)
            && let Some(acquire) = self.pick(&latest)
        {
            return acquire;
        }
        let count = 1 + self.below(TYPES.len());
        let types = TYPES.iter().cycle().skip(self.below(TYPES.len())).take(count);
        let types: Vec<_> = types.map(|name| type_name(name)).collect();
        let quotas = types.into_iter().map(|job_type| Quota {
            job_type,
            max: u32::try_from(self.below(12)).unwrap(),
            lease: millis(1 + self.below(100_000) as u64),
        });
        let types = quotas.collect();
        let worker_name = self.one_in(2).then(|| WorkerName::new("host-1").unwrap());
        let worker = self.workers[self.below(2)];
        let max = u32::try_from(self.below(25)).unwrap();
        let acquire = Acquire { request: RequestId::new(), worker, worker_name, types, max };
        self.acquires.push(acquire.clone());
        acquire
    }

    fn settlements(&mut self) -> Vec<Settlement> {
        let (count, unusual) = (self.below(15), self.one_in(6));
        let mut list = Vec::new();
        for _ in 0..count.min(self.running.len()) {
            let at = self.below(self.running.len());
            // Sometimes the attempt is settled again later.
            let (job, fence) = match self.one_in(40) {
                true => self.running[at],
                false => self.running.swap_remove(at),
            };
            list.push(Settlement { job, fence, outcome: self.outcome(unusual) });
        }
        let settled = self.settled.clone();
        if self.one_in(25)
            && let Some((job, fence)) = self.pick(&settled)
        {
            list.push(Settlement { job, fence, outcome: self.outcome(false) });
        }
        for settlement in &mut list {
            if self.one_in(30) {
                settlement.fence = Fence(settlement.fence.0 + 1);
            }
        }
        list
    }

    fn outcome(&mut self, unusual: bool) -> Outcome {
        let retention = self.one_in(4).then(|| millis(self.below(3_000_000) as u64));
        let output = match self.one_in(8) {
            true => self.near_threshold(),
            false => json(&format!("{}", self.below(1_000))),
        };
        match if unusual { self.below(8) } else { 0 } {
            1 => Outcome::Retry { schedule: DueTime::Now, error: windlass_core::ErrorText::new("again") },
            2 => Outcome::Fail { error: windlass_core::ErrorText::new("no"), retention },
            3 => Outcome::Release,
            4 => {
                let next = NextJob { id: JobId::new(), job: self.new_job() };
                Outcome::Continue { next, create: Vec::new() }
            }
            5 => Outcome::Complete { output, retention, create: vec![self.new_chain(true)] },
            6 => Outcome::Reschedule { schedule: DueTime::After(millis(10)), error: None },
            _ => Outcome::Complete { output, retention, create: Vec::new() },
        }
    }

    fn targets(&mut self) -> Vec<Target> {
        let known = self.chains.clone();
        let recent = &known[known.len().saturating_sub(60)..];
        (0..1 + self.below(3)).filter_map(|_| self.pick(recent)).map(Target::Chain).collect()
    }

    fn cancel(&mut self) -> Cancel {
        let mode = if self.one_in(2) { CancelMode::Ask } else { CancelMode::UnlessRunning };
        Cancel { chains: self.targets(), mode }
    }

    fn retry(&mut self) -> Retry {
        let failed = self.failed.clone();
        let chains = self.pick(&failed).into_iter();
        Retry { chains: chains.map(|(job, version)| RetryTarget { job, version }).collect() }
    }

    fn renew(&mut self) -> Renew {
        let running = self.running.clone();
        let leases = self.pick(&running).into_iter();
        Renew {
            leases: leases.map(|(job, fence)| RenewLease { job, fence, lease: millis(50_000) }).collect(),
        }
    }

    fn list(&mut self) -> ListJobs {
        let statuses = [Status::Pending, Status::Running, Status::Failed, Status::Completed];
        let statuses = vec![statuses[self.below(4)]];
        ListJobs { filter: JobFilter { statuses, ..JobFilter::default() }, page: Page::default() }
    }

    /// Remembers what a command created, acquired, settled and failed.
    pub(crate) fn learn(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Create(_), Reply::Create(reply)) => self.learn_created(&reply.chains),
            (_, Reply::Acquire(reply)) => self.learn_acquired(reply),
            (Command::Settle(settle), Reply::Settle(reply)) => self.learn_settled(settle, reply),
            (Command::Exchange(exchange), Reply::Exchange(reply)) => {
                self.learn_settled(&exchange.settle, &reply.settle);
                self.learn_acquired(&reply.acquire);
            }
            (_, Reply::GetChains(reply)) => {
                let chains = reply.chains.iter().flatten();
                let closed =
                    chains.filter(|chain| matches!(chain.status(), Status::Failed | Status::Cancelled));
                self.failed.extend(closed.map(|chain| (chain.latest.id, chain.latest.version)));
            }
            _ => {}
        }
    }

    fn learn_created(&mut self, created: &[Created]) {
        let new = created.iter().filter_map(|created| match created {
            Created::New { job, .. } => Some(job.chain),
            _ => None,
        });
        self.chains.extend(new);
    }

    fn learn_acquired(&mut self, reply: &AcquireReply) {
        for acquired in &reply.jobs {
            let attempt = (acquired.job.id, acquired.job.fence);
            if !self.running.contains(&attempt) {
                self.running.push(attempt);
            }
        }
    }

    fn learn_settled(&mut self, settle: &Settle, reply: &SettleReply) {
        for (settlement, settled) in settle.settlements.iter().zip(&reply.settled) {
            self.settled.push((settlement.job, settlement.fence));
            if let Settled::Applied(applied) = settled {
                self.completed += usize::from(applied.job.status == Status::Completed);
                self.learn_created(&applied.created);
            }
        }
    }
}
