//! Queries.

use windlass_core::command::{ChainFilter, ListChains, Types};
use windlass_core::{Chain, ChainId, ErrorKind, JobId, Status, Target, TypeName};

use super::{Approve, Mail, Report, Ship, client, complete, mail, work};

#[tokio::test]
async fn a_chain_is_found_by_handle_id_job_and_key() {
    let client = client();
    let chain = client.start(mail()).key("k").await.unwrap();
    let by_key = Target::Key(TypeName::new("mail").unwrap(), windlass_core::Key::new("k").unwrap());
    for found in [
        client.chain(chain).await.unwrap(),
        client.chain(chain.id()).await.unwrap(),
        client.chain(chain.id().first_job()).await.unwrap(),
        client.chain(by_key).await.unwrap(),
    ] {
        assert_eq!(found.unwrap().id, chain.id());
    }
    assert!(client.chain(ChainId::new()).await.unwrap().is_none());
    assert!(client.job(JobId::new()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_handle_of_the_wrong_type_is_an_error() {
    let client = client();
    let chain = client.start(mail()).await.unwrap();
    let wrong = Chain::<Approve>::from_id(chain.id());
    let errors = [
        client.chain(wrong).await.unwrap_err(),
        client.chain_jobs(wrong).await.unwrap_err(),
        client.dependents(wrong).await.unwrap_err(),
        client.output(wrong).await.unwrap_err(),
        client.wait(wrong).await.unwrap_err(),
        client.retry(wrong).await.unwrap_err(),
        client.step(wrong).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("has type `mail`, expected `approve`"), "{error}");
    }
    let error = client.input::<Approve>(chain.id().first_job()).await.unwrap_err();
    assert!(error.to_string().contains("has type `mail`, expected `approve`"), "{error}");
    let input = client.input::<Mail>(chain.id().first_job()).await.unwrap().unwrap();
    assert_eq!(input.to, "ada");
}

#[tokio::test]
async fn the_jobs_of_a_chain_come_in_order() {
    let client = client();
    let chain = client.start(Approve { order: 1 }).await.unwrap();
    client.start(mail()).await.unwrap();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.then(Ship { order: 1 }).done("sent".into()).await.unwrap();
    let jobs = client.chain_jobs(chain).await.unwrap();
    let types: Vec<_> = jobs.iter().map(|job| job.job_type.as_str()).collect();
    assert_eq!(types, ["approve", "ship"]);
    assert!(client.chain_jobs(ChainId::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn blockers_and_dependents_find_each_other() {
    let client = client();
    let mails = client.start_many([mail(), mail()]).await.unwrap();
    let report = client.start(Report).blocked_by((mails[1], mails[0])).await.unwrap();
    let blockers = client.blockers(report.id().first_job()).await.unwrap();
    let ids: Vec<_> = blockers.into_iter().map(|chain| chain.unwrap().id).collect();
    assert_eq!(ids, [mails[1].id(), mails[0].id()]);
    let dependents = client.dependents(mails[0]).await.unwrap();
    assert_eq!(dependents.iter().map(|job| job.chain).collect::<Vec<_>>(), [report.id()]);
    assert!(client.dependents(report).await.unwrap().is_empty());
    assert!(client.blockers(JobId::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn lists_counts_and_attempts() {
    let client = client();
    client.start_many([mail(), mail()]).await.unwrap();
    client.start(Approve { order: 1 }).await.unwrap();
    let worked = work(&client, "mail", complete(1)).await.job.id;
    let statuses = vec![Status::Completed];
    let list =
        ListChains { filter: ChainFilter { statuses, ..ChainFilter::default() }, ..ListChains::default() };
    let completed = client.list_chains(list).await.unwrap().chains;
    assert_eq!(completed.iter().map(|chain| chain.latest.id).collect::<Vec<_>>(), [worked]);
    let counts = client.count(Types::Only(vec![TypeName::new("mail").unwrap()])).await.unwrap().types;
    assert_eq!((counts[0].pending, counts[0].completed), (1, 1));
    assert_eq!(client.attempts(worked).await.unwrap().len(), 1);
    assert_eq!(client.pause(vec![TypeName::new("mail").unwrap()]).await.unwrap(), [false]);
    assert_eq!(client.resume(vec![TypeName::new("mail").unwrap()]).await.unwrap(), [true]);
    assert!(client.workers().await.unwrap().is_empty());
}
