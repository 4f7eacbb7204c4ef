//! A connection is cut while an attempt finishes: nothing is half written, and the worker recovers on its own.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, oneshot};
use windlass_core::{Attempt, Backoff, BoxError, Client, Data, Done, Entry, Job, JobOptions, Status, Worker};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::crash::{Effect, Ledger, Run};
use windlass_testkit::{PostgresServer, Proxy};

use crate::ledger::{ROW, SqlxTable, TABLE};

const TIMEOUT: Duration = Duration::from_secs(30);

/// When the connection is cut in the first attempt.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// After the handler wrote its row and before the job is settled.
    BetweenStatements,
    /// After all writes and before the server receives the commit.
    BeforeCommit,
    /// After the server committed and before its reply arrives.
    AfterCommit,
}

#[derive(Clone)]
struct Line {
    proxy: Arc<Mutex<Proxy>>,
    cut: Cut,
    /// The commit statement as the driver sends it, up to its end: other statements contain the word, too.
    commit: &'static str,
    /// Resolves when the connection was cut at the commit.
    cuts: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
}

#[derive(Serialize, Deserialize)]
struct Pay;

impl Job for Pay {
    const NAME: &'static str = "pay";
    type Output = u32;
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { backoff: Some(Backoff::NONE), ..JobOptions::default() }
    }
}

impl Entry for Pay {}

async fn pay<L: Ledger>(
    a: Attempt<Pay, L::Store>,
    Data(line): Data<Line>,
) -> Result<Done<Pay, L::Store>, BoxError> {
    let mut step = a.begin().await?;
    let job = a.job();
    let is_first = a.attempt() == 1;
    if is_first {
        let mut proxy = line.proxy.lock().await;
        *line.cuts.lock().await = match line.cut {
            Cut::BetweenStatements => None,
            Cut::BeforeCommit => Some(proxy.cut_before(ROW, line.commit)),
            Cut::AfterCommit => Some(proxy.cut_after(ROW, line.commit)),
        };
    }
    L::write(step.tx(), Effect { chain: job.chain, run: Run { job: job.id, fence: job.fence } }).await?;
    if is_first && matches!(line.cut, Cut::BetweenStatements) {
        line.proxy.lock().await.cut().await;
    }
    Ok(step.done(a.attempt())?)
}

/// Returns the attempt that completed the job. Checks that its row was written once.
async fn last_attempt<L, P>(connect: impl AsyncFn(String) -> P, commit: &'static str, cut: Cut) -> u32
where
    L: Ledger<Store = PostgresStore<P>>,
    P: Provider,
{
    let server = PostgresServer::start().await;
    server.query(TABLE);
    let proxy = Proxy::to(server.port()).await;
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    let store = PostgresStore::open(connect(url).await, Options::default()).await.unwrap();
    let client = Client::new(store);
    let line = Line { proxy: Arc::new(Mutex::new(proxy)), cut, commit, cuts: Arc::default() };
    let worker =
        Worker::new(&client).concurrency(1).data(line.clone()).handle(pay::<L>).start().await.unwrap();
    let chain = client.start(Pay).await.unwrap();
    let attempt = client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    if let Some(cut) = line.cuts.lock().await.take() {
        cut.await.unwrap();
    }
    let stored = client.chain(chain).await.unwrap().unwrap();
    assert_eq!((stored.status(), stored.latest.lease), (Status::Completed, None));
    assert_eq!(server.query("select count(*), count(distinct job) from ledger"), "1|1", "{cut:?}");
    attempt
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_that_is_cut_off_happens_once() {
    let connect = async |url: String| Sqlx::connect(&url).await.unwrap();
    for (cut, attempt) in [(Cut::BetweenStatements, 2), (Cut::BeforeCommit, 2), (Cut::AfterCommit, 1)] {
        assert_eq!(last_attempt::<SqlxTable, _>(connect, "COMMIT\0", cut).await, attempt, "{cut:?}");
    }
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_finish_that_is_cut_off_happens_once_on_tokio_postgres() {
    use crate::ledger::TokioPostgresTable;
    use windlass_postgres::TokioPostgres;

    let connect = async |url: String| TokioPostgres::connect(&url).await.unwrap();
    for (cut, attempt) in [(Cut::BetweenStatements, 2), (Cut::BeforeCommit, 2), (Cut::AfterCommit, 1)] {
        assert_eq!(last_attempt::<TokioPostgresTable, _>(connect, "commit\0", cut).await, attempt, "{cut:?}");
    }
}
