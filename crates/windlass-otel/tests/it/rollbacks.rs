//! Spans of work that is rolled back, of completions from outside, and of waits that are over at once.

use windlass::{Client, MemoryStore, Worker, next};
use windlass_otel::Telemetry;

use crate::jobs::{Label, Order, Pack, Ship, TIMEOUT, client};
use crate::receiver::{Received, Wire, attribute, flush, providers, receive};
use crate::specs::{Cast, How, Pull, cast, pull};

/// Runs something with a client whose spans are exported over each protocol, and compares them with a drawing.
async fn check(run: impl AsyncFn(Client<MemoryStore>), expected: &str) {
    for wire in [Wire::Grpc, Wire::Http] {
        let drawing = observe(wire, &run).await.draw(false);
        assert_eq!(drawing.trim(), expected.trim(), "{wire:?}\n{drawing}");
    }
}

async fn observe(wire: Wire, run: &impl AsyncFn(Client<MemoryStore>)) -> Received {
    let (received, endpoint) = receive(wire).await;
    let (traces, metrics) = providers(wire, &endpoint, "test");
    let client = client(&Telemetry::new().traces(&traces));
    run(client.clone()).await;
    client.close().await.unwrap();
    flush(traces, metrics).await;
    received
}

/// Runs a chain whose first attempt starts another chain, decides its end, and then fails.
async fn taken_back(client: Client<MemoryStore>, how: How) {
    let worker = Worker::new(&client).concurrency(1).handle(cast).start().await.unwrap();
    let other = Worker::new(&client).concurrency(1);
    let chain = client.start(Cast { how }).await.unwrap();
    let other = if how == How::Then { Some(other.handle(pull).start().await.unwrap()) } else { None };
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    if let Some(other) = other {
        other.stop(TIMEOUT).await;
    }
}

const WHY: &str = "not written: the transaction was rolled back";

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_after_its_end_ends_every_span() {
    let expected = format!(
        "
create chain cast (producer)
  create cast (producer)
    process cast (consumer) ERROR on second thought
      finish (internal) ERROR the transaction was rolled back
      create chain pull (producer) ERROR {WHY}
        create pull (producer) ERROR {WHY}
    process cast (consumer) -> process cast
      finish (internal)
      create chain pull (producer)
        create pull (producer)
  close chain cast (internal)
"
    );
    check(async |client| taken_back(client, How::Done).await, &expected).await;
}

/// Its continuation is only a plan until the transaction settles the job, so it has no span that could stay open.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_after_its_continuation_ends_every_span() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = observe(wire, &async |client| taken_back(client, How::Then).await).await;
        let attempts = received.named("process cast");
        assert_eq!(attempts.len(), 2, "{}", received.draw(false));
        // Of the second attempt: the continuation, and the chain that the handler started.
        let created = received.named("create pull");
        let written = |span: &&opentelemetry_proto::tonic::trace::v1::Span| {
            span.status.as_ref().is_none_or(|status| status.message.is_empty())
        };
        assert_eq!(created.iter().filter(written).count(), 2, "{}", received.draw(false));
        let back: Vec<_> = created.iter().filter(|span| !written(span)).collect();
        assert!(!back.is_empty() && back.iter().all(|span| span.status.as_ref().unwrap().message == WHY));
        assert!(created.iter().all(|span| span.end_time_unix_nano > 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_from_outside_with_a_continuation_and_a_blocker_is_one_tree() {
    let run = async |client: Client<MemoryStore>| {
        let blocker = client.start(Label { number: 1 }).await.unwrap();
        let order = client.start(Order { number: 1 }).await.unwrap();
        let step = client.step(order).await.unwrap().of::<Order>().unwrap();
        step.then(next(Pack { number: 1 }).blocked_by((blocker,))).await.unwrap();
        client.step(blocker).await.unwrap().of::<Label>().unwrap().done("label".into()).await.unwrap();
        let step = client.step(order).await.unwrap().of::<Pack>().unwrap();
        step.then(Ship { label: "label".into() }).done("shipped".into()).await.unwrap();
    };
    let expected = "
create chain label (producer)
  create label (producer)
    settle label (client)
  close chain label (internal)
create chain order (producer)
  create order (producer)
    settle order (client)
  create pack (producer) -> create order
    await chain (producer) -> create chain label
      resolve chain (consumer) -> create chain label
    settle pack (client)
  create ship (producer) -> create pack
    settle ship (client)
  close chain order (internal)
";
    check(run, expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_rolled_back_or_refused_ends_no_job() {
    let run = async |client: Client<MemoryStore>| {
        let chain = client.start(Cast { how: How::Done }).await.unwrap();
        let other = client.start(Pull).await.unwrap();
        let mut tx = client.begin().await.unwrap();
        let step = tx.step(chain).await.unwrap().of::<Cast>().unwrap();
        step.then(Pull).done(1).await.unwrap();
        tx.rollback().await.unwrap();
        let taken = next(Pull).id(other.id().first_job());
        let step = client.step(chain).await.unwrap().of::<Cast>().unwrap();
        step.then(taken).await.unwrap_err();
    };
    let expected = format!(
        "
create chain cast (producer)
  create cast (producer)
  create pull (producer) ERROR {WHY} -> create cast
  create pull (producer) ERROR not written: the store refused it -> create cast
create chain pull (producer)
  create pull (producer)
"
    );
    check(run, &expected).await;
    for wire in [Wire::Grpc, Wire::Http] {
        let received = observe(wire, &run).await;
        let created = received.named("create pull");
        let mut errors: Vec<_> = created.iter().filter_map(|span| attribute(span, "error.type")).collect();
        errors.sort();
        assert_eq!(errors, ["invalid", "rolled_back"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_chain_that_has_ended_is_a_span() {
    let run = async |client: Client<MemoryStore>| {
        let blocker = client.start(Label { number: 1 }).await.unwrap();
        client.step(blocker).await.unwrap().of::<Label>().unwrap().done("label".into()).await.unwrap();
        let order = client.start(Order { number: 1 }).await.unwrap();
        let step = client.step(order).await.unwrap().of::<Order>().unwrap();
        step.then(next(Pack { number: 1 }).blocked_by((blocker,))).await.unwrap();
    };
    let expected = "
create chain label (producer)
  create label (producer)
    settle label (client)
  close chain label (internal)
create chain order (producer)
  create order (producer)
    settle order (client)
  create pack (producer) -> create order
    await chain (producer) -> create chain label
";
    check(run, expected).await;
}
