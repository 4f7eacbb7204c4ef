//! Creating chains.

use serde::{Deserialize, Serialize};
use windlass_core::Result;
use windlass_core::command::{Create, CreateReply};

use crate::store::RedisStore;
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

impl RedisStore {
    pub(crate) async fn run_create(&self, request: Create) -> Result<CreateReply> {
        request.check()?;
        let mut payloads = Payloads::default();
        let chains = request.chains.iter().map(|chain| NewChainOut::new(chain, &mut payloads)).collect();
        let out = CreateOut { now: self.time(), chains };
        let (reply, durability): (CreateIn, _) =
            self.write_durably(&self.scripts().create, &out, payloads).await?;
        let chains = reply.chains.into_iter().zip(&request.chains);
        Ok(CreateReply {
            chains: chains.map(|(created, chain)| created.into_created(chain)).collect(),
            durability,
            deferred: false,
        })
    }
}
