//! The flow of the demo: places orders, runs workers, approves large orders and waits for all chains.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::interval;
use windlass::queue::Item;
use windlass::store::BoxFuture;
use windlass::{
    Attempt, BoxError, Chain, ChainId, Client, Data, Done, ErrorKind, Queue, Running, Store, Worker, plan,
};

use super::jobs::{
    AwaitApproval, Pack, PrintLabel, TakeOrder, pack, print_label, rating_of, ship, take_order, work,
};
use super::progress::Progress;
use super::rows::Rows;
use super::summary::{Summary, summarize};

/// Time between two orders.
const ORDER_INTERVAL: Duration = Duration::from_millis(110);

/// One order in this many (the seventh) is rolled back instead of committed.
const ROLLED_BACK_EACH: u32 = 15;

/// Timeout for each order after the last one was placed.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether this order is rolled back. Applies only to stores with transactions.
pub(super) const fn is_rolled_back(order: u32) -> bool {
    order % ROLLED_BACK_EACH == 7
}

/// The state that handlers share.
#[derive(Clone, Debug)]
pub(super) struct ShopState {
    /// The queue that rates customers.
    pub(super) ratings: Queue<u32, u32>,
    pub(super) progress: Arc<Progress>,
    /// Name of the shop's own table; empty without transactions.
    table: String,
}

impl ShopState {
    pub(super) const fn new(ratings: Queue<u32, u32>, progress: Arc<Progress>, table: String) -> Self {
        Self { ratings, progress, table }
    }
}

/// The shop on one store.
pub(super) struct Shop<S: ?Sized, W> {
    pub(super) client: Client<S>,
    pub(super) backend: W,
    pub(super) progress: Arc<Progress>,
}

/// A placed order.
#[derive(Clone, Debug)]
pub(super) struct JobSummary {
    pub(super) order: TakeOrder,
    pub(super) chain: Chain<TakeOrder>,
    /// Whether the order's transaction was rolled back.
    pub(super) rolled_back: bool,
}

/// Places each order in a transaction together with a row.
#[derive(Debug)]
pub(super) struct WithTransactions {
    pub(super) table: String,
}

/// Places orders on a store without transactions.
#[derive(Debug)]
pub(super) struct WithoutTransactions;

/// How to place and charge orders, with or without transactions.
pub(super) trait Backend<S: ?Sized>: Send + Sync {
    fn open(&self, client: &Client<S>) -> BoxFuture<'_, Result<(), BoxError>>;
    fn place(&self, client: &Client<S>, order: u32) -> BoxFuture<'_, Result<JobSummary, BoxError>>;
    fn handle(&self, worker: Worker<S>) -> Worker<S>;
    fn table(&self) -> String;
    /// Returns the number of rows and how many of them are paid, or `None` without a table.
    fn rows(&self, client: &Client<S>) -> BoxFuture<'_, Result<Option<(i64, i64)>, BoxError>>;
}

impl<S: Store + ?Sized, W: Backend<S>> Shop<S, W> {
    pub(super) const fn new(client: Client<S>, backend: W, progress: Arc<Progress>) -> Self {
        Self { client, backend, progress }
    }

    pub(super) async fn run(self, orders: u32) -> Result<Summary, BoxError> {
        self.backend.open(&self.client).await?;
        let ratings = self.client.queue::<u32, u32>("rate-customer").build()?;
        let answering = ratings.consume(|item: Item<u32>| async move {
            work(20).await;
            Ok::<_, BoxError>(rating_of(*item.payload()))
        });
        let answering = answering.concurrency(4).await?;
        let (table, progress) = (self.backend.table(), Arc::clone(&self.progress));
        let worker = self.work(ShopState::new(ratings.clone(), progress, table)).await?;
        let placed = self.take_orders(orders).await?;
        for order in placed.iter().filter(|placed| !placed.rolled_back) {
            let parcel = self.client.wait(order.chain).timeout(ORDER_TIMEOUT).await?;
            if parcel != order.order.parcel() {
                return Err(
                    format!("order {} returned the wrong parcel: {parcel:?}", order.order.order).into()
                );
            }
        }
        worker.stop(Duration::from_secs(5)).await;
        answering.stop(Duration::from_secs(5)).await;
        summarize(&self, &ratings, &placed).await
    }

    async fn work(&self, state: ShopState) -> Result<Running<S>, BoxError> {
        let worker = Worker::new(&self.client).data(state).concurrency(12).name("shop");
        let worker = self.backend.handle(worker).handle(pack).handle(print_label).handle(ship);
        Ok(worker.start().await?)
    }

    /// Places the orders one by one. Between two orders, approves the large ones that are ready.
    async fn take_orders(&self, orders: u32) -> Result<Vec<JobSummary>, BoxError> {
        let mut placed = Vec::new();
        let (mut coming, mut waiting) = (interval(ORDER_INTERVAL), Vec::new());
        let mut next = 1..=orders;
        loop {
            coming.tick().await;
            match next.next() {
                Some(order) => {
                    let order = self.backend.place(&self.client, order).await?;
                    self.progress.placed(order.rolled_back);
                    if order.order.is_large() && !order.rolled_back {
                        waiting.push(order.chain.id());
                    }
                    placed.push(order);
                }
                None if waiting.is_empty() => return Ok(placed),
                None => {}
            }
            waiting = self.approve(waiting).await?;
        }
    }

    /// Acts as the manager: approves chains from outside that have reached their approval. Returns the others.
    pub(super) async fn approve(&self, chains: Vec<ChainId>) -> Result<Vec<ChainId>, BoxError> {
        let mut waiting = Vec::new();
        for id in chains {
            if !self.approve_one(id).await? {
                waiting.push(id);
            }
        }
        Ok(waiting)
    }

    /// Approves a chain that has reached its approval. Returns whether it was approved.
    pub(super) async fn approve_one(&self, id: ChainId) -> windlass::Result<bool> {
        let step = self.client.step(Chain::<TakeOrder>::from_id(id)).await?;
        if !step.is::<AwaitApproval>() {
            return Ok(false);
        }
        let approval = step.of::<AwaitApproval>()?;
        let shipping = approval.input().order.shipping();
        match approval.then(shipping).await {
            Ok(_) => {
                self.progress.approved();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Busy => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl<S: Rows> Backend<S> for WithTransactions {
    fn open(&self, client: &Client<S>) -> BoxFuture<'_, Result<(), BoxError>> {
        let (client, table) = (client.clone(), self.table.clone());
        Box::pin(async move {
            let create =
                format!("create table {table} (id bigint primary key, paid boolean not null default false)");
            Ok(client.store().make_table(create).await?)
        })
    }

    /// Commits the row and the chains together, or neither.
    fn place(&self, client: &Client<S>, order: u32) -> BoxFuture<'_, Result<JobSummary, BoxError>> {
        let (client, insert) = (client.clone(), format!("insert into {} (id) values ($1)", self.table));
        let rolled_back = is_rolled_back(order);
        Box::pin(async move {
            let mut tx = client.begin().await?;
            S::write_row(tx.tx(), insert, order).await?;
            let packing = tx.start(Pack { order }).await?.id();
            let label = tx.start(PrintLabel { order }).await?.id();
            let order = TakeOrder { order, euros: TakeOrder::euros(order), packing, label };
            let chain = tx.start(order.clone()).await?;
            if rolled_back {
                tx.rollback().await?
            } else {
                tx.commit().await?
            }
            Ok(JobSummary { order, chain, rolled_back })
        })
    }

    fn handle(&self, worker: Worker<S>) -> Worker<S> {
        worker.handle(take_order_and_mark_row::<S>)
    }

    fn table(&self) -> String {
        self.table.clone()
    }

    fn rows(&self, client: &Client<S>) -> BoxFuture<'_, Result<Option<(i64, i64)>, BoxError>> {
        let (client, table) = (client.clone(), self.table.clone());
        Box::pin(async move {
            let all = client.store().count_rows(format!("select count(*) from {table}")).await?;
            let paid = client.store().count_rows(format!("select count(*) from {table} where paid")).await?;
            Ok(Some((all, paid)))
        })
    }
}

impl<S: Store + ?Sized> Backend<S> for WithoutTransactions {
    fn open(&self, _: &Client<S>) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }

    fn place(&self, client: &Client<S>, order: u32) -> BoxFuture<'_, Result<JobSummary, BoxError>> {
        let client = client.clone();
        Box::pin(async move {
            let (packing, label) = (plan(Pack { order }), plan(PrintLabel { order }));
            let (packed, labelled) = (packing.handle().id(), label.handle().id());
            let order = TakeOrder { order, euros: TakeOrder::euros(order), packing: packed, label: labelled };
            let taking = plan(order.clone());
            let chain = taking.handle();
            // Create all three chains in one call: all or none.
            client.create(vec![packing.build()?, label.build()?, taking.build()?]).await?;
            Ok(JobSummary { order, chain, rolled_back: false })
        })
    }

    fn handle(&self, worker: Worker<S>) -> Worker<S> {
        worker.handle(take_order)
    }

    fn table(&self) -> String {
        String::new()
    }

    fn rows(&self, _: &Client<S>) -> BoxFuture<'_, Result<Option<(i64, i64)>, BoxError>> {
        Box::pin(async { Ok(None) })
    }
}

/// Charges an order and marks its row as paid, in the transaction that also creates the next job.
async fn take_order_and_mark_row<S: Rows>(
    attempt: Attempt<TakeOrder, S>,
    Data(state): Data<ShopState>,
) -> Result<Done<TakeOrder, S>, BoxError> {
    let order = attempt.input().clone();
    order.charge(attempt.attempt(), &state).await?;
    let mut step = attempt.begin().await?;
    S::write_row(step.tx(), format!("update {} set paid = true where id = $1", state.table), order.order)
        .await?;
    Ok(match order.is_large() {
        true => step.then(AwaitApproval { order })?,
        false => step.then(order.shipping())?,
    })
}
