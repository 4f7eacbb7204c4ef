//! Starting chains.

use windlass_core::Result;
use windlass_core::command::{Create, CreateReply, Created};

use crate::provider::Provider;
use crate::reply::{Values, in_order, put};
use crate::request::News;
use crate::store::{Call, CarryOut};

impl CarryOut for Create {
    async fn carry_out<P: Provider>(self, mut call: Call<'_, P>) -> Result<CreateReply> {
        self.check()?;
        let durability = call.durability();
        let mut news = News::default();
        // The place of each chain that is sent. What can be refused without the store is not.
        let mut places = Vec::with_capacity(self.chains.len());
        let mut chains: Vec<Option<Created>> = Vec::with_capacity(self.chains.len());
        for (place, chain) in self.chains.iter().enumerate() {
            let refusal = chain.check().err();
            if refusal.is_none() {
                news.push_chain(chain);
                places.push(place);
            }
            chains.push(refusal.map(Created::Refused));
        }
        if !places.is_empty() {
            let parameters = [call.time()].into_iter().chain(news.parameters()).collect();
            for row in call.run(&call.statements().create, parameters).await? {
                let mut values = Values::from(row);
                let place = places.get(values.place()?).copied().unwrap_or(usize::MAX);
                put(&mut chains, place, values.created()?)?;
            }
        }
        Ok(CreateReply { chains: in_order(chains)?, durability })
    }
}
