//! Acquiring jobs and renewing their leases.

use std::cmp::Reverse;

use windlass_core::command::{Acquire, AcquireReply, Acquired, Renew, RenewReply, Renewed, Ripple};
use windlass_core::{JobId, Result, Timestamp};

use crate::floors::Scan;
use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt, in_order, put, ripple};
use crate::request::{count, id, span};
use crate::store::{Call, Execute};

impl Execute for Acquire {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<AcquireReply> {
        self.check()?;
        let (floors, scan) = call.floors().parameters(&self);
        let parameters = [call.time()].into_iter().chain(acquire_parameters(&self)).chain(floors).collect();
        let mut rows = AcquireRows::new(&self);
        for row in call.run_careful(&call.statements().acquire, parameters).await? {
            rows.take(row.into())?;
        }
        rows.reply(&call, scan.as_ref())
    }
}

/// Returns the parameters of an acquire that follow the time, without the floors.
pub(crate) fn acquire_parameters(request: &Acquire) -> [Parameter; 7] {
    [
        id(request.request.as_uuid()),
        id(request.worker.as_uuid()),
        Parameter::Text(request.worker_name.as_ref().map(ToString::to_string)),
        Parameter::Texts(Some(request.types.iter().map(|quota| Some(quota.job_type.to_string())).collect())),
        Parameter::Numbers(request.types.iter().map(|quota| Some(quota.max.into())).collect()),
        Parameter::Numbers(request.types.iter().map(|quota| Some(span(quota.lease))).collect()),
        count(request.max),
    ]
}

/// Collects the rows of the reply to an acquire: first the jobs in any order, then the blockers of those that have some, then
/// the outputs of these blockers. The last row may say that other jobs may be due.
pub(crate) struct AcquireRows<'a> {
    request: &'a Acquire,
    now: Option<Timestamp>,
    /// The jobs, with their place in the order of creation.
    jobs: Vec<(Acquired, i64)>,
    ripple: Ripple,
    /// Whether other jobs may be due although the reply has fewer than requested: it reached the size limit, or repeats an
    /// earlier reply.
    may_have_more: bool,
}

impl<'a> AcquireRows<'a> {
    pub(crate) fn new(request: &'a Acquire) -> Self {
        Self { request, now: None, jobs: Vec::new(), ripple: Ripple::default(), may_have_more: false }
    }

    /// Takes a job that was created and acquired by the same command. Returns its due time.
    pub(crate) fn started(&mut self, mut values: Values) -> Result<Timestamp> {
        let now = values.started_at()?;
        self.now = Some(now);
        let (acquired, seq) = values.acquired(self.request, now)?;
        let due_at = acquired.job.due_at;
        self.jobs.push((acquired, seq));
        Ok(due_at)
    }

    pub(crate) fn take(&mut self, mut values: Values) -> Result<()> {
        match values.part.as_str() {
            "now" => self.now = Some(values.time()?),
            "more" => self.may_have_more = true,
            "job" => {
                let now = self.now()?;
                self.jobs.push(values.acquired(self.request, now)?);
            }
            "blockers" => {
                let job = values.job_id()?;
                self.job(job)?.job.blockers = values.blockers()?.into();
            }
            "output" => {
                let job = values.job_id()?;
                self.job(job)?.blockers.push(values.output()?);
            }
            _ => ripple(&mut self.ripple, &mut values)?,
        }
        Ok(())
    }

    fn now(&self) -> Result<Timestamp> {
        self.now.ok_or_else(|| corrupt("an acquire reply without a time"))
    }

    fn job(&mut self, job: JobId) -> Result<&mut Acquired> {
        let found =
            self.jobs.iter_mut().map(|(acquired, _)| acquired).find(|acquired| acquired.job.id == job);
        found.ok_or_else(|| corrupt("a blocker without a job"))
    }

    /// Returns the reply, and updates the floors and the maintenance from it.
    pub(crate) fn reply<P: Provider>(
        mut self,
        call: &Call<'_, P>,
        scan: Option<&Scan>,
    ) -> Result<AcquireReply> {
        let now = self.now()?;
        self.jobs.sort_by_key(|(Acquired { job, .. }, seq)| (Reverse(job.priority), job.due_at, *seq));
        let jobs = self.jobs.into_iter().map(|(acquired, _)| acquired).collect();
        let reply = AcquireReply { jobs, ripple: self.ripple, now };
        call.acquired(scan, self.request, &reply, self.may_have_more);
        Ok(reply)
    }
}

impl Execute for Renew {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<RenewReply> {
        self.check()?;
        let parameters = vec![
            call.time(),
            Parameter::Ids(self.leases.iter().map(|renew| Some(*renew.job.as_uuid())).collect()),
            Parameter::Numbers(self.leases.iter().map(|renew| Some(renew.fence.0.cast_signed())).collect()),
            Parameter::Numbers(self.leases.iter().map(|renew| Some(span(renew.lease))).collect()),
        ];
        let mut leases: Vec<Option<Renewed>> = self.leases.iter().map(|_| None).collect();
        let mut now = None;
        for row in call.run(&call.statements().renew, parameters).await? {
            let mut values = Values::from(row);
            if values.part == "now" {
                now = Some(values.time()?);
                continue;
            }
            let kind = values.text()?;
            let renewed = match kind.as_str() {
                "held" => Renewed::Held { until: values.time()?, cancel_requested: values.flag()? },
                "busy" => Renewed::Busy,
                "lost" => Renewed::Lost(values.lost()?),
                _ => return Err(corrupt(&format!("the lease {kind:?}"))),
            };
            put(&mut leases, values.item_index()?, renewed)?;
        }
        let now = now.ok_or_else(|| corrupt("a renewal reply without a time"))?;
        Ok(RenewReply { leases: in_order(leases)?, now })
    }
}
