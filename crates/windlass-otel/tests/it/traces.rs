//! Spans of starts, attempts, waits and completions from outside.

use std::sync::Arc;

use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::sync::Notify;
use tracing_subscriber::layer::SubscriberExt;
use windlass::name::TraceContext;
use windlass::{BoxError, Chain, Client, Ctx, Job, MemoryStore, Worker, plan};
use windlass_otel::{Telemetry, current_traceparent};
use windlass_testkit::logs::subscribe;

use crate::jobs::{Label, Order, Parcel, TIMEOUT, client, label, worker};
use crate::receiver::{Received, Wire, attribute, flush, providers, receive};

/// Runs something with a client and a worker whose spans are exported. Returns what the receiver got.
async fn trace(wire: Wire, works: bool, run: impl AsyncFnOnce(Client<MemoryStore>)) -> Received {
    let (received, endpoint) = receive(wire).await;
    let (traces, metrics) = providers(wire, &endpoint, "test");
    let client = client(&Telemetry::new().traces(&traces).metrics(&metrics));
    let worker = if works { Some(worker(&client).await) } else { None };
    run(client.clone()).await;
    if let Some(worker) = worker {
        worker.stop(TIMEOUT).await;
    }
    client.close().await.unwrap();
    flush(traces, metrics).await;
    received
}

fn check(received: &Received, expected: &str) {
    let drawing = received.draw(false);
    assert_eq!(drawing.trim(), expected.trim(), "\n{drawing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_has_spans_for_its_transactions_over_both_protocols() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, true, async |client| {
            let chain = client.start(Parcel { failures: 0 }).await.unwrap();
            client.wait(chain).timeout(TIMEOUT).await.unwrap();
        })
        .await;
        let expected = "
create chain parcel (producer)
  create parcel (producer)
    process parcel (consumer)
      prepare (internal)
      finish (internal)
  close chain parcel (internal)
";
        check(&received, expected);
        assert!(received.value("windlass.job.duration", "") > 0.0, "{wire:?}: {}", received.series());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_span_has_the_attributes_of_the_conventions() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, true, async |client| {
            let chain = client.start(Parcel { failures: 0 }).await.unwrap();
            client.wait(chain).timeout(TIMEOUT).await.unwrap();
        })
        .await;
        let [attempt] = &received.named("process parcel")[..] else { panic!("one attempt") };
        let has =
            |key: &str, value: &str| assert_eq!(attribute(attempt, key).as_deref(), Some(value), "{key}");
        has("messaging.system", "windlass");
        has("messaging.operation.name", "process");
        has("messaging.operation.type", "process");
        has("messaging.destination.name", "parcel");
        has("windlass.attempt", "1");
        has("windlass.worker.name", "packer");
        has("windlass.result", "completed");
        let [created] = &received.named("create parcel")[..] else { panic!("one creation") };
        let id = attribute(attempt, "messaging.message.id").unwrap();
        assert_eq!(attribute(created, "messaging.message.id").unwrap(), id);
        assert_eq!(
            attribute(attempt, "messaging.message.conversation_id").unwrap(),
            id,
            "the chain's first job"
        );
        assert_eq!(attribute(attempt, "error.type"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_links_to_the_attempt_before() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, true, async |client| {
            let chain = client.start(Parcel { failures: 2 }).await.unwrap();
            client.wait(chain).timeout(TIMEOUT).await.unwrap();
        })
        .await;
        let expected = "
create chain parcel (producer)
  create parcel (producer)
    process parcel (consumer) ERROR it rains
      prepare (internal)
      finish (internal) ERROR the transaction was rolled back
    process parcel (consumer) ERROR it rains -> process parcel
      prepare (internal)
      finish (internal) ERROR the transaction was rolled back
    process parcel (consumer) -> process parcel
      prepare (internal)
      finish (internal)
  close chain parcel (internal)
";
        check(&received, expected);
        let attempts = received.named("process parcel");
        let results: Vec<_> = attempts.iter().filter_map(|span| attribute(span, "windlass.result")).collect();
        assert_eq!(results, ["retried", "retried", "completed"]);
        assert_eq!(attribute(&attempts[0], "error.type").as_deref(), Some("handler"));
        let links: Vec<_> =
            attempts.iter().flat_map(|span| span.links.iter().map(|link| &link.span_id)).collect();
        assert_eq!(links, [&attempts[0].span_id, &attempts[1].span_id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_links_to_the_existing_chain() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, false, async |client| {
            for _ in 0..2 {
                client.start(Label { number: 1 }).key("one").await.unwrap();
            }
        })
        .await;
        let expected = "
create chain label (producer)
  create label (producer)
create chain label (producer) -> create chain label
  create label (producer) -> create chain label
";
        check(&received, expected);
        let chains = received.named("create chain label");
        let existed = chains.iter().find(|span| !span.links.is_empty()).unwrap();
        let existing = chains.iter().find(|span| span.links.is_empty()).unwrap();
        assert_eq!(
            attribute(existed, "windlass.chain.existed"),
            attribute(existing, "messaging.message.conversation_id")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolled_back_work_ends_its_spans_with_an_error() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, false, async |client| {
            let mut tx = client.begin().await.unwrap();
            tx.start(Order { number: 1 }).await.unwrap();
            tx.savepoint().await.unwrap();
            tx.start(Label { number: 1 }).await.unwrap();
            tx.rollback_to().await.unwrap();
            tx.commit().await.unwrap();
            let mut tx = client.begin().await.unwrap();
            tx.start(Parcel { failures: 0 }).await.unwrap();
            drop(tx);
        })
        .await;
        let why = "not written: the transaction was rolled back";
        let expected = format!(
            "
create chain order (producer)
  create order (producer)
create chain label (producer) ERROR {why}
  create label (producer) ERROR {why}
create chain parcel (producer) ERROR {why}
  create parcel (producer) ERROR {why}
"
        );
        check(&received, &expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_from_outside_is_a_span() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, false, async |client| {
            let chain = client.start(Label { number: 1 }).await.unwrap();
            client.step(chain).await.unwrap().of::<Label>().unwrap().done("by hand".into()).await.unwrap();
            let chain = client.start(Parcel { failures: 0 }).await.unwrap();
            client.step(chain).await.unwrap().of::<Parcel>().unwrap().fail("lost").await.unwrap();
        })
        .await;
        let expected = "
create chain label (producer)
  create label (producer)
    settle label (client)
  close chain label (internal)
create chain parcel (producer)
  create parcel (producer)
    settle parcel (client) ERROR lost
  close chain parcel (internal)
";
        check(&received, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolved_wait_links_to_the_chain_that_ended() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, true, async |client| {
            let chain = client.start(Order { number: 7 }).await.unwrap();
            assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "shipped with label 7");
        })
        .await;
        for span in ["await chain", "resolve chain"] {
            assert_eq!(received.named(span).len(), 1, "{span}");
        }
        let [resolved] = &received.named("resolve chain")[..] else { panic!("one wait") };
        let [label] = &received.named("create chain label")[..] else { panic!("one blocker") };
        assert_eq!(resolved.links[0].span_id, label.span_id);
        assert_eq!(resolved.parent_span_id, received.named("await chain")[0].span_id);
    }
}

/// The process that waits for the chains knows only their ids, and queries their contexts. One of them is not sampled.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_links_to_a_chain_of_another_process() {
    for wire in [Wire::Grpc, Wire::Http] {
        let (received, endpoint) = receive(wire).await;
        let store = Arc::new(MemoryStore::new());
        let (traces, metrics) = providers(wire, &endpoint, "test");
        let unsampled = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
        let client = |traces: &SdkTracerProvider| {
            let telemetry = Telemetry::new().traces(traces);
            Client::<MemoryStore>::builder(store.clone()).observer(telemetry).build()
        };
        let label = client(&traces).start(Label { number: 1 }).await.unwrap();
        let other = client(&unsampled).start(Label { number: 2 }).await.unwrap();
        let waits = client(&traces);
        for commits in [true, false] {
            let mut tx = waits.begin().await.unwrap();
            let mut new = plan(Order { number: 1 }).build().unwrap();
            new.job.blockers = vec![label.id().into(), other.id().into()];
            tx.create(vec![new]).await.unwrap();
            if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }
        waits.close().await.unwrap();
        flush(traces, metrics).await;
        let why = "not written: the transaction was rolled back";
        let (first, second): (Vec<_>, Vec<_>) = received
            .named("await chain")
            .into_iter()
            .partition(|wait| wait.status.is_none() || !has_error(wait));
        assert!(
            second.iter().all(|wait| wait.status.as_ref().unwrap().message == why && wait.links.is_empty())
        );
        let [created] = &received.named("create chain label")[..] else { panic!("one is sampled") };
        for wait in &first {
            let is_label = attribute(wait, "windlass.blocker.chain.id") == Some(label.id().to_string());
            let links: Vec<_> = wait.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
            let expected = is_label.then_some((&created.trace_id, &created.span_id));
            assert_eq!(links, expected.into_iter().collect::<Vec<_>>());
            assert_eq!(attribute(wait, "windlass.blocker.chain.type").as_deref(), Some("label"));
        }
        let mut indexes: Vec<_> =
            first.iter().filter_map(|wait| attribute(wait, "windlass.blocker.index")).collect();
        indexes.sort();
        assert_eq!(indexes, ["0", "1"], "{}", received.draw(false));
    }
}

fn has_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| !status.message.is_empty())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_context_starts_no_new_trace() {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = trace(wire, true, async |client| {
            let mut new = plan(Order { number: 7 }).build().unwrap();
            new.trace = Some(TraceContext::new("nonsense").unwrap());
            new.job.trace = Some(TraceContext::new("nonsense").unwrap());
            let created = client.create(vec![new]).await.unwrap();
            let chain = created[0].chain().unwrap();
            client.wait(Chain::<Order>::from_id(chain)).timeout(TIMEOUT).await.unwrap();
        })
        .await;
        // The label is a separate chain, which the order starts.
        let roots = received.draw(false);
        assert!(!roots.contains("process order") && !roots.contains("create pack"), "{roots}");
    }
}

#[derive(serde::Serialize, serde::Deserialize, Job)]
#[job(name = "spy", entry, output = Option<String>)]
struct Spy;

/// The handler's own spans of `tracing`, and the context that it passes to programs.
///
/// On one thread, because the subscriber of `tracing` is set for the thread. Other tests must not use it.
#[tokio::test]
async fn spans_of_a_handler_are_children_of_its_attempt() {
    async fn spy(_: Ctx<Spy>) -> Result<Option<String>, BoxError> {
        tokio::task::yield_now().await;
        tracing::info_span!("the handler's own").in_scope(|| {});
        Ok(current_traceparent())
    }
    let (received, endpoint) = receive(Wire::Grpc).await;
    let (traces, metrics) = providers(Wire::Grpc, &endpoint, "test");
    let layer = tracing_opentelemetry::layer().with_tracer(traces.tracer("application"));
    let subscribed = subscribe(tracing_subscriber::registry().with(layer));
    let client = client(&Telemetry::new().traces(&traces));
    let worker = Worker::new(&client).concurrency(1).handle(spy).start().await.unwrap();
    let chain = client.start(Spy).await.unwrap();
    let parent = client.wait(chain).timeout(TIMEOUT).await.unwrap().unwrap();
    worker.stop(TIMEOUT).await;
    drop(subscribed);
    flush(traces, metrics).await;
    let [attempt] = &received.named("process spy")[..] else { panic!("one attempt") };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [own] = &received.named("the handler's own")[..] else { panic!("one span of the handler") };
    // The span `attempt` of the log lines is between them.
    let [logged] = &received.named("attempt")[..] else { panic!("one span of the log") };
    assert_eq!(hex(&own.parent_span_id), hex(&logged.span_id));
    assert_eq!(hex(&logged.parent_span_id), hex(&attempt.span_id));
    assert_eq!(own.trace_id, attempt.trace_id);
    assert!(parent.starts_with(&format!("00-{}-", hex(&attempt.trace_id))), "{parent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsampled_trace_stays_unsampled_in_every_process() {
    let unsampled = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
    let (received, endpoint) = receive(Wire::Grpc).await;
    let (traces, metrics) = providers(Wire::Grpc, &endpoint, "worker");
    let producer = client(&Telemetry::new().traces(&unsampled));
    let chain = producer.start(Label { number: 1 }).await.unwrap();
    let stored = producer.chain(chain).await.unwrap().unwrap().trace.unwrap();
    assert!(stored.as_str().ends_with("-00"), "{stored}");
    let store = std::sync::Arc::new(MemoryStore::new());
    let producer =
        Client::<MemoryStore>::builder(store.clone()).observer(Telemetry::new().traces(&unsampled)).build();
    let consumer = Client::<MemoryStore>::builder(store).observer(Telemetry::new().traces(&traces)).build();
    let worker = Worker::new(&consumer).concurrency(1).handle(label).start().await.unwrap();
    let chain = producer.start(Label { number: 1 }).await.unwrap();
    consumer.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    flush(traces, metrics).await;
    assert_eq!(received.count(), 0, "{}", received.draw(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_a_child_of_the_callers_span() {
    for wire in [Wire::Grpc, Wire::Http] {
        let (received, endpoint) = receive(wire).await;
        let (traces, metrics) = providers(wire, &endpoint, "test");
        let client = client(&Telemetry::new().traces(&traces));
        let span = traces.tracer("application").start("a request");
        span_in(span, async {
            client.start_many([plan(Label { number: 1 }), plan(Label { number: 2 })]).await.unwrap();
        })
        .await;
        flush(traces, metrics).await;
        let expected = "
a request (internal)
  create chain label (producer)
    create label (producer)
  create chain label (producer)
    create label (producer)
  send label (client) -> create chain label, create chain label
";
        check(&received, expected);
        let [send] = &received.named("send label")[..] else { panic!("one call") };
        let has = |key: &str, value: &str| assert_eq!(attribute(send, key).as_deref(), Some(value), "{key}");
        has("messaging.batch.message_count", "2");
        has("messaging.operation.name", "send");
        has("messaging.operation.type", "send");
        has("messaging.destination.name", "label");
        assert_eq!(attribute(send, "messaging.message.id"), None, "it is about several jobs");
        let created = received.named("create label");
        assert!(created.iter().all(|span| attribute(span, "messaging.batch.message_count").is_none()));
    }
}

/// Two processes have nothing in common but the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_links_to_the_attempt_of_another_process() {
    let (received, endpoint) = receive(Wire::Http).await;
    let store = Arc::new(MemoryStore::new());
    let mut chain = None;
    for process in 1..=3 {
        let (traces, metrics) = providers(Wire::Http, &endpoint, "test");
        let client =
            Client::<MemoryStore>::builder(store.clone()).observer(Telemetry::new().traces(&traces)).build();
        let chain = match chain {
            Some(chain) => chain,
            None => *chain.insert(client.start(Label { number: 1 }).await.unwrap()),
        };
        let worker = Worker::new(&client).concurrency(1);
        if process == 3 {
            let worker = worker.handle(label).start().await.unwrap();
            client.wait(chain).timeout(TIMEOUT).await.unwrap();
            worker.stop(TIMEOUT).await;
        } else {
            // The worker stops while the handler runs, and requeues the job.
            let running = Arc::new(Notify::new());
            let reached = Arc::clone(&running);
            let obey = move |job: Ctx<Label>| {
                let reached = Arc::clone(&reached);
                async move {
                    reached.notify_one();
                    job.aborted().wait().await;
                    Err::<String, BoxError>("stopped".into())
                }
            };
            let worker = worker.handle(obey).start().await.unwrap();
            running.notified().await;
            worker.stop_now(TIMEOUT).await;
        }
        flush(traces, metrics).await;
    }
    let mut attempts = received.named("process label");
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    let ids = |spans: &[Span]| spans.iter().map(|span| span.span_id.clone()).collect::<Vec<_>>();
    let links: Vec<_> =
        attempts.iter().flat_map(|span| span.links.iter().map(|link| link.span_id.clone())).collect();
    assert_eq!((attempts.len(), links), (3, ids(&attempts[..2])), "{}", received.draw(true));
}

async fn span_in(span: opentelemetry_sdk::trace::Span, run: impl Future<Output = ()>) {
    use opentelemetry::trace::FutureExt;
    let context = Context::new().with_span(span);
    context.span().set_attribute(KeyValue::new("test", true));
    run.with_context(context).await;
}
