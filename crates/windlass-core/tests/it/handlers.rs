//! Sets of handlers.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{
    AnyAttempt, BoxError, Client, Ctx, Data, Ended, Entry, ErrorKind, Handlers, Inner, Job, MemoryStore,
    Worker,
};

type Result<T, E = BoxError> = std::result::Result<T, E>;

const TIMEOUT: Duration = Duration::from_secs(10);

macro_rules! job {
    ($type:ident, $name:literal) => {
        #[derive(Serialize, Deserialize)]
        struct $type;
        impl Job for $type {
            const NAME: &'static str = $name;
            type Output = String;
            type Next = ();
            type Blockers = ();
        }
        impl Entry for $type {}
    };
}
job!(Bill, "bill");
job!(Mail, "mail");

async fn tenant(mut attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
    attempt.insert("tenant");
    Ok(inner.run(attempt).await)
}

async fn audit(attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
    Ok(inner.run(attempt).await)
}

async fn bill(job: Ctx<Bill>, Data(price): Data<u32>) -> Result<String> {
    Ok(format!("{price} {:?}", job.get::<&str>()))
}

async fn mail(job: Ctx<Mail>, Data(from): Data<String>) -> Result<String> {
    Ok(format!("{from} {:?}", job.get::<&str>()))
}

#[tokio::test]
async fn sets_keep_their_data_and_their_middleware() {
    let client = Client::new(MemoryStore::new());
    let billing = Handlers::new().middleware(tenant).handle(bill);
    let mailing = Handlers::new().handle(mail).data("ada".to_owned());
    let worker = Worker::new(&client).data(7_u32).handlers(billing).handlers(mailing).start().await.unwrap();
    let (billed, mailed) = (client.start(Bill).await.unwrap(), client.start(Mail).await.unwrap());
    assert_eq!(client.wait(billed).timeout(TIMEOUT).await.unwrap(), "7 Some(\"tenant\")");
    assert_eq!(client.wait(mailed).timeout(TIMEOUT).await.unwrap(), "ada None");
    worker.stop(TIMEOUT).await;
}

async fn refusal(worker: Worker<MemoryStore>) -> String {
    let error = worker.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    error.to_string()
}

#[tokio::test]
async fn a_type_with_two_handlers_is_refused_at_start() {
    let client = Client::new(MemoryStore::new());
    let set = || Handlers::new().handle(bill);
    let worker = Worker::new(&client).data(7_u32).handlers(set()).handlers(set());
    assert_eq!(refusal(worker).await, "job type `bill` has two handlers: keep one");
    let worker = Worker::new(&client).data(7_u32).handle(bill).handle(bill);
    assert_eq!(refusal(worker).await, "job type `bill` has two handlers: keep one");
}

#[tokio::test]
async fn two_types_of_one_name_are_refused_at_start() {
    job!(Other, "bill");
    async fn other(_: Ctx<Other>) -> Result<String> {
        Ok(String::new())
    }
    let client = Client::new(MemoryStore::new());
    let worker = Worker::new(&client).data(7_u32).handlers(Handlers::new().handle(bill));
    let text = refusal(worker.handlers(Handlers::new().handle(other))).await;
    assert!(text.contains("bill"), "{text}");
}

#[tokio::test]
async fn required_middleware_must_be_around_every_handler_in_order() {
    let client = Client::new(MemoryStore::new());
    let worker = || Worker::new(&client).data(7_u32).require(&audit).require(&tenant);
    let mailing = || Handlers::new().handle(mail).data("ada".to_owned());
    let both = worker().middleware(audit).middleware(tenant).handle(bill).handlers(mailing());
    both.start().await.unwrap().stop(TIMEOUT).await;
    let from_the_set = worker().middleware(audit).handlers(Handlers::new().middleware(tenant).handle(bill));
    from_the_set.start().await.unwrap().stop(TIMEOUT).await;

    let text = refusal(worker().middleware(tenant).middleware(audit).handle(bill)).await;
    assert!(text.contains("`bill` lacks") && text.contains("tenant"), "{text}");
    let text = refusal(worker().handle(bill).handlers(mailing())).await;
    assert!(text.contains("`bill` lacks") && text.contains("`mail` lacks"), "all are named: {text}");
}
