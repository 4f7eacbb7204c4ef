//! `windlass cancel`, `retry`, `trigger`, `delete`, `pause` and `resume`.

use serde::Serialize;
use windlass::command::{CancelMode, Cancelled, DeleteReply, Retried, TriggerReply, Untriggerable};
use windlass::{Status, Topic};

use super::Context;
use super::target::{self, Found};
use crate::arguments::{Cancel, Delete, Named, Types};
use crate::exit::{Code, Failure, Result};
use crate::output::Output;
use crate::store::Access;

/// What a row was that somebody's open transaction has.
const BUSY: &str = "busy: somebody's open transaction has it, try again when that has ended";

pub(crate) async fn cancel(context: &Context, cancel: &Cancel) -> Result {
    let connection = context.open(Access::Look).await?;
    let client = connection.client();
    let mode = if cancel.running { CancelMode::Ask } else { CancelMode::UnlessRunning };
    let mut outcome = Ok(());
    for found in target::all(&client, &cancel.chosen).await? {
        let topics = match found.chain.latest.lease {
            Some(lease) => vec![Topic::OwnershipLost(lease.worker), Topic::ChainClosed(found.chain.id)],
            None => vec![Topic::ChainClosed(found.chain.id)],
        };
        let cancelling = async {
            let cancelled = client.cancel(found.chain.id, mode).await?;
            Ok((cancelled, matches!(cancelled, Cancelled::Cancelled { .. } | Cancelled::Asked { .. })))
        };
        let done = match connection.announced(topics, cancelling).await? {
            Cancelled::Cancelled { .. } => Ok("cancelled".to_owned()),
            Cancelled::Asked { .. } => Ok("asked to stop".to_owned()),
            Cancelled::Running { .. } => {
                Err("running, and was left alone: --running asks it to stop".to_owned())
            }
            Cancelled::Closed { closed_as, .. } => Err(format!("closed before: {}", Status::from(closed_as))),
            Cancelled::NotFound => Err("gone".to_owned()),
            Cancelled::Busy => Err(BUSY.to_owned()),
        };
        outcome = tell(context.output, &found, done)?.and(outcome);
    }
    outcome
}

pub(crate) async fn retry(context: &Context, named: &Named) -> Result {
    let connection = context.open(Access::Look).await?;
    let client = connection.client();
    let mut outcome = Ok(());
    for found in target::all(&client, &named.chosen).await? {
        let topics = vec![Topic::Scheduled(found.chain.latest.job_type.clone())];
        let retrying = async {
            let retried = client.retry(found.chain.id).await?;
            let is_hinted = matches!(&retried, Retried::Retried { job, .. } if job.status == Status::Pending);
            Ok((retried, is_hinted))
        };
        let done = match connection.announced(topics, retrying).await? {
            Retried::Retried { job, .. } => Ok(job.status.to_string()),
            Retried::AlreadyRetried => Ok("retried already".to_owned()),
            Retried::NotRetriable(status) => {
                Err(format!("{status}: only what failed or was cancelled is retried"))
            }
            Retried::Refused(refusal) => Err(refusal.to_string()),
            Retried::NotFound => Err("gone".to_owned()),
            Retried::Busy => Err(BUSY.to_owned()),
        };
        outcome = tell(context.output, &found, done)?.and(outcome);
    }
    outcome
}

pub(crate) async fn trigger(context: &Context, named: &Named) -> Result {
    let connection = context.open(Access::Look).await?;
    let client = connection.client();
    let found = target::all(&client, &named.chosen).await?;
    let topics = found.iter().map(|found| Topic::Scheduled(found.chain.latest.job_type.clone())).collect();
    let triggering = async {
        let reply = client.trigger(found.iter().map(Found::target).collect()).await?;
        let is_hinted = matches!(reply, TriggerReply::Triggered(_));
        Ok((reply, is_hinted))
    };
    let (word, reasons) = match connection.announced(topics, triggering).await? {
        TriggerReply::Triggered(_) => ("due now", vec![None; found.len()]),
        TriggerReply::Refused(reasons) => ("unchanged: it is all or none", reasons),
    };
    let mut outcome = Ok(());
    for (found, reason) in found.iter().zip(reasons) {
        let done = match reason {
            None => Ok(word.to_owned()),
            Some(Untriggerable::NotFound) => Err("gone".to_owned()),
            Some(Untriggerable::NotPending(status)) => {
                Err(format!("{status}: only a pending job is triggered"))
            }
            Some(Untriggerable::Busy) => Err(BUSY.to_owned()),
        };
        outcome = tell(context.output, found, done)?.and(outcome);
    }
    outcome
}

pub(crate) async fn delete(context: &Context, delete: &Delete) -> Result {
    let connection = context.open(Access::Look).await?;
    let client = connection.client();
    let found = target::all(&client, &delete.chosen).await?;
    let chains = found.iter().map(|found| found.chain.id.into()).collect();
    match client.delete(chains, delete.cascade).await? {
        DeleteReply::Deleted(deleted) => deleted.chains.iter().try_for_each(|chain| {
            let line = Line { id: chain.chain.to_string(), done: true, what: "deleted".to_owned() };
            context.output.one(&line, || line.text())
        }),
        DeleteReply::Refused(refusals) => {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(Failure::failed(format!("nothing was deleted: {}", reasons.join("; "))))
        }
        DeleteReply::Busy => Err(Failure::failed(format!("nothing was deleted: a chain is {BUSY}"))),
    }
}

pub(crate) async fn pause(context: &Context, Types { types }: Types, paused: bool) -> Result {
    let connection = context.open(Access::Look).await?;
    let client = connection.client();
    let before = client.pause(types.clone(), paused).await?;
    for (job_type, was_paused) in types.iter().zip(before) {
        let word = if paused { "paused" } else { "resumed" };
        let what = if was_paused == paused { format!("{word} before") } else { word.to_owned() };
        let line = Line { id: job_type.to_string(), done: true, what };
        context.output.one(&line, || line.text())?;
    }
    Ok(())
}

/// What became of one that was named.
#[derive(Debug, Serialize)]
struct Line {
    id: String,
    done: bool,
    what: String,
}

impl Line {
    fn text(&self) -> String {
        format!("{}  {}", self.id, self.what)
    }
}

/// Prints what became of one, and gives the end of the command if it was not done.
fn tell(output: Output, found: &Found, done: Result<String, String>) -> Result<Result> {
    let is_done = done.is_ok();
    let line = Line { id: found.name.clone(), done: is_done, what: done.unwrap_or_else(|why| why) };
    output.one(&line, || line.text())?;
    Ok(if is_done { Ok(()) } else { Err(Failure::told(Code::Failed)) })
}
