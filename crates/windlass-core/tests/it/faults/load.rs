//! Full, idle and overloaded workers, and batches at their limits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use windlass_core::limit::{BATCH_MAX_BYTES, BATCH_MAX_ITEMS, PAYLOAD_MAX_BYTES};
use windlass_core::queue::Item;
use windlass_core::{
    Attempt, BoxError, Chain, Client, Ctx, Data, Done, ErrorKind, Event, HandlerOptions, Next, Status,
    Worker, plan,
};

use super::faulty::{Fault, Faulty};
use super::{
    LEASE, Long, MINUTE, Result, Seen, TIMEOUT, Task, Trace, echo, faulty, hang, pass, slow, stored, task,
};

/// Checks that an idle worker sent few acquire, `next_due` and reap commands within a minute.
fn check_calm(store: &Faulty) {
    let calls = (store.calls("acquire"), store.calls("next_due"), store.calls("reap"));
    assert!(calls.0 < 40 && calls.1 < 40 && calls.2 < 40, "{calls:?} acquires, queries and reaps");
}

#[tokio::test(start_paused = true)]
async fn a_full_type_with_due_jobs_causes_no_hot_loop() {
    let (store, client) = faulty();
    client.start_many([task("running"), task("due")]).await.unwrap();
    let _worker = Worker::new(&client)
        .concurrency(10)
        .handle_with(HandlerOptions::new().concurrency(1), hang::<Task>)
        .start()
        .await
        .unwrap();
    pass(MINUTE).await;
    check_calm(&store);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_of_its_own_causes_no_hot_loop() {
    let (store, client) = faulty();
    let chain = client.start(task("x")).await.unwrap();
    let _worker = Worker::new(&client).concurrency(2).handle(hang::<Task>).start().await.unwrap();
    store.break_all(&["renew"], &Fault::Fails);
    pass(MINUTE).await;
    assert_eq!(stored(&client, chain).await.attempt, 1);
    check_calm(&store);
}

/// A worker that gets single jobs does not ask for the next due time after each.
#[tokio::test(start_paused = true)]
async fn single_jobs_cost_few_queries_and_delayed_ones_start_in_time() {
    let (store, client) = faulty();
    let _worker = Worker::new(&client).concurrency(2).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    let (queries, begun) = (store.calls("next_due"), Instant::now());
    for _ in 0..50 {
        let chain = client.start(task("x")).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        pass(Duration::from_millis(2)).await;
    }
    let (queries, took) = (store.calls("next_due") - queries, begun.elapsed());
    assert!(took >= Duration::from_millis(100) && queries <= 4, "{queries} queries in {took:?}");
    // The worker learns of the delayed job by its hint only: it got a job since it asked.
    client.start(task("x")).await.unwrap();
    let delayed = client.start(task("x")).after(Duration::from_millis(30)).await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    let begun = Instant::now();
    client.wait(delayed).timeout(TIMEOUT).await.unwrap();
    assert!(begun.elapsed() <= Duration::from_millis(60), "{:?}", begun.elapsed());
    // One hint for both jobs, with the due time of the first.
    let later = plan(task("x")).after(Duration::from_millis(30));
    let chains = client.start_many([plan(task("x")), later]).await.unwrap();
    let begun = Instant::now();
    client.wait(chains[1]).timeout(TIMEOUT).await.unwrap();
    assert!(begun.elapsed() <= Duration::from_millis(60), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_full_worker_does_not_claim_a_wake_up() {
    let (_, client) = faulty();
    client.start(task("running")).await.unwrap();
    let _full = Worker::new(&client)
        .concurrency(2)
        .handle_with(HandlerOptions::new().concurrency(1), hang::<Task>)
        .start()
        .await
        .unwrap();
    pass(TIMEOUT).await;
    let _idle = Worker::new(&client).concurrency(1).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    for _ in 0..20 {
        let chain = client.start(task("x")).await.unwrap();
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_after_an_exchange_filled_the_slots_is_not_lost() {
    async fn fork(job: Ctx<Long>) -> Result<Next<Long>> {
        pass(TIMEOUT / 2).await;
        let (done, fill) = (Next::done(String::new()), || plan(Long::from("fills a slot")));
        Ok(if job.input().text == "forks" { done.start(fill()).start(fill()) } else { done })
    }
    let (_, client) = faulty();
    let _worker = Worker::new(&client).concurrency(2).handle(fork).start().await.unwrap();
    client.start::<Long>("forks".into()).await.unwrap();
    pass(TIMEOUT * 2 / 3).await;
    let late = client.start::<Long>("due when they are done".into()).after(TIMEOUT).await.unwrap();
    client.wait(late).timeout(2 * TIMEOUT).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_still_reaps_and_expires() {
    let (store, client) = faulty();
    let trace = Trace::default();
    let _worker = Worker::new(&client).concurrency(1).data(trace.clone()).handle(slow).start().await.unwrap();
    client.start_many((0..100).map(|_| task("x"))).await.unwrap();
    pass(2 * MINUTE).await;
    assert!(trace.runs() > 50, "{} runs", trace.runs());
    let calls = (store.calls("reap"), store.calls("expire"));
    assert!(calls.0 >= 15 && calls.1 >= 1, "{calls:?} reaps and expiries");
}

#[tokio::test(start_paused = true)]
async fn more_leases_than_one_command_takes_are_renewed() {
    const SLOTS: usize = BATCH_MAX_ITEMS + 500;
    let seen = Seen::default();
    let client = Client::builder(Faulty::default()).observer(seen.clone()).build();
    client.start_many((0..SLOTS).map(|_| task("x"))).await.unwrap();
    let slots = u32::try_from(SLOTS).unwrap();
    let _worker = Worker::new(&client).concurrency(slots).handle(hang::<Task>).start().await.unwrap();
    pass(2 * LEASE).await;
    let failed = seen.count(|event| matches!(event, Event::StoreFailed(..) | Event::WorkerFailed(..)));
    let started = seen.count(|event| matches!(event, Event::AttemptStarted(_)));
    assert_eq!((failed, started), (0, SLOTS));
    assert!(seen.count(|event| matches!(event, Event::LeaseRenewed(_))) >= 2 * SLOTS);
}

const LARGE: usize = PAYLOAD_MAX_BYTES / 4 * 3;
/// Even without the first one, which is sent alone, they exceed the size of one command.
const MANY: usize = BATCH_MAX_BYTES / LARGE + 3;

fn large() -> Task {
    task(&"x".repeat(LARGE))
}

async fn start_together(client: &Client<Faulty>, job: &Task) -> Vec<Chain<Task>> {
    let starts: Vec<_> = (0..MANY)
        .map(|_| {
            let (client, job) = (client.clone(), job.clone());
            tokio::spawn(async move { client.start(job).await })
        })
        .collect();
    let mut chains = Vec::new();
    for start in starts {
        chains.push(start.await.unwrap().unwrap());
    }
    chains
}

/// How many attempts run now, and the maximum that ran concurrently.
#[derive(Clone, Default)]
struct Gauge(Arc<Mutex<(u32, u32)>>);

impl Gauge {
    async fn count(&self, time: Duration) {
        {
            let mut gauge = self.0.lock().unwrap();
            gauge.0 += 1;
            gauge.1 = gauge.1.max(gauge.0);
        }
        pass(time).await;
        self.0.lock().unwrap().0 -= 1;
    }
}

async fn even(job: Ctx<Task>, Data(gauge): Data<Gauge>) -> Result<String> {
    gauge.count(LEASE / 100).await;
    echo(job).await
}

async fn uneven(job: Ctx<Task>, Data(gauge): Data<Gauge>) -> Result<String> {
    gauge.count(Duration::from_millis(fastrand::u64(1..30))).await;
    echo(job).await
}

#[tokio::test(start_paused = true)]
async fn an_exchange_settles_and_acquires_in_one_write() {
    for (slots, at_most) in [(4, 4), (10, 4)] {
        let (store, client) = faulty();
        let chains = client.start_many((0..200).map(|_| task("x"))).await.unwrap();
        let gauge = Gauge::default();
        let worker = Worker::new(&client).data(gauge.clone()).concurrency(slots);
        let worker =
            worker.handle_with(HandlerOptions::new().concurrency(at_most), even).start().await.unwrap();
        for chain in chains {
            client.wait(chain).timeout(MINUTE).await.unwrap();
        }
        worker.stop(TIMEOUT).await;
        assert_eq!(gauge.0.lock().unwrap().1, at_most, "all slots were used, and no more");
        let (acquires, exchanges) = (store.calls("acquire"), store.calls("exchange"));
        assert!(acquires < 10 && exchanges <= 60, "{acquires} acquires, {exchanges} exchanges");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_writes_do_not_exceed_the_concurrency() {
    for (exchanges, seed) in
        [1, 2, 3].into_iter().flat_map(|exchanges| (0..50).map(move |seed| (exchanges, seed)))
    {
        fastrand::seed(seed);
        let store = Faulty::with_exchanges(exchanges);
        let client = Client::new(store.clone());
        let chains = client.start_many((0..60).map(|_| task("x"))).await.unwrap();
        let gauge = Gauge::default();
        let worker = Worker::new(&client).data(gauge.clone()).concurrency(5);
        let _worker = worker.handle_with(HandlerOptions::new().concurrency(3), uneven).start().await.unwrap();
        for _ in 0..20 {
            pass(Duration::from_millis(fastrand::u64(1..60))).await;
            let command = fastrand::choice(["acquire", "exchange", "settle"]).unwrap();
            let fault = fastrand::choice([Fault::Fails, Fault::LosesReply]).unwrap();
            store.fault(command, fault, fastrand::usize(1..3));
        }
        store.clear_faults();
        for chain in chains {
            client.wait(chain).poll(TIMEOUT).timeout(MINUTE).await.unwrap();
        }
        assert_eq!(gauge.0.lock().unwrap().1, 3, "{exchanges} exchanges, seed {seed}");
    }
}

async fn finish_at_once(attempt: Attempt<Long, Faulty>) -> Result<Done<Long, Faulty>> {
    Ok(attempt.begin().await?.done(String::new())?)
}

/// Drains jobs with uneven handlers from a store whose writes take time, and checks that nearly all writes are exchanges.
/// Returns the store.
async fn drain_slowly(exchanges: u8, jobs: usize) -> Faulty {
    fastrand::seed(7);
    let store = Faulty::with_exchanges(exchanges);
    let client = Client::new(store.clone());
    // Frees its slot without an exchange, so that the loop acquires while others are being settled.
    client.start::<Long>("ends in a transaction".into()).await.unwrap();
    let chains = client.start_many((0..jobs).map(|_| task("x"))).await.unwrap();
    store.break_all(&["acquire", "exchange", "settle"], &Fault::Takes(Duration::from_millis(5)));
    let gauge = Gauge::default();
    let worker = Worker::new(&client).data(gauge.clone()).concurrency(20);
    let worker = worker.handle(uneven).handle(finish_at_once).start().await.unwrap();
    for chain in chains {
        client.wait(chain).timeout(MINUTE).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    assert_eq!(gauge.0.lock().unwrap().1, 20, "all slots were used, and no more");
    // At the end no jobs are waiting.
    let (acquires, settles) = (store.calls("acquire"), store.calls("settle"));
    let others = acquires + settles;
    assert!(others <= 20, "{acquires} acquires, {settles} settles, {} exchanges", store.calls("exchange"));
    store
}

#[tokio::test(start_paused = true)]
async fn settlements_travel_with_the_next_exchange_while_jobs_are_waiting() {
    let store = drain_slowly(1, 1_000).await;
    assert_eq!(store.exchanges_in_flight(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_has_as_many_exchanges_in_flight_as_the_store_handles() {
    for exchanges in [2, 3] {
        let store = drain_slowly(exchanges, 1_000).await;
        assert_eq!(store.exchanges_in_flight(), usize::from(exchanges));
    }
}

/// Drains 1,000 jobs from a store whose acquires and settlements take 5 ms each, with 10 slots and this prefetch. Returns
/// how long it took.
async fn drain_with_prefetch(store: &Faulty, prefetch: u32) -> Duration {
    let client = Client::new(store.clone());
    let chains = client.start_many((0..1_000).map(|_| task("x"))).await.unwrap();
    store.break_all(&["acquire", "exchange", "settle"], &Fault::Takes(Duration::from_millis(5)));
    let began = Instant::now();
    let worker = Worker::new(&client).concurrency(10).prefetch(prefetch);
    let worker = worker.handle(echo::<Task>).start().await.unwrap();
    for chain in chains {
        client.wait(chain).timeout(MINUTE).await.unwrap();
    }
    let took = began.elapsed();
    worker.stop(TIMEOUT).await;
    took
}

#[tokio::test(start_paused = true)]
async fn a_prefetch_settles_and_acquires_at_the_same_time_if_the_store_can() {
    let store = Faulty::in_parallel();
    let took = drain_with_prefetch(&store, 90).await;
    assert_eq!(store.calls("exchange"), 0);
    assert_eq!(store.requested_max(), 50, "half of the jobs that the worker may hold");
    // 20 acquires of 50 jobs, each while the 50 jobs before are settled.
    assert!(took < Duration::from_millis(20 * 5 + 40), "{took:?}");
    let store = Faulty::in_parallel();
    drain_with_prefetch(&store, 0).await;
    assert!(store.calls("exchange") > 50, "{} exchanges without a prefetch", store.calls("exchange"));
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_reaps_only_if_a_lease_has_expired() {
    let (store, client) = faulty();
    let worker = Worker::new(&client).concurrency(10).handle(slow).data(Trace::default());
    let _worker = worker.start().await.unwrap();
    pass(Duration::from_millis(1)).await;
    let reaps = store.calls("reap");
    for _ in 0..5 {
        client.start(task("x")).await.unwrap();
        pass(Duration::from_millis(1)).await;
        assert_eq!(store.calls("reap"), reaps, "no lease has expired");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_settles_at_once_though_an_acquire_is_in_flight() {
    let (store, client) = faulty();
    let worker = Worker::new(&client).concurrency(10).handle(slow).data(Trace::default());
    let _worker = worker.start().await.unwrap();
    pass(TIMEOUT).await;
    let chain = client.start(task("x")).await.unwrap();
    pass(Duration::from_millis(1)).await;
    let acquires = store.calls("acquire");
    store.fault("acquire", Fault::Hangs, 1);
    client.start(task("another")).await.unwrap();
    pass(Duration::from_millis(1)).await;
    assert_eq!(store.calls("acquire"), acquires + 1, "an acquire hangs");
    let began = Instant::now();
    client.wait(chain).timeout(MINUTE).await.unwrap();
    assert!(began.elapsed() <= LEASE / 2, "{:?}", began.elapsed());
    assert_eq!(store.calls("settle"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_acquire_delays_settlements_only_briefly() {
    async fn finish_soon(attempt: Attempt<Long, Faulty>) -> Result<Done<Long, Faulty>> {
        pass(LEASE / 4).await;
        Ok(attempt.begin().await?.done(String::new())?)
    }
    let (store, client) = faulty();
    client.start::<Long>("frees its slot without an exchange".into()).await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    let worker = Worker::new(&client).concurrency(2).data(Trace::default());
    let _worker = worker.handle(finish_soon).handle(slow).start().await.unwrap();
    pass(Duration::from_millis(1)).await;
    // All slots were filled, so the worker expects more jobs.
    let acquires = store.calls("acquire");
    store.fault("acquire", Fault::Hangs, 1);
    let began = Instant::now();
    client.wait(chain).timeout(MINUTE).await.unwrap();
    assert_eq!(store.calls("acquire"), acquires + 1, "an acquire hangs");
    assert!(began.elapsed() < LEASE / 2 + Duration::from_millis(200), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_locked_row_fails_no_other_start_of_its_batch() {
    let (store, client) = faulty();
    store.fault("create", Fault::IsLocked, 1);
    let starts: JoinSet<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            async move { client.start(task("x")).await }
        })
        .collect();
    assert!(starts.join_all().await.iter().all(Result::is_ok));
    assert_eq!(store.calls("create"), 4, "one for the batch, and one for each chain");
    store.fault("create", Fault::IsLocked, 1);
    let error = client.start(task("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "a chain that is alone in its batch is locked itself");
}

#[tokio::test(start_paused = true)]
async fn jobs_taken_by_a_write_whose_reply_was_lost_are_run() {
    let (store, client) = faulty();
    let chains = client.start_many((0..20).map(|_| task("x"))).await.unwrap();
    store.fault("exchange", Fault::LosesReply, 3);
    let worker = Worker::new(&client).concurrency(4).handle(echo::<Task>).start().await.unwrap();
    for chain in chains {
        assert_eq!(client.wait(chain).poll(TIMEOUT / 10).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    }
    worker.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn large_inputs_share_a_write_up_to_the_size_limit() {
    let (store, client) = faulty();
    start_together(&client, &large()).await;
    assert!(store.calls("create") < MANY, "they share writes");
    assert_eq!(client.start_many((0..MANY).map(|_| large())).await.unwrap().len(), MANY);
    let mut tx = client.begin().await.unwrap();
    assert_eq!(tx.start_many((0..MANY).map(|_| large())).await.unwrap().len(), MANY);
    let more = BATCH_MAX_ITEMS + 1;
    assert_eq!(tx.start_many((0..more).map(|_| task("x"))).await.unwrap().len(), more);
}

#[tokio::test(start_paused = true)]
async fn large_outputs_share_a_write_up_to_the_size_limit() {
    async fn enlarge(_: Ctx<Task>, Data(trace): Data<Trace>) -> Result<String> {
        trace.aborted.notified().await;
        Ok(large().text)
    }
    let (store, seen, trace) = (Faulty::default(), Seen::default(), Trace::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let slots = u32::try_from(MANY).unwrap();
    let worker = Worker::new(&client).data(trace.clone()).concurrency(slots).handle(enlarge).start();
    let _worker = worker.await.unwrap();
    let chains = start_together(&client, &task("x")).await;
    pass(TIMEOUT).await;
    trace.aborted.notify_waiters();
    for chain in chains {
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap().len(), LARGE);
    }
    assert!(store.calls("settle") + store.calls("exchange") < MANY, "they share writes");
    assert_eq!(seen.count(|event| matches!(event, Event::StoreFailed(..))), 0, "none is refused");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_above_the_size_limit_fails_its_job() {
    async fn carry_too_much(_: Ctx<Task>) -> Result<Next<Task>> {
        Ok((0..MANY).fold(Next::done(String::new()), |next, _| next.start(plan(large()))))
    }
    let (_, client) = faulty();
    let chain = client.start(task("x")).await.unwrap();
    let _worker = Worker::new(&client).concurrency(1).handle(carry_too_much).start().await.unwrap();
    let error = client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    let why = error.job_error().unwrap().as_str();
    assert!(why.contains("bytes of payload exceed the limit"), "{why}");
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt), (Status::Failed, 1));
}

#[tokio::test(start_paused = true)]
async fn waits_notified_together_share_their_queries() {
    let (store, client) = faulty();
    let chains = client.start_many((0..100).map(|_| task("x"))).await.unwrap();
    let waits = waits(&client, chains);
    pass(TIMEOUT).await;
    let before = store.calls("get_chains");
    // A second client: a wait gets outputs from workers of its own client without a query.
    let other = Client::new(store.clone());
    let _worker = Worker::new(&other).concurrency(100).handle(echo::<Task>).start().await.unwrap();
    for output in waits.join_all().await {
        assert_eq!(output.unwrap(), "attempt 1");
    }
    let queries = store.calls("get_chains") - before;
    assert!((1..=10).contains(&queries), "{queries} queries for 100 waits");
}

#[tokio::test(start_paused = true)]
async fn a_wait_needs_no_query_if_a_worker_of_its_client_completes_the_chain() {
    let (store, client) = faulty();
    let queue = client.queue::<u64, u64>("numbers").build().unwrap();
    async fn double(item: Item<u64>) -> std::result::Result<u64, BoxError> {
        Ok(item.payload() * 2)
    }
    let _consumer = queue.consume(double).await.unwrap();
    let before = store.calls("get_chains");
    for number in 0..10 {
        assert_eq!(queue.enqueue_and_wait(number.to_string(), number).await.unwrap(), number * 2);
    }
    // A wait that begins while the job is open queries it once.
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(store.calls("get_chains"), before);
    let waits = waits(&client, vec![chain; 3]);
    pass(TIMEOUT).await;
    let before = store.calls("get_chains");
    let _worker = Worker::new(&client).concurrency(1).handle(echo::<Task>).start().await.unwrap();
    for output in waits.join_all().await {
        assert_eq!(output.unwrap(), "attempt 1");
    }
    assert_eq!(store.calls("get_chains"), before);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_query_does_not_delay_other_waits_for_long() {
    let (store, client) = faulty();
    let chains = client.start_many((0..10).map(|_| task("x"))).await.unwrap();
    let _worker = Worker::new(&client).concurrency(1).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.fault("get_chains", Fault::Hangs, 1);
    let began = Instant::now();
    for output in waits(&client, chains).join_all().await {
        assert_eq!(output.unwrap(), "attempt 1");
    }
    assert!(began.elapsed() <= TIMEOUT, "{:?}", began.elapsed());
}

/// Waits for all chains concurrently.
fn waits(client: &Client<Faulty>, chains: Vec<Chain<Task>>) -> JoinSet<windlass_core::Result<String>> {
    let wait = |chain| {
        let client = client.clone();
        async move { client.wait(chain).poll(MINUTE).timeout(MINUTE).await }
    };
    chains.into_iter().map(wait).collect()
}

/// A wait for an open chain queries it once, and then at the poll interval.
#[tokio::test(start_paused = true)]
async fn a_wait_queries_its_chain_once() {
    let (store, client) = faulty();
    let chain = client.start(task("x")).await.unwrap();
    let before = store.calls("get_chains");
    let mut waiting = Box::pin(client.wait(chain).poll(MINUTE).into_future());
    let _ = timeout(TIMEOUT, &mut waiting).await;
    assert_eq!(store.calls("get_chains") - before, 1);
    let _ = timeout(MINUTE, &mut waiting).await;
    assert_eq!(store.calls("get_chains") - before, 2);
}
