//! Requeuing jobs whose lease expired; the time of the next due job.

use serde::{Deserialize, Serialize};
use windlass_core::command::{NextDue, NextDueReply, Reap, ReapReply, Reaped};
use windlass_core::{Result, Timestamp, TypeName, WorkerId, WorkerName};

use crate::store::{Execute, RedisStore};
use crate::wire::{Payloads, Read, RippleIn, SummaryIn, type_names};

#[derive(Debug, Serialize)]
struct ReapOut<'a> {
    now: Option<i64>,
    types: Option<Vec<&'a str>>,
    max: u32,
    except: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ReapIn {
    reaped: Vec<ReapedIn>,
    ripple: RippleIn,
}

#[derive(Debug, Deserialize)]
struct ReapedIn {
    job: SummaryIn,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    chain_type: Read<TypeName>,
    attempt: u32,
    worker: Read<WorkerId>,
    worker_name: Option<Read<WorkerName>>,
    lease_until: Read<Timestamp>,
}

#[derive(Debug, Serialize)]
struct NextDueOut<'a> {
    now: Option<i64>,
    types: Option<Vec<&'a str>>,
}

#[derive(Debug, Deserialize)]
struct NextDueIn {
    now: Read<Timestamp>,
    due: Option<Read<Timestamp>>,
    lease_until: Option<Read<Timestamp>>,
}

impl From<ReapedIn> for Reaped {
    fn from(reaped: ReapedIn) -> Self {
        Self {
            job: reaped.job.into(),
            job_type: reaped.job_type.0,
            chain_type: reaped.chain_type.0,
            attempt: reaped.attempt,
            worker: reaped.worker.0,
            worker_name: reaped.worker_name.map(|name| name.0),
            lease_until: reaped.lease_until.0,
        }
    }
}

impl Execute for Reap {
    async fn execute(self, store: &RedisStore) -> Result<ReapReply> {
        self.check()?;
        let except = self.except.iter().map(ToString::to_string).collect();
        let out = ReapOut { now: store.time(), types: type_names(&self.types), max: self.max, except };
        let reply: ReapIn = store.write(&store.scripts().reap, &out, Payloads::default()).await?;
        Ok(ReapReply {
            reaped: reply.reaped.into_iter().map(Reaped::from).collect(),
            ripple: reply.ripple.into(),
        })
    }
}

impl Execute for NextDue {
    async fn execute(self, store: &RedisStore) -> Result<NextDueReply> {
        self.types.check()?;
        let out = NextDueOut { now: store.time(), types: type_names(&self.types) };
        let reply: NextDueIn = store.read(&store.scripts().next_due, &out, Payloads::default()).await?;
        Ok(NextDueReply {
            now: reply.now.0,
            due_at: reply.due.map(|due| due.0),
            lease_until: reply.lease_until.map(|until| until.0),
        })
    }
}
