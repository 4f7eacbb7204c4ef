//! A web API and a worker, as two processes on PostgreSQL. Set `DATABASE_URL`, then run `… --example signup -- api`
//! and, in another terminal, `… --example signup -- worker`.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use windlass::postgres::{self, Attempt, Client, Done};
use windlass::{BoxError, Data, Job, Worker, shutdown_signal};

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct SendWelcome {
    user: i64,
    address: String,
}

/// The API: the user and the job that welcomes them are committed together, or not at all.
async fn sign_up(
    State((pool, client)): State<(PgPool, Client)>,
    Json(address): Json<String>,
) -> Result<StatusCode, StatusCode> {
    let signed_up = async {
        let mut tx = pool.begin().await?;
        let insert = "insert into users (address) values ($1) returning id";
        let insert = sqlx::query_scalar(insert).bind(&address).persistent(false); // for PgBouncer
        let user = insert.fetch_one(&mut *tx).await?;
        client.in_tx(&mut tx).start(SendWelcome { user, address }).await?;
        tx.commit().await?; // a worker learns of the job within milliseconds
        Ok::<_, BoxError>(StatusCode::CREATED)
    };
    signed_up.await.map_err(|error| {
        eprintln!("sign-up failed: {error}");
        StatusCode::INTERNAL_SERVER_ERROR
    })
}

/// The worker: the mail is sent at least once. The row is updated exactly once, in the transaction that ends the job.
async fn send_welcome(
    a: Attempt<SendWelcome>,
    Data(mailer): Data<Mailer>,
) -> Result<Done<SendWelcome>, BoxError> {
    mailer.send(&a.input().address, "welcome").await?; // if this fails, the job is retried
    let mut step = a.begin().await?;
    let update = "update users set welcomed = true where id = $1";
    sqlx::query(update).bind(a.input().user).persistent(false).execute(step.tx()).await?;
    Ok(step.done(())?)
}

#[derive(Clone)]
struct Mailer;

impl Mailer {
    async fn send(&self, address: &str, text: &str) -> Result<(), BoxError> {
        println!("to {address}: {text}");
        Ok(())
    }
}

const TABLE: &str = "create table if not exists users (
    id bigint primary key generated always as identity,
    address text not null,
    welcomed boolean not null default false
)";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // PgBouncer refuses `extra_float_digits`, which sqlx sends by default.
    let options: PgConnectOptions = std::env::var("DATABASE_URL")?.parse()?;
    let pool = PgPool::connect_with(options.extra_float_digits(None)).await?;
    let client = Client::new(postgres::open(pool.clone()).await?); // creates its tables
    match std::env::args().nth(1).as_deref() {
        Some("api") => {
            sqlx::raw_sql(TABLE).execute(&pool).await?;
            let router = Router::new().route("/users", post(sign_up)).with_state((pool, client.clone()));
            let address = std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:3000".into());
            let listener = tokio::net::TcpListener::bind(address).await?;
            println!("http://{}/users", listener.local_addr()?);
            axum::serve(listener, router).with_graceful_shutdown(shutdown_signal()).await?;
        }
        Some("worker") => {
            let worker = Worker::new(&client).data(Mailer).handle(send_welcome);
            worker.run_until(shutdown_signal(), Duration::from_secs(15)).await?;
        }
        _ => return Err("pass `api` or `worker`".into()),
    }
    client.close().await?;
    Ok(())
}
