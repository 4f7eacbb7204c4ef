use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::handler::Call;
use crate::{Arguments, Candidate, Handler, Reply, Result, Unsupported, Work, Workload};

/// Concurrent callers that start jobs one by one.
const PRODUCERS: u64 = 16;

/// Jobs per call that starts many.
const BATCH: u64 = 1_000;

/// How often to query whether all completions are stored.
const CHECK: Duration = Duration::from_millis(1);

/// How long to wait before each single job, so that its predecessor is completed and the worker is idle.
const IDLE: Duration = Duration::from_millis(5);

/// Single jobs before the measured ones.
const WARM_UP: u64 = 20;

/// How long to wait after the first jobs of concurrent callers, so that connections are open and statements prepared.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs a workload. Calls `begin` when the store is prepared.
pub(crate) async fn run<C: Candidate>(arguments: &Arguments, begin: &mut impl FnMut()) -> Result<Reply> {
    let candidate = Arc::new(C::open(arguments).await?);
    let (jobs, slots) = (arguments.jobs, arguments.slots);
    match arguments.workload {
        Workload::Start => {
            start_range(&candidate, jobs..jobs + PRODUCERS * WARM_UP, &Starts::default()).await?;
            tokio::time::sleep(SETTLE).await;
            begin();
            let began = Instant::now();
            start_all(&candidate, jobs, &Starts::default()).await?;
            Ok(rate(jobs, began.elapsed(), None))
        }
        Workload::StartBatched => {
            // A call without jobs says whether the library has such a call at all.
            candidate.start_batch(0..0).await?;
            begin();
            let began = Instant::now();
            start_in_batches(&*candidate, jobs).await?;
            Ok(rate(jobs, began.elapsed(), None))
        }
        Workload::Drain => drain(&candidate, jobs, slots, false, begin).await,
        Workload::DrainInTransactions => drain(&candidate, jobs, slots, true, begin).await,
        Workload::Sustained => sustained(&candidate, jobs, slots, begin).await,
        Workload::Latency => latency(&*candidate, jobs, slots, begin).await,
        Workload::RoundTrip => round_trip(&*candidate, jobs, slots, begin).await,
    }
}

/// The times at which jobs were started, by number.
#[derive(Clone, Default)]
struct Starts(Arc<Mutex<HashMap<u64, Instant>>>);

impl Starts {
    fn record(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Instant::now());
    }

    /// Returns the time from the start of a job to a call of its handler.
    fn delay(&self, call: Call) -> Option<Duration> {
        let starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.get(&call.number).map(|start| call.at.duration_since(*start))
    }
}

async fn start_all<C: Candidate>(candidate: &Arc<C>, jobs: u64, starts: &Starts) -> Result {
    start_range(candidate, 0..jobs, starts).await
}

async fn start_range<C: Candidate>(candidate: &Arc<C>, numbers: Range<u64>, starts: &Starts) -> Result {
    let mut producers: JoinSet<Result> = JoinSet::new();
    for producer in 0..PRODUCERS {
        let (candidate, starts) = (Arc::clone(candidate), starts.clone());
        let Range { start, end } = numbers;
        producers.spawn(async move {
            let mut number = start + producer;
            while number < end {
                starts.record(number);
                candidate.start(producer, number).await?;
                number += PRODUCERS;
            }
            Ok(())
        });
    }
    while let Some(producer) = producers.join_next().await {
        producer??;
    }
    Ok(())
}

async fn start_in_batches(candidate: &impl Candidate, jobs: u64) -> Result {
    for numbers in batches(jobs) {
        candidate.start_batch(numbers).await?;
    }
    Ok(())
}

fn batches(jobs: u64) -> impl Iterator<Item = Range<u64>> {
    (0..jobs.div_ceil(BATCH)).map(move |batch| batch * BATCH..jobs.min((batch + 1) * BATCH))
}

async fn drain<C: Candidate>(
    candidate: &Arc<C>,
    jobs: u64,
    slots: u32,
    in_transactions: bool,
    begin: &mut impl FnMut(),
) -> Result<Reply> {
    let (handler, mut last) = Handler::counting(jobs);
    match start_in_batches(&**candidate, jobs).await {
        Err(error) if error.is::<Unsupported>() => start_all(candidate, jobs, &Starts::default()).await?,
        started => started?,
    }
    begin();
    let began = Instant::now();
    let _worker = candidate.work(Work { slots, in_transactions, handler }).await?;
    last.recv().await.ok_or("the worker has ended")?;
    completed(&**candidate).await?;
    Ok(rate(jobs, began.elapsed(), None))
}

/// Waits until the completions of all jobs are stored.
async fn completed(candidate: &impl Candidate) -> Result {
    while candidate.unfinished().await? > 0 {
        tokio::time::sleep(CHECK).await;
    }
    Ok(())
}

async fn sustained<C: Candidate>(
    candidate: &Arc<C>,
    jobs: u64,
    slots: u32,
    begin: &mut impl FnMut(),
) -> Result<Reply> {
    let (handler, mut calls) = Handler::reporting();
    let _worker = candidate.work(Work { slots, in_transactions: false, handler }).await?;
    begin();
    let (began, starts) = (Instant::now(), Starts::default());
    start_all(candidate, jobs, &starts).await?;
    let mut delays = HashMap::new();
    while u64::try_from(delays.len())? < jobs {
        let call = calls.recv().await.ok_or("the worker has ended")?;
        // A job that runs again counts once.
        delays.entry(call.number).or_insert(starts.delay(call).ok_or("a job that was not started")?);
    }
    completed(&**candidate).await?;
    let took = began.elapsed();
    let mut delays: Vec<Duration> = delays.into_values().collect();
    Ok(rate(jobs, took, Some(percentile(&mut delays, 99))))
}

async fn latency(
    candidate: &impl Candidate,
    jobs: u64,
    slots: u32,
    begin: &mut impl FnMut(),
) -> Result<Reply> {
    let (handler, mut calls) = Handler::reporting();
    let _worker = candidate.work(Work { slots, in_transactions: false, handler }).await?;
    let mut times = Vec::new();
    for number in 0..WARM_UP + jobs {
        if number == WARM_UP {
            begin();
        }
        tokio::time::sleep(IDLE).await;
        let began = Instant::now();
        candidate.start(0, number).await?;
        // A worker may run a job again whose completion it has lost.
        let call = loop {
            let call = calls.recv().await.ok_or("the worker has ended")?;
            if call.number == number {
                break call;
            }
        };
        times.push(call.at.duration_since(began));
    }
    Ok(percentiles(times.split_off(usize::try_from(WARM_UP)?)))
}

async fn round_trip(
    candidate: &impl Candidate,
    jobs: u64,
    slots: u32,
    begin: &mut impl FnMut(),
) -> Result<Reply> {
    let (handler, _calls) = Handler::reporting();
    let _worker = candidate.work(Work { slots, in_transactions: false, handler }).await?;
    let mut times = Vec::new();
    for number in 0..WARM_UP + jobs {
        if number == WARM_UP {
            begin();
        }
        tokio::time::sleep(IDLE).await;
        let began = Instant::now();
        candidate.round_trip(number).await?;
        times.push(began.elapsed());
    }
    Ok(percentiles(times.split_off(usize::try_from(WARM_UP)?)))
}

#[expect(clippy::cast_precision_loss, reason = "a number of jobs is far below 2^52")]
fn rate(jobs: u64, took: Duration, p99_us: Option<f64>) -> Reply {
    let seconds = took.as_secs_f64();
    Reply::Rate { jobs, seconds, jobs_per_second: jobs as f64 / seconds, p99_us }
}

fn percentiles(mut times: Vec<Duration>) -> Reply {
    let (p50_us, p99_us) = (percentile(&mut times, 50), percentile(&mut times, 99));
    Reply::Times { jobs: times.len() as u64, p50_us, p99_us }
}

/// Returns a percentile in microseconds.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).copied().unwrap_or_default().as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

    use super::*;
    use crate::{Guard, Result};

    /// A queue in memory that completes jobs a moment after their handlers.
    struct Memory {
        jobs: UnboundedSender<u64>,
        waiting: Mutex<Option<UnboundedReceiver<u64>>>,
        unfinished: Arc<AtomicU64>,
        queries: AtomicU64,
    }

    impl Memory {
        fn new() -> Self {
            let (jobs, waiting) = mpsc::unbounded_channel();
            Self {
                jobs,
                waiting: Mutex::new(Some(waiting)),
                unfinished: Arc::default(),
                queries: AtomicU64::new(0),
            }
        }
    }

    impl Candidate for Memory {
        async fn open(_: &Arguments) -> Result<Self> {
            Ok(Self::new())
        }

        async fn start(&self, _producer: u64, number: u64) -> Result {
            self.unfinished.fetch_add(1, Ordering::SeqCst);
            Ok(self.jobs.send(number)?)
        }

        async fn work(&self, work: Work) -> Result<Guard> {
            work.without_transactions()?;
            let mut waiting = self.waiting.lock().unwrap().take().unwrap();
            let unfinished = Arc::clone(&self.unfinished);
            let worker = tokio::spawn(async move {
                while let Some(number) = waiting.recv().await {
                    work.handler.call(number);
                    tokio::time::sleep(COMPLETION).await;
                    unfinished.fetch_sub(1, Ordering::SeqCst);
                }
            });
            Ok(Box::new(worker))
        }

        async fn unfinished(&self) -> Result<u64> {
            self.queries.fetch_add(1, Ordering::SeqCst);
            Ok(self.unfinished.load(Ordering::SeqCst))
        }
    }

    /// How long the completion of a job takes.
    const COMPLETION: Duration = Duration::from_millis(3);

    fn arguments(workload: Workload) -> Arguments {
        let text = || "test".to_owned();
        Arguments { store: text(), subject: text(), url: text(), workload, jobs: 40, slots: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn every_workload_runs_all_jobs_and_announces_its_beginning() {
        for workload in [Workload::Start, Workload::Drain, Workload::Sustained, Workload::Latency] {
            let mut begun = 0;
            let reply = run::<Memory>(&arguments(workload), &mut || begun += 1).await.unwrap();
            assert_eq!(begun, 1, "{workload}");
            let (Reply::Rate { jobs, .. } | Reply::Times { jobs, .. }) = reply else {
                panic!("{workload}: {reply:?}")
            };
            assert_eq!(jobs, 40, "{workload}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_when_the_last_completion_is_stored() {
        let memory = Arc::new(Memory::new());
        let Reply::Rate { seconds, .. } = drain(&memory, 5, 1, false, &mut || {}).await.unwrap() else {
            panic!("a drain has a rate")
        };
        assert_eq!(memory.unfinished.load(Ordering::SeqCst), 0);
        assert!(memory.queries.load(Ordering::SeqCst) > 1, "the last handler ends before its completion");
        assert!(seconds > 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_library_cannot_do_is_an_error_of_its_own() {
        for workload in [Workload::StartBatched, Workload::DrainInTransactions, Workload::RoundTrip] {
            let error = run::<Memory>(&arguments(workload), &mut || {}).await.unwrap_err();
            assert!(error.is::<Unsupported>(), "{workload}: {error}");
        }
    }

    #[test]
    fn batches_cover_all_jobs_once() {
        assert_eq!(batches(2_500).collect::<Vec<_>>(), [0..1_000, 1_000..2_000, 2_000..2_500]);
        assert_eq!(batches(0).count(), 0);
    }

    #[test]
    fn percentiles_are_times_that_occurred() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let Reply::Times { jobs, p50_us, p99_us } = percentiles(times) else { panic!("not times") };
        assert_eq!((jobs, p50_us.round(), p99_us.round()), (200, 100.0, 198.0));
    }
}
