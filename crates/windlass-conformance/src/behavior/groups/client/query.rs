//! Queries for chains, jobs and blockers.

use windlass_core::{Chain, ChainId, ChainRef, ErrorKind, JobId, Key, Target, TypeName};

use super::super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "query.chain.unknown",
            "A chain that is not stored is not found.",
            ["BS-104"],
            chain_unknown
        ),
        behavior!(
            "query.chain",
            "A chain is found by its handle, its id, one of its jobs or its key, with its first and latest job.",
            ["BS-105", "BS-107", "BS-116", "BS-122"],
            chain
        ),
        behavior!(
            "query.chain.typed",
            "The input and output of a chain have the types of its handle.",
            ["BS-106"],
            chain_typed
        ),
        behavior!(
            "query.chain.mismatch",
            "Querying a chain with a handle of the wrong type is an error that names both types.",
            ["BS-108"],
            chain_mismatch
        ),
        behavior!("query.job.unknown", "A job that is not stored is not found.", ["BS-109"], job_unknown),
        behavior!(
            "query.job",
            "A job is found by its id, regardless of its type.",
            ["BS-110", "BS-111"],
            job
        ),
        behavior!(
            "query.job.mismatch",
            "Decoding the input of a job as the wrong type is an error that names both types.",
            ["BS-112"],
            job_mismatch
        ),
        behavior!(
            "query.blockers.none",
            "A job without blockers, or that is not stored, has an empty list of blockers.",
            ["BS-141"],
            blockers_none
        ),
        behavior!(
            "query.blockers",
            "The blockers of a job are listed in the order in which they were declared, with their status.",
            ["BS-142", "BS-145"],
            blockers
        ),
        behavior!(
            "query.blockers.typed",
            "The output of a blocker has the type of its handle.",
            ["BS-143"],
            blockers_typed
        ),
        behavior!(
            "query.blockers.mismatch",
            "Querying a blocker as the wrong type is an error.",
            ["BS-144"],
            blockers_mismatch
        ),
    ]
}

job!(Fetch { page: u32 } -> u32, then(Parse));
job!(Parse { text: String } -> u32);
job!(Merge {} -> u32, blocked_by Vec<Fetch>);

async fn fetch(job: Ctx<Fetch>) -> Result<Next<Fetch>> {
    Ok(Next::then(Parse { text: "x".repeat(job.input().page as usize) }))
}

async fn parse(job: Ctx<Parse>) -> Result<u32> {
    Ok(u32::try_from(job.input().text.len())?)
}

/// Runs these chains until they complete.
async fn run<S: Store>(scene: &Scene<S>, chains: &[Chain<Fetch>]) {
    let worker = scene.worker().handle(fetch).handle(parse).start().await.unwrap();
    for chain in chains {
        scene.output(*chain).await;
    }
    scene.stop([worker]).await;
}

async fn chain_unknown<S: Store>(scene: Scene<S>) {
    scene.client.start(Fetch { page: 1 }).key("a").await.unwrap();
    let key = |name, key| Target::Key(TypeName::new(name).unwrap(), Key::new(key).unwrap());
    assert_eq!(scene.client.chain(ChainId::new()).await.unwrap(), None);
    assert_eq!(scene.client.chain(JobId::new()).await.unwrap(), None);
    assert_eq!(scene.client.chain(Chain::<Fetch>::from_id(ChainId::new())).await.unwrap(), None);
    assert_eq!(scene.client.chain(key("Fetch", "b")).await.unwrap(), None);
    assert_eq!(scene.client.chain(key("Parse", "a")).await.unwrap(), None);
}

async fn chain<S: Store>(scene: Scene<S>) {
    let started = scene.client.start(Fetch { page: 3 }).key("a").await.unwrap();
    scene.client.start(Fetch { page: 4 }).key("b").await.unwrap();
    run(&scene, &[started]).await;
    let found = scene.client.chain(started).await.unwrap().unwrap();
    assert_eq!((found.id, found.chain_type.as_str()), (started.id(), "Fetch"));
    assert_eq!((found.first.id, found.first.job_type.as_str()), (started.id().first_job(), "Fetch"));
    assert_eq!((found.latest.index, found.latest.job_type.as_str()), (1, "Parse"));
    assert_eq!(found.status(), Status::Completed);
    let by_key = Target::Key(TypeName::new("Fetch").unwrap(), Key::new("a").unwrap());
    let names: [ChainRef; 4] =
        [started.id().into(), found.latest.id.into(), found.first.id.into(), by_key.into()];
    for name in names {
        assert_eq!(scene.other.chain(name).await.unwrap().as_ref(), Some(&found));
    }
}

async fn chain_typed<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Fetch { page: 3 }).await.unwrap();
    assert_eq!(scene.client.output(chain).await.unwrap(), None, "it is open");
    run(&scene, &[chain]).await;
    assert_eq!(scene.client.output(chain).await.unwrap(), Some(3));
    let record = scene.client.chain(chain).await.unwrap().unwrap();
    assert_eq!(scene.client.input::<Fetch>(record.first.id).await.unwrap().unwrap().page, 3);
    assert_eq!(scene.client.input::<Parse>(record.latest.id).await.unwrap().unwrap().text, "xxx");
}

async fn chain_mismatch<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Fetch { page: 3 }).await.unwrap();
    let other = Chain::<Parse>::from_id(chain.id());
    for error in [scene.client.chain(other).await.unwrap_err(), scene.client.output(other).await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("`Fetch`, expected `Parse`"), "{error}");
    }
}

async fn job_unknown<S: Store>(scene: Scene<S>) {
    assert_eq!(scene.client.job(JobId::new()).await.unwrap(), None);
    assert!(scene.client.input::<Fetch>(JobId::new()).await.unwrap().is_none());
}

async fn job<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Fetch { page: 3 }).await.unwrap();
    run(&scene, &[chain]).await;
    let record = scene.client.chain(chain).await.unwrap().unwrap();
    for job in [record.first, record.latest] {
        assert_eq!(scene.other.job(job.id).await.unwrap(), Some(job));
    }
}

async fn job_mismatch<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Fetch { page: 3 }).await.unwrap();
    let error = scene.client.input::<Parse>(chain.id().first_job()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`Fetch`, expected `Parse`"), "{error}");
}

async fn blockers_none<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Fetch { page: 1 }).await.unwrap();
    assert_eq!(scene.client.blockers(chain.id().first_job()).await.unwrap(), []);
    assert_eq!(scene.client.blockers(JobId::new()).await.unwrap(), []);
}

/// Returns two blockers, the second of which has completed, and the chain that waits for them.
async fn waiting<S: Store>(scene: &Scene<S>) -> ([Chain<Fetch>; 2], Chain<Merge>) {
    let done = scene.client.start(Fetch { page: 2 }).await.unwrap();
    run(scene, &[done]).await;
    let open = scene.client.start(Fetch { page: 1 }).await.unwrap();
    let chain = scene.client.start(Merge {}).blocked_by(vec![open, done]).await.unwrap();
    ([open, done], chain)
}

async fn blockers<S: Store>(scene: Scene<S>) {
    let ([open, done], chain) = waiting(&scene).await;
    let found = scene.client.blockers(chain.id().first_job()).await.unwrap();
    let found: Vec<_> = found.into_iter().flatten().map(|chain| (chain.id, chain.status())).collect();
    assert_eq!(found, [(open.id(), Status::Pending), (done.id(), Status::Completed)]);
    let resolved: Vec<_> = scene.job(chain).await.blockers.iter().map(|blocker| blocker.resolved).collect();
    assert_eq!(resolved, [false, true]);
    run(&scene, &[open]).await;
    let found = scene.client.blockers(chain.id().first_job()).await.unwrap();
    assert!(found.iter().flatten().all(|chain| chain.status() == Status::Completed));
    let job = scene.job(chain).await;
    assert!(job.status == Status::Pending && job.blockers.iter().all(|blocker| blocker.resolved));
}

async fn blockers_typed<S: Store>(scene: Scene<S>) {
    let ([open, done], chain) = waiting(&scene).await;
    let found = scene.client.blockers(chain.id().first_job()).await.unwrap();
    let handles = found.iter().flatten().map(|chain| Chain::<Fetch>::from_id(chain.id));
    let handles: Vec<_> = handles.collect();
    assert_eq!(handles, [open, done]);
    assert_eq!(scene.client.output(handles[0]).await.unwrap(), None);
    assert_eq!(scene.client.output(handles[1]).await.unwrap(), Some(2));
}

async fn blockers_mismatch<S: Store>(scene: Scene<S>) {
    let (_, chain) = waiting(&scene).await;
    let found = scene.client.blockers(chain.id().first_job()).await.unwrap();
    let other = Chain::<Parse>::from_id(found[1].as_ref().unwrap().id);
    let error = scene.client.output(other).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
