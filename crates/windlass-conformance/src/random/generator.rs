use std::collections::VecDeque;
use std::mem::discriminant;

use fastrand::Rng;
use windlass_core::command::{
    Acquire, Acquired, Cancel, CancelMode, Cancelled, ChainFilter, Command, CompleteFromOutside, Count,
    Create, CreateAndAcquire, Created, Delete, DueTime, Exchange, Expire, GetChains, GetJobs, JobFilter,
    ListAttempts, ListChains, ListDependents, ListJobs, NextDue, Order, Outcome, Page, Pause, Quota, Reap,
    Renew, RenewLease, Reply, Retry, RetryTarget, ScheduleChange, SeenJob, SetRetention, Settle, Settled,
    Settlement, Step, Target, Trigger, Types,
};
use windlass_core::model::Model;
use windlass_core::{
    Capabilities, Capability, ChainId, ErrorText, Fence, JobId, JobRecord, Key, Millis, RequestId, Status,
    Timestamp, TypeName, Version, WorkerId, WorkerName,
};

use super::parts::Parts;
use crate::subject::millis;

/// Number of recent chains, jobs and attempts that commands refer to.
const REMEMBERED: usize = 40;

/// Optional capabilities to choose commands from. Those that affect a job's course appear several times, so that they
/// are chosen more often.
const FURTHER: [Capability; 22] = [
    Capability::Exchange,
    Capability::CreateAndAcquire,
    Capability::NextDue,
    Capability::Outside,
    Capability::Outside,
    Capability::Outside,
    Capability::Cancel,
    Capability::Cancel,
    Capability::Cancel,
    Capability::Trigger,
    Capability::Retry,
    Capability::Retry,
    Capability::Delete,
    Capability::SetRetention,
    Capability::Pause,
    Capability::Lists,
    Capability::Lists,
    Capability::Attempts,
    Capability::Count,
    Capability::Schedules,
    Capability::Schedules,
    Capability::Schedules,
];

/// Generates commands that are likely to have an effect, based on earlier replies.
pub(super) struct Generator {
    pub(super) parts: Parts,
    capabilities: Capabilities,
    chains: VecDeque<ChainId>,
    jobs: VecDeque<JobId>,
    all_chains: Vec<ChainId>,
    all_jobs: Vec<JobId>,
    /// Attempts that hold their job, as far as the generator knows.
    held: Vec<(JobId, Fence)>,
    /// Jobs with a cancel request.
    asked: VecDeque<JobId>,
    /// Attempts that no longer hold their job.
    stale: VecDeque<(JobId, Fence)>,
    acquires: VecDeque<Acquire>,
    settlements: VecDeque<Settlement>,
    creates: VecDeque<Create>,
    outside: VecDeque<CompleteFromOutside>,
    retries: VecDeque<RetryTarget>,
    pub(super) changes: VecDeque<ScheduleChange>,
}

impl Generator {
    pub(super) fn new(seed: u64, capabilities: Capabilities) -> Self {
        Self {
            parts: Parts::new(seed),
            capabilities,
            chains: VecDeque::new(),
            jobs: VecDeque::new(),
            all_chains: Vec::new(),
            all_jobs: Vec::new(),
            held: Vec::new(),
            asked: VecDeque::new(),
            stale: VecDeque::new(),
            acquires: VecDeque::new(),
            settlements: VecDeque::new(),
            creates: VecDeque::new(),
            outside: VecDeque::new(),
            retries: VecDeque::new(),
            changes: VecDeque::new(),
        }
    }

    /// Returns the latest of all chains ever created.
    pub(super) fn chains(&self, latest: usize) -> impl Iterator<Item = ChainId> {
        self.all_chains.iter().rev().take(latest).copied()
    }

    /// Returns the latest of all jobs ever created.
    pub(super) fn jobs(&self, latest: usize) -> impl Iterator<Item = JobId> {
        self.all_jobs.iter().rev().take(latest).copied()
    }

    /// Returns every combination of type and key.
    pub(super) fn keys(&self) -> impl Iterator<Item = Target> {
        self.parts.keys().map(|(job_type, key)| Target::Key(job_type, key))
    }

    /// Returns how far to advance the clock before the next command: usually not at all or a little, sometimes beyond
    /// the end of leases, rarely beyond the end of retentions.
    pub(super) fn pause(&mut self) -> Millis {
        let rng = self.rng();
        millis(match rng.u32(..100) {
            0..60 => 0,
            60..90 => rng.u64(1..50),
            90..98 => rng.u64(1_000..20_000),
            _ => rng.u64(1_000_000..4_000_000),
        })
    }

    /// Generates the next command.
    pub(super) fn command(&mut self, model: &mut Model, now: Timestamp) -> Command {
        loop {
            let (weight, further) = (self.rng().u32(..110), self.rng().choice(FURTHER));
            let mut command = match weight {
                0..22 => self.create().into(),
                22..42 => self.acquire().into(),
                42..72 => self.settle().into(),
                72..78 => self.renew().into(),
                78..82 => self.reap().into(),
                82..84 => self.expire().into(),
                84..87 => self.get_jobs().into(),
                87..90 => GetChains { chains: self.targets() }.into(),
                _ => {
                    let known = further.filter(|capability| self.capabilities.has(*capability));
                    match known.and_then(|capability| self.further(capability, model, now)) {
                        Some(command) => command,
                        None => continue,
                    }
                }
            };
            self.postpone(&mut command, now);
            return command;
        }
    }

    /// Whether to begin a transaction: one time in seven, so that about a third of all commands are in one.
    pub(super) fn begins(&mut self) -> bool {
        self.rng().u32(..7) == 0
    }

    /// Returns the number of commands in a transaction, and whether the transaction is committed.
    pub(super) fn transaction(&mut self, max: usize) -> (usize, bool) {
        (self.rng().usize(1..=max), self.rng().u32(..6) == 0)
    }

    /// Generates the next command that is allowed in a transaction.
    pub(super) fn command_in_transaction(&mut self, model: &mut Model, now: Timestamp) -> Command {
        loop {
            let command = self.command(model, now);
            if command.is_transactional() {
                return command;
            }
        }
    }

    /// Delays some of the jobs of a command to a time in the future.
    fn postpone(&mut self, command: &mut Command, now: Timestamp) {
        let mut schedules = Vec::new();
        match command {
            Command::Create(create) => {
                schedules.extend(create.chains.iter_mut().map(|chain| &mut chain.job.schedule));
            }
            Command::Settle(settle) => {
                schedules.extend(settle.settlements.iter_mut().filter_map(|settlement| {
                    match &mut settlement.outcome {
                        Outcome::Continue { next, .. } => Some(&mut next.job.schedule),
                        Outcome::Retry { schedule, .. } | Outcome::Reschedule { schedule, .. } => {
                            Some(schedule)
                        }
                        _ => None,
                    }
                }));
            }
            _ => {}
        }
        for schedule in schedules {
            if self.rng().u32(..8) == 0 {
                *schedule = DueTime::At(now + millis(self.rng().u64(1..5_000)));
            }
        }
    }

    /// Records the contents of a reply, for use by later commands.
    pub(super) fn learn(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Create(create), Reply::Create(reply)) => {
                remember(&mut self.creates, create.clone());
                reply.chains.iter().for_each(|created| self.learn_created(created));
            }
            (Command::Acquire(acquire), Reply::Acquire(reply)) => self.learn_acquired(acquire, &reply.jobs),
            (Command::Settle(settle), Reply::Settle(reply)) => self.learn_settled(settle, &reply.settled),
            (Command::Exchange(exchange), Reply::Exchange(reply)) => {
                self.learn_settled(&exchange.settle, &reply.settle.settled);
                self.learn_acquired(&exchange.acquire, &reply.acquire.jobs);
            }
            (Command::CreateAndAcquire(joined), Reply::CreateAndAcquire(reply)) => {
                remember(&mut self.creates, joined.create.clone());
                reply.create.chains.iter().for_each(|created| self.learn_created(created));
                self.learn_acquired(&joined.acquire, &reply.acquire.jobs);
            }
            (Command::CompleteFromOutside(outside), _) => {
                for step in &outside.steps {
                    if let Step::Continue { next, .. } = step {
                        self.learn_job(next.id);
                    }
                }
                remember(&mut self.outside, outside.clone());
            }
            (_, Reply::Reap(reply)) => {
                let reaped = |job: &JobId| reply.reaped.iter().any(|reaped| reaped.job.job == *job);
                // Simulate a worker that sometimes does not learn that it lost its job.
                let learns = |(job, _): &mut (JobId, Fence)| reaped(job) && self.parts.rng.u32(..3) > 0;
                for attempt in self.held.extract_if(.., learns) {
                    remember(&mut self.stale, attempt);
                }
            }
            (_, Reply::Cancel(reply)) => {
                for cancelled in &reply.chains {
                    if let Cancelled::Asked { job, .. } = cancelled {
                        remember(&mut self.asked, *job);
                    }
                }
            }
            (Command::Retry(retry), _) => {
                retry.chains.iter().for_each(|target| remember(&mut self.retries, *target));
            }
            _ => {}
        }
    }

    fn learn_created(&mut self, created: &Created) {
        if let Created::New { job, repeated: false } = created {
            remember(&mut self.chains, job.chain);
            self.all_chains.push(job.chain);
            self.learn_job(job.job);
        }
    }

    fn learn_job(&mut self, job: JobId) {
        remember(&mut self.jobs, job);
        self.all_jobs.push(job);
    }

    fn learn_acquired(&mut self, acquire: &Acquire, jobs: &[Acquired]) {
        remember(&mut self.acquires, acquire.clone());
        for acquired in jobs {
            let attempt = (acquired.job.id, acquired.job.fence);
            if !self.held.contains(&attempt) {
                self.held.push(attempt);
            }
        }
    }

    fn learn_settled(&mut self, settle: &Settle, settled: &[Settled]) {
        for (settlement, settled) in settle.settlements.iter().zip(settled) {
            if let Settled::Applied(applied) = settled {
                if let Some(next) = applied.next {
                    self.learn_job(next.job);
                }
                applied.created.iter().for_each(|created| self.learn_created(created));
            }
            if !matches!(settled, Settled::Refused(_)) {
                let attempt = (settlement.job, settlement.fence);
                self.held.retain(|held| *held != attempt);
                remember(&mut self.stale, attempt);
            }
            remember(&mut self.settlements, settlement.clone());
        }
    }

    pub(super) fn rng(&mut self) -> &mut Rng {
        &mut self.parts.rng
    }

    fn create(&mut self) -> Create {
        if self.rng().u32(..20) == 0
            && let Some(create) = self.parts.pick(&self.creates)
        {
            return create;
        }
        let known = self.known_chains();
        let mut chains = Vec::new();
        for _ in 0..self.rng().usize(1..4) {
            chains.push(self.parts.chain(&known, &chains));
        }
        Create { chains }
    }

    pub(super) fn known_chains(&self) -> Vec<ChainId> {
        self.chains.iter().copied().collect()
    }

    fn acquire(&mut self) -> Acquire {
        if self.rng().u32(..15) == 0
            && let Some(acquire) = self.parts.pick(&self.acquires)
        {
            return acquire;
        }
        let (request, worker) = (RequestId::from_uuid(self.parts.uuid()), self.parts.worker());
        let mut types = Vec::new();
        for job_type in self.parts.types.clone() {
            if self.rng().u32(..4) > 0 {
                let lease = millis(self.rng().u64(1..15_000));
                types.push(Quota { job_type, max: self.rng().u32(..4), lease });
            }
        }
        let worker_name = self.parts.worker_name();
        Acquire { request, worker, worker_name, types, max: self.rng().u32(..6) }
    }

    /// Picks an attempt: usually one that holds its job, sometimes one with a cancel request, sometimes a stale one.
    fn attempt(&mut self) -> (JobId, Fence) {
        if self.rng().u32(..10) == 0
            && let Some(attempt) = self.held.iter().find(|(job, _)| self.asked.contains(job))
        {
            return *attempt;
        }
        let stale = self.rng().u32(..8) == 0;
        let held = if stale { None } else { self.parts.rng.choice(self.held.iter().copied()) };
        let attempt = held.or_else(|| self.parts.pick(&self.stale));
        attempt.unwrap_or_else(|| (JobId::from_uuid(self.parts.uuid()), Fence(1)))
    }

    fn renew(&mut self) -> Renew {
        let leases = (0..self.rng().usize(1..4)).map(|_| {
            let (job, fence) = self.attempt();
            RenewLease { job, fence, lease: millis(self.rng().u64(1..15_000)) }
        });
        Renew { leases: leases.collect() }
    }

    fn settle(&mut self) -> Settle {
        let settlements = (0..self.rng().usize(1..4)).map(|_| {
            let roll = self.rng().u32(..12);
            match self.parts.pick(&self.settlements).filter(|_| roll < 2) {
                Some(settlement) if roll == 0 => settlement,
                Some(settlement) => self.otherwise(&settlement),
                None => {
                    let (job, fence) = self.attempt();
                    Settlement { job, fence, outcome: self.outcome(job) }
                }
            }
        });
        Settle { settlements: settlements.collect() }
    }

    /// Returns a settlement of the same attempt with another kind of outcome.
    fn otherwise(&mut self, settlement: &Settlement) -> Settlement {
        let before = discriminant(&settlement.outcome);
        loop {
            let outcome = self.outcome(settlement.job);
            if discriminant(&outcome) != before {
                return Settlement { outcome, ..settlement.clone() };
            }
        }
    }

    fn outcome(&mut self, job: JobId) -> Outcome {
        let (known, jobs) = (self.known_chains(), self.jobs.iter().copied().collect::<Vec<_>>());
        let mut outcome = self.parts.outcome(&known, &jobs);
        if let Outcome::Complete { create, .. } = &mut outcome
            && self.parts.rng.u32(..if self.asked.contains(&job) { 2 } else { 5 }) == 0
        {
            // A chain has the id of its first job, so this usually replaces the job's own chain.
            create.push(self.parts.successor(&known, ChainId::from_uuid(*job.as_uuid())));
        }
        outcome
    }

    fn reap(&mut self) -> Reap {
        let types = self.some_types();
        let except = self.held.iter().map(|(job, _)| *job).filter(|_| self.parts.rng.u32(..4) == 0).collect();
        // Often fewer than have expired, so that the order matters.
        let max = if self.rng().bool() { 100 } else { self.rng().u32(1..6) };
        Reap { types, max, except, renewal_interval: Millis::ZERO }
    }

    /// Often allows fewer than are due, so that chains are removed in several steps. Sometimes the limit is below the
    /// allowed minimum.
    fn expire(&mut self) -> Expire {
        let max = match self.rng().u32(..20) {
            0 => 1,
            1..8 => self.rng().u32(2..6),
            8..12 => self.rng().u32(2..21),
            _ => 1_000,
        };
        Expire { max }
    }

    fn some_types(&mut self) -> Types {
        if self.rng().bool() {
            return Types::All;
        }
        let types: Vec<TypeName> = self.parts.types.clone();
        Types::Only(types.into_iter().filter(|_| self.rng().bool()).collect())
    }

    fn get_jobs(&mut self) -> GetJobs {
        let jobs = (0..self.rng().usize(1..5)).map(|_| self.job());
        GetJobs { jobs: jobs.collect() }
    }

    fn job(&mut self) -> JobId {
        let unknown = JobId::from_uuid(self.parts.uuid());
        if self.rng().u32(..10) == 0 { unknown } else { self.parts.pick(&self.jobs).unwrap_or(unknown) }
    }

    fn target(&mut self) -> Target {
        match self.rng().u32(..10) {
            0 => Target::Chain(ChainId::from_uuid(self.parts.uuid())),
            1..4 => Target::Job(self.job()),
            4..6 => {
                let (job_type, key): (TypeName, Key) = (self.parts.job_type(), self.parts.key());
                Target::Key(job_type, key)
            }
            _ => match self.parts.pick(&self.chains) {
                Some(chain) => Target::Chain(chain),
                None => Target::Chain(ChainId::from_uuid(self.parts.uuid())),
            },
        }
    }

    fn targets(&mut self) -> Vec<Target> {
        (0..self.rng().usize(1..4)).map(|_| self.target()).collect()
    }

    /// Generates a command that only some stores support.
    fn further(&mut self, capability: Capability, model: &mut Model, now: Timestamp) -> Option<Command> {
        Some(match capability {
            Capability::Exchange => Exchange { settle: self.settle(), acquire: self.acquire() }.into(),
            Capability::CreateAndAcquire => {
                CreateAndAcquire { create: self.create(), acquire: self.acquire() }.into()
            }
            Capability::NextDue => NextDue { types: self.some_types() }.into(),
            Capability::Outside => self.outside(model, now)?.into(),
            Capability::Cancel => {
                let ask = self.rng().u32(..4) > 0;
                let mode = if ask { CancelMode::Ask } else { CancelMode::UnlessRunning };
                Cancel { chains: self.cancellable(), mode }.into()
            }
            Capability::Trigger => Trigger { jobs: self.triggerable(model, now) }.into(),
            Capability::Retry => Retry { chains: vec![self.retry(model, now)?] }.into(),
            Capability::Delete => self.delete(model, now).into(),
            Capability::SetRetention => {
                let retention = millis(self.rng().u64(..5_000_000));
                SetRetention { chains: self.targets(), retention }.into()
            }
            Capability::Pause => {
                // Pause rarely, so that most types keep running.
                let paused = self.rng().u32(..4) == 0;
                Pause { types: vec![self.parts.job_type()], paused }.into()
            }
            Capability::Lists => self.list(),
            Capability::Attempts => ListAttempts { job: self.job() }.into(),
            Capability::Count => Count { types: self.some_types() }.into(),
            Capability::Schedules => self.schedules(model, now),
            _ => return None,
        })
    }

    /// Usually picks a job that is running, as far as the generator knows.
    fn cancellable(&mut self) -> Vec<Target> {
        let held = self.parts.rng.choice(self.held.iter().copied());
        match held.filter(|_| self.parts.rng.u32(..3) > 0) {
            Some((job, _)) => vec![Target::Job(job)],
            None => self.targets(),
        }
    }

    fn list(&mut self) -> Command {
        let order = if self.rng().bool() { Order::Newest } else { Order::Oldest };
        let page = Page { order, after: None, max: self.rng().u32(..=1_001) };
        let types: Vec<_> = self.rng().bool().then(|| self.parts.job_type()).into_iter().collect();
        let statuses: Vec<_> = self.rng().bool().then(|| self.status()).into_iter().collect();
        match self.rng().u32(..3) {
            0 => {
                let top_level = self.rng().bool();
                let filter = ChainFilter { types, statuses, top_level, ..ChainFilter::default() };
                ListChains { filter, page }.into()
            }
            1 => {
                let chain = if self.rng().bool() { self.parts.pick(&self.chains) } else { None };
                ListJobs { filter: JobFilter { types, statuses, chain, ..JobFilter::default() }, page }.into()
            }
            _ => {
                let chain = self.parts.pick(&self.chains);
                ListDependents { chain: chain.unwrap_or_else(ChainId::new), page }.into()
            }
        }
    }

    fn status(&mut self) -> Status {
        self.rng().choice(Status::ALL).unwrap_or(Status::Pending)
    }

    /// Sometimes deletes the chains only as the caller has read them.
    fn delete(&mut self, model: &mut Model, now: Timestamp) -> Delete {
        let (chains, cascade) = (self.targets(), self.rng().u32(..3) == 0);
        let is_guarded = self.rng().u32(..3) == 0;
        let seen = if is_guarded { self.seen(chains.clone(), model, now) } else { None };
        Delete { chains, cascade, seen }
    }

    /// Returns the states of chains according to the model, one of them sometimes with another version.
    fn seen(&mut self, chains: Vec<Target>, model: &mut Model, now: Timestamp) -> Option<Vec<SeenJob>> {
        let found = model.apply(now, &GetChains { chains }.into()).ok()?.0;
        let Reply::GetChains(found) = found else { return None };
        let mut seen: Vec<_> = found.chains.iter().flatten().map(SeenJob::from).collect();
        let is_changed = self.rng().u32(..3) == 0;
        if let Some(changed) = seen.last_mut().filter(|_| is_changed) {
            changed.version = Version(changed.version.0 + 1);
        }
        Some(seen)
    }

    /// Picks one of the recent jobs that match, in its state according to the model.
    fn pick(
        &mut self,
        model: &mut Model,
        now: Timestamp,
        wanted: fn(&JobRecord) -> bool,
    ) -> Option<JobRecord> {
        let jobs = self.jobs.iter().copied().collect();
        self.look_at(jobs, model, now, wanted)
    }

    fn look_at(
        &mut self,
        jobs: Vec<JobId>,
        model: &mut Model,
        now: Timestamp,
        wanted: fn(&JobRecord) -> bool,
    ) -> Option<JobRecord> {
        let found = model.apply(now, &GetJobs { jobs }.into()).ok()?.0;
        let Reply::GetJobs(found) = found else { return None };
        let fitting: Vec<_> = found.jobs.into_iter().flatten().filter(wanted).collect();
        self.rng().choice(fitting)
    }

    fn outside(&mut self, model: &mut Model, now: Timestamp) -> Option<CompleteFromOutside> {
        if self.rng().u32(..5) == 0 {
            return self.parts.pick(&self.outside);
        }
        let asked = self.asked.iter().copied().collect();
        let asked = self.look_at(asked, model, now, |job| job.status.is_open());
        let job = asked.or_else(|| self.pick(model, now, |job| job.status.is_open()))?;
        let known = self.known_chains();
        let mut steps: Vec<_> =
            (0..self.rng().usize(..3)).map(|_| self.parts.continue_step(&known)).collect();
        match self.rng().u32(..8) {
            0 => steps.push(Step::Fail { error: ErrorText::new("no"), retention: None }),
            1..6 => steps.push(Step::Complete {
                output: self.parts.payload(),
                retention: None,
                create: self.parts.carried(&known),
            }),
            _ => {}
        }
        let request = RequestId::from_uuid(self.parts.uuid());
        let version = if self.rng().u32(..6) == 0 { job.version.next() } else { job.version };
        Some(CompleteFromOutside { request, job: job.id, version, steps })
    }

    fn triggerable(&mut self, model: &mut Model, now: Timestamp) -> Vec<Target> {
        let pending = self.pick(model, now, |job| job.status == Status::Pending);
        match pending.filter(|_| self.parts.rng.u32(..4) > 0) {
            Some(job) => vec![Target::Job(job.id), Target::Chain(job.chain)],
            None => self.targets(),
        }
    }

    fn retry(&mut self, model: &mut Model, now: Timestamp) -> Option<RetryTarget> {
        if self.rng().u32(..4) == 0 {
            return self.parts.pick(&self.retries);
        }
        let any = self.rng().u32(..5) == 0;
        let job = if any {
            self.pick(model, now, |_| true)
        } else {
            self.pick(model, now, |job| matches!(job.status, Status::Failed | Status::Cancelled))
        };
        job.map(|job| RetryTarget { job: job.id, version: job.version })
    }
}

pub(super) fn remember<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Picks one of only three workers, so that the same workers recur.
impl Parts {
    fn worker(&mut self) -> WorkerId {
        let worker = self.rng.u128(1..4);
        WorkerId::from_uuid(windlass_core::uuid::Uuid::from_u128(worker))
    }

    fn worker_name(&mut self) -> Option<WorkerName> {
        let name = *self.rng.choice(&[None, Some("a"), Some("b — c")])?;
        name.map(|name| WorkerName::new(name).expect("a valid name"))
    }
}
