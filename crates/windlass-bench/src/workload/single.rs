use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use windlass::{BoxError, Client, Ctx, Data, Store, Worker};

use super::{NoOp, STOP};

/// How long to wait before each start, so that the worker is idle.
const IDLE: Duration = Duration::from_millis(1);

/// Measures the time from starting a job to its handler being called, one job at a time on an idle worker.
pub async fn latency<S: Store>(client: &Client<S>, jobs: u64) -> Result<Vec<Duration>, BoxError> {
    let (reached, mut reports) = mpsc::unbounded_channel::<Instant>();
    let report = |_: Ctx<NoOp>, Data(reached): Data<mpsc::UnboundedSender<Instant>>| async move {
        reached.send(Instant::now())?;
        Ok::<_, BoxError>(0)
    };
    let worker = Worker::new(client).data(reached).handle::<NoOp, _>(report).start().await?;
    let mut times = Vec::new();
    for number in 0..jobs {
        tokio::time::sleep(IDLE).await;
        let began = Instant::now();
        let chain = client.start(NoOp { number }).await?;
        let arrived = reports.recv().await.ok_or("the worker has stopped")?;
        times.push(arrived.duration_since(began));
        client.wait(chain).await?;
    }
    worker.stop(STOP).await;
    Ok(times)
}

/// Measures the time from starting a job to receiving its output, one job at a time on an idle worker.
pub async fn round_trip<S: Store>(client: &Client<S>, jobs: u64) -> Result<Vec<Duration>, BoxError> {
    let worker = Worker::new(client).handle(echo).start().await?;
    let mut times = Vec::new();
    for number in 0..jobs {
        tokio::time::sleep(IDLE).await;
        let began = Instant::now();
        let chain = client.start(NoOp { number }).await?;
        if client.wait(chain).await? != number {
            return Err("a job returned the output of another".into());
        }
        times.push(began.elapsed());
    }
    worker.stop(STOP).await;
    Ok(times)
}

async fn echo(job: Ctx<NoOp>) -> Result<u64, BoxError> {
    Ok(job.input().number)
}
