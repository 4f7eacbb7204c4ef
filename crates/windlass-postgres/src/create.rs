//! Creating chains.

use windlass_core::command::{Create, CreateReply, Created, JobSummary};
use windlass_core::{Result, Status};

use crate::provider::Provider;
use crate::reply::{Values, corrupt, in_order, put};
use crate::request::NewJobs;
use crate::store::{Call, Execute};

impl Execute for Create {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<CreateReply> {
        self.check()?;
        let (durability, mut deferred) = (call.durability(), false);
        let mut new_jobs = NewJobs::default();
        // Index in the request of each chain that is sent. Chains that break a limit are refused here and not sent.
        let mut indexes = Vec::with_capacity(self.chains.len());
        let mut chains: Vec<Option<Created>> = Vec::with_capacity(self.chains.len());
        for (index, chain) in self.chains.iter().enumerate() {
            let refusal = chain.check().err();
            if refusal.is_none() {
                new_jobs.push_chain(chain);
                indexes.push(index);
            }
            chains.push(refusal.map(Created::Refused));
        }
        if !indexes.is_empty() {
            let sent = new_jobs.indexes();
            let (time, statements) = ([call.time()].into_iter(), call.statements());
            let (statement, parameters) = if !new_jobs.are_apart() {
                (&statements.create, time.chain(new_jobs.parameters()).collect())
            } else if new_jobs.is_keyed() {
                (&statements.create_keyed, time.chain(new_jobs.keyed_parameters()).collect())
            } else {
                (&statements.create_plain, time.chain(new_jobs.plain_parameters()).collect())
            };
            let index_of = |sent: usize| indexes.get(sent).copied().unwrap_or(usize::MAX);
            for row in call.run(statement, parameters).await? {
                let mut values = Values::from(row);
                match values.part.as_str() {
                    "all_stored" => {
                        for (index, due_at) in indexes.iter().zip(values.due_times(indexes.len())?) {
                            let chain = self.chains.get(*index).map(|chain| chain.id);
                            let chain = chain.ok_or_else(|| corrupt("a chain that was not sent"))?;
                            let (job, status) = (chain.first_job(), Status::Pending);
                            let job = JobSummary { job, chain, status, due_at };
                            put(&mut chains, *index, Created::New { job, repeated: false })?;
                        }
                    }
                    "stored" => {
                        for job in values.stored()? {
                            let sent = sent.get(job.job.as_uuid()).copied().unwrap_or(usize::MAX);
                            put(&mut chains, index_of(sent), Created::New { job, repeated: false })?;
                        }
                    }
                    "deferred" => deferred = true,
                    _ => put(&mut chains, index_of(values.item_index()?), values.created()?)?,
                }
            }
        }
        Ok(CreateReply { chains: in_order(chains)?, durability, deferred })
    }
}
