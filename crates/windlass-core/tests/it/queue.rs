//! Tests of queues and reapers that go beyond the behavior that every store has in common.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass_core::command::{Count, Types};
use windlass_core::queue::{Enqueued, Events, FailureKind, Item, QueueEvent};
use windlass_core::{
    BoxError, BoxFuture, Capabilities, Capability, Client, Decorator, Error, ErrorKind, Event, Hint,
    InProcessNotifier, Key, ManualClock, MemoryStore, Millis, Notifier, Observer, Publisher, Queue, Reaper,
    Result, RunningReaper, Store, Subscription, Target, Topic, TypeName, Worker,
};

use crate::faults::RuntimeClock;

const TIMEOUT: Duration = Duration::from_secs(60);

async fn double(item: Item<u64>) -> Result<u64, BoxError> {
    Ok(2 * item.payload())
}

fn numbers<S: Store>(client: &Client<S>) -> Queue<u64, u64> {
    client.queue("numbers").build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_wait_lasts_thirty_seconds_by_default() {
    let queue = numbers(&Client::new(MemoryStore::new()));
    let began = Instant::now();
    let error = queue.enqueue_and_wait("a", 1).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed().as_secs()), (ErrorKind::TimedOut, 30));
}

#[tokio::test(start_paused = true)]
async fn without_a_notification_a_wait_polls() {
    let store = MemoryStore::new();
    // The clients have separate notifiers, so neither is notified of what the other does.
    let client = || numbers(&Client::builder(store.clone()).notifier(InProcessNotifier::new()).build());
    let (queue, other) = (client(), client());
    let consumer = other.consume(double).concurrency(1).poll(Duration::from_millis(10)).await.unwrap();
    let began = Instant::now();
    assert_eq!(queue.enqueue_and_wait("a", 7).await.unwrap(), 14);
    assert_eq!(began.elapsed().as_millis(), 1_500);
    consumer.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn clients_of_one_memory_store_notify_each_other() {
    let store = MemoryStore::new();
    let (queue, other) = (numbers(&Client::new(store.clone())), numbers(&Client::new(store)));
    let consumer = other.consume(double).concurrency(1).await.unwrap();
    let began = Instant::now();
    assert_eq!(queue.enqueue_and_wait("a", 7).await.unwrap(), 14);
    assert_eq!(began.elapsed().as_millis(), 0);
    consumer.stop(TIMEOUT).await;
}

/// Whatever ends the attempt also ends a hanging hook, and the completed work counts.
#[tokio::test(start_paused = true)]
async fn a_hanging_hook_does_not_rerun_the_handler() {
    for stops in [true, false] {
        // The leases follow the paused time too, so a slow machine does not end them.
        let client = Client::new(MemoryStore::with_clock(Arc::new(RuntimeClock::default())));
        let hanging = client.queue::<u64, u64>("numbers").fixed_visibility(Duration::from_secs(2));
        let hanging = hanging.after_execution(|_| std::future::pending::<Result<_, BoxError>>());
        let (queue, runs) = (hanging.build().unwrap(), Arc::new(Mutex::new(0)));
        let counted = Arc::clone(&runs);
        let handler = move |item: Item<u64>| {
            *counted.lock().unwrap() += 1;
            double(item)
        };
        let consumer = queue.consume(handler).concurrency(1).await.unwrap();
        queue.enqueue("a", 7).await.unwrap();
        if stops {
            let _ = tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await;
            consumer.stop(TIMEOUT).await;
            assert_eq!(queue.result("a").await.unwrap(), Some(14));
        } else {
            assert_eq!(queue.enqueue_and_wait("a", 7).await.unwrap(), 14);
            consumer.stop(TIMEOUT).await;
        }
        assert_eq!(*runs.lock().unwrap(), 1, "stops: {stops}");
    }
}

#[tokio::test]
async fn everything_can_be_sent_to_another_thread() {
    let client = Client::new(MemoryStore::new());
    let erased = client.clone().into_dyn();
    for queue in [numbers(&client), erased.queue("numbers").build().unwrap()] {
        let task = async move {
            let mut events = queue.events().await?;
            let consumer = queue.consume(double).concurrency(2).name("doubles").await?;
            queue.enqueue("a", 1).priority(1).await?;
            queue.enqueue_many([queue.enqueue("b", 2)]).await?;
            queue.enqueue_and_wait("c", 3).await?;
            queue.update_result_ttl("c", TIMEOUT).await?;
            queue.cancel("d").await?;
            queue.pause().await?;
            queue.resume().await?;
            queue.drain(TIMEOUT).await?;
            queue.resume().await?;
            assert_eq!(queue.result("c").await?, Some(6));
            assert!(queue.statuses(["a", "b"]).await?.iter().all(Option::is_some));
            let event = events.next().await;
            consumer.stop(TIMEOUT).await;
            Ok::<_, Error>(event)
        };
        assert!(tokio::spawn(task).await.unwrap().unwrap().is_some());
    }
}

#[tokio::test]
async fn events_are_a_stream_that_ends_with_the_notifier() {
    fn is_stream<T: futures_core::Stream<Item = QueueEvent> + Send + Unpin>(_: &T) {}
    let notifier = InProcessNotifier::new();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let queue = numbers(&client);
    let mut events: Events = queue.events().await.unwrap();
    is_stream(&events);
    queue.enqueue("a", 1).await.unwrap();
    assert_eq!(events.next().await, Some(QueueEvent::Queued { id: "a".to_owned() }));
    notifier.close().await.unwrap();
    assert_eq!(events.next().await, None);
    assert_eq!(events.next().await, None, "and stays so");
    assert_eq!(queue.events().await.unwrap_err().kind(), ErrorKind::Closed);
}

/// The stream queries the store when it is read.
#[tokio::test]
async fn the_reason_of_a_failure_is_unknown_once_the_job_is_deleted() {
    async fn fail(_: Item<u64>) -> Result<u64, BoxError> {
        Err("broken".into())
    }
    let client = Client::new(MemoryStore::new());
    let queue = client.queue::<u64, u64>("numbers").attempts(1).build().unwrap();
    let mut events = queue.events().await.unwrap();
    let consumer = queue.consume(fail).concurrency(1).await.unwrap();
    queue.enqueue_and_wait("a", 1).await.unwrap_err();
    consumer.stop(TIMEOUT).await;
    client.delete(vec![Target::Key(queue.name().clone(), Key::new("a").unwrap())]).await.unwrap();
    let failed = loop {
        if let failed @ QueueEvent::Failed { .. } = next(&mut events).await {
            break failed;
        }
    };
    let (id, error) = ("a".to_owned(), "broken".to_owned());
    assert_eq!(failed, QueueEvent::Failed { id, error, kind: FailureKind::Unknown, payload: None });
}

/// This applies to a queue with its own consumer and to one of several that a worker handles.
#[tokio::test]
async fn the_start_and_the_end_of_every_consumer_are_reported() {
    let client = Client::new(MemoryStore::new());
    let (queue, other) = (numbers(&client), client.queue::<u64, u64>("others").build().unwrap());
    let (mut events, mut of_other) = (queue.events().await.unwrap(), other.events().await.unwrap());
    let worker =
        Worker::new(&client).concurrency(1).handlers(queue.handlers(double)).handlers(other.handlers(double));
    let running = worker.start().await.unwrap();
    let worker = running.id();
    running.stop(TIMEOUT).await;
    for events in [&mut events, &mut of_other] {
        assert_eq!(next(events).await, QueueEvent::Started { worker });
        assert_eq!(next(events).await, QueueEvent::Stopped { worker });
    }
    let consumer = queue.consume(double).concurrency(1).await.unwrap();
    let worker = consumer.id();
    consumer.stop(TIMEOUT).await;
    assert_eq!(next(&mut events).await, QueueEvent::Started { worker });
    assert_eq!(next(&mut events).await, QueueEvent::Stopped { worker });
}

async fn next(events: &mut Events) -> QueueEvent {
    tokio::time::timeout(TIMEOUT, events.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_job_built_by_another_queue_is_refused() {
    let client = Client::new(MemoryStore::new());
    let (queue, other) = (numbers(&client), client.queue::<u64, u64>("others").build().unwrap());
    let jobs = [queue.enqueue("a", 1), other.enqueue("b", 1), queue.clone().enqueue("c", 1)];
    let enqueued = queue.enqueue_many(jobs).await.unwrap();
    let [Ok(Enqueued::Queued), Err(refused), Ok(Enqueued::Queued)] = &enqueued[..] else {
        panic!("{enqueued:?}")
    };
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("`others`"), "{refused}");
    assert!(queue.status("b").await.unwrap().is_none() && other.status("b").await.unwrap().is_none());
}

/// Lets time pass in a test with paused time.
async fn pass(time: Duration) {
    sleep(time).await; // tidy: time is paused
}

#[tokio::test(start_paused = true)]
async fn events_are_published_only_while_a_subscriber_is_known() {
    let is_event = |hint: &Hint| matches!(hint, Hint::Event(_));
    let is_announcement = |hint: &Hint| *hint == Hint::EventSubscriber;
    let notifier = Listening::default();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let queue = numbers(&client);
    let mut enqueued = 0;
    let mut check = async |events: usize| {
        enqueued += 1;
        queue.enqueue(enqueued.to_string(), 1).await.unwrap();
        notifier.until(|hint| matches!(hint, Hint::Scheduled { .. }), enqueued).await;
        notifier.until(is_event, events).await;
    };
    // It is not known yet whether there are subscribers, so the client asks.
    check(0).await;
    notifier.until(|hint| *hint == Hint::FindEventSubscribers, 1).await;
    // There was no answer.
    pass(Duration::from_secs(1)).await;
    check(0).await;
    // A subscriber announces itself. That counts for 15 seconds, also after a gap.
    notifier.deliver(&Hint::EventSubscriber);
    pass(Duration::from_millis(1)).await;
    check(1).await;
    notifier.gap();
    pass(Duration::from_secs(14)).await;
    check(2).await;
    pass(Duration::from_secs(2)).await;
    check(2).await;
    // This client subscribes: it announces itself at once, when it is asked, and every 5 seconds.
    let events = queue.events().await.unwrap();
    notifier.until(is_announcement, 1).await;
    check(3).await;
    // One answer serves all who ask at the same time.
    notifier.deliver(&Hint::FindEventSubscribers);
    notifier.deliver(&Hint::FindEventSubscribers);
    pass(Duration::from_secs(1)).await;
    notifier.until(is_announcement, 2).await;
    pass(Duration::from_secs(5)).await;
    notifier.until(is_announcement, 3).await;
    notifier.gap();
    pass(Duration::from_secs(1)).await;
    notifier.until(is_announcement, 4).await;
    drop(events);
    pass(Duration::from_secs(60)).await;
    notifier.until(is_announcement, 4).await;
    check(3).await;
}

/// Events are held back until subscribers have had time to answer.
#[tokio::test(start_paused = true)]
async fn early_events_are_published_if_a_subscriber_answers_or_the_client_closes() {
    let is_event = |hint: &Hint| matches!(hint, Hint::Event(_));
    for answers in [true, false] {
        let notifier = Listening::default();
        let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
        numbers(&client).enqueue("a", 1).await.unwrap();
        notifier.until(|hint| *hint == Hint::FindEventSubscribers, 1).await;
        pass(Duration::from_millis(100)).await;
        notifier.until(is_event, 0).await;
        if answers {
            notifier.deliver(&Hint::EventSubscriber);
            pass(Duration::from_millis(1)).await;
        } else {
            client.close().await.unwrap();
        }
        notifier.until(is_event, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_the_client_asks_again_who_subscribes() {
    let notifier = Listening::default();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    numbers(&client).enqueue("a", 1).await.unwrap();
    let is_question = |hint: &Hint| *hint == Hint::FindEventSubscribers;
    notifier.until(is_question, 1).await;
    notifier.gap();
    notifier.until(is_question, 2).await;
}

#[tokio::test]
async fn events_that_the_notifier_cannot_take_are_counted() {
    const JOBS: usize = 6_000;
    let notifier = Listening::default();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let queue = numbers(&client);
    let _events = queue.events().await.unwrap();
    let held = notifier.is_free.write().await;
    // Nothing can be published while the lock is held, and the enqueue does not wait for it.
    queue.enqueue_many((0..JOBS).map(|number| queue.enqueue(number.to_string(), 1))).await.unwrap();
    drop(held);
    let counted = || {
        let (mut received, mut missed) = (0, 0);
        for hint in &*notifier.published.lock().unwrap() {
            let Hint::Event(message) = hint else { continue };
            let message: serde_json::Value = serde_json::from_slice(message).unwrap();
            match message["missed"].as_u64() {
                Some(count) => missed += usize::try_from(count).unwrap(),
                None => received += 1,
            }
        }
        (received, missed)
    };
    // Lost events are counted in the next event that is published.
    let (mut enqueued, mut before) = (JOBS, (0, 0));
    let (received, missed) = tokio::time::timeout(TIMEOUT, async {
        loop {
            let now = counted();
            if now.0 + now.1 >= enqueued {
                return now;
            }
            if now == before {
                queue.enqueue(enqueued.to_string(), 1).await.unwrap();
                enqueued += 1;
            }
            before = now;
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert!(
        missed > 0 && received + missed == enqueued,
        "{received} received and {missed} missed of {enqueued}"
    );
}

/// A notifier that records what was published. Publishing waits while the lock is held. Subscribers receive
/// what the test delivers.
#[derive(Clone, Debug, Default)]
struct Listening {
    published: Arc<Mutex<Vec<Hint>>>,
    is_free: Arc<tokio::sync::RwLock<()>>,
    subscribers: Arc<Mutex<Vec<Subscriber>>>,
}

/// The topics and the sending half of a subscription.
type Subscriber = (Vec<Topic>, Publisher);

impl Listening {
    fn count(&self, is: impl Fn(&Hint) -> bool) -> usize {
        self.published.lock().unwrap().iter().filter(|hint| is(hint)).count()
    }

    /// Waits until this many hints match, and checks that there are no more.
    async fn until(&self, is: impl Fn(&Hint) -> bool, count: usize) {
        tokio::time::timeout(TIMEOUT, async {
            while self.count(&is) < count {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        assert_eq!(self.count(&is), count);
    }

    /// Delivers a hint to its subscribers.
    fn deliver(&self, hint: &Hint) {
        for (topics, publisher) in &*self.subscribers.lock().unwrap() {
            if topics.contains(&hint.topic()) {
                publisher.send(hint.clone());
            }
        }
    }

    /// Reports a gap to all subscribers.
    fn gap(&self) {
        self.subscribers.lock().unwrap().iter().for_each(|(_, publisher)| publisher.gap());
    }
}

impl Notifier for Listening {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _free = self.is_free.read().await;
            self.published.lock().unwrap().push(hint);
            Ok(())
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        let (publisher, subscription) = Subscription::new(|| {});
        self.subscribers.lock().unwrap().push((topics, publisher));
        Box::pin(async { Ok(subscription) })
    }

    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(true) })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(all(feature = "cbor", feature = "messagepack"))]
#[tokio::test]
async fn messagepack_and_cbor_keep_values_that_json_loses() {
    use windlass_core::queue::{Cbor, Encoding, MessagePack};
    use windlass_core::{Key, Target};
    type Bits = (f64, Vec<u8>, std::collections::BTreeMap<u32, Option<String>>);
    async fn check(encoding: impl Encoding<Bits> + Clone, codec: &str) {
        let client = Client::new(MemoryStore::new());
        let queue = client.queue_with::<Bits, Bits>("bits", encoding).build().unwrap();
        let echo = |item: Item<Bits>| async move { Ok::<_, BoxError>(item.payload().clone()) };
        let consumer = queue.consume(echo).concurrency(1).await.unwrap();
        let bits: Bits = (f64::INFINITY, vec![0, 255], [(1, None), (2, Some("ä".to_owned()))].into());
        assert_eq!(queue.enqueue_and_wait("a", &bits).await.unwrap(), bits);
        let key = Target::Key(queue.name().clone(), Key::new("a").unwrap());
        let stored = client.chain(key).await.unwrap().unwrap();
        assert_eq!(stored.output().unwrap().codec().as_str(), codec);
        consumer.stop(TIMEOUT).await;
    }
    check(MessagePack, "messagepack").await;
    check(Cbor, "cbor").await;
}

#[tokio::test]
async fn the_leading_reaper_removes_expired_chains() {
    let clock = Arc::new(ManualClock::default());
    let client = Client::new(MemoryStore::with_clock(clock.clone()));
    let queue = numbers(&client);
    let reaper = || Reaper::new(&client).interval(Duration::from_millis(5)).lock("sweeper", TIMEOUT).start();
    let ended = || async {
        let consumer = queue.consume(double).concurrency(1).await.unwrap();
        queue.enqueue("a", 1).result_ttl(Duration::from_millis(1)).and_wait().await.unwrap();
        consumer.stop(TIMEOUT).await;
        clock.advance(Millis::from_secs(11 * 60));
    };
    ended().await;
    let first = reaper().await.unwrap();
    swept(&client).await;
    let second = reaper().await.unwrap();
    assert!(first.is_leader() && !second.is_leader());
    first.stop().await;
    ended().await;
    leads(&second).await;
    swept(&client).await;
    second.stop().await;
}

async fn leads(reaper: &RunningReaper) {
    let mut leadership = reaper.leadership();
    tokio::time::timeout(TIMEOUT, leadership.wait_for(|leads| *leads)).await.unwrap().unwrap();
}

/// Waits until the store is empty.
async fn swept(client: &Client<MemoryStore>) {
    tokio::time::timeout(TIMEOUT, async {
        while !client.store().count(Count { types: Types::All }).await.unwrap().types.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn errors_of_a_reaper_are_observed() {
    #[derive(Clone, Debug, Default)]
    struct Failures(Arc<Mutex<Vec<String>>>, Arc<tokio::sync::Notify>);
    impl Observer for Failures {
        fn observe(&self, event: &Event) {
            if let Event::StoreFailed(command, why) = event {
                self.0.lock().unwrap().push(format!("{command}: {why}"));
                self.1.notify_one();
            }
        }
    }
    let failures = Failures::default();
    let client = Client::builder(MemoryStore::new()).observer(failures.clone()).build();
    client.store().close().await.unwrap();
    let reaper = Reaper::new(&client).start().await.unwrap();
    tokio::time::timeout(TIMEOUT, failures.1.notified()).await.unwrap();
    assert!(!reaper.is_leader());
    reaper.stop().await;
    assert!(failures.0.lock().unwrap()[0].starts_with("reap: "));
}

/// A store without leader locks.
#[derive(Debug)]
struct Lockless(MemoryStore);

impl Decorator for Lockless {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn supported(&self) -> Capabilities {
        let all = Capability::ALL.into_iter().filter(|capability| *capability != Capability::LeaderLock);
        all.fold(Capabilities::CORE, Capabilities::with)
    }
}

#[tokio::test]
async fn a_store_without_locks_is_refused() {
    let client = Client::<Lockless>::new(Lockless(MemoryStore::new()));
    let refused = Reaper::new(&client).start().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("without_election"), "{refused}");
    let reaper = Reaper::new(&client).without_election().start().await.unwrap();
    leads(&reaper).await;
    reaper.stop().await;
    assert_eq!(numbers(&client).enqueue("a", 1).await.unwrap(), Enqueued::Queued);
}
