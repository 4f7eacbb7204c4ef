//! Chains that are started by the write that ends a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use windlass_core::{
    BoxError, Chain, Client, Ctx, Data, Entry, Job, JobId, MemoryStore, Next, Status, Then, Worker, next,
    plan,
};

use super::{Mail, client, mail};

#[derive(Serialize, Deserialize)]
struct Order {
    how: String,
}

impl Job for Order {
    const NAME: &'static str = "order";
    type Output = u32;
    type Next = (Pack,);
    type Blockers = ();

    fn options() -> windlass_core::JobOptions {
        windlass_core::JobOptions { max_attempts: Some(1), ..Default::default() }
    }
}

impl Entry for Order {}
impl Then<Pack> for Order {}

/// A continuation that is blocked by the mail.
#[derive(Serialize, Deserialize)]
struct Pack {
    id: u32,
}

impl Job for Pack {
    const NAME: &'static str = "pack";
    type Output = u32;
    type Next = ();
    type Blockers = (Mail,);
}

/// Receives what the handler starts.
type Started = mpsc::UnboundedSender<(Chain<Mail>, JobId)>;

async fn order(job: Ctx<Order>, Data(started): Data<Started>) -> Result<Next<Order>, BoxError> {
    let id = JobId::new();
    let mail = plan(mail()).priority(4);
    started.send((mail.handle(), id))?;
    Ok(match job.input().how.as_str() {
        "done" => Next::done(1).start(mail).retention(Duration::from_secs(9)),
        "then" => {
            let pack = next(Pack { id: 1 }).id(id).blocked_by((mail.handle(),));
            Next::then(pack).start(mail)
        }
        "again" => {
            let own = job.chain::<Order>();
            Next::done(1).start(plan(Order { how: "end".into() }).key("standing").replaces(own))
        }
        "later" => Next::reschedule(Duration::from_secs(1)).start(mail),
        "end" => Next::done(2),
        "long" => Next::then(next(Pack { id: 1 }).blocked_by((mail.handle(),))).retention(Duration::ZERO),
        how => Next::fail(format!("unknown outcome {how}")).start(mail),
    })
}

async fn pack(job: Ctx<Pack>) -> Result<u32, BoxError> {
    Ok(job.blockers().0 + job.input().id)
}

async fn send(_: Ctx<Mail>) -> Result<u32, BoxError> {
    Ok(41)
}

/// Runs one order and returns the chain and job id that its handler chose.
async fn run(client: &Client<MemoryStore>, how: &str) -> (Chain<Order>, Chain<Mail>, JobId) {
    let (started, mut hears) = mpsc::unbounded_channel();
    let worker = Worker::new(client).data(started).handle(order).handle(pack).handle(send);
    let worker = worker.start().await.unwrap();
    let chain = client.start(Order { how: how.to_owned() }).key("standing").await.unwrap();
    let _ = client.wait(chain).await;
    let (mail, id) = hears.recv().await.unwrap();
    worker.stop(Duration::from_secs(10)).await;
    (chain, mail, id)
}

#[tokio::test]
async fn a_completed_job_starts_a_chain_in_the_same_write() {
    let client = client();
    let (chain, mail, _) = run(&client, "done").await;
    assert_eq!(client.chain(mail).await.unwrap().unwrap().latest.priority, 4);
    let closed = client.chain(chain).await.unwrap().unwrap().closed.unwrap();
    assert_eq!(closed.retain_until.since(closed.at), Duration::from_secs(9));
}

#[tokio::test]
async fn a_continuation_waits_for_a_chain_that_starts_with_it() {
    let client = client();
    let (chain, mail, id) = run(&client, "then").await;
    assert_eq!(client.output(chain).await.unwrap(), Some(42));
    assert_eq!(client.output(mail).await.unwrap(), Some(41));
    assert_eq!(client.chain(chain).await.unwrap().unwrap().latest.id, id, "the chosen id");
}

#[tokio::test]
async fn a_successor_takes_the_key_over() {
    let client = client();
    let (chain, ..) = run(&client, "again").await;
    let dependents = client.list_chains(Default::default()).await.unwrap().chains;
    let orders: Vec<_> = dependents.iter().filter(|chain| chain.chain_type.as_str() == "order").collect();
    assert_eq!(orders.len(), 2);
    assert!(orders[0].key.as_ref().unwrap().held && !orders[1].key.as_ref().unwrap().held);
    assert_eq!(orders[1].id, chain.id());
}

#[tokio::test]
async fn an_outcome_that_cannot_carry_a_chain_fails_the_attempt() {
    let client = client();
    for (how, says) in [
        ("later", "only a job that completes or continues can start chains"),
        ("long", "only an outcome that ends the chain can set its retention"),
        ("odd", "only a job that completes or continues can start chains"),
    ] {
        let (chain, mail, _) = run(&client, how).await;
        let record = client.chain(chain).await.unwrap().unwrap();
        assert_eq!(record.status(), Status::Failed);
        let error = record.latest.error.unwrap();
        assert!(error.as_str().contains(says), "{error}");
        assert!(client.chain(mail).await.unwrap().is_none());
    }
}
