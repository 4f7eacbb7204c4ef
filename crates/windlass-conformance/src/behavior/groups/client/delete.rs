//! Deleting chains.

use std::collections::HashSet;
use std::time::Duration;

use windlass_core::command::{DeleteReply, DeletedChain};
use windlass_core::{
    AbortReason, Chain, ChainId, JobId, JobOptions, JobRecord, Plan, Refusal, Target, Transactional, plan,
};

use super::super::prelude::*;
use super::{DELETE, end};
use crate::behavior::job::quick;

#[expect(clippy::too_many_lines, reason = "a list of cases")]
pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "delete.jobs",
            "A chain is removed with all its jobs.",
            ["BS-084", "BS-098"],
            [DELETE],
            jobs
        ),
        behavior!(
            "delete.status",
            "A delete reports the status of each chain, which is that of its latest job.",
            ["BS-085"],
            [DELETE],
            status
        ),
        behavior!(
            "delete.running",
            "An attempt whose chain is deleted is asked to stop.",
            ["BS-086"],
            [DELETE],
            running
        ),
        behavior!(
            "delete.needed",
            "A chain that an open job waits for is not deleted.",
            ["BS-087", "BS-101"],
            [DELETE],
            needed
        ),
        behavior!(
            "delete.cascade.needed",
            "A cascade does not remove a chain that an open job outside the cascade waits for.",
            ["BS-088"],
            [DELETE],
            cascade_needed
        ),
        behavior!(
            "delete.cascade",
            "A cascade removes the chains that the deleted chain waits for.",
            ["BS-089", "BS-100"],
            [DELETE],
            cascade
        ),
        behavior!("delete.cascade.on", "A cascade is recursive.", ["BS-090"], [DELETE], cascade_on),
        behavior!(
            "delete.cascade.diamond",
            "A cascade removes a chain once even if it is reached on two paths.",
            ["BS-091"],
            [DELETE],
            |scene| diamond(scene, false)
        ),
        behavior!(
            "delete.cascade.alone",
            "A cascade from a chain without blockers removes only that chain.",
            ["BS-092"],
            [DELETE],
            cascade_alone
        ),
        behavior!(
            "delete.cascade.shared",
            "A cascade is refused if an open job outside needs one of its chains.",
            ["BS-093"],
            [DELETE],
            cascade_shared
        ),
        behavior!(
            "delete.finishing",
            "An attempt that ends after its chain was deleted has no effect.",
            ["BS-094"],
            [DELETE],
            finishing
        ),
        behavior!(
            "delete.batch",
            "Chains that were started together can be deleted together.",
            ["BS-095"],
            [DELETE],
            batch
        ),
        behavior!(
            "delete.batch.needed",
            "A blocker that was started in a batch is not deleted while it is needed.",
            ["BS-096"],
            [DELETE],
            batch_needed
        ),
        behavior!(
            "delete.unknown",
            "Deleting a chain that is not stored does nothing.",
            ["BS-099"],
            [DELETE],
            unknown
        ),
        behavior!(
            "delete.batch.diamond",
            "A cascade removes chains that were started in a batch, each once.",
            ["BS-103"],
            [DELETE],
            |scene| diamond(scene, true)
        ),
        behavior!(
            "delete.cascade.continued",
            "A cascade also removes the chains that a continuation waits for.",
            ["A8.4"],
            [DELETE],
            cascade_continued
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    // The sources require a transaction for this. Here it works with and without one.
    vec![behavior!(
        "delete.transaction",
        "A delete takes effect immediately, or when its transaction commits, or never if it is rolled back.",
        ["BS-097", "BS-102"],
        [DELETE],
        transaction
    )]
}

job!(Leaf { number: u32 } -> u32, then(Leaf), options JobOptions {
    lease: Some(Duration::from_secs(60)),
    renewal: Some(Duration::from_millis(100)),
    ..quick()
});
job!(Branch {} -> u32, then(Branch), blocked_by Vec<Leaf>);
job!(Root {} -> u32, blocked_by Vec<Branch>);

async fn leaf<S: Store>(scene: &Scene<S>) -> Chain<Leaf> {
    scene.client.start(Leaf { number: 1 }).await.unwrap()
}

async fn branch<S: Store>(scene: &Scene<S>, leaves: &[Chain<Leaf>]) -> Chain<Branch> {
    scene.client.start(Branch {}).blocked_by(leaves.to_vec()).await.unwrap()
}

async fn is_stored<S: Store>(scene: &Scene<S>, chain: impl Into<ChainId> + Send) -> bool {
    scene.other.chain(chain.into()).await.unwrap().is_some()
}

async fn delete<S: Store>(scene: &Scene<S>, chain: impl Into<Target> + Send, cascade: bool) -> DeleteReply {
    let chains = vec![chain.into()];
    if cascade { scene.client.delete_cascading(chains).await } else { scene.client.delete(chains).await }
        .unwrap()
}

fn deleted(reply: DeleteReply) -> Vec<DeletedChain> {
    match reply {
        DeleteReply::Deleted(deleted) => deleted.chains,
        other => panic!("not deleted: {other:?}"),
    }
}

/// Asserts that exactly these chains were deleted, each once, with the target first.
fn assert_gone(reply: DeleteReply, expected: &[ChainId]) {
    let gone: Vec<_> = deleted(reply).iter().map(|chain| chain.chain).collect();
    assert_eq!(gone.len(), expected.len(), "{gone:?}");
    assert_eq!(gone.first(), expected.first(), "the target comes first");
    assert_eq!(gone.iter().collect::<HashSet<_>>(), expected.iter().collect());
}

/// Asserts that the delete was refused because job `by` needs this chain.
fn assert_needed(reply: &DeleteReply, chain: impl Into<ChainId>, by: JobId) {
    assert_eq!(reply, &DeleteReply::Refused(vec![Refusal::Needed { chain: chain.into(), by }]));
}

async fn jobs<S: Store>(scene: Scene<S>) {
    async fn count(job: Ctx<Leaf>) -> Result<Next<Leaf>> {
        let number = job.input().number + 1;
        Ok(if number == 4 { Next::done(number) } else { Next::then(Leaf { number }) })
    }
    let worker = scene.worker().handle(count).start().await.unwrap();
    let chain = scene.client.start(Leaf { number: 1 }).key("a").await.unwrap();
    scene.output(chain).await;
    let latest = scene.job(chain).await.id;
    let gone = deleted(delete(&scene, chain, false).await);
    assert_eq!((gone[0].chain, gone[0].chain_type.as_str(), gone[0].running), (chain.id(), "Leaf", None));
    assert!(!is_stored(&scene, chain).await);
    for job in [chain.id().first_job(), latest] {
        assert!(scene.client.job(job).await.unwrap().is_none());
    }
    scene.stop([worker]).await;
    assert!(scene.client.start(Leaf { number: 1 }).key("a").await.unwrap().is_new(), "its key is free");
}

async fn status<S: Store>(scene: Scene<S>) {
    async fn once(job: Ctx<Leaf>) -> Result<Next<Leaf>> {
        Ok(match job.job().index {
            0 => Next::then(next(Leaf { number: 0 }).after(Duration::from_secs(3_600))),
            _ => Next::done(0),
        })
    }
    let worker = scene.worker().handle(once).start().await.unwrap();
    let chain = leaf(&scene).await;
    scene.job_that("the chain continues", chain, |job| job.index == 1).await;
    let gone = deleted(delete(&scene, chain, false).await);
    assert_eq!(gone[0].status, Status::Pending, "its first job has completed, its latest has not");
    scene.stop([worker]).await;
}

/// Deletes a chain whose handler waits for the abort signal. Checks that the worker then runs other jobs, and returns
/// the abort reason.
async fn removed_while_running<S: Store>(scene: &Scene<S>) -> Vec<String> {
    let lines = Lines::default();
    let said = lines.clone();
    let patient = move |job: Ctx<Leaf>| {
        let said = said.clone();
        async move {
            if job.input().number == 1 {
                said.add(format!("{:?}", job.aborted().wait().await));
            }
            Ok::<_, BoxError>(job.input().number)
        }
    };
    let worker = scene.worker().handle(patient).start().await.unwrap();
    let chain = leaf(scene).await;
    let job = scene.job_that("the attempt runs", chain, |job| job.status == Status::Running).await;
    let gone = deleted(scene.other.delete(vec![chain.into()]).await.unwrap());
    assert_eq!((gone[0].status, gone[0].running), (Status::Running, Some((job.id, worker.id()))));
    scene.sees("the attempt finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    let other = scene.client.start(Leaf { number: 2 }).await.unwrap();
    assert_eq!(scene.output(other).await, 2, "the worker continues");
    assert!(!is_stored(scene, chain).await, "nothing brought it back");
    scene.stop([worker]).await;
    lines.all()
}

async fn running<S: Store>(scene: Scene<S>) {
    assert_eq!(removed_while_running(&scene).await, [format!("{:?}", AbortReason::NotFound)]);
}

async fn finishing<S: Store>(scene: Scene<S>) {
    removed_while_running(&scene).await;
    let ended = |event: &Event| matches!(event, Event::JobCompleted(..) | Event::ChainClosed(..));
    assert_eq!(scene.seen.count(ended), 2, "only the end of the other chain is reported");
}

async fn needed<S: Store>(scene: Scene<S>) {
    let blocker = leaf(&scene).await;
    let chain = branch(&scene, &[blocker]).await;
    assert_needed(&delete(&scene, blocker, false).await, blocker, chain.id().first_job());
    assert!(is_stored(&scene, blocker).await && is_stored(&scene, chain).await);
    let both = scene.client.delete(vec![blocker.into(), chain.into()]).await.unwrap();
    assert_gone(both, &[blocker.id(), chain.id()]);
}

async fn cascade_needed<S: Store>(scene: Scene<S>) {
    let leaf = leaf(&scene).await;
    let branch = branch(&scene, &[leaf]).await;
    let root = scene.client.start(Root {}).blocked_by(vec![branch]).await.unwrap();
    assert_needed(&delete(&scene, branch, true).await, branch, root.id().first_job());
    assert!(is_stored(&scene, leaf).await && is_stored(&scene, branch).await);
}

async fn cascade<S: Store>(scene: Scene<S>) {
    let (blocker, other) = (leaf(&scene).await, leaf(&scene).await);
    let chain = branch(&scene, &[blocker]).await;
    assert_gone(delete(&scene, chain, true).await, &[chain.id(), blocker.id()]);
    assert!(!is_stored(&scene, chain).await && !is_stored(&scene, blocker).await);
    assert!(is_stored(&scene, other).await);
}

async fn cascade_on<S: Store>(scene: Scene<S>) {
    let leaf = leaf(&scene).await;
    let branch = branch(&scene, &[leaf]).await;
    let root = scene.client.start(Root {}).blocked_by(vec![branch]).await.unwrap();
    assert_gone(delete(&scene, root, true).await, &[root.id(), branch.id(), leaf.id()]);
    assert!(!is_stored(&scene, leaf).await);
}

async fn diamond<S: Store>(scene: Scene<S>, in_a_batch: bool) {
    let leaf = plan(Leaf { number: 1 });
    let branches = [(); 2].map(|()| plan(Branch {}).blocked_by(vec![leaf.handle()]));
    let root = plan(Root {}).blocked_by(branches.iter().map(Plan::handle).collect());
    let [one, other] = &branches;
    let ids = [root.handle().id(), one.handle().id(), other.handle().id(), leaf.handle().id()];
    let target = root.handle();
    let [one, other] = branches;
    let plans = [leaf.build(), one.build(), other.build(), root.build()].map(Result::unwrap);
    if in_a_batch {
        scene.client.create(plans.to_vec()).await.unwrap();
    } else {
        for plan in plans {
            scene.client.create(vec![plan]).await.unwrap();
        }
    }
    assert_gone(delete(&scene, target, true).await, &ids);
    for id in ids {
        assert!(!is_stored(&scene, id).await);
    }
}

async fn cascade_alone<S: Store>(scene: Scene<S>) {
    let (chain, other) = (leaf(&scene).await, leaf(&scene).await);
    assert_gone(delete(&scene, chain, true).await, &[chain.id()]);
    assert!(is_stored(&scene, other).await);
}

async fn cascade_shared<S: Store>(scene: Scene<S>) {
    let shared = leaf(&scene).await;
    let (chain, other) = (branch(&scene, &[shared]).await, branch(&scene, &[shared]).await);
    assert_needed(&delete(&scene, chain, true).await, shared, other.id().first_job());
    assert!(is_stored(&scene, chain).await && is_stored(&scene, shared).await);
    let all = scene.client.delete_cascading(vec![chain.into(), other.into()]).await.unwrap();
    assert_gone(all, &[chain.id(), other.id(), shared.id()]);
}

async fn batch<S: Store>(scene: Scene<S>) {
    let chains = scene.client.start_many((0..5).map(|number| Leaf { number })).await.unwrap();
    let targets = chains[..4].iter().map(|chain| (*chain).into()).collect();
    let gone = deleted(scene.client.delete(targets).await.unwrap());
    let gone: Vec<_> = gone.iter().map(|chain| chain.chain).collect();
    assert_eq!(gone, chains[..4].iter().map(Chain::id).collect::<Vec<_>>(), "in the requested order");
    assert!(is_stored(&scene, chains[4]).await);
}

async fn batch_needed<S: Store>(scene: Scene<S>) {
    let blockers = scene.client.start_many((0..3).map(|number| Leaf { number })).await.unwrap();
    let chain = branch(&scene, &blockers).await;
    let targets = blockers.iter().map(|chain| (*chain).into()).collect();
    let reply = scene.client.delete(targets).await.unwrap();
    let DeleteReply::Refused(refusals) = reply else { panic!("{reply:?}") };
    let by = chain.id().first_job();
    for blocker in blockers {
        assert!(refusals.contains(&Refusal::Needed { chain: blocker.id(), by }), "{refusals:?}");
        assert!(is_stored(&scene, blocker).await);
    }
}

async fn unknown<S: Store>(scene: Scene<S>) {
    assert_eq!(deleted(delete(&scene, ChainId::new(), false).await), []);
    assert_eq!(deleted(scene.client.delete_cascading(Vec::new()).await.unwrap()), []);
    assert_eq!(scene.seen.count(|event| matches!(event, Event::ChainDeleted(..))), 0);
}

async fn cascade_continued<S: Store>(scene: Scene<S>) {
    let blocker = leaf(&scene).await;
    let waits = move |_: Ctx<Branch>| async move {
        Ok::<_, BoxError>(Next::<Branch>::then(next(Branch {}).blocked_by(vec![blocker])))
    };
    let chain = branch(&scene, &[]).await;
    let worker = scene.worker().handle(waits).start().await.unwrap();
    let blocked = |job: &JobRecord| job.status == Status::Blocked;
    let continuation = scene.job_that("the chain continues", chain, blocked).await;
    assert_needed(&delete(&scene, blocker, false).await, blocker, continuation.id);
    assert_gone(delete(&scene, chain, true).await, &[chain.id(), blocker.id()]);
    scene.stop([worker]).await;
}

async fn transaction<S: Transactional>(scene: Scene<S>) {
    let (one, others) = (leaf(&scene).await, [leaf(&scene).await, leaf(&scene).await]);
    deleted(delete(&scene, one, false).await);
    assert!(!is_stored(&scene, one).await);
    for commits in [false, true] {
        let mut tx = scene.client.begin().await.unwrap();
        let gone = deleted(tx.delete(others.map(Target::from).to_vec()).await.unwrap());
        assert_eq!(gone.len(), 2);
        assert!(tx.chain(others[0]).await.unwrap().is_none(), "the transaction sees it");
        assert!(is_stored(&scene, others[0]).await, "it is not visible outside before the commit");
        end(tx, commits).await;
        for chain in others {
            assert_eq!(is_stored(&scene, chain).await, !commits);
        }
    }
}
