use std::future::IntoFuture;

use windlass_core::command::{Create, Created, DueTime, NewBlocker, NewChain, NewJob, NewKey, NextJob};
use windlass_core::{
    BoxFuture, ChainId, JobId, KeyHold, OnBlockerFailure, Payload, Retention, Timestamp, TraceContext,
};

use crate::outcome::{json, key, type_name};
use crate::subject::{Subject, millis};

/// Builder for a chain or a continuation. Awaiting it starts the chain and returns the chain's id; the case fails if
/// the chain is not new.
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

    /// Sets the chain's id.
    pub const fn id(mut self, id: ChainId) -> Self {
        self.chain.id = id;
        self
    }

    /// Sets the key, which is held while the chain is open.
    pub fn key(mut self, text: &str) -> Self {
        self.chain.key = Some(NewKey::new(key(text)));
        self
    }

    /// Sets which outcomes hold the key after the chain closed.
    pub fn hold(self, hold: KeyHold) -> Self {
        self.with_key(|key| key.hold = hold)
    }

    /// Limits how long the key is held, in milliseconds from the chain's creation.
    pub fn window(self, ms: u64) -> Self {
        self.with_key(|key| key.window = Some(millis(ms)))
    }

    /// Takes the key over if this chain holds it.
    pub fn replaces(self, chain: ChainId) -> Self {
        self.with_key(|key| key.replaces = Some(chain))
    }

    /// Delays the job by this many milliseconds.
    pub fn after(mut self, ms: u64) -> Self {
        self.chain.job.schedule = DueTime::After(millis(ms));
        self
    }

    /// Makes the job due at this time.
    pub const fn at(mut self, at: Timestamp) -> Self {
        self.chain.job.schedule = DueTime::At(at);
        self
    }

    /// Sets the priority.
    pub const fn priority(mut self, priority: i8) -> Self {
        self.chain.job.priority = priority;
        self
    }

    /// Sets the maximum number of attempts, after which the job fails permanently.
    pub const fn max_attempts(mut self, max: u32) -> Self {
        self.chain.job.max_attempts = Some(max);
        self
    }

    /// Adds blockers.
    pub fn blocked_by(mut self, chains: impl IntoIterator<Item = ChainId>) -> Self {
        self.chain.job.blockers.extend(chains.into_iter().map(NewBlocker::from));
        self
    }

    /// Adds a blocker with a trace context.
    pub fn blocked_by_traced(mut self, chain: ChainId, trace: &str) -> Self {
        self.chain.job.blockers.push(NewBlocker { chain, trace: Some(trace_context(trace)) });
        self
    }

    /// Sets what happens if a blocker does not complete.
    pub const fn on_failure(mut self, policy: OnBlockerFailure) -> Self {
        self.chain.job.on_blocker_failure = policy;
        self
    }

    /// Sets the input to this JSON text.
    pub fn input(self, text: &str) -> Self {
        self.payload(json(text))
    }

    /// Sets the input.
    pub fn payload(mut self, payload: Payload) -> Self {
        self.chain.job.input = payload;
        self
    }

    /// Sets the retention after every outcome, in milliseconds.
    pub fn retention(mut self, ms: u64) -> Self {
        let span = millis(ms);
        self.chain.retention = Retention { completed: span, failed: span, cancelled: span };
        self
    }

    /// Sets the retention after each outcome.
    pub const fn retentions(mut self, retention: Retention) -> Self {
        self.chain.retention = retention;
        self
    }

    /// Sets the trace contexts of the chain and of its first job.
    pub fn traces(mut self, chain: &str, job: &str) -> Self {
        self.chain.trace = Some(trace_context(chain));
        self.chain.job.trace = Some(trace_context(job));
        self
    }

    /// Returns the chain without starting it.
    #[must_use]
    pub fn build(self) -> NewChain {
        self.chain
    }

    /// Returns the chain's first job as a continuation with a fresh id.
    #[must_use]
    pub fn next_job(self) -> NextJob {
        NextJob { id: JobId::new(), job: self.chain.job }
    }

    /// Starts the chain and returns the store's reply.
    pub async fn created(self) -> Created {
        let mut reply = self.subject.run(Create { chains: vec![self.chain] }).await;
        assert_eq!(reply.chains.len(), 1, "one chain to create, so one reply");
        reply.chains.remove(0)
    }

    fn with_key(mut self, change: impl FnOnce(&mut NewKey)) -> Self {
        change(self.chain.key.as_mut().expect("call `key` before its options"));
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
    TraceContext::new(text).expect("the trace context of a case is valid")
}
