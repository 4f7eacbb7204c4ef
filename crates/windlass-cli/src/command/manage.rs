//! `windlass cancel`, `retry`, `trigger`, `delete`, `pause` and `resume`.

use serde::Serialize;
use windlass::command::{
    self, CancelMode, Cancelled, DeleteReply, Retried, SeenJob, TriggerReply, Untriggerable,
};
use windlass::name::TypeName;
use windlass::{ChainId, Client, Status, Store};

use super::Context;
use super::bulk::{self, Change};
use super::target::{self, Found};
use crate::arguments::{Cancel, Delete, Retry, Trigger};
use crate::exit::{Code, Failure, Result};
use crate::output::Output;
use crate::store::OpenMode;

/// Message for a chain that another open transaction has locked.
pub(super) const BUSY: &str = "locked by another transaction: try again later, or end that transaction";

/// Message for a running chain that is not cancelled.
pub(super) const NOT_CANCELLED: &str = "not cancelled: it is running; use --running to ask it to stop";

/// The result for one chain: what was done, or why nothing was done.
pub(super) type Outcome = Result<String, String>;

pub(crate) async fn cancel(context: &Context, cancel: &Cancel) -> Result {
    let mode = if cancel.running { CancelMode::Ask } else { CancelMode::UnlessRunning };
    if cancel.chains.is_filter() {
        return bulk::run(context, &cancel.chains, Change::Cancel(mode)).await;
    }
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let mut outcome = Ok(());
    for found in target::selected(&client, &cancel.chains).await? {
        let done = cancel_one(&client, found.chain.id, mode).await?;
        outcome = print_result(context.output, &found, done)?.and(outcome);
    }
    outcome
}

pub(super) async fn cancel_one(
    client: &Client<dyn Store>,
    chain: ChainId,
    mode: CancelMode,
) -> Result<Outcome> {
    Ok(match client.cancel(chain, mode).await? {
        Cancelled::Cancelled { .. } => Ok("cancelled".to_owned()),
        Cancelled::Asked { .. } => Ok("asked to stop".to_owned()),
        Cancelled::Running { .. } => Err(NOT_CANCELLED.to_owned()),
        Cancelled::Closed { closed_as, .. } => {
            Err(format!("not cancelled: it is already {}", Status::from(closed_as)))
        }
        Cancelled::NotFound => Err("not found: it was deleted in the meantime".to_owned()),
        Cancelled::Busy => Err(BUSY.to_owned()),
    })
}

pub(crate) async fn retry(context: &Context, retry: &Retry) -> Result {
    if retry.chains.is_filter() {
        return bulk::run(context, &retry.chains, Change::Retry).await;
    }
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let mut outcome = Ok(());
    for found in target::selected(&client, &retry.chains).await? {
        let done = retry_one(&client, found.chain.id).await?;
        outcome = print_result(context.output, &found, done)?.and(outcome);
    }
    outcome
}

pub(super) async fn retry_one(client: &Client<dyn Store>, chain: ChainId) -> Result<Outcome> {
    Ok(match client.retry(chain).await? {
        Retried::Retried { job, .. } => Ok(job.status.to_string()),
        Retried::AlreadyRetried => Ok("already retried".to_owned()),
        Retried::NotRetriable(status) => {
            Err(format!("not retried: it is {status}, and only failed or cancelled chains can be retried"))
        }
        Retried::Refused(refusal) => Err(refusal.to_string()),
        Retried::NotFound => Err("not found: it was deleted in the meantime".to_owned()),
        Retried::Busy => Err(BUSY.to_owned()),
    })
}

pub(crate) async fn trigger(context: &Context, trigger: &Trigger) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let found = target::all(&client, &trigger.chains).await?;
    let (word, reasons) = match client.trigger_many(found.iter().map(Found::target).collect()).await? {
        TriggerReply::Triggered(_) => ("due now", vec![None; found.len()]),
        TriggerReply::Refused(reasons) => ("not triggered: another job could not be triggered", reasons),
    };
    let mut outcome = Ok(());
    for (found, reason) in found.iter().zip(reasons) {
        let done = match reason {
            None => Ok(word.to_owned()),
            Some(Untriggerable::NotFound) => Err("not found: it was deleted in the meantime".to_owned()),
            Some(Untriggerable::NotPending(status)) => {
                Err(format!("not triggered: it is {status}, and only pending jobs can be triggered"))
            }
            Some(Untriggerable::Busy) => Err(BUSY.to_owned()),
        };
        outcome = print_result(context.output, found, done)?.and(outcome);
    }
    outcome
}

pub(crate) async fn delete(context: &Context, delete: &Delete) -> Result {
    if delete.chains.is_filter() {
        return delete_by_filter(context, delete).await;
    }
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let found = target::selected(&client, &delete.chains).await?;
    // A job that a worker acquires after this check is not deleted.
    let seen = match delete.running {
        true => None,
        false => Some(none_running(&client, &found, delete.cascade).await?),
    };
    let chains = found.iter().map(|found| found.chain.id.into()).collect();
    let request = command::Delete { chains, cascade: delete.cascade, seen };
    match client.delete_with(request).await? {
        DeleteReply::Deleted(deleted) => deleted.chains.iter().try_for_each(|chain| {
            let line = Line { id: chain.chain.to_string(), done: true, what: "deleted".to_owned() };
            context.output.print_change(&line, || line.text())
        }),
        DeleteReply::Refused(refusals) => {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(Failure::failed(format!("nothing was deleted: {}", reasons.join("; "))))
        }
        DeleteReply::Busy => Err(Failure::failed(format!("nothing was deleted: a chain is {BUSY}"))),
    }
}

async fn delete_by_filter(context: &Context, delete: &Delete) -> Result {
    if delete.cascade {
        let text = "--cascade needs ids: a filter deletes only the chains that match, so remove --cascade";
        return Err(Failure::usage(text));
    }
    if delete.chains.has_filter() && !(delete.yes || delete.chains.dry_run) {
        return Err(Failure::usage(
            "deleting by filter cannot be undone: pass --dry-run to print the chains, or --yes to delete them",
        ));
    }
    bulk::run(context, &delete.chains, Change::Delete { running: delete.running }).await
}

/// Returns the states of the chains to delete, or an error if one of them is running. With `cascade`, this includes their
/// blockers.
async fn none_running(client: &Client<dyn Store>, found: &[Found], cascade: bool) -> Result<Vec<SeenJob>> {
    let chains = found.iter().map(|found| found.chain.id).collect();
    client.idle_states(chains, cascade).await?.map_err(|chain| {
        Failure::failed(format!(
            "nothing was deleted: chain {chain} is running; use --running to delete it anyway"
        ))
    })
}

pub(crate) async fn pause(context: &Context, types: Vec<TypeName>, paused: bool) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let before =
        if paused { client.pause(types.clone()).await? } else { client.resume(types.clone()).await? };
    for (job_type, was_paused) in types.iter().zip(before) {
        let word = if paused { "paused" } else { "resumed" };
        let what = if was_paused == paused { format!("already {word}") } else { word.to_owned() };
        let line = Line { id: job_type.to_string(), done: true, what };
        context.output.print_change(&line, || line.text())?;
    }
    Ok(())
}

/// The result for one chain or type.
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

/// Prints the result for one chain. The inner result is an error without a message if the change was not made.
fn print_result(output: Output, found: &Found, done: Outcome) -> Result<Result> {
    let is_done = done.is_ok();
    print_outcome(output, found.name.clone(), is_done, done)?;
    Ok(if is_done { Ok(()) } else { Err(Failure::silent(Code::Failed)) })
}

/// Prints a line with the outcome for one chain.
pub(super) fn print_outcome(output: Output, id: String, is_done: bool, outcome: Outcome) -> Result {
    let line = Line { id, done: is_done, what: outcome.unwrap_or_else(|why| why) };
    output.print_change(&line, || line.text())
}
