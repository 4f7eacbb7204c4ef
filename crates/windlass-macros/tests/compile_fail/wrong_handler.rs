//! Functions that are not handlers.
#![allow(unused)]

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Client, Ctx, Data, Job, MemoryStore, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct Mail;

/// The attempt is not the first argument.
async fn attempt_is_last(Data(sender): Data<String>, job: Ctx<Mail>) -> Result<(), BoxError> {
    Ok(())
}

/// The future is not `Send`.
async fn future_is_not_send(job: Ctx<Mail>) -> Result<(), BoxError> {
    let counter = Rc::new(1);
    std::future::ready(()).await;
    drop(counter);
    Ok(())
}

/// There is no `Result`.
async fn returns_no_result(job: Ctx<Mail>) {}

/// The error does not convert into `BoxError`.
async fn error_is_no_error(job: Ctx<Mail>) -> Result<(), u32> {
    Err(1)
}

fn main() {
    let client = Client::new(MemoryStore::new());
    let worker = || Worker::new(&client);
    let _ = worker().handle(attempt_is_last);
    let _ = worker().handle(future_is_not_send);
    let _ = worker().handle(returns_no_result);
    let _ = worker().handle(error_is_no_error);
}
