//! Server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use windlass_core::ChainId;

use super::filter::type_names;
use super::problem::Problem;
use super::route::{Answer, Call, Given, NoBody, invalid_id};
use crate::IDENTITY_MAX;
use crate::auth::{Identity, Via, authenticate};
use crate::bulk::Operation;
use crate::events::{Batch, Events, Wanted, frame};
use crate::permits::Permit;
use crate::sampler::Sample;
use crate::server::App;

/// The content of a stream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// A topic. Can be repeated. Default: `samples`.
    #[serde(default, rename = "topic")]
    topics: Vec<Topic>,
    /// Events of chains of this type. Can be repeated. Default: all types.
    #[serde(default, rename = "type")]
    types: Vec<String>,
    /// Events of this chain.
    chain: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Topic {
    /// Samples of the whole store (`sample`).
    Samples,
    /// Events of jobs (`jobs`). While a stream has this topic, each event costs its publisher a notification.
    Jobs,
    /// Progress of bulk operations (`bulk`).
    Bulk,
}

/// The time that a client has to read a message.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Streaming(Body);

pub(crate) async fn get(call: Call, given: Given<EventsQuery, NoBody>) -> Result<Streaming, Problem> {
    let caller = call.caller()?.clone();
    let permit = call.app.streams.take(&caller.identity.name)?;
    let EventsQuery { mut topics, types, chain } = given.query;
    let types = type_names(&types)?.iter().map(ToString::to_string).collect();
    let chain = chain.map(|chain| chain.parse::<ChainId>().map_err(|_| invalid_id(&chain))).transpose()?;
    if topics.is_empty() {
        topics.push(Topic::Samples);
    }
    let app = Arc::clone(&call.app);
    let has = |topic| topics.contains(&topic);
    let mut checks = interval_at(Instant::now() + app.heartbeat.check, app.heartbeat.check);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = EventStream {
        first: Some(frame("resync", &json!({"heartbeat_ms": app.heartbeat.every.as_millis()}))),
        samples: has(Topic::Samples).then(|| app.sampler.watch()),
        jobs: has(Topic::Jobs).then(|| app.feed.watch()),
        bulk: has(Topic::Bulk).then(|| app.bulk.watch()),
        wanted: Wanted { types, chain: chain.map(|chain| chain.to_string()) },
        shows_errors: call.sight().sees_events_errors(),
        // The request is a copy: the application cannot withdraw an identity that it was read from.
        ends_at: (caller.via == Via::Hook).then(|| Instant::now() + IDENTITY_MAX),
        identity: caller.identity,
        request: call.request,
        beat_at: Instant::now() + app.heartbeat.every,
        checks,
        app,
        _permit: permit,
    };
    let (messages, received) = mpsc::channel(1);
    tokio::spawn(stream.run(messages));
    let frames = stream::unfold(received, |mut received| async {
        let frame = received.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), received))
    });
    Ok(Streaming(Body::from_stream(frames)))
}

impl Answer for Streaming {
    fn into_response(self) -> Response {
        let content_type = (header::CONTENT_TYPE, "text/event-stream");
        // Proxies such as nginx collect answers otherwise.
        ([content_type, (header::HeaderName::from_static("x-accel-buffering"), "no")], self.0).into_response()
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        // A stream has no schema of its own: these are the types of its `data`, by the name of the event.
        let (sample, jobs) = (generator.subschema_for::<Sample>(), generator.subschema_for::<Events>());
        let bulk = generator.subschema_for::<Operation>();
        let schema = json_schema!({
            "type": "string",
            "description": "Events named `resync`, `sample`, `jobs`, `bulk`, `heartbeat` and `end`.",
            "x-events": {"sample": sample, "jobs": jobs, "bulk": bulk},
        });
        vec![(StatusCode::OK, "text/event-stream", schema)]
    }
}

struct EventStream {
    first: Option<Bytes>,
    samples: Option<broadcast::Receiver<Bytes>>,
    jobs: Option<broadcast::Receiver<Arc<Batch>>>,
    bulk: Option<broadcast::Receiver<Bytes>>,
    wanted: Wanted,
    shows_errors: bool,
    identity: Identity,
    ends_at: Option<Instant>,
    request: axum::http::request::Parts,
    checks: Interval,
    beat_at: Instant,
    app: Arc<App>,
    _permit: Permit,
}

impl EventStream {
    /// Sends messages until the stream ends, or until its client has disconnected or no longer reads. It runs in a
    /// separate task, because the body of a response is not polled while the client does not read: the stream would keep
    /// its permit forever.
    async fn run(mut self, messages: mpsc::Sender<Bytes>) {
        loop {
            // A message is made when the one before it was read, so that it is not out of date.
            let Ok(Ok(room)) = timeout(READ_TIMEOUT, messages.reserve()).await else { return };
            let (message, goes_on) = tokio::select! {
                next = self.next() => next,
                () = messages.closed() => return,
            };
            room.send(message);
            if !goes_on {
                return;
            }
        }
    }

    /// Returns the next message, and whether the stream continues after it.
    async fn next(&mut self) -> (Bytes, bool) {
        let (message, goes_on) = self.message().await;
        // A client that reads slowly asks for a message long after the latest check.
        if goes_on && !self.is_admitted() { (end("session"), false) } else { (message, goes_on) }
    }

    async fn message(&mut self) -> (Bytes, bool) {
        if let Some(first) = self.first.take() {
            return (first, true);
        }
        loop {
            tokio::select! {
                () = self.app.stop.cancelled() => return (end("stopping"), false),
                sample = received(&mut self.samples) => match sample {
                    // A client that was slow needs only the latest sample.
                    Err(Lagged) => {}
                    Ok(sample) => return (sample, true),
                },
                batch = received(&mut self.jobs) => match batch {
                    Err(Lagged) => return (resync(), true),
                    Ok(batch) => {
                        if let Some(frame) = batch.frame(&self.wanted, self.shows_errors) {
                            return (frame, true);
                        }
                    }
                },
                progress = received(&mut self.bulk) => {
                    // The end of an operation may be among the lost messages.
                    return (progress.unwrap_or_else(|Lagged| resync()), true);
                }
                _ = self.checks.tick() => {
                    if !self.is_admitted() {
                        return (end("session"), false);
                    }
                    if self.ends_at.is_some_and(|at| at <= Instant::now()) {
                        return (end("identity"), false);
                    }
                    if self.beat_at <= Instant::now() {
                        self.beat_at = Instant::now() + self.app.heartbeat.every;
                        return (frame("heartbeat", &json!({})), true);
                    }
                }
            }
        }
    }

    /// Whether the caller would still be admitted, with the same role.
    fn is_admitted(&self) -> bool {
        let caller = authenticate(&self.app.access, &self.request);
        caller.is_some_and(|caller| caller.identity == self.identity)
    }
}

fn end(reason: &str) -> Bytes {
    frame("end", &json!({"reason": reason}))
}

/// Asks the client to fetch again what it shows.
fn resync() -> Bytes {
    frame("resync", &json!({}))
}

/// The client reads so slowly that messages were lost. The number of lost messages is not reported, because each can
/// contain many events.
struct Lagged;

/// Waits for a message, or forever without a receiver.
async fn received<T: Clone>(receiver: &mut Option<broadcast::Receiver<T>>) -> Result<T, Lagged> {
    let Some(receiver) = receiver else { return std::future::pending().await };
    match receiver.recv().await {
        Ok(message) => Ok(message),
        Err(RecvError::Lagged(_)) => Err(Lagged),
        // The sender lives as long as the server.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}
