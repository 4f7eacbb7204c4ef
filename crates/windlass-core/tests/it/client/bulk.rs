//! Commands for all chains that match a filter.

use windlass_core::command::{CancelMode, ChainFilter, Order, Outcome};
use windlass_core::{ChangedChains, ErrorKind, ErrorText, Status, TypeName};

use super::{Approve, acquire, client, mail, work};

fn mails(statuses: &[Status]) -> ChainFilter {
    let types = vec![TypeName::new("mail").unwrap()];
    ChainFilter { types, statuses: statuses.to_vec(), ..ChainFilter::default() }
}

fn counts(all: ChangedChains) -> (u64, u64) {
    (all.changed, all.skipped)
}

#[tokio::test]
async fn all_failed_chains_are_retried() {
    const CHAINS: u64 = 250;
    let client = client();
    client.start_many((0..CHAINS).map(|_| mail())).await.unwrap();
    let other = client.start(Approve { order: 1 }).await.unwrap();
    client.step(other).await.unwrap().of::<Approve>().unwrap().fail("no").await.unwrap();
    for _ in 0..CHAINS {
        work(&client, "mail", Outcome::Fail { error: ErrorText::new("no such box"), retention: None }).await;
    }
    assert_eq!(counts(client.retry_all(mails(&[Status::Cancelled])).await.unwrap()), (0, 0));
    assert_eq!(counts(client.retry_all(mails(&[])).await.unwrap()), (CHAINS, 0), "more than one page");
    assert_eq!(counts(client.retry_all(mails(&[])).await.unwrap()), (0, 0), "they are pending");
    assert_eq!(client.chain(other).await.unwrap().unwrap().status(), Status::Failed, "another type");
    let error = client.retry_all(mails(&[Status::Pending])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "pending chains cannot be retried: filter by failed, cancelled");
}

#[tokio::test]
async fn a_chain_that_cannot_be_retried_is_skipped() {
    let client = client();
    let old = client.start(mail()).key("k").await.unwrap();
    client.cancel_unless_running(old).await.unwrap();
    client.start(mail()).key("k").await.unwrap();
    assert_eq!(counts(client.retry_all(mails(&[Status::Cancelled])).await.unwrap()), (0, 1));
}

#[tokio::test]
async fn all_open_chains_are_cancelled() {
    let client = client();
    client.start_many([mail(), mail(), mail()]).await.unwrap();
    acquire(&client, "mail").await;
    let filter = || mails(&[]);
    assert_eq!(counts(client.cancel_all(filter(), CancelMode::UnlessRunning).await.unwrap()), (2, 1));
    assert_eq!(counts(client.cancel_all(filter(), CancelMode::Ask).await.unwrap()), (1, 0));
    let error = client.cancel_all(mails(&[Status::Failed]), CancelMode::Ask).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn pages_contain_each_chain_once() {
    let client = client();
    let started = client.start_many((0..250).map(|_| mail())).await.unwrap();
    let mut pages = client.chain_pages(mails(&[]), Order::Oldest).await.unwrap();
    let mut found = Vec::new();
    while let Some(chains) = pages.next().await.unwrap() {
        found.extend(chains.iter().map(|chain| chain.id));
    }
    let mut started: Vec<_> = started.iter().map(|chain| chain.id()).collect();
    started.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, started);
}
