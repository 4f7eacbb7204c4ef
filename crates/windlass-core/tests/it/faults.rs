//! The client and the worker on a store, a notifier and handlers that fail.
//!
//! All tests run on paused time: the runtime advances its clock when it is idle, and the store reads the same
//! clock. A simulated minute therefore takes no time, and a busy machine does not affect the tests.

mod attempts;
mod faulty;
mod joined;
mod load;
mod notifier;
mod observed;
mod outages;
mod queue;
mod sending;
mod stopping;
mod transactions;

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::timeout;
use windlass_core::{
    Backoff, BoxError, Chain, Client, Ctx, Data, Entry, Event, Job, JobOptions, JobRecord, Observer,
};

use faulty::Faulty;
pub(crate) use faulty::RuntimeClock;

type Result<T, E = BoxError> = std::result::Result<T, E>;

/// Long enough for everything that should happen immediately, and shorter than a lease.
const TIMEOUT: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(4);
const MINUTE: Duration = Duration::from_secs(60);

macro_rules! job {
    ($type:ident, $options:expr) => {
        #[derive(Clone, Serialize, Deserialize)]
        struct $type {
            text: String,
        }
        impl Job for $type {
            const NAME: &'static str = stringify!($type);
            type Output = String;
            type Next = ();
            type Blockers = ();
            fn options() -> JobOptions {
                $options
            }
        }
        impl Entry for $type {}
        impl From<&str> for $type {
            fn from(text: &str) -> Self {
                Self { text: text.to_owned() }
            }
        }
    };
}

const OPTIONS: fn() -> JobOptions =
    || JobOptions { lease: Some(LEASE), backoff: Some(Backoff::NONE), ..JobOptions::default() };
job!(Task, OPTIONS());
job!(Timed, JobOptions { timeout: Some(Duration::from_secs(1)), ..OPTIONS() });
job!(Short, JobOptions { lease: Some(LEASE / 10), ..OPTIONS() });
job!(Long, JobOptions { lease: Some(MINUTE), ..OPTIONS() });
job!(Endless, JobOptions { timeout: Some(Duration::MAX), ..OPTIONS() });

fn task(text: &str) -> Task {
    text.into()
}

/// Creates a store that has no faults yet, and its client.
fn faulty() -> (Faulty, Client<Faulty>) {
    let store = Faulty::default();
    (store.clone(), Client::new(store))
}

/// Lets this much time pass, with everything that happens in it.
async fn pass(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}

/// Returns the stored job of a chain.
async fn stored(client: &Client<Faulty>, chain: Chain<Task>) -> JobRecord {
    client.chain(chain).await.unwrap().unwrap().latest
}

async fn echo<J: Job<Output = String>>(job: Ctx<J>) -> Result<String> {
    Ok(format!("attempt {}", job.attempt()))
}

async fn hang<J: Job<Output = String>>(_: Ctx<J>) -> Result<String> {
    pending().await
}

/// What a handler did.
#[derive(Clone, Debug, Default)]
struct Trace {
    started: Arc<Notify>,
    aborted: Arc<Notify>,
    runs: Arc<AtomicU32>,
}

impl Trace {
    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    fn start(&self) {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.started.notify_one();
    }
}

/// Takes half a lease.
async fn slow(job: Ctx<Task>, Data(trace): Data<Trace>) -> Result<String> {
    trace.start();
    pass(LEASE / 2).await;
    echo(job).await
}

/// Works until it is aborted, then succeeds.
async fn obedient(job: Ctx<Task>, Data(trace): Data<Trace>) -> Result<String> {
    trace.start();
    job.aborted().wait().await;
    trace.aborted.notify_one();
    echo(job).await
}

/// The events that an observer received.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<Event>>>);

impl Seen {
    fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|event| is(event)).count()
    }
}

impl Observer for Seen {
    fn observe(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}
