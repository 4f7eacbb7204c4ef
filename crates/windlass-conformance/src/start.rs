use std::future::IntoFuture;

use windlass_core::command::{Create, Created, NewBlocker, NewChain, NewJob, NewKey, NextJob, Schedule};
use windlass_core::{
    BoxFuture, ChainId, JobId, KeyHold, OnBlockerFailure, Payload, Retention, Timestamp, TraceContext,
};

use crate::outcome::{json, key, type_name};
use crate::subject::{Subject, millis};

/// A chain or a continuation in the making. Awaited, it is started and gives its id; the case fails if it is not new.
#[derive(Clone, Debug)]
#[must_use = "await it, or build it"]
pub struct Start<'a> {
    subject: &'a Subject,
    chain: NewChain,
}

impl<'a> Start<'a> {
    pub(crate) fn new(subject: &'a Subject, job_type: &str) -> Self {
        let job = NewJob::new(type_name(job_type), json("{}"));
        Self { subject, chain: NewChain::new(ChainId::new(), job) }
    }

    /// With this id.
    pub const fn id(mut self, id: ChainId) -> Self {
        self.chain.id = id;
        self
    }

    /// With this key, held while the chain is open.
    pub fn key(mut self, text: &str) -> Self {
        self.chain.key = Some(NewKey::new(key(text)));
        self
    }

    /// The key is held by these outcomes too.
    pub fn hold(self, hold: KeyHold) -> Self {
        self.with_key(|key| key.hold = hold)
    }

    /// The key is held for so many milliseconds at most.
    pub fn window(self, ms: u64) -> Self {
        self.with_key(|key| key.window = Some(millis(ms)))
    }

    /// The key is taken over if this chain holds it.
    pub fn replaces(self, chain: ChainId) -> Self {
        self.with_key(|key| key.replaces = Some(chain))
    }

    /// Due after so many milliseconds.
    pub fn after(mut self, ms: u64) -> Self {
        self.chain.job.schedule = Schedule::After(millis(ms));
        self
    }

    /// Due at this time.
    pub const fn at(mut self, at: Timestamp) -> Self {
        self.chain.job.schedule = Schedule::At(at);
        self
    }

    /// With this priority.
    pub const fn priority(mut self, priority: i8) -> Self {
        self.chain.job.priority = priority;
        self
    }

    /// Fails for good after so many attempts.
    pub const fn max_attempts(mut self, max: u32) -> Self {
        self.chain.job.max_attempts = Some(max);
        self
    }

    /// Waits for these chains.
    pub fn blocked_by(mut self, chains: impl IntoIterator<Item = ChainId>) -> Self {
        self.chain.job.blockers.extend(chains.into_iter().map(NewBlocker::from));
        self
    }

    /// Waits for this chain, with a trace context.
    pub fn blocked_by_traced(mut self, chain: ChainId, trace: &str) -> Self {
        self.chain.job.blockers.push(NewBlocker { chain, trace: Some(trace_context(trace)) });
        self
    }

    /// What it does when a blocker does not complete.
    pub const fn on_failure(mut self, policy: OnBlockerFailure) -> Self {
        self.chain.job.on_blocker_failure = policy;
        self
    }

    /// With this JSON as its input.
    pub fn input(self, text: &str) -> Self {
        self.payload(json(text))
    }

    /// With this input.
    pub fn payload(mut self, payload: Payload) -> Self {
        self.chain.job.input = payload;
        self
    }

    /// Stays for so many milliseconds after it closed, whatever the outcome.
    pub fn retention(mut self, ms: u64) -> Self {
        let span = millis(ms);
        self.chain.retention = Retention { completed: span, failed: span, cancelled: span };
        self
    }

    /// Stays so long after each outcome.
    pub const fn retentions(mut self, retention: Retention) -> Self {
        self.chain.retention = retention;
        self
    }

    /// With trace contexts of the chain and of the job.
    pub fn traces(mut self, chain: &str, job: &str) -> Self {
        self.chain.trace = Some(trace_context(chain));
        self.chain.job.trace = Some(trace_context(job));
        self
    }

    /// The chain, not started.
    #[must_use]
    pub fn build(self) -> NewChain {
        self.chain
    }

    /// Its first job as a continuation with a fresh id.
    #[must_use]
    pub fn next_job(self) -> NextJob {
        NextJob { id: JobId::new(), job: self.chain.job }
    }

    /// Starts it, and tells what became of it.
    pub async fn created(self) -> Created {
        let mut reply = self.subject.run(Create { chains: vec![self.chain] }).await;
        assert_eq!(reply.chains.len(), 1, "one chain to create, so one reply");
        reply.chains.remove(0)
    }

    fn with_key(mut self, change: impl FnOnce(&mut NewKey)) -> Self {
        change(self.chain.key.as_mut().expect("a case names the key before its terms"));
        self
    }
}

impl<'a> IntoFuture for Start<'a> {
    type Output = ChainId;
    type IntoFuture = BoxFuture<'a, ChainId>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let id = self.chain.id;
            match self.created().await {
                Created::New { job, repeated: false } if job.chain == id => id,
                other => panic!("expected the new chain {id}, got {other:?}"),
            }
        })
    }
}

fn trace_context(text: &str) -> TraceContext {
    TraceContext::new(text).expect("the trace context of a case is a good one")
}
