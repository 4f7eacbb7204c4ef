use std::collections::VecDeque;

use fastrand::Rng;
use windlass_core::command::{DueTime, NewBlocker, NewChain, NewJob, NewKey, NextJob, Outcome, Step};
use windlass_core::uuid::Uuid;
use windlass_core::{
    ChainId, Codec, ErrorText, JobId, Key, KeyHold, OnBlockerFailure, Payload, Retention, Timestamp,
    TraceContext, TypeName,
};

use crate::outcome::{key, type_name};
use crate::subject::millis;

/// Only a few keys, so that chains collide.
const KEYS: [&str; 5] = ["a", "a:a", "b\n", "{c}", "ü"];

/// Generates the parts of commands.
pub(super) struct Parts {
    pub(super) rng: Rng,
    pub(super) types: Vec<TypeName>,
    /// Id of the latest continuation, which is not the id of a chain.
    inner: Option<JobId>,
}

impl Parts {
    pub(super) fn new(seed: u64) -> Self {
        // The first two names would collide in a store that joined names and keys without escaping.
        let types = ["mail", "mail:a", "thumb {x}"].map(type_name).to_vec();
        Self { rng: Rng::with_seed(seed), types, inner: None }
    }

    pub(super) fn uuid(&mut self) -> Uuid {
        Uuid::from_u128(self.rng.u128(..))
    }

    pub(super) fn pick<T: Clone>(&mut self, items: &VecDeque<T>) -> Option<T> {
        let index = self.rng.usize(..items.len().max(1));
        items.get(index).cloned()
    }

    pub(super) fn job_type(&mut self) -> TypeName {
        self.rng.choice(self.types.clone()).unwrap_or_else(|| type_name("mail"))
    }

    pub(super) fn key(&mut self) -> Key {
        key(self.rng.choice(KEYS).unwrap_or("a"))
    }

    /// Returns every type with every key.
    pub(super) fn keys(&self) -> impl Iterator<Item = (TypeName, Key)> {
        self.types.iter().flat_map(|job_type| KEYS.map(|text| (job_type.clone(), key(text))))
    }

    pub(super) fn payload(&mut self) -> Payload {
        let bytes: Vec<u8> = (0..self.rng.usize(..12)).map(|_| self.rng.u8(..)).collect();
        let codec = if self.rng.bool() { "json" } else { "cbor" };
        Payload::new(Codec::new(codec).expect("a valid name"), bytes).expect("a small payload")
    }

    /// Generates a chain to start. Its blockers are known chains or earlier chains of the same command; rarely the
    /// chain itself, or one that does not exist. Rarely its id is that of another chain or job.
    pub(super) fn chain(&mut self, known: &[ChainId], earlier: &[NewChain]) -> NewChain {
        let taken = self.rng.u32(..60) == 0;
        let id = match known.first().filter(|_| taken) {
            Some(chain) => *chain,
            None => ChainId::from_uuid(self.uuid()),
        };
        let inner = self.inner.filter(|_| self.rng.u32(..60) == 0);
        let id = inner.map_or(id, |inner| ChainId::from_uuid(*inner.as_uuid()));
        let mut blockers: Vec<ChainId> = known.to_vec();
        blockers.extend(earlier.iter().map(|chain| chain.id));
        if self.rng.u32(..60) == 0 {
            blockers = vec![id];
        }
        let mut job = self.job(&blockers);
        if self.rng.u32(..60) == 0 {
            job.max_attempts = Some(0);
        }
        let retention = Retention {
            completed: millis(self.rng.u64(..2_000_000)),
            failed: millis(self.rng.u64(..2_000_000)),
            cancelled: millis(self.rng.u64(..2_000_000)),
        };
        NewChain { id, job, key: self.new_key(known), retention, trace: self.trace() }
    }

    fn new_key(&mut self, known: &[ChainId]) -> Option<NewKey> {
        if self.rng.u32(..3) > 0 {
            return None;
        }
        let holds = [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed, KeyHold::Any];
        let replaces = if self.rng.u32(..4) == 0 { self.rng.choice(known.iter().copied()) } else { None };
        Some(NewKey {
            key: self.key(),
            hold: self.rng.choice(holds).unwrap_or_default(),
            window: (self.rng.u32(..3) == 0).then(|| millis(self.rng.u64(..30_000))),
            replaces,
        })
    }

    fn job(&mut self, blockers: &[ChainId]) -> NewJob {
        let count = if self.rng.u32(..3) == 0 { self.rng.usize(..4) } else { 0 };
        let policies = [OnBlockerFailure::Wait, OnBlockerFailure::Fail, OnBlockerFailure::Receive];
        NewJob {
            job_type: self.job_type(),
            input: self.payload(),
            schedule: self.schedule(),
            priority: self.rng.i8(-2..3),
            max_attempts: self.rng.bool().then(|| self.rng.u32(1..4)),
            blockers: (0..count).filter_map(|_| self.blocker(blockers)).collect(),
            on_blocker_failure: self.rng.choice(policies).unwrap_or_default(),
            trace: self.trace(),
        }
    }

    fn blocker(&mut self, chains: &[ChainId]) -> Option<NewBlocker> {
        let unknown = self.rng.u32(..40) == 0;
        let chain = if unknown {
            ChainId::from_uuid(self.uuid())
        } else {
            self.rng.choice(chains.iter().copied())?
        };
        Some(NewBlocker { chain, trace: self.trace() })
    }

    fn trace(&mut self) -> Option<TraceContext> {
        let number = self.rng.u32(..);
        number
            .is_multiple_of(4)
            .then(|| TraceContext::new(format!("00-{number}")).expect("a valid trace context"))
    }

    fn schedule(&mut self) -> DueTime {
        match self.rng.u32(..6) {
            0 => DueTime::After(millis(self.rng.u64(..5_000))),
            1 => DueTime::At(Timestamp::from_millis(self.rng.i64(0..1_000)).expect("a time in 1970")),
            _ => DueTime::Now,
        }
    }

    pub(super) fn next(&mut self, known: &[ChainId]) -> NextJob {
        let id = JobId::from_uuid(self.uuid());
        self.inner = Some(id);
        NextJob { id, job: self.job(known) }
    }

    pub(super) fn continue_step(&mut self, known: &[ChainId]) -> Step {
        Step::Continue { next: self.next(known), create: self.carried(known) }
    }

    /// Generates a chain that replaces another as the holder of a key.
    pub(super) fn successor(&mut self, known: &[ChainId], chain: ChainId) -> NewChain {
        let mut new = self.chain(known, &[]);
        let key = new.key.unwrap_or_else(|| NewKey::new(self.key()));
        new.key = Some(NewKey { replaces: Some(chain), ..key });
        new
    }

    pub(super) fn carried(&mut self, known: &[ChainId]) -> Vec<NewChain> {
        let count = if self.rng.u32(..4) == 0 { self.rng.usize(1..3) } else { 0 };
        let mut chains = Vec::new();
        for _ in 0..count {
            chains.push(self.chain(known, &chains));
        }
        chains
    }

    pub(super) fn outcome(&mut self, known: &[ChainId], jobs: &[JobId]) -> Outcome {
        let retention = (self.rng.u32(..5) == 0).then(|| millis(self.rng.u64(..2_000_000)));
        let error = ErrorText::new(self.rng.choice(["boom", "böse"]).unwrap_or("boom"));
        match self.rng.u32(..20) {
            0..7 => Outcome::Complete { output: self.payload(), retention, create: self.carried(known) },
            7..13 => {
                let create = self.carried(known);
                let mut chains = known.to_vec();
                chains.extend(create.iter().map(|chain| chain.id));
                let mut next = self.next(&chains);
                if self.rng.u32(..30) == 0 {
                    next.id = self.rng.choice(jobs.iter().copied()).unwrap_or(next.id);
                }
                Outcome::Continue { next, create }
            }
            13..16 => Outcome::Retry { schedule: self.schedule(), error },
            16 => Outcome::Reschedule { schedule: self.schedule(), error: self.rng.bool().then_some(error) },
            17..19 => Outcome::Fail { error, retention },
            _ => Outcome::Release,
        }
    }
}
