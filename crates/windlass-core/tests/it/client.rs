//! The client on the memory store.

mod bulk;
mod carried;
mod erased;
mod hooks;
mod inside;
mod outside;
mod plan;
mod query;
mod trace;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use windlass_core::command::{Acquire, Acquired, Outcome, Quota, Settle, Settlement};
use windlass_core::{
    Client, Ctx, Entry, ErrorKind, ErrorText, Event, Hint, InProcessNotifier, Job, KeyHold, ManualClock,
    MemoryStore, Millis, Notifier, Observer, Payload, RequestId, Signal, Status, Store, Subscription, Then,
    Topic, Transactional, TypeName, Worker, WorkerId,
};

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

impl Job for Mail {
    const NAME: &'static str = "mail";
    type Output = u32;
    type Next = ();
    type Blockers = ();
}

impl Entry for Mail {}

#[derive(Serialize, Deserialize)]
struct Report;

impl Job for Report {
    const NAME: &'static str = "report";
    type Output = String;
    type Next = ();
    type Blockers = (Mail, Mail);
}

impl Entry for Report {}

#[derive(Debug, Serialize, Deserialize)]
struct Approve {
    order: u32,
}

impl Job for Approve {
    const NAME: &'static str = "approve";
    const ALIASES: &'static [&'static str] = &["sign-off"];
    type Output = String;
    type Next = (Ship,);
    type Blockers = ();
}

impl Entry for Approve {}
impl Then<Ship> for Approve {}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Ship {
    order: u32,
}

impl Job for Ship {
    const NAME: &'static str = "ship";
    type Output = String;
    type Next = ();
    type Blockers = ();
}

#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<Event>>>);

impl Observer for Seen {
    fn observe(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Seen {
    /// Returns the names of the events seen since the last call.
    fn take(&self) -> Vec<String> {
        let seen = std::mem::take(&mut *self.0.lock().unwrap());
        seen.iter().map(|event| format!("{event:?}").split('(').next().unwrap().to_owned()).collect()
    }
}

fn mail() -> Mail {
    Mail { to: "ada".into() }
}

fn client() -> Client<MemoryStore> {
    Client::new(MemoryStore::new())
}

/// Acquires one job of this type and settles it with the outcome.
async fn work(client: &Client<MemoryStore>, job_type: &str, outcome: Outcome) -> Acquired {
    let acquired = acquire(client, job_type).await;
    let settlement = Settlement { job: acquired.job.id, fence: acquired.job.fence, outcome };
    client.store().settle(Settle { settlements: vec![settlement] }).await.unwrap();
    acquired
}

async fn acquire(client: &Client<MemoryStore>, job_type: &str) -> Acquired {
    let quota = Quota { job_type: TypeName::new(job_type).unwrap(), max: 1, lease: Millis::from_secs(60) };
    let acquire = Acquire {
        request: RequestId::new(),
        worker: WorkerId::new(),
        worker_name: None,
        types: vec![quota],
        max: 1,
    };
    client.store().acquire(acquire).await.unwrap().jobs.pop().expect("a job is due")
}

/// Returns the next signal, which must arrive soon.
async fn next_signal(hints: &mut Subscription) -> Signal {
    let signal = tokio::time::timeout(Duration::from_secs(10), hints.next()).await;
    signal.expect("a hint arrives in time").expect("the subscription is open")
}

fn complete<T: Serialize>(output: T) -> Outcome {
    Outcome::Complete { output: Payload::encode(&output).unwrap(), retention: None, create: Vec::new() }
}

#[tokio::test]
async fn a_chain_started_in_a_transaction_exists_when_it_commits() {
    let client = client();
    let mut tx = client.begin().await.unwrap();
    let lost = tx.start(mail()).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = client.begin().await.unwrap();
    let chain = tx.start(mail()).await.unwrap();
    assert!(client.chain(chain).await.unwrap().is_none(), "not before the commit");
    tx.commit().await.unwrap();
    assert!(client.chain(lost).await.unwrap().is_none());
    assert_eq!(client.chain(chain).await.unwrap().unwrap().status(), Status::Pending);
}

#[tokio::test]
async fn a_wait_returns_the_typed_output_or_the_failure() {
    let client = client();
    let (good, bad) = (client.start(mail()).await.unwrap(), client.start(mail()).await.unwrap());
    assert_eq!(client.output(good).await.unwrap(), None);
    work(&client, "mail", complete(7)).await;
    work(&client, "mail", Outcome::Fail { error: ErrorText::new("no such box"), retention: None }).await;
    assert_eq!(client.wait(good).await.unwrap(), 7);
    let error = client.wait(bad).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert_eq!(error.job_error(), Some(&ErrorText::new("no such box")));
}

#[tokio::test(start_paused = true)]
async fn a_wait_needs_no_notification_and_ends_in_time() {
    let client = client();
    let chain = client.start(mail()).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait(chain).timeout(Duration::from_secs(60)).await }
    });
    tokio::task::yield_now().await;
    // Settled directly in the store, so no notification is sent.
    work(&client, "mail", complete(7)).await;
    assert_eq!(waiting.await.unwrap().unwrap(), 7);

    let open = client.start(mail()).await.unwrap();
    let error = client.wait(open).timeout(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(client.chain(open).await.unwrap().unwrap().status(), Status::Pending);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_immediately() {
    let client = client();
    let chain = client.start(mail()).await.unwrap();
    let token = CancellationToken::new();
    let began = tokio::time::Instant::now();
    let wait = client.wait(chain).cancelled_by(token.clone());
    let (error, ()) = tokio::join!(wait.into_future(), async { token.cancel() });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() < Duration::from_secs(1));
    // A chain that has already closed is returned even if the token is cancelled.
    work(&client, "mail", complete(7)).await;
    assert_eq!(client.wait(chain).cancelled_by(token).await.unwrap(), 7);
}

#[tokio::test]
async fn concurrent_starts_share_writes() {
    let client = client();
    let before = client.store().counters().round_trips;
    let starts: Vec<_> = (0..500)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.start(mail()).await.unwrap() })
        })
        .collect();
    for start in starts {
        start.await.unwrap();
    }
    let writes = client.store().counters().round_trips - before;
    assert!(writes < 50, "{writes} writes for 500 starts");
}

#[tokio::test]
async fn a_held_key_returns_the_existing_chain() {
    let client = client();
    let first = client.start(mail()).key("order-1").hold(KeyHold::Completed).await.unwrap();
    let second = client.start(mail()).key("order-1").await.unwrap();
    assert!(first.is_new() && !second.is_new());
    assert_eq!(first, second);
    let error = client.start(mail()).hold(KeyHold::Any).await.unwrap_err();
    assert!(error.to_string().contains("call `.key(…)` first"), "{error}");
    let error = client.start(mail()).key("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn blockers_are_declared_at_the_start() {
    let client = client();
    let mails = client.start_many([mail(), mail()]).await.unwrap();
    let report = client.start(Report).blocked_by((mails[0], mails[1])).await.unwrap();
    assert_eq!(client.chain(report).await.unwrap().unwrap().status(), Status::Blocked);
    work(&client, "mail", complete(1)).await;
    work(&client, "mail", complete(2)).await;
    let acquired = acquire(&client, "report").await;
    let outputs: Vec<u32> =
        acquired.blockers.iter().map(|blocker| blocker.output.as_ref().unwrap().decode().unwrap()).collect();
    assert_eq!(outputs, [1, 2]);
}

#[tokio::test]
async fn a_wait_that_times_out_states_when_the_job_is_due() {
    let client = client();
    let wait =
        async |chain| client.wait(chain).timeout(Duration::from_millis(1)).await.unwrap_err().to_string();
    let error = wait(client.start(mail()).await.unwrap()).await;
    assert!(
        error.contains("its job `mail` is pending because no worker has acquired it, due at "),
        "{error}"
    );
    let error = wait(client.start(mail()).after(Duration::from_secs(3_600)).await.unwrap()).await;
    assert!(error.contains("its job `mail` is not due until ") && !error.contains("worker"), "{error}");
}

#[tokio::test]
async fn a_wait_that_times_out_names_the_blocker_that_failed() {
    let client = client();
    let mails = client.start_many([mail(), mail()]).await.unwrap();
    let report = client.start(Report).blocked_by((mails[0], mails[1])).await.unwrap();
    let wait = || async { client.wait(report).timeout(Duration::from_millis(1)).await.unwrap_err() };
    let error = wait().await;
    assert!(error.to_string().ends_with("its job `report` is blocked; the chain continues"), "{error}");

    work(&client, "mail", complete(1)).await;
    let failed = Outcome::Fail { error: ErrorText::new("no such box"), retention: None };
    work(&client, "mail", failed).await;
    let error = wait().await;
    let (report, blocker) = (report.id(), mails[1].id());
    assert_eq!(
        error.to_string(),
        format!(
            "chain {report} is still open after 1ms: its job `report` waits for chain {blocker}, which failed: no such \
             box; retry that chain"
        )
    );
    assert_eq!(
        (error.kind(), error.job_error()),
        (ErrorKind::TimedOut, Some(&ErrorText::new("no such box")))
    );
    assert_eq!(error.next_attempt_at(), None);

    client.retry(blocker).await.unwrap();
    client.cancel_unless_running(blocker).await.unwrap();
    let error = wait().await;
    assert!(
        error.to_string().contains(&format!("waits for chain {blocker}, which was cancelled")),
        "{error}"
    );
}

#[tokio::test]
async fn nothing_is_announced_before_the_commit_or_after_a_rollback() {
    let (seen, notifier) = (Seen::default(), InProcessNotifier::new());
    let store = MemoryStore::with_clock(Arc::new(ManualClock::default()));
    let client = Client::builder(store).notifier(notifier.clone()).observer(seen.clone()).build();
    let mut hints = notifier.subscribe(vec![Topic::Scheduled(TypeName::new("mail").unwrap())]).await.unwrap();

    let mut tx = client.begin().await.unwrap();
    tx.start(mail()).await.unwrap();
    tx.savepoint().await.unwrap();
    tx.start_many([mail(), mail()]).await.unwrap();
    tx.rollback_to().await.unwrap();
    assert!(hints.try_next().is_none() && seen.0.lock().unwrap().is_empty());
    tx.commit().await.unwrap();
    assert!(matches!(next_signal(&mut hints).await, Signal::Hint(Hint::Scheduled { count: 1, .. })));
    assert_eq!(seen.0.lock().unwrap().len(), 2, "one chain and its job");

    let mut tx = client.begin().await.unwrap();
    tx.start(mail()).await.unwrap();
    drop(tx);
    assert_eq!(seen.0.lock().unwrap().len(), 2);
    // The rolled-back start sends no hint: the next hint belongs to the next commit.
    client.start_many([mail(), mail(), mail()]).await.unwrap();
    assert!(matches!(next_signal(&mut hints).await, Signal::Hint(Hint::Scheduled { count: 3, .. })));
}

#[tokio::test]
async fn a_borrowed_transaction_is_announced_after_its_commit() {
    let notifier = InProcessNotifier::new();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let mut hints = notifier.subscribe(vec![Topic::Scheduled(TypeName::new("mail").unwrap())]).await.unwrap();
    let mut tx = client.store().begin().await.unwrap();
    let mut inside = client.in_tx(&mut tx);
    let chain = inside.start(mail()).await.unwrap();
    let announcements = inside.announcements();
    assert!(hints.try_next().is_none());
    announcements.announce_after(client.store().commit(tx)).await.unwrap();
    next_signal(&mut hints).await;
    assert!(client.chain(chain).await.unwrap().is_some());
}

#[tokio::test]
async fn a_chain_of_another_type_is_not_decoded() {
    let client = client();
    let mail = client.start(mail()).await.unwrap();
    let wrong = windlass_core::Chain::<Report>::from_id(mail.id());
    let error = client.output(wrong).await.unwrap_err();
    assert!(error.to_string().contains("has type `mail`, expected `report`"), "{error}");
}

#[tokio::test]
async fn a_client_of_any_store_cancels_and_retries() {
    let client: Client<dyn Store> = Client::new(Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let chain = client.start(mail()).await.unwrap();
    client.cancel_unless_running(chain).await.unwrap();
    let error = client.wait(chain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainCancelled);
    client.retry(chain).await.unwrap();
    assert_eq!(client.chain(chain).await.unwrap().unwrap().status(), Status::Pending);
}

/// A client that several runtimes share does not depend on one that is not driven: a `current_thread` runtime stands
/// still outside `block_on`.
#[test]
fn a_runtime_that_is_not_driven_delays_neither_starts_nor_hints() {
    async fn send(_: Ctx<Mail>) -> windlass_core::Result<u32> {
        Ok(3)
    }
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (idle, driven) = (runtime(), runtime());
    let client = Client::new(MemoryStore::new());
    // The task that publishes the hint is left behind in this runtime.
    idle.block_on(async { client.start(mail()).await }).unwrap();
    let work = async {
        let hour = Duration::from_secs(3_600);
        let worker = Worker::new(&client).poll(hour).handle(send).start().await.unwrap();
        for _ in 0..3 {
            let chain = client.start(mail()).await.unwrap();
            let output = client.wait(chain).poll(hour).timeout(Duration::from_secs(20)).await.unwrap();
            assert_eq!(output, 3);
        }
        worker.stop(Duration::from_secs(10)).await;
    };
    driven.block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await }).unwrap();
    drop(idle);
}
