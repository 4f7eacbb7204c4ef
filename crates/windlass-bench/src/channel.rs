//! The baseline for a drain: a tokio channel and serde, without any guarantees.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use windlass::BoxError;

use crate::workload::NoOp;

/// Encodes jobs into a channel. Then `slots` tasks receive and decode them, run a handler that does nothing, and encode
/// its outputs into a second channel. The reader of the second channel only counts.
///
/// # Errors
/// If the second channel did not receive one output per job.
pub async fn start_and_drain(jobs: u64, slots: u32) -> Result<(), BoxError> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for number in 0..jobs {
        sender.send(serde_json::to_vec(&NoOp { number })?)?;
    }
    drop(sender);
    let receiver = Arc::new(Mutex::new(receiver));
    let (outputs, mut completed) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for _ in 0..slots {
        tasks.spawn(work(Arc::clone(&receiver), outputs.clone()));
    }
    drop(outputs);
    let mut count = 0;
    while completed.recv().await.is_some() {
        count += 1;
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    if count == jobs { Ok(()) } else { Err("not every job was completed".into()) }
}

async fn work(
    jobs: Arc<Mutex<mpsc::UnboundedReceiver<Vec<u8>>>>,
    outputs: mpsc::UnboundedSender<Vec<u8>>,
) -> Result<(), BoxError> {
    loop {
        let Some(input) = jobs.lock().await.recv().await else { return Ok(()) };
        let output = echo(serde_json::from_slice(&input)?).await?;
        outputs.send(serde_json::to_vec(&output)?)?;
    }
}

async fn echo(job: NoOp) -> Result<u64, BoxError> {
    Ok(job.number)
}
