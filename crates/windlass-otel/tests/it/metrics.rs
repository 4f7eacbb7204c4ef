//! Metrics of jobs, chains, attempts, workers and the store, as the Prometheus endpoint shows them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use windlass::client::CancelMode;
use windlass::observer::{About, Activity, AttemptScope, Event};
use windlass::reaper::Reaper;
use windlass::store::{Capabilities, Decorator};
use windlass::{BoxError, Client, Ctx, HandlerOptions, MemoryStore, Next, Observer, Store, Worker, plan};
use windlass_otel::{Prometheus, TYPES_MAX, Telemetry};

use crate::jobs::{Label, Order, Parcel, TIMEOUT, client, label, worker};

fn telemetry() -> (Prometheus, Telemetry) {
    let prometheus = Prometheus::new().unwrap();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider());
    (prometheus, telemetry)
}

/// Returns the sum of all series of this name whose labels contain the text.
fn value(prometheus: &Prometheus, name: &str, labels: &str) -> f64 {
    let text = prometheus.text().unwrap();
    let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    let lines = text.lines().filter(of_name).filter(|line| line.contains(labels));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[track_caller]
fn check(prometheus: &Prometheus, expected: &[(&str, &str, f64)]) {
    for (name, labels, expected) in expected {
        let value = value(prometheus, name, labels);
        assert!(
            (value - expected).abs() < f64::EPSILON,
            "{name} {labels}: {value}, not {expected}\n{}",
            prometheus.text().unwrap()
        );
    }
}

#[tokio::test]
async fn a_chain_with_a_blocker_is_counted() {
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let worker = worker(&client).await;
    check(
        &prometheus,
        &[("windlass_job_type_idle", "\"order\"", 4.0), ("windlass_job_type_processing", "\"order\"", 0.0)],
    );
    let chain = client.start(Order { number: 1 }).await.unwrap();
    // A typed wait would get the output from the worker, without a query.
    client.closed(chain.id(), TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    check(
        &prometheus,
        &[
            ("windlass_worker_started_total", "\"packer\"", 1.0),
            ("windlass_worker_stopping_total", "\"packer\"", 1.0),
            ("windlass_worker_stopped_total", "\"packer\"", 1.0),
            ("windlass_chain_created_total", "", 2.0),
            ("windlass_chain_closed_total", "windlass_status=\"completed\"", 2.0),
            ("windlass_chain_duration_seconds_count", "windlass_chain_type=\"order\"", 1.0),
            ("windlass_job_created_total", "windlass_chain_type=\"order\"", 3.0),
            ("windlass_job_completed_total", "windlass_result=\"continued\"", 2.0),
            ("windlass_job_completed_total", "windlass_result=\"completed\"", 2.0),
            ("windlass_job_duration_seconds_count", "", 4.0),
            ("windlass_job_blocked_total", "\"pack\"", 1.0),
            ("windlass_job_unblocked_total", "\"pack\"", 1.0),
            ("windlass_job_wait_seconds_count", "", 4.0),
            ("windlass_attempt_started_total", "", 4.0),
            ("windlass_attempt_completed_total", "", 4.0),
            ("windlass_attempt_duration_seconds_count", "windlass_result=\"completed\"", 2.0),
            ("windlass_job_type_processing", "", 0.0),
            ("windlass_job_type_idle", "", 0.0),
            ("messaging_client_sent_messages_total", "messaging_operation_name=\"send\"", 4.0),
            ("messaging_client_consumed_messages_total", "messaging_system=\"windlass\"", 4.0),
            ("messaging_process_duration_seconds_count", "", 4.0),
            ("windlass_batch_size_count", "windlass_batch=\"start\"", 1.0),
        ],
    );
    let receive = "messaging_operation_name=\"receive\",messaging_operation_type=\"receive\"";
    assert!(value(&prometheus, "messaging_client_operation_duration_seconds_count", receive) > 0.0);
    assert!(value(&prometheus, "messaging_client_operation_duration_seconds_count", "\"receive\"") > 0.0);
    assert!(value(&prometheus, "windlass_store_duration_seconds_count", "\"acquire\"") > 0.0);
    for batch in ["settle", "query"] {
        let batch = format!("windlass_batch=\"{batch}\"");
        assert!(value(&prometheus, "windlass_batch_size_count", &batch) > 0.0, "{batch}");
    }
}

#[tokio::test]
async fn failures_retries_keys_and_changes_are_counted() {
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let worker = worker(&client).await;
    let chain = client.start(Parcel { failures: 3 }).key("one").await.unwrap();
    client.start(Parcel { failures: 3 }).key("one").await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    worker.stop(TIMEOUT).await;
    client.retry(chain).await.unwrap();
    client.trigger(chain).await.unwrap();
    client.cancel(chain, CancelMode::UnlessRunning).await.unwrap();
    client.delete(vec![chain.id().into()]).await.unwrap();
    check(
        &prometheus,
        &[
            ("windlass_chain_existed_total", "\"parcel\"", 1.0),
            ("windlass_attempt_failed_total", "\"parcel\"", 3.0),
            ("windlass_attempt_duration_seconds_count", "windlass_result=\"retried\"", 2.0),
            ("windlass_attempt_duration_seconds_count", "windlass_result=\"failed\"", 1.0),
            ("messaging_process_duration_seconds_count", "error_type=\"handler\"", 3.0),
            ("windlass_job_failed_total", "\"parcel\"", 1.0),
            ("windlass_chain_closed_total", "windlass_status=\"failed\"", 1.0),
            ("windlass_chain_retried_total", "\"parcel\"", 1.0),
            ("windlass_job_triggered_total", "\"parcel\"", 1.0),
            ("windlass_job_cancelled_total", "\"parcel\"", 1.0),
            ("windlass_chain_closed_total", "windlass_status=\"cancelled\"", 1.0),
            ("windlass_chain_deleted_total", "\"parcel\"", 1.0),
        ],
    );
}

/// Drops the scopes of attempts at once, as if the attempts were dropped.
#[derive(Debug)]
struct Dropping(Telemetry);

impl Observer for Dropping {
    fn observe(&self, event: &Event) {
        self.0.observe(event);
    }

    fn measure(&self, activity: &Activity) {
        self.0.measure(activity);
    }

    fn attempt(&self, about: &About) -> Option<Box<dyn AttemptScope>> {
        drop(self.0.attempt(about));
        None
    }
}

#[tokio::test]
async fn slots_of_dropped_attempts_and_workers_are_not_counted() {
    let (prometheus, telemetry) = telemetry();
    let client = Client::builder(MemoryStore::new()).observer(Dropping(telemetry)).build();
    let worker = worker(&client).await;
    let chain = client.start(Label { number: 1 }).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    check(
        &prometheus,
        &[
            ("windlass_attempt_started_total", "\"label\"", 1.0),
            ("windlass_job_type_processing", "\"label\"", 0.0),
            ("windlass_job_type_idle", "\"label\"", 4.0),
        ],
    );
    drop(worker);
    check(&prometheus, &[("windlass_job_type_idle", "", 0.0), ("windlass_job_type_processing", "", 0.0)]);
}

#[tokio::test]
async fn a_cancelled_attempt_is_not_a_rescheduled_one() {
    async fn obey(job: Ctx<Label>) -> Result<Next<Label>, BoxError> {
        job.aborted().wait().await;
        Err("stopped".into())
    }
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let worker = Worker::new(&client).concurrency(1).handle(obey).start().await.unwrap();
    let chain = client.start(Label { number: 1 }).await.unwrap();
    while value(&prometheus, "windlass_attempt_started_total", "") < 1.0 {
        tokio::task::yield_now().await;
    }
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    worker.stop(TIMEOUT).await;
    check(
        &prometheus,
        &[
            ("windlass_attempt_cancelled_total", "", 1.0),
            ("windlass_attempt_rescheduled_total", "", 0.0),
            ("windlass_attempt_lost_total", "", 0.0),
        ],
    );
}

#[tokio::test]
async fn a_rolled_back_start_is_not_counted() {
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let mut tx = client.begin().await.unwrap();
    tx.start(Label { number: 1 }).await.unwrap();
    tx.rollback().await.unwrap();
    check(&prometheus, &[("windlass_job_created_total", "", 0.0), ("windlass_chain_created_total", "", 0.0)]);
}

/// A store that creates and acquires with one command.
#[derive(Debug)]
struct Joining(MemoryStore);

impl Decorator for Joining {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn supported(&self) -> Capabilities {
        self.0.capabilities().joining()
    }
}

#[tokio::test]
async fn a_start_that_also_acquires_is_measured_as_a_send() {
    let (prometheus, telemetry) = telemetry();
    let client = Client::builder(Joining(MemoryStore::new())).observer(telemetry).build();
    let worker = Worker::new(&client).concurrency(1).handle(label).start().await.unwrap();
    let joined = || {
        let command = "windlass_command=\"create_and_acquire\"";
        value(&prometheus, "windlass_store_duration_seconds_count", command)
    };
    let mut starts = 0.0;
    // The worker may not be idle yet.
    while joined() < 1.0 {
        let chain = client.start(Label { number: 1 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        starts += 1.0;
    }
    worker.stop(TIMEOUT).await;
    let sends = "messaging_operation_name=\"send\",messaging_operation_type=\"send\"";
    check(&prometheus, &[("messaging_client_operation_duration_seconds_count", sends, starts)]);
}

#[tokio::test]
async fn slots_are_counted_by_type_even_if_there_are_too_many_pairs_of_types() {
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let (running, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (reached, gate) = (Arc::clone(&running), Arc::clone(&finish));
    let hold = move |_: Ctx<Label>| {
        let (reached, gate) = (Arc::clone(&reached), Arc::clone(&gate));
        async move {
            reached.notify_one();
            gate.notified().await;
            Ok::<_, BoxError>(String::new())
        }
    };
    // The worker's type is one of the first that are reported by name. Its pair is not.
    let worker = Worker::new(&client).concurrency(2).handle(hold).start().await.unwrap();
    for number in 0..TYPES_MAX {
        let queue = client.queue::<u32, u32>(&format!("type-{number}")).build().unwrap();
        queue.enqueue("a", 1).await.unwrap();
    }
    let chain = client.start(Label { number: 1 }).await.unwrap();
    running.notified().await;
    let slots = |idle: f64, busy: f64| {
        let (label, other) = ("\"label\"", "\"_other\"");
        check(
            &prometheus,
            &[
                ("windlass_attempt_started_total", other, 1.0),
                ("windlass_job_type_idle", label, idle),
                ("windlass_job_type_idle", other, 0.0),
                ("windlass_job_type_processing", label, busy),
                ("windlass_job_type_processing", other, 0.0),
            ],
        );
    };
    slots(1.0, 1.0);
    finish.notify_one();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    slots(0.0, 0.0);
}

#[tokio::test(start_paused = true)]
async fn lost_attempts_are_counted_by_reason() {
    let (prometheus, telemetry) = telemetry();
    crate::scenario::losses(&telemetry).await;
    for reason in ["already_closed", "taken_over", "timed_out"] {
        let result = format!("windlass_result=\"{reason}\"");
        check(&prometheus, &[("windlass_attempt_lost_total", &result, 1.0)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_ends_is_counted_apart_from_its_interruptions() {
    let (prometheus, telemetry) = telemetry();
    crate::scenario::subscriptions(&telemetry).await;
    check(
        &prometheus,
        &[
            ("windlass_notifier_connected_total", "", 2.0),
            ("windlass_notifier_lost_total", "", 1.0),
            ("windlass_notifier_gap_total", "", 1.0),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn leases_losses_and_the_reaper_are_counted() {
    async fn hang(_: Ctx<Label>) -> Result<String, BoxError> {
        std::future::pending().await
    }
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let options = HandlerOptions::new().lease(Duration::from_secs(10)).renewal(Duration::from_secs(2));
    let options = options.timeout(Duration::from_secs(5));
    let worker = Worker::new(&client).concurrency(1).handle_with(options, hang).start().await.unwrap();
    let reaper = Reaper::new(&client).start().await.unwrap();
    reaper.leadership().wait_for(|leads| *leads).await.unwrap();
    let chain = client.start(Label { number: 1 }).await.unwrap();
    let lost = || value(&prometheus, "windlass_attempt_lost_total", "windlass_result=\"timed_out\"") > 0.0;
    while !lost() {
        tokio::time::sleep(Duration::from_millis(100)).await; // tidy: paused time
    }
    assert!(value(&prometheus, "windlass_attempt_lease_renewed_total", "\"label\"") > 0.0);
    check(&prometheus, &[("windlass_reaper_leader", "", 1.0)]);
    assert!(value(&prometheus, "windlass_attempt_timed_out_total", "\"label\"") > 0.0);
    reaper.stop().await;
    check(&prometheus, &[("windlass_reaper_leader", "", 0.0)]);
    client.step(chain).await.unwrap().of::<Label>().unwrap().done(String::new()).await.unwrap();
    worker.stop_now(TIMEOUT).await;
}

#[tokio::test]
async fn errors_of_the_store_are_counted_by_kind() {
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    client.close().await.unwrap();
    client.start(Label { number: 1 }).await.unwrap_err();
    check(
        &prometheus,
        &[("windlass_store_error_total", "error_type=\"closed\",windlass_command=\"create\"", 1.0)],
    );
}

#[tokio::test]
async fn ten_thousand_types_are_bounded_with_one_warning() {
    let (warnings, _subscribed) = crate::trouble::count_warnings();
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    let queue = |number: usize| client.queue::<u32, u32>(&format!("type-{number}")).build().unwrap();
    for number in 0..10_000 {
        queue(number).enqueue("a", 1).await.unwrap();
    }
    let text = prometheus.text().unwrap();
    let series = text.lines().filter(|line| line.starts_with("windlass_job_created_total{")).count();
    assert_eq!(series, TYPES_MAX + 1);
    let other = format!("{}", 10_000 - TYPES_MAX);
    let is_other = |line: &str| line.contains("\"_other\"") && line.ends_with(&format!(" {other}"));
    assert!(text.lines().any(is_other), "{other} jobs of other types");
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_endpoint_serves_text() {
    let (prometheus, telemetry) = telemetry();
    let client = client(&telemetry);
    client.start(Label { number: 1 }).await.unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let address = prometheus.listen(address, std::future::pending()).await.unwrap();
    let get = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = get("/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("content-type: text/plain; version=0.0.4"));
    assert!(answer.contains("windlass_job_created_total{"), "{answer}");
    assert!(get("/").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_half_a_request_is_disconnected() {
    let (prometheus, _) = telemetry();
    let address = "127.0.0.1:0".parse().unwrap();
    let address = prometheus.listen(address, std::future::pending()).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metr").await.unwrap();
    let connected_at = tokio::time::Instant::now();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(600), stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "still connected after {:?}", connected_at.elapsed());
}

#[tokio::test]
async fn an_observer_without_providers_is_off() {
    let telemetry = Telemetry::new();
    let client = client(&telemetry);
    let gauges = telemetry.watch_state(&client);
    assert!(!gauges.decided().await);
    let chain = client.start_many([plan(Label { number: 1 })]).await.unwrap()[0];
    assert!(client.chain(chain).await.unwrap().unwrap().trace.is_none());
}
