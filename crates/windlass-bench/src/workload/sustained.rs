use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass::{BoxError, Client, Ctx, Data, Store, Worker};

use super::{NoOp, STOP};

/// The result of starting and draining jobs at the same time.
#[derive(Clone, Debug)]
pub struct Sustained {
    /// How many jobs were started and completed.
    pub jobs: u64,
    /// Time until the last completion.
    pub took: Duration,
    /// The time from the start of each job to its handler.
    pub delays: Vec<Duration>,
    /// How many jobs were waiting when the last one was started.
    pub backlog: u64,
}

/// Starts jobs one by one from concurrent producers for the given time, while a worker completes them.
pub async fn sustained<S: Store>(
    client: &Client<S>,
    producers: u64,
    slots: u32,
    time: Duration,
) -> Result<Sustained, BoxError> {
    let seen = Arc::new(Seen { began: Instant::now(), delays: Mutex::default(), count: AtomicU64::new(0) });
    let worker = Worker::new(client).concurrency(slots).data(Arc::clone(&seen)).handle(arrive);
    let worker = worker.start().await?;
    let mut tasks = JoinSet::new();
    for _ in 0..producers {
        let (client, seen) = (client.clone(), Arc::clone(&seen));
        tasks.spawn(async move {
            let mut started = 0;
            // Start at least one job, so that there is something to measure.
            loop {
                client.start(NoOp { number: seen.now()? }).await?;
                started += 1;
                if seen.began.elapsed() >= time {
                    return Ok::<u64, BoxError>(started);
                }
            }
        });
    }
    let mut jobs = 0;
    while let Some(started) = tasks.join_next().await {
        jobs += started??;
    }
    let backlog = jobs - seen.count.load(Ordering::Relaxed).min(jobs);
    while seen.count.load(Ordering::Relaxed) < jobs {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.stop(STOP).await;
    let took = seen.began.elapsed();
    let delays = std::mem::take(&mut *seen.delays.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Sustained { jobs, took, delays, backlog })
}

struct Seen {
    began: Instant,
    delays: Mutex<Vec<Duration>>,
    count: AtomicU64,
}

impl Seen {
    /// Returns the microseconds since the beginning.
    fn now(&self) -> Result<u64, BoxError> {
        Ok(u64::try_from(self.began.elapsed().as_micros())?)
    }
}

async fn arrive(job: Ctx<NoOp>, Data(seen): Data<Arc<Seen>>) -> Result<u64, BoxError> {
    let delay = Duration::from_micros(seen.now()? - job.input().number);
    seen.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
    seen.count.fetch_add(1, Ordering::Relaxed);
    Ok(0)
}
