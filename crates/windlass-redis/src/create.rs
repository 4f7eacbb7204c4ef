//! Creating chains.

use serde::{Deserialize, Serialize};
use windlass_core::Result;
use windlass_core::command::{Create, CreateReply};

use crate::store::{Execute, RedisStore};
use crate::wire::{CreatedIn, NewChainOut, Payloads};

#[derive(Debug, Serialize)]
struct CreateOut<'a> {
    now: Option<i64>,
    chains: Vec<NewChainOut<'a>>,
}

#[derive(Debug, Deserialize)]
struct CreateIn {
    chains: Vec<CreatedIn>,
}

impl Execute for Create {
    async fn execute(self, store: &RedisStore) -> Result<CreateReply> {
        self.check()?;
        let mut payloads = Payloads::default();
        let chains = self.chains.iter().map(|chain| NewChainOut::new(chain, &mut payloads)).collect();
        let out = CreateOut { now: store.time(), chains };
        let (reply, durability): (CreateIn, _) =
            store.write_durably(&store.scripts().create, &out, payloads).await?;
        let chains = reply.chains.into_iter().zip(&self.chains);
        Ok(CreateReply {
            chains: chains.map(|(created, chain)| created.into_created(chain)).collect(),
            durability,
            deferred: false,
        })
    }
}
