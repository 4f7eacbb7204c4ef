//! An HTTP service whose requests write a row and start a chain in one transaction: both are there, or neither.
//!
//! Run with `cargo run --release -p windlass --example axum_service`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use windlass::command::ListChains;
use windlass::{BoxError, Chain, Client, Ctx, Job, MemoryStore, Store, Tx, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = String)]
struct Ship {
    order: usize,
    item: String,
}

async fn ship(job: Ctx<Ship>) -> Result<String, BoxError> {
    Ok(format!("order {}: one {} shipped", job.input().order, job.input().item))
}

#[derive(Clone, Deserialize)]
struct Order {
    item: String,
}

#[derive(Clone)]
struct App {
    client: Client<MemoryStore>,
    orders: Orders,
}

/// Takes an order: its row and the chain that ships it commit together.
async fn take_order(
    State(app): State<App>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, String), StatusCode> {
    let unavailable = |_| StatusCode::SERVICE_UNAVAILABLE;
    let mut tx = app.client.begin().await.map_err(unavailable)?;
    let row = app.orders.insert(&mut tx, order.clone());
    let chain = tx.start(Ship { order: row.number, item: order.item }).await.map_err(unavailable)?;
    if row.order.item.is_empty() {
        // Whatever returns early drops the transaction, and with it everything above.
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    tx.commit().await.map_err(unavailable)?;
    row.committed();
    Ok((StatusCode::ACCEPTED, chain.id().to_string()))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let app = App { client: Client::new(MemoryStore::new()), orders: Orders::default() };
    let client = app.client.clone();
    let worker = Worker::new(&client).handle(ship).start().await?;

    let router = Router::new().route("/orders", post(take_order)).with_state(app.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async { _ = stopped.await });
    let server = tokio::spawn(server.into_future());
    println!("taking orders at http://{address}/orders");

    let (status, id) = request(address, r#"{"item": "anchor"}"#).await?;
    assert_eq!(status, "202");
    let shipped = client.wait(Chain::<Ship>::from_id(id.parse()?)).timeout(Duration::from_secs(30)).await?;
    println!("{shipped}");
    assert_eq!(shipped, "order 1: one anchor shipped");

    let (status, _) = request(address, r#"{"item": ""}"#).await?;
    assert_eq!(status, "422");
    let chains = client.store().list_chains(ListChains::default()).await?.chains;
    assert_eq!((app.orders.len(), chains.len()), (1, 1), "of a refused order nothing is left");

    // First the door, then the worker: nobody starts what nobody will run.
    stop.send(()).map_err(|()| "the server has ended")?;
    server.await??;
    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}

/// Posts an order, and gives the status and the body of the reply.
async fn request(address: SocketAddr, body: &str) -> Result<(String, String), BoxError> {
    let mut stream = TcpStream::connect(address).await?;
    let head =
        "POST /orders HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let status = reply.split(' ').nth(1).ok_or("a reply has a status")?;
    let (_, body) = reply.split_once("\r\n\r\n").ok_or("a reply has a body")?;
    Ok((status.to_owned(), body.to_owned()))
}

/// The application's table. The memory store has no room for rows of others, so this one shows them only once they are
/// committed; on a SQL store, `insert` runs its statement in `tx.as_mut()`, and the database does the rest.
#[derive(Clone, Default)]
struct Orders {
    committed: Arc<Mutex<Vec<Order>>>,
}

struct Row {
    orders: Orders,
    number: usize,
    order: Order,
}

impl Orders {
    fn insert(&self, _: &mut Tx<MemoryStore>, order: Order) -> Row {
        Row { orders: self.clone(), number: self.len() + 1, order }
    }

    fn len(&self) -> usize {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Row {
    fn committed(self) {
        self.orders.committed.lock().unwrap_or_else(PoisonError::into_inner).push(self.order);
    }
}
