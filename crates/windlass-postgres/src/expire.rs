//! Removing chains and jobs whose retention has ended.

use windlass_core::Result;
use windlass_core::command::{Expire, ExpireReply, Expired};

use crate::provider::Provider;
use crate::reply::Values;
use crate::request::count;
use crate::store::{Call, Execute};

impl Execute for Expire {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ExpireReply> {
        self.check()?;
        let mut reply = ExpireReply { chains: Vec::new(), jobs: 0, more: false };
        for row in call.run(&call.statements().expire, vec![call.time(), count(self.max)]).await? {
            let mut values = Values::from(row);
            if values.part == "expired" {
                let (chain, chain_type) = (values.chain_id()?, values.type_name()?);
                reply.chains.push(Expired { chain, chain_type, closed_as: values.enum_value()? });
            } else {
                reply.jobs = values.number()?;
                reply.more = values.flag()?;
            }
        }
        Ok(reply)
    }
}
