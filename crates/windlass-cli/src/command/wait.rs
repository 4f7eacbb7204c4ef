//! `windlass wait`, and the `--wait` option of other commands.

use std::time::Duration;

use windlass::record::ChainRecord;
use windlass::{ChainId, Client, ErrorKind, Status, Store};

use super::{Context, target, why};
use crate::arguments::Wait;
use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::store::OpenMode;
use crate::view::{ChainView, Content};

pub(crate) async fn run(context: &Context, wait: &Wait) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let found = target::all(&client, &wait.chains).await?;
    let waits = found.into_iter().map(|found| {
        let (client, chain, timeout) = (client.clone(), found.chain.id, wait.timeout);
        (chain, tokio::spawn(async move { client.closed(chain, timeout).await }))
    });
    // All waits run concurrently. Results are printed in the order of the arguments; the first failure is returned.
    let mut outcome = Ok(());
    for (chain, wait) in waits.collect::<Vec<_>>() {
        let ended = wait.await.map_err(Failure::failed)?;
        let ended = explained(&client, chain, ended).await;
        outcome = outcome.and(ended.and_then(|record| print(&record, context.output)));
    }
    outcome
}

/// Waits for a chain to end and prints its output.
pub(crate) async fn print_end(
    client: &Client<dyn Store>,
    chain: ChainId,
    timeout: Duration,
    output: Output,
) -> Result {
    let ended = client.closed(chain, timeout).await;
    print(&explained(client, chain, ended).await?, output)
}

/// Adds to a timeout error the reasons why the chain makes no progress.
async fn explained(
    client: &Client<dyn Store>,
    chain: ChainId,
    ended: windlass::Result<ChainRecord>,
) -> Result<ChainRecord> {
    let error = match ended {
        Err(error) if error.kind() == ErrorKind::TimedOut => error,
        ended => return Ok(ended?),
    };
    // The timeout is the error to report. If the reasons cannot be queried, report it without them.
    let why = match client.chain(chain).await {
        Ok(Some(record)) => why::further_reasons(client, &record.latest).await.unwrap_or_default().join("; "),
        Ok(None) | Err(_) => String::new(),
    };
    let failure = Failure::from(error);
    Err(if why.is_empty() { failure } else { failure.with_note(why) })
}

fn print(record: &ChainRecord, output: Output) -> Result {
    if output.is_json() {
        output.object(&ChainView::from(record))?;
        return ended_well(record);
    }
    ended_well(record)?;
    print_output(record, output)
}

/// Returns an error if the chain failed or was cancelled.
pub(crate) fn ended_well(record: &ChainRecord) -> Result {
    let why = record.latest.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match record.status() {
        Status::Failed => {
            let id = record.id;
            Err(Failure::failed(format!("chain {id} failed{why}; `windlass retry {id}` retries it")))
        }
        Status::Cancelled => Err(Failure::failed(format!("chain {} was cancelled{why}", record.id))),
        _ => Ok(()),
    }
}

/// Prints the output of a chain.
pub(crate) fn print_output(record: &ChainRecord, output: Output) -> Result {
    match record.output() {
        Some(payload) => output.object(&Content::of(payload)),
        None => output.line("null"),
    }
}
