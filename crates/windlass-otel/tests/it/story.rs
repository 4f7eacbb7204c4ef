//! A chain of three steps with a blocker, started in an axum handler and worked by two processes, is one tree.

use std::process::Stdio;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use opentelemetry::Context;
use opentelemetry::trace::{FutureExt, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use windlass::sqlite::{self, Client};
use windlass::{Handlers, Worker};
use windlass_otel::Telemetry;

use crate::jobs::{Order, TIMEOUT, label, order, pack, ship};
use crate::receiver::{Wire, flush, providers, receive};

/// Environment variables of the worker processes.
const FILE: &str = "WINDLASS_TEST_FILE";
const ENDPOINT: &str = "WINDLASS_TEST_ENDPOINT";
const ROLE: &str = "WINDLASS_TEST_ROLE";
const WIRE: &str = "WINDLASS_TEST_WIRE";

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_across_processes_is_one_readable_tree() {
    for wire in [Wire::Grpc, Wire::Http] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let (received, endpoint) = receive(wire).await;
        let (traces, metrics) = providers(wire, &endpoint, "api");
        let store = sqlite::open(&file).await.unwrap();
        let client = Client::builder(store).observer(Telemetry::new().traces(&traces)).build();
        let children =
            ["worker-1", "worker-2"].map(|role| process(role, wire, file.to_str().unwrap(), &endpoint));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router =
            Router::new().route("/orders", post(take_order)).with_state((client.clone(), traces.clone()));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let mut request = TcpStream::connect(address).await.unwrap();
        let text = "POST /orders HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        request.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        request.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("shipped with label 7"), "{answer}");
        server.abort();
        for child in children {
            stop(child).await;
        }
        flush(traces, metrics).await;
        let golden = "
POST /orders (server) [api]
  create chain order (producer) [api]
    create order (producer) [api]
      process order (consumer) [worker-1]
        create chain label (producer) [worker-1]
          create label (producer) [worker-1]
            process label (consumer) [worker-2]
          close chain label (internal) [worker-2]
    create pack (producer) [worker-1] -> create order, process order
      await chain (producer) [worker-1] -> create chain label
        resolve chain (consumer) [worker-2] -> create chain label
      process pack (consumer) [worker-1]
    create ship (producer) [worker-1] -> create pack, process pack
      process ship (consumer) [worker-2]
    close chain order (internal) [worker-2]
";
        let drawing = received.draw(true);
        assert_eq!(drawing.trim(), golden.trim(), "\n{drawing}");
    }
}

/// Starts an order in a span of the server, and waits for its end.
async fn take_order(State((client, traces)): State<(Client, SdkTracerProvider)>) -> String {
    let tracer = traces.tracer("api");
    let span = tracer.span_builder("POST /orders").with_kind(SpanKind::Server).start(&tracer);
    let context = Context::new().with_span(span);
    let handle = async {
        let chain = client.start(Order { number: 7 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap()
    };
    handle.with_context(context).await
}

/// A worker process: handles the types of its role until its input ends.
#[tokio::test(flavor = "multi_thread")]
async fn worker_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let variable = |name| std::env::var(name).unwrap();
    let wire = if variable(WIRE) == format!("{:?}", Wire::Http) { Wire::Http } else { Wire::Grpc };
    let (traces, metrics) = providers(wire, &variable(ENDPOINT), &role);
    let store = sqlite::open(variable(FILE)).await.unwrap();
    let telemetry = Telemetry::new().traces(&traces).metrics(&metrics);
    let client = Client::builder(store).observer(telemetry).build();
    let handlers = match role.as_str() {
        "worker-1" => Handlers::new().handle(order).handle(pack),
        _ => Handlers::new().handle(label).handle(ship),
    };
    let worker = Worker::new(&client).concurrency(1).handlers(handlers).start().await.unwrap();
    let mut input = String::new();
    tokio::io::stdin().read_to_string(&mut input).await.unwrap();
    worker.stop(TIMEOUT).await;
    client.close().await.unwrap();
    flush(traces, metrics).await;
}

fn process(role: &str, wire: Wire, file: &str, endpoint: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["story::worker_process", "--exact", "--nocapture"]);
    command.env(ROLE, role).env(WIRE, format!("{wire:?}")).env(FILE, file).env(ENDPOINT, endpoint);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// Ends the input of a process, and waits for its end.
async fn stop(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().await.unwrap().success());
}
