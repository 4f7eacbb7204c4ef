//! A chain that commits with a transaction, or not at all; then two attempts work it off.
//!
//! Run with `cargo run --release -p windlass --example first_chain`.

use windlass::command::{
    Acquire, Acquired, Create, Created, GetChains, NewChain, NewJob, NextJob, Outcome, Quota, Settle,
    Settled, Settlement,
};
use windlass::{
    ChainId, JobId, MemoryStore, Millis, Payload, RequestId, Status, Store, Transactional, TypeName, WorkerId,
};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();

    // Rolled back: as if nothing had been.
    let mut tx = store.begin().await?;
    let lost = start(&store, &mut tx).await?;
    store.rollback(tx).await?;
    assert!(find(&store, lost).await?.is_none());
    println!("rolled back: chain {lost} does not exist");

    // Committed: the chain is there from this moment on.
    let mut tx = store.begin().await?;
    let chain = start(&store, &mut tx).await?;
    assert!(find(&store, chain).await?.is_none(), "nobody sees it before the commit");
    store.commit(tx).await?;
    println!("committed:   chain {chain} is {:?}", status(&store, chain).await?);

    // The first job hands over to a second one, in the write that completes it.
    let provision = acquire(&store, "provision-account").await?;
    let next = NextJob { id: JobId::new(), job: job("send-welcome", r#"{"account":"acc-7"}"#)? };
    settle(&store, &provision, Outcome::Continue { next, create: Vec::new() }).await?;
    println!("continued:   chain {chain} is {:?}", status(&store, chain).await?);

    // The second one ends the chain.
    let welcome = acquire(&store, "send-welcome").await?;
    let output = Payload::json(r#""mail-42""#)?;
    settle(&store, &welcome, Outcome::Complete { output, retention: None, create: Vec::new() }).await?;

    // A stale attempt changes nothing.
    let late = settle(&store, &welcome, Outcome::Release).await?;
    assert!(matches!(late, Settled::Lost(_)));

    let done = find(&store, chain).await?.ok_or("the chain is stored")?;
    assert_eq!(done.status(), Status::Completed);
    let output = done.output().ok_or("a completed chain has an output")?;
    println!("completed:   chain {chain} gave {}", String::from_utf8_lossy(output.bytes()));
    Ok(())
}

/// Starts a chain inside the transaction.
async fn start(store: &MemoryStore, tx: &mut windlass::MemoryTx) -> Result<ChainId> {
    let chain = NewChain::new(ChainId::new(), job("provision-account", r#"{"user":"Ada"}"#)?);
    let reply = store.run_in(tx, Create { chains: vec![chain] }).await?;
    let created = reply.chains.first().and_then(Created::chain);
    Ok(created.ok_or("the chain was refused")?)
}

fn job(job_type: &str, input: &'static str) -> Result<NewJob> {
    Ok(NewJob::new(TypeName::new(job_type)?, Payload::json(input)?))
}

async fn acquire(store: &MemoryStore, job_type: &str) -> Result<Acquired> {
    let quota = Quota { job_type: TypeName::new(job_type)?, max: 1, lease: Millis::from_secs(60) };
    let acquire = Acquire { request: RequestId::new(), worker: WorkerId::new(), types: vec![quota], max: 1 };
    Ok(store.acquire(acquire).await?.jobs.pop().ok_or("no job is due")?)
}

async fn settle(store: &MemoryStore, attempt: &Acquired, outcome: Outcome) -> Result<Settled> {
    let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome };
    let mut reply = store.settle(Settle { settlements: vec![settlement] }).await?;
    Ok(reply.settled.remove(0))
}

async fn find(store: &MemoryStore, chain: ChainId) -> Result<Option<windlass::Chain>> {
    Ok(store.get_chains(GetChains { chains: vec![chain.into()] }).await?.chains.remove(0))
}

async fn status(store: &MemoryStore, chain: ChainId) -> Result<Status> {
    Ok(find(store, chain).await?.ok_or("the chain is stored")?.status())
}
