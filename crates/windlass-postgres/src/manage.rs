//! Cancel, trigger, retry, delete, set retention, pause.

use windlass_core::command::{
    Cancel, CancelMode, CancelReply, Cancelled, Delete, DeleteReply, Deleted, DeletedChain, Pause,
    PauseReply, RetentionSet, Retried, Retry, RetryReply, Ripple, SetRetention, SetRetentionReply, Trigger,
    TriggerReply, Triggered, Untriggerable,
};
use windlass_core::limit::BATCH_MAX_ITEMS;
use windlass_core::{Error, ErrorKind, Result, Version, WorkerId};

use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt, in_order, put, ripple};
use crate::request::{names, span, targets};
use crate::store::{Call, Execute};

impl Execute for Cancel {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<CancelReply> {
        check_items("chains", self.chains.len())?;
        let ask = Parameter::Flag(self.mode == CancelMode::Ask);
        let parameters = [call.time()].into_iter().chain(targets(&self.chains)).chain([ask]).collect();
        let mut chains: Vec<Option<Cancelled>> = self.chains.iter().map(|_| None).collect();
        let mut followed = Ripple::default();
        for row in call.run(&call.statements().cancel, parameters).await? {
            let mut values = Values::from(row);
            match values.part.as_str() {
                "cancelled" => put(&mut chains, values.item_index()?, cancelled(&mut values)?)?,
                _ => ripple(&mut followed, &mut values)?,
            }
        }
        Ok(CancelReply { chains: in_order(chains)?, ripple: followed })
    }
}

fn cancelled(values: &mut Values) -> Result<Cancelled> {
    let kind = values.text()?;
    match kind.as_str() {
        "not_found" => return Ok(Cancelled::NotFound),
        "busy" => return Ok(Cancelled::Busy),
        _ => {}
    }
    let chain = values.chain_id()?;
    Ok(match kind.as_str() {
        "cancelled" => Cancelled::Cancelled { chain, job: values.job_id()? },
        "asked" => Cancelled::Asked { chain, job: values.job_id()?, worker: values.worker_id()? },
        "running" => Cancelled::Running { chain },
        "closed" => Cancelled::Closed { chain, closed_as: values.enum_value()? },
        _ => return Err(corrupt(&format!("the cancellation {kind:?}"))),
    })
}

impl Execute for Trigger {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<TriggerReply> {
        check_items("jobs", self.jobs.len())?;
        let parameters = [call.time()].into_iter().chain(targets(&self.jobs)).collect();
        let mut triggered: Vec<Option<Triggered>> = self.jobs.iter().map(|_| None).collect();
        let mut refused: Vec<Option<Option<Untriggerable>>> = self.jobs.iter().map(|_| None).collect();
        for row in call.run(&call.statements().trigger, parameters).await? {
            let mut values = Values::from(row);
            let index = values.item_index()?;
            if values.part == "triggered" {
                let (job, job_type, chain_type) =
                    (values.summary()?, values.type_name()?, values.type_name()?);
                put(&mut triggered, index, Triggered { job, job_type, chain_type })?;
                continue;
            }
            let why = match values.maybe_text().as_deref() {
                None => None,
                Some("not_found") => Some(Untriggerable::NotFound),
                Some("busy") => Some(Untriggerable::Busy),
                Some(_) => Some(Untriggerable::NotPending(values.enum_value()?)),
            };
            put(&mut refused, index, why)?;
        }
        if refused.iter().any(Option::is_some) {
            return Ok(TriggerReply::Refused(in_order(refused)?));
        }
        Ok(TriggerReply::Triggered(in_order(triggered)?))
    }
}

impl Execute for Retry {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<RetryReply> {
        check_items("chains", self.chains.len())?;
        let jobs = self.chains.iter().map(|target| Some(*target.job.as_uuid())).collect();
        let versions = self.chains.iter().map(|target| number(target.version)).collect();
        let parameters = vec![call.time(), Parameter::Ids(jobs), Parameter::Numbers(versions)];
        let mut chains: Vec<Option<Retried>> = self.chains.iter().map(|_| None).collect();
        let mut deferred = false;
        for row in call.run(&call.statements().retry, parameters).await? {
            let mut values = Values::from(row);
            match values.part.as_str() {
                "deferred" => deferred = true,
                _ => put(&mut chains, values.item_index()?, retried(&mut values)?)?,
            }
        }
        Ok(RetryReply { chains: in_order(chains)?, deferred })
    }
}

/// Returns a version as a `bigint`. No job ever reaches a version outside its range, so the largest one matches no job
/// either.
fn number(version: Version) -> Option<i64> {
    Some(i64::try_from(version.0).unwrap_or(i64::MAX))
}

fn retried(values: &mut Values) -> Result<Retried> {
    let kind = values.text()?;
    Ok(match kind.as_str() {
        "retried" => Retried::Retried {
            job: values.summary()?,
            job_type: values.type_name()?,
            chain_type: values.type_name()?,
        },
        "already_retried" => Retried::AlreadyRetried,
        "not_retriable" => Retried::NotRetriable(values.enum_value()?),
        "not_found" => Retried::NotFound,
        "busy" => Retried::Busy,
        _ => Retried::Refused(values.refusal(None)?),
    })
}

impl Execute for Delete {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<DeleteReply> {
        check_items("chains", self.chains.len())?;
        let only_seen = self.seen.is_some();
        let seen = self.seen.unwrap_or_default();
        check_items("jobs", seen.len())?;
        let options = [
            Parameter::Flag(self.cascade),
            Parameter::Flag(only_seen),
            Parameter::Ids(seen.iter().map(|seen| Some(*seen.job.as_uuid())).collect()),
            Parameter::Numbers(seen.iter().map(|seen| number(seen.version)).collect()),
        ];
        let parameters = [call.time()].into_iter().chain(targets(&self.chains)).chain(options).collect();
        let (mut deleted, mut refusals) = (Deleted::default(), Vec::new());
        for row in call.run(&call.statements().delete, parameters).await? {
            let mut values = Values::from(row);
            match values.part.as_str() {
                "busy" => return Ok(DeleteReply::Busy),
                "in_snapshot" => {
                    let text = "the transaction reads from a snapshot, which may hide jobs that need the chain: delete \
                                outside the transaction, or in one at read committed";
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                "refused" => refusals.push(values.refusal(None)?),
                _ => {
                    let (chain, job) = (values.chain_id()?, values.job_id()?);
                    let worker = values.maybe_id().map(WorkerId::from_uuid);
                    let (chain_type, status) = (values.type_name()?, values.enum_value()?);
                    let running = worker.map(|worker| (job, worker));
                    deleted.chains.push(DeletedChain { chain, chain_type, status, running });
                }
            }
        }
        Ok(if refusals.is_empty() { DeleteReply::Deleted(deleted) } else { DeleteReply::Refused(refusals) })
    }
}

impl Execute for SetRetention {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<SetRetentionReply> {
        check_items("chains", self.chains.len())?;
        let retention = Parameter::Number(Some(span(self.retention)));
        let parameters = [call.time()].into_iter().chain(targets(&self.chains)).chain([retention]).collect();
        let mut chains: Vec<Option<RetentionSet>> = self.chains.iter().map(|_| None).collect();
        for row in call.run(&call.statements().set_retention, parameters).await? {
            let mut values = Values::from(row);
            let set = match values.text()?.as_str() {
                "until" => RetentionSet::Until(values.time()?),
                "not_closed" => RetentionSet::NotClosed,
                "busy" => RetentionSet::Busy,
                _ => RetentionSet::NotFound,
            };
            put(&mut chains, values.item_index()?, set)?;
        }
        Ok(SetRetentionReply { chains: in_order(chains)? })
    }
}

impl Execute for Pause {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<PauseReply> {
        check_items("types", self.types.len())?;
        let parameters = vec![call.time(), names(&self.types), Parameter::Flag(self.paused)];
        let mut were_paused: Vec<Option<bool>> = self.types.iter().map(|_| None).collect();
        for row in call.run(&call.statements().pause, parameters).await? {
            let mut values = Values::from(row);
            put(&mut were_paused, values.item_index()?, values.flag()?)?;
        }
        Ok(PauseReply { were_paused: in_order(were_paused)? })
    }
}

/// Returns an error if a command has more than [`BATCH_MAX_ITEMS`] items.
pub(crate) fn check_items(what: &str, items: usize) -> Result<()> {
    if items <= BATCH_MAX_ITEMS {
        return Ok(());
    }
    let text = format!("{items} {what} in one command: split it into commands of at most {BATCH_MAX_ITEMS}");
    Err(Error::new(ErrorKind::Invalid, text))
}
