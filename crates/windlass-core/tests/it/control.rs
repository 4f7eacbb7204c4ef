//! How handlers and options decide when a job is retried, and with which values handlers run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use windlass_core::command::ListAttempts;
use windlass_core::queue::{Encoding, Item, ItemAttempt, ItemDone};
use windlass_core::{
    Attempt, Backoff, BoxError, Client, Codec, Ctx, Data, Done, Entry, ErrorKind, Fatal, HandlerOptions,
    Handlers, Job, JobOptions, Key, MemoryStore, Next, Queue, RetryAfter, Status, Store, Target, Worker,
};

use crate::faults::RuntimeClock;

type Result<T, E = BoxError> = std::result::Result<T, E>;

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

macro_rules! job {
    ($job:ident, $name:literal $(, $options:expr)?) => {
        #[derive(Serialize, Deserialize)]
        struct $job;

        impl Job for $job {
            const NAME: &'static str = $name;
            type Output = String;
            type Next = ();
            type Blockers = ();
            $(fn options() -> JobOptions { $options })?
        }

        impl Entry for $job {}
    };
}
job!(Plain, "plain");
job!(
    Quick,
    "quick",
    JobOptions { backoff: Some(Backoff::NONE), max_attempts: Some(3), ..JobOptions::default() }
);

/// Returns a client whose clock is that of the runtime, which the tests pause.
fn client() -> Client<MemoryStore> {
    Client::new(MemoryStore::with_clock(Arc::new(RuntimeClock::default())))
}

async fn attempts(client: &Client<MemoryStore>, chain: windlass_core::ChainId) -> usize {
    client.store().list_attempts(ListAttempts { job: chain.first_job() }).await.unwrap().attempts.len()
}

#[tokio::test(start_paused = true)]
async fn by_default_a_job_fails_after_25_attempts_and_about_16_hours() {
    let (client, last) = (client(), Arc::new(Mutex::new(Vec::<bool>::new())));
    async fn fail(job: Ctx<Plain>, Data(last): Data<Arc<Mutex<Vec<bool>>>>) -> Result<String> {
        last.lock().unwrap().push(job.is_last_attempt());
        Err("broken".into())
    }
    let worker = Worker::new(&client).data(Arc::clone(&last)).handle(fail).start().await.unwrap();
    let (chain, began) = (client.start(Plain).await.unwrap(), Instant::now());
    let error = client.wait(chain).timeout(DAY).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    let took = began.elapsed();
    assert!((14 * HOUR..17 * HOUR).contains(&took), "{took:?}");
    assert_eq!(attempts(&client, chain.id()).await, 25, "the history holds all of them");
    let mut expected = vec![false; 24];
    expected.push(true);
    assert_eq!(*last.lock().unwrap(), expected);
    worker.stop(HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn a_fatal_error_is_not_retried() {
    let client = client();
    async fn fail(_: Ctx<Plain>) -> anyhow::Result<String> {
        use anyhow::Context;
        Err(Fatal::new("no such user")).context("cannot send")
    }
    let worker = Worker::new(&client).handle(fail).start().await.unwrap();
    let chain = client.start(Plain).await.unwrap();
    let error = client.wait(chain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert_eq!(error.job_error().unwrap().as_str(), "cannot send: no such user");
    assert_eq!(attempts(&client, chain.id()).await, 1);
    worker.stop(HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_exceeds_a_limit_is_not_retried() {
    let client = client();
    async fn start_101(_: Ctx<Plain>) -> Result<Next<Plain>> {
        Ok(Next::done(String::new()).start_many((0..=100).map(|_| Quick)))
    }
    async fn return_5_mib(a: Attempt<Quick, MemoryStore>) -> Result<Done<Quick, MemoryStore>> {
        Ok(a.begin().await?.done("x".repeat(5 << 20))?)
    }
    let worker = Worker::new(&client).handle(start_101).handle(return_5_mib).start().await.unwrap();
    let (plain, quick) = (client.start(Plain).await.unwrap(), client.start(Quick).await.unwrap());
    let errors = [(plain.id(), client.wait(plain).await), (quick.id(), client.wait(quick).await)].map(
        |(chain, ended)| {
            let error = ended.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ChainFailed);
            (chain, error.job_error().unwrap().to_string())
        },
    );
    assert!(errors[0].1.contains("take an `Attempt` and call `step.start_many`"), "{errors:?}");
    assert!(errors[1].1.contains("the payload is larger than"), "{errors:?}");
    for (chain, _) in errors {
        assert_eq!(attempts(&client, chain).await, 1);
    }
    worker.stop(HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_may_choose_the_delay_and_the_attempt_counts() {
    let client = client();
    async fn busy(job: Ctx<Quick>) -> Result<Next<Quick>> {
        if job.attempt() < 3 {
            return Err(RetryAfter::new(HOUR, "busy").into());
        }
        Ok(Next::done(format!("attempt {}", job.attempt())))
    }
    let worker = Worker::new(&client).handle(busy).start().await.unwrap();
    let (chain, began) = (client.start(Quick).await.unwrap(), Instant::now());
    let error = client.wait(chain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.job_error().unwrap().as_str(), "busy");
    let job = client.chain(chain).await.unwrap().unwrap().latest;
    assert_eq!((job.status, error.next_attempt_at()), (Status::Pending, Some(job.due_at)));
    assert_eq!(client.wait(chain).timeout(DAY).await.unwrap(), "attempt 3");
    let took = began.elapsed();
    assert!((2 * HOUR..2 * HOUR + Duration::from_secs(10)).contains(&took), "{took:?}");
    worker.stop(HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn options_of_the_worker_and_the_handler_apply() {
    let client = client();
    async fn fail_once<J: Job>(job: Ctx<J>) -> Result<String> {
        if job.attempt() == 1 { Err("not yet".into()) } else { Ok(String::new()) }
    }
    let after = |delay| Backoff { initial: delay, max: delay, jitter: 0.0, ..Backoff::default() };
    let worker = Worker::new(&client).defaults(HandlerOptions::new().backoff(after(HOUR)));
    let worker = worker.handle(fail_once::<Plain>).handle(fail_once::<Quick>).start().await.unwrap();
    let began = Instant::now();
    client.wait(client.start(Quick).await.unwrap()).timeout(DAY).await.unwrap();
    assert!(began.elapsed() < HOUR, "the job type has its own backoff");
    client.wait(client.start(Plain).await.unwrap()).timeout(DAY).await.unwrap();
    assert!(began.elapsed() >= HOUR, "that of the worker");
    worker.stop(HOUR).await;

    let own = HandlerOptions::new().backoff(after(3 * HOUR));
    let worker = Worker::new(&client).handle_with(own, fail_once::<Quick>).start().await.unwrap();
    let began = Instant::now();
    client.wait(client.start(Quick).await.unwrap()).timeout(DAY).await.unwrap();
    assert!(began.elapsed() >= 3 * HOUR, "that of the handler");
    worker.stop(HOUR).await;
}

#[tokio::test]
async fn handlers_take_several_values_by_type() {
    let client = Client::new(MemoryStore::new());
    async fn join(
        _: Ctx<Plain>,
        Data(text): Data<&'static str>,
        Data(number): Data<u8>,
        Data(flag): Data<bool>,
    ) -> Result<String> {
        Ok(format!("{text} {number} {flag}"))
    }
    let set = Handlers::new().handle(join).data(2_u8);
    let worker = Worker::new(&client).data("a").data(1_u8).data(true).handlers(set).start().await.unwrap();
    let chain = client.start(Plain).await.unwrap();
    assert_eq!(client.wait(chain).await.unwrap(), "a 2 true", "the value of the set takes precedence");
    worker.stop(HOUR).await;

    let error = Worker::new(&client).data("a").data(1_u8).handle(join).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = "the handler of `plain` takes a `Data<bool>`: pass the value with `.data(value)`";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn handlers_of_queues_take_values_too() {
    let client = Client::new(MemoryStore::new());
    let queue = client.queue::<u64, u64>("numbers").build().unwrap();
    async fn multiply(item: Item<u64>, Data(factor): Data<u64>) -> Result<u64> {
        Ok(factor * item.payload())
    }
    let consumer = queue.consume(multiply).data(3_u64).await.unwrap();
    assert_eq!(queue.enqueue_and_wait("a", 7).await.unwrap(), 21);
    consumer.stop(HOUR).await;
    let error = queue.consume(multiply).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("the handler of `numbers` takes a `Data<u64>`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_of_a_queue_reports_before_its_wait_times_out() {
    let queue = client().queue::<u64, u64>("numbers").build().unwrap();
    let fail = |_: Item<u64>| async { Err::<u64, BoxError>("broken".into()) };
    let consumer = queue.consume(fail).await.unwrap();
    let error = queue.enqueue_and_wait("a", 7).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AttemptsExhausted);
    assert_eq!(queue.status("a").await.unwrap().unwrap().attempts, 4);
    consumer.stop(HOUR).await;
}

#[tokio::test]
async fn the_ttl_of_results_covers_errors_unless_they_have_their_own() {
    let client = Client::new(MemoryStore::new());
    let fail = |_: Item<u64>| async { Err::<u64, BoxError>(Fatal::new("broken").into()) };
    let names = [("results", None), ("errors", Some(5 * HOUR))];
    for (name, error_ttl) in names {
        let queue = client.queue::<u64, u64>(name).result_ttl(2 * HOUR);
        let queue = match error_ttl {
            Some(ttl) => queue.error_ttl(ttl),
            None => queue,
        };
        let queue = queue.build().unwrap();
        let consumer = queue.consume(fail).await.unwrap();
        queue.enqueue_and_wait("queue's", 1).await.unwrap_err();
        queue.enqueue("own", 1).result_ttl(3 * HOUR).and_wait().await.unwrap_err();
        queue.enqueue("both", 1).error_ttl(4 * HOUR).result_ttl(3 * HOUR).and_wait().await.unwrap_err();
        consumer.stop(HOUR).await;
        for (id, ttl) in [
            ("queue's", error_ttl.unwrap_or(2 * HOUR)),
            ("own", error_ttl.unwrap_or(3 * HOUR)),
            ("both", 4 * HOUR),
        ] {
            let status = queue.status(id).await.unwrap().unwrap();
            // The job took less than an hour.
            let kept = status.kept_until.unwrap().since(status.created_at);
            assert!((ttl..ttl + HOUR).contains(&kept), "{name} {id}: {kept:?}");
        }
    }
}

#[tokio::test]
async fn an_outcome_starts_at_most_100_chains() {
    let client = Client::new(MemoryStore::new());
    async fn spread(_: Ctx<Plain>, Data(count): Data<usize>) -> Result<Next<Plain>> {
        Ok(Next::done(String::new()).start_many((0..count).map(|_| Quick)))
    }
    let worker = Worker::new(&client).data(100_usize).handle(spread).start().await.unwrap();
    client.wait(client.start(Plain).await.unwrap()).await.unwrap();
    worker.stop(HOUR).await;
    let worker = Worker::new(&client).data(101_usize).handle(spread).start().await.unwrap();
    let chain = client.start(Plain).max_attempts(1).await.unwrap();
    let error = client.wait(chain).await.unwrap_err();
    assert!(error.to_string().contains("more than 100 chains start with the outcome"), "{error}");
    worker.stop(HOUR).await;
}

#[tokio::test]
async fn a_chain_that_a_step_starts_exists_once_the_job_has_ended() {
    let client = Client::new(MemoryStore::new());
    async fn pay(a: Attempt<Plain, MemoryStore>) -> Result<Done<Plain, MemoryStore>> {
        let mut step = a.begin().await?;
        let chain = step.start(Quick).key("paid").after(DAY).await?;
        Ok(step.done(chain.id().to_string())?)
    }
    async fn fail(item: ItemAttempt<u64, MemoryStore>) -> Result<ItemDone<u64, MemoryStore>> {
        let mut step = item.begin().await?;
        step.start(Quick).key("failed").await?;
        drop(step);
        Err(Fatal::new("broken").into())
    }
    let queue = client.queue::<u64, u64>("numbers").build().unwrap();
    let handlers = queue.handlers(fail);
    let worker = Worker::new(&client).handle(pay).handlers(handlers).start().await.unwrap();
    let started = client.wait(client.start(Plain).await.unwrap()).await.unwrap();
    let found = client.chain(Target::key::<Quick>("paid").unwrap()).await.unwrap().unwrap();
    assert_eq!((found.id.to_string(), found.status()), (started, Status::Pending));
    queue.enqueue_and_wait("a", 1).await.unwrap_err();
    assert!(client.chain(Target::key::<Quick>("failed").unwrap()).await.unwrap().is_none(), "rolled back");
    worker.stop(HOUR).await;
}

/// Text as its bytes.
#[derive(Clone)]
struct Plaintext;

impl Encoding<String> for Plaintext {
    fn codec(&self) -> Codec {
        Codec::new("plaintext").unwrap()
    }

    fn encode(&self, text: &String) -> Result<Vec<u8>> {
        Ok(text.clone().into_bytes())
    }

    fn decode(&self, bytes: &[u8]) -> Result<String> {
        Ok(String::from_utf8(bytes.to_vec())?)
    }
}

#[tokio::test]
async fn payloads_and_results_may_have_different_encodings() {
    let client = Client::new(MemoryStore::new());
    let (json, plain) = (Codec::new("json").unwrap(), Codec::new("plaintext").unwrap());
    let echo = |item: Item<String>| async move { Ok::<_, BoxError>(item.payload().clone()) };
    let queues = [
        (client.queue("results").result_encoding(Plaintext), [&json, &plain]),
        (client.queue("payloads").payload_encoding(Plaintext), [&plain, &json]),
    ];
    for (builder, codecs) in queues {
        let queue: Queue<String, String> = builder.build().unwrap();
        let consumer = queue.consume(echo).await.unwrap();
        assert_eq!(queue.enqueue_and_wait("a", "text".to_owned()).await.unwrap(), "text");
        let key = Target::Key(queue.name().clone(), Key::new("a").unwrap());
        let job = client.chain(key).await.unwrap().unwrap().latest;
        assert_eq!([job.input.codec(), job.output.unwrap().codec()], codecs);
        consumer.stop(HOUR).await;
    }
}
