//! A client that knows neither its store nor the job types.

use windlass_core::command::{Created, ListChains, NewChain, NewJob, Step};
use windlass_core::{Cancelled, ChainId, Client, Payload, Status, Store, TypeName};

use super::{Seen, client, mail};

fn new(text: &str) -> NewChain {
    let job = NewJob::new(TypeName::new("anything").unwrap(), Payload::json(text.to_owned()).unwrap());
    NewChain::new(ChainId::new(), job)
}

#[tokio::test]
async fn an_erased_client_does_everything_with_encoded_bytes() {
    let client: Client<dyn Store> = client().into_dyn();
    let created = client.create(vec![new("1"), new("2")]).await.unwrap();
    assert!(created.iter().all(|created| matches!(created, Created::New { .. })));
    let ids: Vec<_> = created.iter().filter_map(Created::chain).collect();
    let listed = client.list_chains(ListChains::default()).await.unwrap().chains;
    assert_eq!(listed.iter().map(|chain| chain.id).rev().collect::<Vec<_>>(), ids);

    let cancelled = client.cancel_unless_running(ids[0]).await.unwrap();
    assert!(matches!(cancelled, Cancelled::Cancelled { .. }));

    let step = client.step(ids[1]).await.unwrap();
    assert_eq!(step.job().input.bytes().as_ref(), b"2");
    let output = Payload::json("\"done\"").unwrap();
    let complete = Step::Complete { output: output.clone(), retention: None, create: vec![new("3")] };
    assert_eq!(step.steps(vec![complete]).await.unwrap(), Status::Completed);
    assert_eq!(client.chain(ids[1]).await.unwrap().unwrap().output(), Some(&output));
    assert_eq!(client.list_chains(ListChains::default()).await.unwrap().chains.len(), 3);
}

#[tokio::test]
async fn an_erased_client_shares_state_with_its_origin() {
    let seen = Seen::default();
    let client = Client::builder(windlass_core::MemoryStore::new()).observer(seen.clone()).build();
    let chain = client.clone().into_dyn().start(mail()).await.unwrap();
    assert!(client.chain(chain).await.unwrap().is_some());
    assert_eq!(seen.take(), ["ChainCreated", "JobCreated"]);
}
