//! `windlass demo --serve`: keeps the shop open, with a dashboard to watch it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use windlass::queue::Item;
use windlass::schedule::Every;
use windlass::server::{Access, AuditLog, Server};
use windlass::{
    Backoff, BoxError, Chain, ChainId, Client, Ctx, ErrorKind, Job, JobOptions, Store, Worker,
    shutdown_signal,
};

use super::jobs::{TakeOrder, pack, print_label, rating_of, ship, work};
use super::shop::{Backend, Shop, ShopState};
use crate::command::Context;
use crate::command::serve::Listening;
use crate::exit::{Failure, Result as Ended};
use crate::output::note;

/// The address of the dashboard, if it is free.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Time between two orders. Slower than in the short demo: the shop stays open.
const ORDER_INTERVAL: Duration = Duration::from_millis(350);

/// The number of orders after which the manager reviews the large ones.
const APPROVED_EACH: u32 = 40;

/// One order in this many is sent back.
const RETURNED_EACH: u32 = 9;

/// Pays a returned order back. Some cards have expired: their chains fail, and can be retried.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(entry, output = u32, options = few_attempts())]
struct Refund {
    order: u32,
    euros: u32,
}

/// Asks for a review later.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(entry)]
struct AskForReview {
    order: u32,
}

/// Counts what is left in the warehouse.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(entry, output = u32)]
struct CountStock {
    shelf: String,
}

fn few_attempts() -> JobOptions {
    let backoff = Backoff { initial: Duration::from_secs(2), ..Backoff::default() };
    JobOptions { backoff: Some(backoff), max_attempts: Some(3), ..JobOptions::default() }
}

async fn refund(job: Ctx<Refund>) -> Result<u32, BoxError> {
    let Refund { order, euros } = job.input();
    work(400).await;
    match order / RETURNED_EACH % 3 {
        0 => Err(format!("the card of order {order} has expired: ask the customer for another one").into()),
        1 if job.attempt() == 1 => Err("the bank did not answer within 400 ms".into()),
        _ => Ok(*euros),
    }
}

async fn ask_for_review(_: Ctx<AskForReview>) -> Result<(), BoxError> {
    work(150).await;
    Ok(())
}

async fn count_stock(job: Ctx<CountStock>) -> Result<u32, BoxError> {
    work(1_500).await;
    Ok(u32::try_from(job.input().shelf.len()).unwrap_or(0) * 17)
}

/// Listens on the usual address, or on a free port if another program uses it.
pub(super) async fn listen(wanted: Option<SocketAddr>) -> Ended<TcpListener> {
    let failed = |error| Failure::failed(format!("cannot listen: {error}"));
    if let Some(address) = wanted {
        if !address.ip().to_canonical().is_loopback() {
            let text = "the demo has no authentication: choose a loopback address, such as 127.0.0.1:8080";
            return Err(Failure::usage(text));
        }
        return TcpListener::bind(address).await.map_err(failed);
    }
    match TcpListener::bind(ADDRESS).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed),
    }
}

/// Serves the dashboard until a signal arrives or the shop fails.
pub(super) async fn serve(
    context: &Context,
    client: Client<dyn Store>,
    listener: TcpListener,
    shop: impl Future<Output = Ended<()>>,
) -> Ended {
    let address = listener.local_addr().map_err(Failure::failed)?;
    let (shutdown_requested, stop) = (shutdown_signal(), CancellationToken::new());
    let server = Server::new(client, Access::without_authentication())
        .audit(AuditLog::writer(std::io::sink()))
        .stop_token(stop.clone());
    let listening = Listening::at("http", address);
    context.output.print_change(&listening, || listening.dashboard.clone())?;
    note("open this address in a browser; Ctrl-C closes the shop and removes its data");
    let serving = server.listen(listener, None);
    let ending = async {
        let ended = tokio::select! {
            ended = shop => ended,
            () = shutdown_requested => Ok(()),
        };
        stop.cancel();
        ended
    };
    let (served, ended) = tokio::join!(serving, ending);
    ended?;
    served.map_err(Failure::usage)
}

impl<S: Store + ?Sized, W: Backend<S>> Shop<S, W> {
    /// Takes orders forever.
    pub(super) async fn stay_open(self) -> Result<(), BoxError> {
        self.backend.open(&self.client).await?;
        let ratings = self.client.queue::<u32, u32>("rate-customer").build()?;
        let answering = ratings.consume(|item: Item<u32>| async move {
            work(20).await;
            Ok::<_, BoxError>(rating_of(*item.payload()))
        });
        let _answering = answering.concurrency(4).await?;
        let (table, progress) = (self.backend.table(), Arc::clone(&self.progress));
        let worker = Worker::new(&self.client).data(ShopState::new(ratings, progress, table));
        let worker = self.backend.handle(worker.concurrency(12).name("shop"));
        let shop = worker.handle(pack).handle(print_label).handle(ship);
        let _shop = shop.start().await?;
        let office = Worker::new(&self.client).concurrency(3).name("office");
        let office = office.handle(refund).handle(ask_for_review).handle(count_stock);
        let stock = CountStock { shelf: "tea".to_owned() };
        let office = office.schedule("count-stock", Every::new(Duration::from_secs(15))?, stock);
        let _office = office.start().await?;
        self.place_orders().await
    }

    async fn place_orders(&self) -> Result<(), BoxError> {
        let (mut coming, mut waiting) = (interval(ORDER_INTERVAL), Vec::new());
        for number in 1_u32.. {
            coming.tick().await;
            let order = self.backend.place(&self.client, number).await?;
            if order.order.is_large() && !order.rolled_back {
                waiting.push(order.chain.id());
            }
            if number.is_multiple_of(RETURNED_EACH) {
                let refund = Refund { order: number, euros: order.order.euros };
                self.client.start(refund).key(format!("return-{number}")).await?;
                let review = AskForReview { order: number };
                self.client.start(review).after(Duration::from_secs(60)).await?;
            }
            if number.is_multiple_of(APPROVED_EACH) {
                waiting = self.approve_open(waiting).await?;
            }
        }
        Ok(())
    }

    /// Approves orders like [`approve`](Self::approve), and forgets those that a visitor of the dashboard has cancelled or
    /// deleted, or that have failed.
    async fn approve_open(&self, chains: Vec<ChainId>) -> Result<Vec<ChainId>, BoxError> {
        let mut waiting = Vec::new();
        for id in chains {
            let chain = self.client.chain(Chain::<TakeOrder>::from_id(id)).await?;
            if chain.is_none_or(|chain| chain.closed.is_some()) {
                continue;
            }
            match self.approve_one(id).await {
                Ok(true) => {}
                Ok(false) => waiting.push(id),
                // It was changed or removed in the meantime.
                Err(error) if [ErrorKind::NotFound, ErrorKind::Changed].contains(&error.kind()) => {
                    waiting.push(id)
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(waiting)
    }
}
