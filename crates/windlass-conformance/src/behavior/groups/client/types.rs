//! Guarantees of job types that are checked at run time, not by the compiler.

use serde::{Deserialize, Serialize, Serializer};
use windlass_core::command::{NewChain, NewJob};
use windlass_core::{Chain, ChainId, ErrorKind, Handlers, JobOptions, Payload, TypeName};

use super::super::prelude::*;
use super::OUTSIDE;
use crate::behavior::job::quick;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!("types.names", "A set of handlers lists its job types.", ["BS-212"], names),
        behavior!("types.input", "An input that cannot be encoded starts no chain.", ["BS-215"], input),
        behavior!(
            "types.stored_input",
            "A stored input that cannot be decoded is retried, and fails only that job, at its last attempt and with the reason.",
            ["BS-215"],
            stored_input
        ),
        behavior!(
            "types.blockers",
            "A start with a blocker that is not stored is refused.",
            ["BS-216"],
            blockers
        ),
        behavior!(
            "types.worker",
            "A worker's continuation and output are stored as given.",
            ["BS-217", "BS-219"],
            worker
        ),
        behavior!(
            "types.worker.output",
            "If a worker's output cannot be encoded, the attempt fails.",
            ["BS-218"],
            |scene| unwritable(scene, How::Output)
        ),
        behavior!(
            "types.worker.continuation",
            "If a worker's continuation cannot be encoded, the attempt fails.",
            ["BS-220"],
            |scene| unwritable(scene, How::Continuation)
        ),
        behavior!(
            "types.outside.output",
            "If an output from outside cannot be encoded, nothing changes.",
            ["BS-222"],
            [OUTSIDE],
            |scene| unwritable_outside(scene, How::Output)
        ),
        behavior!(
            "types.outside.continuation",
            "If a continuation from outside cannot be encoded, nothing changes.",
            ["BS-224"],
            [OUTSIDE],
            |scene| unwritable_outside(scene, How::Continuation)
        ),
    ]
}

/// A number that can always be deserialized, but serialized only if it is even.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Even(u32);

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 % 2 == 1 {
            return Err(serde::ser::Error::custom("it is odd"));
        }
        self.0.serialize(serializer)
    }
}

/// Which value cannot be serialized.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum How {
    Nothing,
    Output,
    Continuation,
}

job!(Halve { how: How } -> Even, then(Half), options JobOptions { max_attempts: Some(1), ..quick() });
job!(Half { number: Even } -> Even);
job!(Whole {} -> Even, blocked_by (Half,));

async fn halve(job: Ctx<Halve>) -> Result<Next<Halve>> {
    Ok(match job.input().how {
        How::Nothing => Next::then(Half { number: Even(4) }),
        How::Output => Next::done(Even(1)),
        How::Continuation => Next::then(Half { number: Even(1) }),
    })
}

async fn half(job: Ctx<Half>) -> Result<Even> {
    Ok(Even(job.input().number.0 / 2))
}

async fn names<S: Store>(_: Scene<S>) {
    let handlers = Handlers::<S>::new().handle(halve).handle(half);
    let names: Vec<_> = handlers.jobs().unwrap().jobs().map(|job| job.name).collect();
    assert_eq!(names, ["Half", "Halve"]);
}

async fn input<S: Store>(scene: Scene<S>) {
    let error = scene.client.start(Half { number: Even(1) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("it is odd"), "{error}");
    let error =
        scene.client.start_many([2, 3].map(|number| Half { number: Even(number) })).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(scene.seen.all(), [], "nothing was started");
}

async fn stored_input<S: Store>(scene: Scene<S>) {
    let job = NewJob::new(TypeName::new("Half").unwrap(), Payload::json("\"one\"").unwrap());
    let job = NewJob { max_attempts: Some(3), ..job };
    let chain = Chain::<Half>::from_id(ChainId::new());
    scene.client.create(vec![NewChain::new(chain.id(), job)]).await.unwrap();
    let good = scene.client.start(Half { number: Even(4) }).await.unwrap();
    let worker = scene.worker().handle(half).start().await.unwrap();
    let error = scene.result(chain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert!(error.to_string().contains("cannot decode the stored payload"), "{error}");
    assert_eq!(scene.job(chain).await.attempt, 3, "a later version of the program might decode it");
    assert_eq!(scene.output(good).await, Even(2));
    scene.stop([worker]).await;
}

async fn blockers<S: Store>(scene: Scene<S>) {
    let start = scene.client.start(Whole {}).blocked_by((Chain::from_id(ChainId::new()),));
    let chain = start.handle();
    let error = start.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("was not found: start it first"), "{error}");
    assert_eq!(scene.client.chain(chain).await.unwrap(), None);
}

async fn worker<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(halve).handle(half).start().await.unwrap();
    let chain = scene.client.start(Halve { how: How::Nothing }).await.unwrap();
    assert_eq!(scene.output(chain).await, Even(2));
    let latest = scene.job(chain).await;
    assert_eq!(scene.client.input::<Half>(latest.id).await.unwrap().unwrap().number, Even(4));
    scene.stop([worker]).await;
}

async fn unwritable<S: Store>(scene: Scene<S>, how: How) {
    let worker = scene.worker().handle(halve).handle(half).start().await.unwrap();
    let chain = scene.client.start(Halve { how }).await.unwrap();
    let error = scene.result(chain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert!(error.to_string().contains("it is odd"), "{error}");
    let job = scene.job(chain).await;
    assert_eq!((job.index, job.output), (0, None));
    scene.stop([worker]).await;
}

async fn unwritable_outside<S: Store>(scene: Scene<S>, how: How) {
    let chain = scene.client.start(Halve { how: How::Nothing }).await.unwrap();
    let before = scene.job(chain).await;
    let step = scene.client.step(chain).await.unwrap().of::<Halve>().unwrap();
    let error = match how {
        How::Continuation => step.then(Half { number: Even(1) }).await.unwrap_err(),
        _ => step.done(Even(1)).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("it is odd"), "{error}");
    assert_eq!(scene.job(chain).await, before);
}
