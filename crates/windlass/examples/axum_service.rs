//! An HTTP service that inserts a row and starts a chain in one transaction: either both are committed, or neither.
//!
//! Run with `cargo run --release -p windlass --example axum_service`.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use windlass::command::ListChains;
use windlass::sqlite::{self, SqliteStore};
use windlass::{BoxError, Chain, Client, Ctx, Job, Store, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = String)]
struct Ship {
    order: i64,
    item: String,
}

async fn ship(job: Ctx<Ship>) -> Result<String, BoxError> {
    Ok(format!("order {}: one {} shipped", job.input().order, job.input().item))
}

#[derive(Deserialize)]
struct Order {
    item: String,
}

#[derive(Clone)]
struct App {
    client: Client<SqliteStore>,
}

/// Accepts an order. Its row and the chain that ships it commit together.
async fn take_order(
    State(app): State<App>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, String), Refused> {
    let mut tx = app.client.begin().await?;
    let insert = sqlx::query_scalar("insert into orders (item) values (?) returning id").bind(&order.item);
    let id = insert.fetch_one(tx.tx()).await?;
    let chain = tx.start(Ship { order: id, item: order.item.clone() }).await?;
    if order.item.is_empty() {
        // An early return drops the transaction, which rolls back everything above.
        return Err(Refused(StatusCode::UNPROCESSABLE_ENTITY));
    }
    tx.commit().await?;
    Ok((StatusCode::ACCEPTED, chain.id().to_string()))
}

/// Status code for an order that was not accepted.
struct Refused(StatusCode);

impl<E: std::error::Error> From<E> for Refused {
    fn from(error: E) -> Self {
        eprintln!("an order could not be taken: {error}");
        Self(StatusCode::SERVICE_UNAVAILABLE)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let client = Client::new(sqlite::open(directory.path().join("shop.db")).await?);
    let mut tx = client.begin().await?;
    sqlx::raw_sql("create table orders (id integer primary key, item text)").execute(tx.tx()).await?;
    tx.commit().await?;
    let worker = Worker::new(&client).handle(ship).start().await?;

    let router = Router::new().route("/orders", post(take_order)).with_state(App { client: client.clone() });
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
    let mut tx = client.begin().await?;
    let orders: i64 = sqlx::query_scalar("select count(*) from orders").fetch_one(tx.tx()).await?;
    tx.rollback().await?;
    assert_eq!((orders, chains.len()), (1, 1), "a refused order leaves no rows");

    // Stop the server before the worker, so that no request starts a job that this worker can no longer run.
    stop.send(()).map_err(|()| "the server has ended")?;
    server.await??;
    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}

/// Posts an order and returns the status and the body of the response.
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
