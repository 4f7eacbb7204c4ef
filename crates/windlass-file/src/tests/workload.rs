//! Commands for the tests, and the states that they lead to.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use windlass_core::command::{
    Acquire, Acquired, Beat, Cancel, CancelMode, Command, Create, Delete, LeaderLock, LockAction, NewChain,
    NewJob, NewKey, NextJob, Outcome, Pause, Quota, Renew, RenewLease, Reply, Retry, RetryTarget, Settle,
    Settlement, Target,
};
use windlass_core::model::{ChainRow, JobRow, Model, Row, RowKey};
use windlass_core::{
    ChainId, Clock, ErrorText, JobId, KeyHold, LockName, ManualClock, Millis, Payload, RequestId, Status,
    Store, Timestamp, Transactional, TypeName, WorkerId, WorkerName,
};

use crate::disk::Disk;
use crate::{FileStore, Options};

/// Everything that a model stores, with the order of creation instead of its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dump {
    jobs: Vec<JobRow>,
    chains: Vec<ChainRow>,
    registry: Vec<(RowKey, Row)>,
}

impl Dump {
    pub(crate) fn of(model: &Model) -> Self {
        let mut jobs: Vec<_> = model.jobs_after(0, usize::MAX).iter().map(|row| JobRow::clone(row)).collect();
        let mut chains: Vec<_> =
            model.chains_after(0, usize::MAX).iter().map(|row| ChainRow::clone(row)).collect();
        // A command that failed may have used numbers.
        jobs.iter_mut().zip(1..).for_each(|(row, seq)| row.seq = seq);
        chains.iter_mut().zip(1..).for_each(|(row, seq)| row.seq = seq);
        Self { jobs, chains, registry: model.registry() }
    }

    pub(crate) fn of_store(store: &FileStore) -> Self {
        let mut state = store.shared().state().unwrap();
        store.shared().follow(&mut state).unwrap();
        Self::of(&state.model)
    }

    pub(crate) fn chain_ids(&self) -> impl Iterator<Item = ChainId> {
        self.chains.iter().map(|row| row.id)
    }

    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }
}

/// A step of a workload.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Command(Command),
    /// Commands in one transaction.
    Together(Vec<Command>),
    Compact,
    Erase,
}

/// Steps, and the state after each of them.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) steps: Vec<Step>,
    /// The states before the first step and after each step.
    pub(crate) states: Vec<Dump>,
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::default())
}

/// The minimum size of a journal without reserved room: every write needs space on the disk.
pub(crate) const NO_ROOM: u64 = u64::MAX;

/// Options with which every journal has reserved room, however small it is. Compactions are steps of the workload.
pub(crate) fn options() -> Options {
    options_with_room_from(0)
}

/// Options with which a journal has reserved room from this size on.
pub(crate) fn options_with_room_from(bytes: u64) -> Options {
    let mut options = Options::new("disk");
    options.reserve_from_bytes = bytes;
    options.clock(clock()).busy_timeout(Duration::from_secs(60)).compact_at_bytes(u64::MAX)
}

pub(crate) fn open(disk: &(impl Disk + Clone + 'static)) -> windlass_core::Result<FileStore> {
    open_with_room_from(disk, 0)
}

pub(crate) fn open_with_room_from(
    disk: &(impl Disk + Clone + 'static),
    bytes: u64,
) -> windlass_core::Result<FileStore> {
    FileStore::open_on(&(Arc::new(disk.clone()) as Arc<dyn Disk>), options_with_room_from(bytes))
}

pub(crate) fn type_name(name: &str) -> TypeName {
    TypeName::new(name).unwrap()
}

pub(crate) fn new_chain() -> NewChain {
    NewChain::new(ChainId::new(), NewJob::new(type_name("t"), Payload::json("1").unwrap()))
}

pub(crate) fn create() -> Command {
    Create { chains: vec![new_chain()] }.into()
}

/// Executes a step on a store.
pub(crate) async fn run(store: &FileStore, step: &Step) -> windlass_core::Result<()> {
    match step {
        Step::Command(command) => {
            let store: &dyn Store = store;
            store.execute(command.clone()).await.map(drop)
        }
        Step::Together(commands) => {
            let mut tx = store.begin().await?;
            for command in commands {
                store.execute_in(&mut tx, command.clone()).await?;
            }
            store.commit(tx).await
        }
        Step::Compact => store.compact().await,
        Step::Erase => store.erase().await,
    }
}

impl Workload {
    /// Random steps.
    pub(crate) fn random(seed: u64, count: usize) -> Self {
        let mut writer = Author { random: Rng::with_seed(seed), model: Model::new(), held: Vec::new() };
        let (mut steps, mut states) = (Vec::new(), vec![Dump::of(&writer.model)]);
        for number in 0..count {
            let step = match number % 10 {
                3 => Step::Compact,
                6 => Step::Together(
                    (0..writer.random.usize(1..5)).map(|_| writer.command_in_transaction()).collect(),
                ),
                8 if number > 30 && writer.random.u8(..4) == 0 => {
                    writer.model = Model::new();
                    writer.held.clear();
                    Step::Erase
                }
                _ => Step::Command(writer.command()),
            };
            steps.push(step);
            states.push(Dump::of(&writer.model));
        }
        Self { steps, states }
    }
}

struct Author {
    random: Rng,
    model: Model,
    held: Vec<Acquired>,
}

impl Author {
    /// Returns a command, and applies it to the model.
    fn command(&mut self) -> Command {
        let command = self.draft();
        self.apply(command)
    }

    /// Returns a command that may run in a transaction, and applies it to the model.
    fn command_in_transaction(&mut self) -> Command {
        let mut command = self.draft();
        while !command.is_transactional() {
            command = self.draft();
        }
        self.apply(command)
    }

    fn draft(&mut self) -> Command {
        match self.random.u8(..14) {
            0..4 => self.create(),
            4..6 => acquire(self.random.u32(1..4)),
            6..9 if !self.held.is_empty() => self.settle(),
            9 => self.registry(),
            10 if !self.held.is_empty() => self.renew(),
            11 => {
                let chains = self.model.chains_after(0, 3).iter().map(|row| Target::Chain(row.id)).collect();
                Cancel { chains, mode: CancelMode::Ask }.into()
            }
            12 => {
                let chains = self.model.chains_after(0, 1).iter().map(|row| Target::Chain(row.id)).collect();
                Delete { chains, cascade: true, seen: None }.into()
            }
            13 => self.retry(),
            _ => self.create(),
        }
    }

    /// Retries all chains that failed or were cancelled.
    fn retry(&self) -> Command {
        let jobs = self.model.jobs_after(0, usize::MAX);
        let closed = jobs.iter().filter(|row| matches!(row.job.status, Status::Failed | Status::Cancelled));
        let target = |row: &Arc<JobRow>| RetryTarget { job: row.job.id, version: row.job.version };
        Retry { chains: closed.map(target).collect() }.into()
    }

    fn apply(&mut self, command: Command) -> Command {
        let (reply, _) = self.model.apply(now(), &command).unwrap();
        if let Reply::Acquire(reply) = reply {
            self.held.extend(reply.jobs);
        }
        command
    }

    fn create(&mut self) -> Command {
        let count = self.random.usize(1..4);
        let mut chains: Vec<_> = (0..count).map(|_| new_chain()).collect();
        let size = self.random.usize(..1_500);
        chains[0].job.input = Payload::json(vec![b'x'; size]).unwrap();
        chains[0].job.priority = self.random.i8(..);
        if self.random.bool() {
            let key = windlass_core::Key::new(self.random.u8(..5).to_string()).unwrap();
            chains[0].key = Some(NewKey { hold: KeyHold::Completed, ..NewKey::new(key) });
        }
        if let Some(blocker) = self.model.chains_after(0, 1).first()
            && self.random.bool()
        {
            chains[0].job.blockers = vec![blocker.id.into()];
        }
        Create { chains }.into()
    }

    fn settle(&mut self) -> Command {
        let held = self.held.swap_remove(self.random.usize(..self.held.len()));
        let output = Payload::json("{\"done\":true}").unwrap();
        let outcome = match self.random.u8(..5) {
            0 => Outcome::Retry {
                schedule: windlass_core::command::DueTime::Now,
                error: ErrorText::new("again"),
            },
            1 => Outcome::Fail { error: ErrorText::new("boom"), retention: None },
            2 => {
                let next = NextJob { id: JobId::new(), job: new_chain().job };
                Outcome::Continue { next, create: Vec::new() }
            }
            _ => Outcome::Complete { output, retention: None, create: vec![new_chain()] },
        };
        Settle { settlements: vec![Settlement { job: held.job.id, fence: held.job.fence, outcome }] }.into()
    }

    fn renew(&mut self) -> Command {
        let held = &self.held[self.random.usize(..self.held.len())];
        let lease = RenewLease { job: held.job.id, fence: held.job.fence, lease: Millis::from_secs(90) };
        Renew { leases: vec![lease] }.into()
    }

    fn registry(&mut self) -> Command {
        match self.random.u8(..3) {
            0 => Pause { types: vec![type_name("u")], paused: self.random.bool() }.into(),
            1 => LeaderLock {
                name: LockName::new("leader").unwrap(),
                token: RequestId::new(),
                action: LockAction::Hold(Millis::from_secs(9)),
            }
            .into(),
            _ => Beat {
                worker: WorkerId::new(),
                name: Some(WorkerName::new("ada").unwrap()),
                types: vec![type_name("t")],
                concurrency: 4,
                running: 1,
                ttl: Millis::from_secs(60),
            }
            .into(),
        }
    }
}

fn now() -> Timestamp {
    Clock::now(&*clock())
}

pub(crate) fn acquire(max: u32) -> Command {
    let quota = Quota { job_type: type_name("t"), max, lease: Millis::from_secs(60) };
    Acquire { request: RequestId::new(), worker: WorkerId::new(), worker_name: None, types: vec![quota], max }
        .into()
}
