//! Removing chains and jobs whose retention has ended.

use serde::{Deserialize, Serialize};
use windlass_core::command::{Expire, ExpireReply, Expired};
use windlass_core::{ChainId, ClosedAs, Result, TypeName};

use crate::store::{Execute, RedisStore};
use crate::wire::{Payloads, Read};

#[derive(Debug, Serialize)]
struct ExpireOut {
    now: Option<i64>,
    max: u32,
}

#[derive(Debug, Deserialize)]
struct ExpireIn {
    chains: Vec<ExpiredIn>,
    jobs: u32,
    more: bool,
}

#[derive(Debug, Deserialize)]
struct ExpiredIn {
    chain: Read<ChainId>,
    chain_type: Read<TypeName>,
    closed_as: Read<ClosedAs>,
}

impl From<ExpiredIn> for Expired {
    fn from(expired: ExpiredIn) -> Self {
        Self { chain: expired.chain.0, chain_type: expired.chain_type.0, closed_as: expired.closed_as.0 }
    }
}

impl Execute for Expire {
    async fn execute(self, store: &RedisStore) -> Result<ExpireReply> {
        self.check()?;
        let out = ExpireOut { now: store.time(), max: self.max };
        let reply: ExpireIn = store.write(&store.scripts().expire, &out, Payloads::default()).await?;
        let chains = reply.chains.into_iter().map(Expired::from).collect();
        Ok(ExpireReply { chains, jobs: reply.jobs, more: reply.more })
    }
}
