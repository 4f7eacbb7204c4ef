//! Requeuing jobs whose lease expired; the time of the next due job.

use windlass_core::Result;
use windlass_core::command::{NextDue, NextDueReply, Reap, ReapReply, Reaped, Ripple};

use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt, ripple};
use crate::request::{count, types};
use crate::store::{Call, Execute};

impl Execute for Reap {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ReapReply> {
        self.check()?;
        let except = self.except.iter().map(|job| Some(*job.as_uuid())).collect();
        let parameters = vec![call.time(), types(&self.types), count(self.max), Parameter::Ids(except)];
        let mut reply = ReapReply { reaped: Vec::new(), ripple: Ripple::default() };
        for row in call.run(&call.statements().reap, parameters).await? {
            let mut values = Values::from(row);
            match values.part.as_str() {
                "reaped" => reply.reaped.push(Reaped {
                    job: values.summary()?,
                    worker: values.worker_id()?,
                    job_type: values.type_name()?,
                    chain_type: values.type_name()?,
                    worker_name: values.worker_name()?,
                    attempt: values.number()?,
                    lease_until: values.time()?,
                }),
                _ => ripple(&mut reply.ripple, &mut values)?,
            }
        }
        call.maintain(0);
        Ok(reply)
    }
}

impl Execute for NextDue {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<NextDueReply> {
        self.types.check()?;
        let floors = call.floors().known(&self.types);
        let parameters = [call.time(), types(&self.types)].into_iter().chain(floors).collect();
        let rows = call.run(&call.statements().next_due, parameters).await?;
        let row = rows.into_iter().next().ok_or_else(|| corrupt("no reply to `next_due`"))?;
        let mut values = Values::from(row);
        Ok(NextDueReply {
            now: values.time()?,
            due_at: values.maybe_time()?,
            lease_until: values.maybe_time()?,
        })
    }
}
