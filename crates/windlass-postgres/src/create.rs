//! Creating chains.

use std::collections::HashMap;

use uuid::Uuid;
use windlass_core::command::{
    Create, CreateAndAcquire, CreateAndAcquireReply, CreateReply, Created, Durability, JobSummary,
};
use windlass_core::{Result, Status, Timestamp};

use crate::acquire::{AcquireRows, acquire_parameters};
use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt, in_order, put};
use crate::request::NewJobs;
use crate::store::{Call, Execute};

impl Execute for Create {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<CreateReply> {
        self.check()?;
        let (new_jobs, mut created) = CreateRows::new(&self);
        if new_jobs.len() > 0 {
            let (time, statements) = ([call.time()].into_iter(), call.statements());
            let (statement, parameters) = match new_jobs.kind() {
                Kind::Plain => (&statements.create_plain, time.chain(new_jobs.plain_parameters()).collect()),
                Kind::Keyed => (&statements.create_keyed, time.chain(new_jobs.keyed_parameters()).collect()),
                Kind::Any => (&statements.create, time.chain(new_jobs.parameters()).collect()),
            };
            for row in call.run(statement, parameters).await? {
                created.take(row.into())?;
            }
        }
        created.reply(call.durability())
    }
}

impl Execute for CreateAndAcquire {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<CreateAndAcquireReply> {
        let Self { create, acquire } = self;
        create.check()?;
        acquire.check()?;
        let durability = call.durability();
        let (new_jobs, mut created) = CreateRows::new(&create);
        if new_jobs.len() == 0 {
            let create = created.reply(durability)?;
            return Ok(CreateAndAcquireReply { create, acquire: acquire.execute(call).await? });
        }
        let (floors, scan) = call.floors().parameters(&acquire);
        let (time, statements) = ([call.time()].into_iter(), call.statements());
        let taking = acquire_parameters(&acquire).into_iter().chain(floors);
        let (statement, parameters): (_, Vec<Parameter>) = match new_jobs.kind() {
            Kind::Plain | Kind::Keyed if new_jobs.len() == 1 => {
                let parameters = time.chain(new_jobs.keyed_parameters()).chain(taking);
                (&statements.create_one_acquire, parameters.collect())
            }
            Kind::Plain => {
                let parameters = time.chain(new_jobs.plain_parameters()).chain(taking);
                (&statements.create_plain_acquire, parameters.collect())
            }
            Kind::Keyed => {
                let parameters = time.chain(new_jobs.keyed_parameters()).chain(taking);
                (&statements.create_keyed_acquire, parameters.collect())
            }
            Kind::Any => {
                let parameters = time.chain(new_jobs.parameters()).chain(taking);
                (&statements.create_acquire, parameters.collect())
            }
        };
        let mut acquired = AcquireRows::new(&acquire);
        // A `started` row is the whole reply. Otherwise, the row with the time separates the reply to the create from the reply
        // to the acquire.
        let mut creating = true;
        for row in call.run_careful(statement, parameters).await? {
            if row.part == "started" {
                created.started(acquired.started(row.into())?)?;
                continue;
            }
            creating &= row.part != "now";
            if creating { created.take(row.into())? } else { acquired.take(row.into())? }
        }
        let acquire = acquired.reply(&call, scan.as_ref())?;
        Ok(CreateAndAcquireReply { create: created.reply(durability)?, acquire })
    }
}

/// The function that creates chains.
pub(crate) enum Kind {
    /// As a set, without keys.
    Plain,
    /// As a set, with keys.
    Keyed,
    /// One by one.
    Any,
}

/// Collects the rows of the reply to a creation.
struct CreateRows<'a> {
    request: &'a Create,
    /// Index in the request of each chain that is sent. Chains that break a limit are refused here and not sent.
    indexes: Vec<usize>,
    /// Index among the sent chains of each first job by id.
    sent: HashMap<Uuid, usize>,
    chains: Vec<Option<Created>>,
    deferred: bool,
}

impl<'a> CreateRows<'a> {
    fn new(request: &'a Create) -> (NewJobs, Self) {
        let mut new_jobs = NewJobs::default();
        let mut indexes = Vec::with_capacity(request.chains.len());
        let mut chains: Vec<Option<Created>> = Vec::with_capacity(request.chains.len());
        for (index, chain) in request.chains.iter().enumerate() {
            let refusal = chain.check().err();
            if refusal.is_none() {
                new_jobs.push_chain(chain);
                indexes.push(index);
            }
            chains.push(refusal.map(Created::Refused));
        }
        let sent = new_jobs.indexes();
        (new_jobs, Self { request, indexes, sent, chains, deferred: false })
    }

    /// Stores the result of a chain by its index among the sent chains.
    fn put(&mut self, sent: usize, created: Created) -> Result<()> {
        let index = self.indexes.get(sent).copied().unwrap_or(usize::MAX);
        put(&mut self.chains, index, created)
    }

    /// Takes the job of the only chain, which was acquired by the same command.
    fn started(&mut self, due_at: Timestamp) -> Result<()> {
        // Created as pending and then acquired, as by two commands.
        let chain = self.indexes.first().and_then(|index| self.request.chains.get(*index));
        let chain = chain.ok_or_else(|| corrupt("a chain that was not sent"))?.id;
        let job = JobSummary { job: chain.first_job(), chain, status: Status::Pending, due_at };
        self.put(0, Created::New { job, repeated: false })
    }

    fn take(&mut self, mut values: Values) -> Result<()> {
        match values.part.as_str() {
            "all_stored" => {
                for (sent, due_at) in values.due_times(self.indexes.len())?.into_iter().enumerate() {
                    let chain = self.indexes.get(sent).and_then(|index| self.request.chains.get(*index));
                    let chain = chain.ok_or_else(|| corrupt("a chain that was not sent"))?.id;
                    let (job, status) = (chain.first_job(), Status::Pending);
                    let job = JobSummary { job, chain, status, due_at };
                    self.put(sent, Created::New { job, repeated: false })?;
                }
                Ok(())
            }
            "stored" => {
                for job in values.stored()? {
                    let sent = self.sent.get(job.job.as_uuid()).copied().unwrap_or(usize::MAX);
                    self.put(sent, Created::New { job, repeated: false })?;
                }
                Ok(())
            }
            "deferred" => {
                self.deferred = true;
                Ok(())
            }
            _ => {
                let sent = values.item_index()?;
                self.put(sent, values.created()?)
            }
        }
    }

    fn reply(self, durability: Durability) -> Result<CreateReply> {
        Ok(CreateReply { chains: in_order(self.chains)?, durability, deferred: self.deferred })
    }
}
