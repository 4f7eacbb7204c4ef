//! Jobs that a worker acquires although it has no handler for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use windlass_core::command::{Acquire, Command, NewChain, NewJob, Quota, Reply};
use windlass_core::{
    BoxError, BoxFuture, ChainId, Client, Ctx, Decorator, Entry, Event, Job, JobRecord, MemoryStore, Millis,
    Observer, Payload, Result, Status, TypeName, Worker,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A store that also returns jobs of a type that the worker did not ask for.
#[derive(Debug)]
struct Generous(MemoryStore);

impl Generous {
    fn add_type(acquire: &mut Acquire) {
        let lease = Millis::from_secs(3_600);
        acquire.types.push(Quota { job_type: other(), max: acquire.max, lease });
    }
}

impl Decorator for Generous {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn call(&self, mut command: Command) -> BoxFuture<'_, Result<Reply>> {
        match &mut command {
            Command::Acquire(acquire) => Self::add_type(acquire),
            Command::Exchange(exchange) => Self::add_type(&mut exchange.acquire),
            _ => {}
        }
        self.forward(command)
    }
}

fn other() -> TypeName {
    TypeName::new("other").unwrap()
}

/// Counts the reports of missing handlers, and passes rescheduled attempts on.
#[derive(Clone, Debug)]
struct Reports {
    missing: Arc<AtomicU32>,
    rescheduled: UnboundedSender<Event>,
}

impl Observer for Reports {
    fn observe(&self, event: &Event) {
        match event {
            Event::HandlerMissing(about) if about.job_type == other() => {
                self.missing.fetch_add(1, Ordering::SeqCst);
            }
            Event::AttemptRescheduled(..) => self.rescheduled.send(event.clone()).unwrap(),
            _ => {}
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Echo {}

impl Job for Echo {
    const NAME: &'static str = "echo";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Echo {}

async fn echo(_: Ctx<Echo>) -> Result<(), BoxError> {
    Ok(())
}

#[tokio::test]
async fn a_job_without_a_handler_is_reported_and_rescheduled() {
    let (sender, mut rescheduled) = unbounded_channel();
    let reports = Reports { missing: Arc::default(), rescheduled: sender };
    let client = Client::builder(Generous(MemoryStore::new())).observer(reports.clone()).build();
    let id = ChainId::new();
    let chain = NewChain::new(id, NewJob::new(other(), Payload::json("{}").unwrap()));
    client.create(vec![chain]).await.unwrap();
    let worker = Worker::new(&client).concurrency(1).handle(echo).start().await.unwrap();
    timeout(TIMEOUT, rescheduled.recv()).await.unwrap().unwrap();
    let JobRecord { status, attempt, due_at, created_at, error, .. } =
        client.chain(id).await.unwrap().unwrap().latest;
    assert_eq!(status, Status::Pending);
    assert_eq!(attempt, 0, "the attempt does not count");
    assert!(due_at.since(created_at) >= Duration::from_secs(55), "{due_at}");
    assert!(error.unwrap().as_str().contains("has no handler for job type `other`"));
    // Each of these needs at least one acquire. None of them acquires the job again.
    for _ in 0..20 {
        let chain = client.start(Echo {}).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    assert_eq!(reports.missing.load(Ordering::SeqCst), 1);
    worker.stop(TIMEOUT).await;
}
