//! Commands in a transaction that the application began with its own driver.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection, PgPool};
use windlass_core::command::ListJobs;
use windlass_core::{Chain, Client, Entry, ErrorKind, Job, PendingAnnouncements, Status};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::{SharedPostgres, shared_postgres};

use crate::fixture;

#[derive(Serialize, Deserialize)]
struct Approve;

impl Job for Approve {
    const NAME: &'static str = "approve";
    type Output = String;
    type Next = ();
    type Blockers = ();
}

impl Entry for Approve {}

/// A client, and one chain per command.
struct Office<P> {
    client: Client<PostgresStore<P>>,
    cancelled: Chain<Approve>,
    triggered: Chain<Approve>,
    deleted: Chain<Approve>,
    completed: Chain<Approve>,
    _server: SharedPostgres,
}

/// State of the chains after the commands.
#[derive(Debug, PartialEq)]
struct Look {
    stored: usize,
    cancelled: Status,
    triggered: bool,
    deleted: bool,
    completed: Status,
}

const UNTOUCHED: Look = Look {
    stored: 4,
    cancelled: Status::Pending,
    triggered: false,
    deleted: false,
    completed: Status::Pending,
};

const DONE: Look = Look {
    stored: 5,
    cancelled: Status::Cancelled,
    triggered: true,
    deleted: true,
    completed: Status::Completed,
};

impl<P: Provider> Office<P> {
    async fn new(provider: P) -> Self {
        Self::open(provider, |options| options).await
    }

    async fn open(provider: P, adjust: impl Fn(Options) -> Options) -> Self {
        let (server, _, options) = fixture::fresh().await;
        let client = Client::new(PostgresStore::open(provider, adjust(options)).await.unwrap());
        let start = async || client.start(Approve).after(Duration::from_secs(3_600)).await.unwrap();
        let (cancelled, triggered, deleted, completed) =
            (start().await, start().await, start().await, start().await);
        Self { client, cancelled, triggered, deleted, completed, _server: server }
    }

    /// Runs every kind of command that applications use in a transaction.
    async fn act(&self, tx: impl Into<P::TxRef<'_>>) -> PendingAnnouncements {
        let mut inside = self.client.in_tx(tx.into());
        inside.start_many([Approve, Approve]).await.unwrap();
        inside.cancel_unless_running(self.cancelled).await.unwrap();
        inside.trigger(self.triggered).await.unwrap();
        inside.delete(vec![self.deleted.into()]).await.unwrap();
        let step = inside.step(self.completed).await.unwrap().of::<Approve>().unwrap();
        assert_eq!(step.done("by hand".to_owned()).await.unwrap(), Status::Completed);
        inside.announcements()
    }

    async fn look(&self) -> Look {
        let chain = async |chain| self.client.chain(chain).await.unwrap();
        let triggered = chain(self.triggered).await.unwrap().latest;
        Look {
            stored: self.client.list_jobs(ListJobs::default()).await.unwrap().jobs.len(),
            cancelled: chain(self.cancelled).await.unwrap().status(),
            triggered: triggered.due_at.as_millis() < triggered.created_at.as_millis() + 3_600_000,
            deleted: chain(self.deleted).await.is_none(),
            completed: chain(self.completed).await.unwrap().status(),
        }
    }

    /// Checks that commands are refused outside a transaction, where each would commit on its own.
    async fn refuses(&self, connection: impl Into<P::TxRef<'_>>) {
        let error = self.client.in_tx(connection.into()).start(Approve).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("begin a transaction first"), "{error}");
        assert_eq!(self.look().await, UNTOUCHED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_lends_its_transactions_and_connections() {
    let pool = PgPool::connect(&shared_postgres().await.url()).await.unwrap();
    let office = Office::new(Sqlx::from(pool.clone())).await;
    let mut connection: PgConnection = pool.acquire().await.unwrap().detach();
    office.refuses(&mut connection).await;
    office.refuses(&mut pool.acquire().await.unwrap()).await;

    let mut tx = connection.begin().await.unwrap();
    let announcements = office.act(&mut tx).await;
    drop(announcements);
    tx.rollback().await.unwrap();
    assert_eq!(office.look().await, UNTOUCHED, "a rollback leaves no trace");

    let mut tx = connection.begin().await.unwrap();
    let mut nested = tx.begin().await.unwrap();
    drop(office.act(&mut nested).await);
    nested.rollback().await.unwrap();
    let announcements = office.act(&mut tx).await;
    announcements.announce_after(tx.commit()).await.unwrap();
    assert_eq!(office.look().await, DONE, "a savepoint that was returned to leaves no trace either");
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_lends_its_transactions_and_clients() {
    use tokio_postgres::NoTls;
    use windlass_postgres::TokioPostgres;

    let url = shared_postgres().await.url();
    let office = Office::new(TokioPostgres::connect(&url).await.unwrap()).await;
    let (mut own, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let reading = tokio::spawn(connection);
    office.refuses(&mut own).await;

    let mut tx = own.transaction().await.unwrap();
    drop(office.act(&mut tx).await);
    tx.rollback().await.unwrap();
    assert_eq!(office.look().await, UNTOUCHED, "a rollback leaves no trace");

    let mut tx = own.transaction().await.unwrap();
    let mut nested = tx.transaction().await.unwrap();
    drop(office.act(&mut nested).await);
    nested.rollback().await.unwrap();
    let announcements = office.act(&mut tx).await;
    announcements.announce_after(tx.commit()).await.unwrap();
    assert_eq!(office.look().await, DONE, "a savepoint that was returned to leaves no trace either");
    drop(own);
    reading.await.unwrap().unwrap();
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn deadpool_lends_its_transactions() {
    check_deadpool(false).await;
    check_deadpool(true).await;
}

/// With the application's own deadpool, the store uses its cache of prepared statements if it may.
#[cfg(feature = "tokio-postgres")]
async fn check_deadpool(cached: bool) {
    use deadpool_postgres::{Manager, Pool};
    use tokio_postgres::NoTls;
    use windlass_postgres::TokioPostgres;

    let config: tokio_postgres::Config = shared_postgres().await.url().parse().unwrap();
    let manager = Manager::new(config.clone(), NoTls);
    let pool = Pool::builder(manager).build().unwrap();
    let provider = TokioPostgres::new(pool.clone(), config, NoTls);
    let adjust = |options: Options| if cached { options.cached_statements(true) } else { options };
    let office = Office::open(provider, adjust).await;
    let mut pooled = pool.get().await.unwrap();
    office.refuses(&mut **pooled).await;

    let mut tx = pooled.transaction().await.unwrap();
    drop(office.act(&mut tx).await);
    tx.rollback().await.unwrap();
    assert_eq!(office.look().await, UNTOUCHED, "a rollback leaves no trace");

    let mut tx = pooled.transaction().await.unwrap();
    let announcements = office.act(&mut tx).await;
    announcements.announce_after(tx.commit()).await.unwrap();
    assert_eq!(office.look().await, DONE);
    assert_eq!(pooled.statement_cache.size() > 0, cached);
}

/// The client checks once that a transaction is open, and again only after the application has borrowed it.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_checked_once() {
    let pool = PgPool::connect(&shared_postgres().await.url()).await.unwrap();
    let office = Office::new(Sqlx::from(pool.clone())).await;
    let trips = || windlass_core::Store::counters(office.client.store()).round_trips;
    let mut tx = pool.begin().await.unwrap();
    let mut inside = office.client.in_tx(&mut tx);
    let before = trips();
    inside.start(Approve).await.unwrap();
    inside.start(Approve).await.unwrap();
    assert_eq!(trips() - before, 3);

    sqlx::query("commit").execute(inside.tx()).await.unwrap();
    let error = inside.start(Approve).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");

    let mut tx = office.client.begin().await.unwrap();
    let before = trips();
    tx.start(Approve).await.unwrap();
    assert_eq!(trips() - before, 1, "the client's own transaction is known to be open");
    sqlx::query("commit").execute(tx.tx()).await.unwrap();
    let error = tx.start(Approve).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
