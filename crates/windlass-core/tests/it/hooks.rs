//! Hooks in the transactions of attempts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::command::Outcome;
use windlass_core::{
    AnyAttempt, Attempt, Backoff, BoxError, BoxFuture, Client, Closing, Done, Entry, Event, Hooks, Job,
    JobOptions, MemoryStore, MemoryTx, Observer, Payload, Stage, Status, Worker,
};

type Result<T, E = BoxError> = std::result::Result<T, E>;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Serialize, Deserialize)]
struct Echo {
    text: String,
}

impl Job for Echo {
    const NAME: &'static str = "echo";
    type Output = String;
    type Next = ();
    type Blockers = ();
    fn options() -> JobOptions {
        JobOptions { backoff: Some(Backoff::NONE), max_attempts: Some(2), ..JobOptions::default() }
    }
}
impl Entry for Echo {}

async fn staged(a: Attempt<Echo, MemoryStore>) -> Result<Done<Echo, MemoryStore>> {
    a.prepare().await?.commit().await?;
    Ok(a.begin().await?.done(a.input().text.clone())?)
}

/// Records each call, and fails the configured one in the first attempt.
#[derive(Clone, Default)]
struct Watch {
    name: &'static str,
    refuses: Option<&'static str>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    fn see(&self, attempt: &AnyAttempt, what: &str) -> Result<()> {
        self.lines.lock().unwrap().push(format!("{} {what} {}", self.name, attempt.attempt()));
        if self.refuses == Some(what) && attempt.attempt() == 1 {
            Err(format!("{what} refused").into())
        } else {
            Ok(())
        }
    }
}

impl Hooks<MemoryTx> for Watch {
    fn opened<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        stage: Stage,
        _: &'a mut MemoryTx,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.see(attempt, if stage == Stage::Prepare { "open-prepare" } else { "open-finish" })
        })
    }

    fn closing<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        closing: Closing<'a>,
        _: &'a mut MemoryTx,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match closing {
                Closing::Prepare => self.see(attempt, "close-prepare"),
                Closing::Finish(Outcome::Complete { output, .. }) => {
                    let text: String = output.decode()?;
                    *output = Payload::encode(&format!("{text} {}", self.name))?;
                    self.see(attempt, "close-finish")
                }
                Closing::Finish(_) => Ok(()),
            }
        })
    }
}

async fn run(refuses: Option<&'static str>) -> (String, u32, Vec<String>) {
    let client = Client::new(MemoryStore::new());
    let first = Watch { name: "a", refuses, ..Watch::default() };
    let second = Watch { name: "b", lines: Arc::clone(&first.lines), ..Watch::default() };
    let lines = Arc::clone(&first.lines);
    let worker = Worker::new(&client).hooks(first).hooks(second).handle(staged).start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    let output = client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let job = client.chain(chain).await.unwrap().unwrap().latest;
    assert_eq!(job.status, Status::Completed);
    let lines = lines.lock().unwrap().clone();
    (output, job.attempt, lines)
}

#[tokio::test]
async fn hooks_see_each_transaction_and_may_change_the_outcome() {
    let (output, attempts, lines) = run(None).await;
    assert_eq!((output.as_str(), attempts), ("hi b a", 1));
    assert_eq!(
        lines,
        [
            "a open-prepare 1",
            "b open-prepare 1",
            "b close-prepare 1",
            "a close-prepare 1",
            "a open-finish 1",
            "b open-finish 1",
            "b close-finish 1",
            "a close-finish 1",
        ],
    );
}

#[tokio::test]
async fn a_hook_that_refuses_rolls_back_and_fails_the_attempt() {
    for refused in ["open-prepare", "close-prepare", "open-finish", "close-finish"] {
        let (output, attempts, lines) = run(Some(refused)).await;
        assert_eq!((output.as_str(), attempts), ("hi b a", 2), "{refused}");
        assert!(lines.contains(&format!("a {refused} 1")), "{lines:?}");
    }
}

#[tokio::test]
async fn the_refusal_of_a_hook_is_the_error_of_the_attempt() {
    struct Never;
    impl Hooks<MemoryTx> for Never {
        fn closing<'a>(
            &'a self,
            _: &'a AnyAttempt,
            closing: Closing<'a>,
            _: &'a mut MemoryTx,
        ) -> BoxFuture<'a, Result<()>> {
            Box::pin(async move {
                match closing {
                    Closing::Prepare => Ok(()),
                    Closing::Finish(_) => Err("over quota".into()),
                }
            })
        }
    }
    let client = Client::new(MemoryStore::new());
    let worker = Worker::new(&client).hooks(Never).handle(staged).start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    let error = client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    worker.stop(TIMEOUT).await;
    assert_eq!(error.job_error().unwrap().as_str(), "a hook refused the transaction: over quota");
}

#[tokio::test(start_paused = true)]
async fn a_long_transaction_is_reported() {
    #[derive(Clone, Debug, Default)]
    struct Long(Arc<Mutex<Vec<Duration>>>);
    impl Observer for Long {
        fn observe(&self, event: &Event) {
            if let Event::TransactionLong(_, open_for) = event {
                self.0.lock().unwrap().push(*open_for);
            }
        }
    }
    async fn atomic(a: Attempt<Echo, MemoryStore>) -> Result<Done<Echo, MemoryStore>> {
        let step = a.atomic().await?;
        assert!(a.prepare().await.is_err(), "prepare comes before the transaction that ends the job");
        tokio::time::sleep(Duration::from_secs(6)).await; // tidy: the handler works, on paused time
        Ok(step.done("done".to_owned())?)
    }
    let long = Long::default();
    let client = Client::builder(MemoryStore::new()).observer(long.clone()).build();
    let worker = Worker::new(&client).handle(atomic).start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    assert_eq!(*long.0.lock().unwrap(), [Duration::from_secs(6)]);
}
