//! Records spans of chains, jobs, waits and attempts.

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::HashMap;
use opentelemetry::global::{BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceId, Tracer,
};
use opentelemetry::{Context, ContextGuard, KeyValue};
use opentelemetry_sdk::trace::SamplingResult;
use windlass_core::{
    About, BatchEnd, BatchStart, BlockersFound, ChainId, Ended, ErrorKind, Event, JobId, NotWritten, Stage,
    TraceContext, Traced, TypeName,
};

use crate::attributes::{
    self, BATCH_COUNT, BLOCKER, CHAIN_EXISTED, DESTINATION, DUE_AT, ERROR_TYPE, NEXT_JOB, OPERATION,
    OPERATION_TYPE, RESULT, STATUS, SYSTEM,
};
use crate::context::{is_unsampled, parse, store};
use crate::ids;
use crate::invalid::InvalidContexts;
use crate::metrics::{error_name, error_type, result, status};
use crate::recent::Recent;
use crate::sampler::{self, ChainSampler, Decision};
use crate::types::TYPES_MAX;
use crate::waits::Waits;

/// The maximum number of jobs whose creation is a span that is open, because the transaction is. If there are more, the
/// oldest span ends.
const OPEN_MAX: usize = 10_000;

/// The maximum number of links from a call to the chains that it starts. Providers have the same limit by default.
const LINKS_MAX: usize = 128;

/// The number of jobs whose latest attempt is remembered, for a link from the next one. Not used with
/// [`AttemptIds`](crate::AttemptIds).
const ATTEMPTS_MAX: usize = 4_096;

/// The number of chains whose contexts are remembered, for links from the jobs that wait for them. The contexts of other
/// chains are queried.
const STARTED_MAX: usize = 4_096;

pub(crate) struct Spans {
    tracer: BoxedTracer,
    /// Spans of what is being created: until the commit or the rollback.
    open: Mutex<Recent<JobId, Vec<(Traced, BoxedSpan)>>>,
    /// Whether a span that is not sampled was ever open: the sampler may decide to record without sampling.
    records_unsampled: AtomicBool,
    /// The sampler that decides about chains before their spans are built.
    pub(crate) sampler: Option<ChainSampler>,
    /// Whether the provider turned out to use another sampler.
    has_other_sampler: AtomicBool,
    /// The builders of the spans of new chains, by type. The sampler may depend on their attributes.
    chains: RwLock<HashMap<TypeName, SpanBuilder>>,
    /// The latest chains that this process started and that are sampled, for links from the jobs that wait for them.
    started: Mutex<Recent<ChainId, Option<(SpanContext, TypeName)>>>,
    /// The latest attempts of jobs that will be retried.
    attempts: Mutex<Recent<JobId, Option<SpanContext>>>,
    invalid: InvalidContexts,
}

impl Spans {
    pub(crate) fn new(tracer: BoxedTracer, sampler: Option<ChainSampler>, invalid: InvalidContexts) -> Self {
        Self {
            tracer,
            open: Mutex::new(Recent::new(OPEN_MAX)),
            records_unsampled: AtomicBool::new(false),
            sampler,
            has_other_sampler: AtomicBool::new(false),
            chains: RwLock::default(),
            started: Mutex::new(Recent::new(STARTED_MAX)),
            attempts: Mutex::new(Recent::new(ATTEMPTS_MAX)),
            invalid,
        }
    }

    /// Begins the span of something that is about to be written. Returns the context to store with it.
    ///
    /// The sampler decides once for each chain. What belongs to a chain that is not sampled has no spans, and no context of
    /// its own: most jobs are not sampled, so this path must be cheap.
    pub(crate) fn begin(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let span = match traced {
            Traced::Chain => match self.decide(about) {
                Decision::Unsampled(trace, span) => {
                    return Some(TraceContext::traceparent(trace.to_bytes(), span.to_bytes(), false));
                }
                Decision::Sampled(result, trace) => self.begin_decided(result, trace, about),
                Decision::Undecided => self.begin_chain(about),
            },
            Traced::Job => {
                // The context of the chain is unknown if it was started without telemetry. Its second job then decides for
                // all later ones, so each of them stores the context, even if it is not sampled.
                let inherited = about.chain_trace.is_none().then(|| about.cause_traces.last()).flatten();
                let parent = match about.chain_trace.as_ref().or(inherited) {
                    Some(chain) if is_unsampled(chain) => return inherited.cloned(),
                    // A child of an unreadable context would be the root of its own trace.
                    Some(chain) => match self.parse(chain)? {
                        parent if parent.is_sampled() => Some(parent),
                        _ => return inherited.cloned(),
                    },
                    None => None,
                };
                self.begin_job(parent, about)
            }
            Traced::Wait(blocker) => {
                let parent = self.parse(about.trace.as_ref()?)?;
                if !parent.is_sampled() {
                    return None;
                }
                self.begin_wait(parent, blocker, about)
            }
        };
        let context = store(span.span_context());
        if span.is_recording() {
            if !span.span_context().is_sampled() {
                self.records_unsampled.store(true, Ordering::Relaxed);
            }
            if traced == Traced::Chain && span.span_context().is_sampled() {
                let started = (span.span_context().clone(), about.chain_type.clone());
                let _ = lock(&self.started).update(about.chain, |chain| *chain = Some(started));
            }
            let dropped = lock(&self.open).update(about.job, |spans| spans.push((traced, span)));
            // After the lock: the end of a span runs the processors of the application.
            end_all(dropped.into_iter().flatten().map(|(_, span)| span), |_| {});
        }
        context
    }

    /// Asks the sampler about a new chain.
    fn decide(&self, about: &About) -> Decision {
        match &self.sampler {
            Some(sampler) if !self.has_other_sampler.load(Ordering::Relaxed) => {
                sampler.decide(|| self.chain_builder(about))
            }
            _ => Decision::Undecided,
        }
    }

    /// Begins the span of a chain that the sampler has decided about.
    fn begin_decided(&self, result: SamplingResult, trace: Option<TraceId>, about: &About) -> BoxedSpan {
        let (span, is_used) = sampler::build_with(result, trace, || self.begin_chain(about));
        // A provider that was shut down asks no sampler.
        let is_other = !is_used && span.span_context().is_valid();
        if is_other && !self.has_other_sampler.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "windlass", "the tracer provider does not use the `ChainSampler` that was passed to `Telemetry`: from now on, the sampler of the provider decides about chains");
        }
        span
    }

    fn begin_chain(&self, about: &About) -> BoxedSpan {
        let builder = self.chain_builder(about);
        let mut span = self.tracer.build_with_context(builder, &Context::current());
        if span.is_recording() {
            span.set_attributes(attributes::identity(about));
        }
        span
    }

    /// Returns the builder for a chain type, and keeps a copy unless there are too many types.
    fn chain_builder(&self, about: &About) -> SpanBuilder {
        let known = self.chains.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(builder) = known.get(&about.chain_type) {
            return builder.clone();
        }
        drop(known);
        let builder = SpanBuilder::from_name(format!("create chain {}", about.chain_type))
            .with_kind(SpanKind::Producer)
            .with_attributes(attributes::sampled("create", Some("create"), about));
        let mut known = self.chains.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < TYPES_MAX {
            known.insert(about.chain_type.clone(), builder.clone());
        }
        builder
    }

    fn begin_job(&self, parent: Option<SpanContext>, about: &About) -> BoxedSpan {
        let mut builder = SpanBuilder::from_name(format!("create {}", about.job_type))
            .with_kind(SpanKind::Producer)
            .with_attributes(attributes::span("create", Some("create"), about));
        // A continuation links to the job before it, and to the attempt that creates it.
        if !about.cause_traces.is_empty() {
            let attempt = Context::map_current(|caller| caller.span().span_context().clone());
            builder = builder.with_links(self.links(&about.cause_traces, &attempt));
        }
        self.tracer.build_with_context(builder, &remote(parent))
    }

    fn begin_wait(&self, parent: SpanContext, blocker: ChainId, about: &About) -> BoxedSpan {
        let mut attributes = attributes::span("await", None, about);
        attributes.push(KeyValue::new(BLOCKER, blocker.to_string()));
        let builder =
            SpanBuilder::from_name("await chain").with_kind(SpanKind::Producer).with_attributes(attributes);
        self.tracer.build_with_context(builder, &remote(Some(parent)))
    }

    /// Begins the span of a call that starts several chains. It links to their spans.
    pub(crate) fn batch(&self, batch: &BatchStart<'_>) -> Option<BatchEnd> {
        let name = match batch.chain_type {
            Some(chain_type) => format!("send {chain_type}").into(),
            None => Cow::Borrowed("send"),
        };
        let count = i64::try_from(batch.chains).unwrap_or(i64::MAX);
        let mut attributes = vec![
            KeyValue::new(SYSTEM, "windlass"),
            KeyValue::new(OPERATION, "send"),
            KeyValue::new(OPERATION_TYPE, "send"),
            KeyValue::new(BATCH_COUNT, count),
        ];
        let destination = batch.chain_type.map(|name| KeyValue::new(DESTINATION, name.as_str().to_owned()));
        attributes.extend(destination);
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Client).with_attributes(attributes);
        let mut span = self.tracer.build_with_context(builder, &Context::current());
        if !span.is_recording() {
            return None;
        }
        let sent = batch.traces.iter().filter_map(|trace| self.parse(trace));
        for context in sent.filter(SpanContext::is_sampled).take(LINKS_MAX) {
            span.add_link(context, Vec::new());
        }
        Some(Box::new(move |error| {
            if let Some(error) = error {
                span.set_attribute(KeyValue::new(ERROR_TYPE, error_name(error)));
                span.set_status(Status::error("the chains could not be started"));
            }
            span.end();
        }))
    }

    /// Ends the span of something that was not written.
    pub(crate) fn rolled_back(&self, traced: Traced, about: &About, why: NotWritten) {
        let (kind, text) = not_written(why);
        end_all(self.take(about.job, |open| open == traced), |span| {
            span.set_attribute(KeyValue::new(ERROR_TYPE, kind));
            span.set_status(Status::error(text.clone()));
        });
    }

    /// Ends the span of something for which no event follows.
    pub(crate) fn unreported(&self, traced: Traced, about: &About) {
        end_all(self.take(about.job, |open| open == traced), |_| {});
    }

    /// Ends the span of a chain that was not created, because this one holds the key.
    pub(crate) fn existed(
        &self,
        traced: Traced,
        about: &About,
        existing: ChainId,
        trace: Option<&TraceContext>,
    ) {
        end_all(self.take(about.job, |open| open == traced), |span| {
            span.set_attribute(KeyValue::new(CHAIN_EXISTED, existing.to_string()));
            if let Some(context) = trace.and_then(|trace| self.parse(trace)) {
                span.add_link(context, Vec::new());
            }
        });
    }

    pub(crate) fn observe(&self, event: &Event) {
        match event {
            // Also that of its chain, which is created with its first job. The spans of its waits follow: see
            // `find_blockers`.
            Event::JobCreated(about) => self.written(about, |traced| !matches!(traced, Traced::Wait(_))),
            Event::JobUnblocked(about) => self.resolved(about),
            // An attempt has its own span.
            Event::JobCompleted(about, next) if about.worker.is_none() => {
                let next = next.map(|next| KeyValue::new(NEXT_JOB, next.to_string()));
                self.settled_outside(about, "completed", next, Status::Ok);
            }
            Event::JobFailed(about, error) if about.worker.is_none() => {
                let error = Status::error(error.as_str().to_owned());
                self.settled_outside(about, "failed", None, error);
            }
            Event::ChainClosed(about, closed_as) => self.closed(about, status(*closed_as)),
            _ => {}
        }
    }

    /// Begins the span of an attempt. There is none if the stored context cannot be read: the span would be the root of a
    /// trace of its own.
    pub(crate) fn attempt(this: &Arc<Self>, about: &About) -> Option<AttemptSpan> {
        // Jobs of a chain that is not sampled have no context of their own.
        let stored = about.trace.as_ref().or(about.chain_trace.as_ref());
        let parent = match stored {
            Some(trace) => Some(this.parse(trace)?),
            None => None,
        };
        let context = match parent {
            // The chain is not sampled. Its context is still current, so that the spans of the handler are not
            // sampled either.
            Some(parent) if !parent.is_sampled() => {
                return Some(AttemptSpan { context: remote(Some(parent)), recorded: None });
            }
            parent => Context::new().with_span(this.begin_attempt(parent, about)),
        };
        let recorded = context.span().is_recording().then(|| Box::new(Recorded::new(this)));
        Some(AttemptSpan { context, recorded })
    }

    /// Begins the span of an attempt, and links it to the attempt before it.
    fn begin_attempt(&self, parent: Option<SpanContext>, about: &About) -> BoxedSpan {
        let builder = SpanBuilder::from_name(format!("process {}", about.job_type))
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes::span("process", Some("process"), about));
        let delivery = about.delivery.unwrap_or_default();
        let known = parent.as_ref().map(|parent| ids::attempt(parent, about.job, delivery).span_id());
        let before = parent.as_ref().filter(|_| delivery > 1);
        let before = before.map(|parent| ids::attempt(parent, about.job, delivery - 1));
        let parent = remote(parent);
        let build = || self.tracer.build_with_context(builder, &parent);
        let mut span = match known {
            Some(id) => ids::build_with(id, build),
            None => build(),
        };
        let remembered = lock(&self.attempts).remove(&about.job).flatten();
        // If the provider does not use the known ids, neither did the attempt before.
        let before = if known == Some(span.span_context().span_id()) { before } else { remembered };
        if let Some(before) = before {
            span.add_link(before, Vec::new());
        }
        span
    }

    /// Ends the spans of a job that was written.
    fn written(&self, about: &About, is: impl Fn(Traced) -> bool) {
        if self.may_be_open(about) {
            end_all(self.take(about.job, is), |_| {});
        }
    }

    /// Whether spans of a new job may be open.
    fn may_be_open(&self, about: &About) -> bool {
        let is_unsampled = about.chain_trace.as_ref().is_some_and(is_unsampled);
        !is_unsampled || self.records_unsampled.load(Ordering::Relaxed)
    }

    /// Links the waits of a job that was written to the chains that it waits for, and ends their spans. If this process did
    /// not start all of these chains, returns a function that does the rest when the store has returned their contexts.
    pub(crate) fn find_blockers(this: &Arc<Self>, about: &About) -> Option<BlockersFound> {
        if !this.may_be_open(about) {
            return None;
        }
        let is_wait = |traced: Traced| matches!(traced, Traced::Wait(_));
        let mut waits = Waits::new(this.take_with(about.job, is_wait), &about.blockers);
        waits.link(|chain| lock(&this.started).get(&chain).cloned().flatten());
        if waits.0.is_empty() {
            return None;
        }
        let this = Arc::clone(this);
        Some(Box::new(move |found| {
            waits.link(|chain| {
                let blocker = found.iter().find(|blocker| blocker.chain == chain)?;
                Some((this.parse(&blocker.trace)?, blocker.chain_type.clone()))
            });
        }))
    }

    /// Removes and returns open spans of a job.
    fn take(&self, job: JobId, is: impl Fn(Traced) -> bool) -> impl Iterator<Item = BoxedSpan> {
        self.take_with(job, is).into_iter().map(|(_, span)| span)
    }

    /// Removes and returns open spans of a job, and what they are about.
    fn take_with(&self, job: JobId, is: impl Fn(Traced) -> bool) -> Vec<(Traced, BoxedSpan)> {
        let mut open = lock(&self.open);
        let Some(spans) = open.remove(&job) else { return Vec::new() };
        let (taken, left): (Vec<_>, Vec<_>) = spans.into_iter().partition(|(traced, _)| is(*traced));
        // Cannot be one too many: an entry was just removed.
        let dropped = if left.is_empty() { Vec::new() } else { open.update(job, |spans| *spans = left) };
        drop(open);
        end_all(dropped.into_iter().flatten().map(|(_, span)| span), |_| {});
        taken
    }

    /// Records that a job no longer waits: a span for each of its waits.
    fn resolved(&self, about: &About) {
        for wait in &about.wait_traces {
            let Some(parent) = self.parse(wait).filter(SpanContext::is_sampled) else { continue };
            let builder = SpanBuilder::from_name("resolve chain")
                .with_kind(SpanKind::Consumer)
                .with_attributes(attributes::span("resolve", None, about))
                .with_links(self.links(&about.cause_traces, &SpanContext::NONE));
            self.tracer.build_with_context(builder, &remote(Some(parent))).end();
        }
    }

    fn settled_outside(&self, about: &About, result: &'static str, next: Option<KeyValue>, end: Status) {
        let Some(parent) = about.trace.as_ref().and_then(|trace| self.parse(trace)) else { return };
        if !parent.is_sampled() {
            return;
        }
        let caller = Context::map_current(|context| context.span().span_context().clone());
        let mut attributes = attributes::span("settle", Some("settle"), about);
        attributes.push(KeyValue::new(RESULT, result));
        attributes.extend(next);
        let builder = SpanBuilder::from_name(format!("settle {}", about.job_type))
            .with_kind(SpanKind::Client)
            .with_attributes(attributes)
            .with_links(self.links(&[], &caller));
        let mut span = self.tracer.build_with_context(builder, &remote(Some(parent)));
        span.set_status(end);
        span.end();
    }

    fn closed(&self, about: &About, status: &'static str) {
        let trace = about.chain_trace.as_ref().filter(|trace| !is_unsampled(trace));
        let Some(parent) = trace.and_then(|trace| self.parse(trace)) else { return };
        if !parent.is_sampled() {
            return;
        }
        let mut attributes = attributes::span("close", None, about);
        attributes.push(KeyValue::new(STATUS, status));
        let name = format!("close chain {}", about.chain_type);
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_attributes(attributes);
        self.tracer.build_with_context(builder, &remote(Some(parent))).end();
    }

    fn links(&self, traces: &[TraceContext], further: &SpanContext) -> Vec<Link> {
        let further = Some(further.clone()).filter(SpanContext::is_valid);
        let contexts = traces.iter().filter_map(|trace| self.parse(trace)).chain(further);
        contexts.map(Link::with_context).collect()
    }

    /// Parses a stored context. Counts it if it is malformed.
    fn parse(&self, trace: &TraceContext) -> Option<SpanContext> {
        let context = parse(trace);
        if context.is_none() {
            self.invalid.found(trace);
        }
        context
    }
}

/// Changes and ends spans. An end runs the processors of the application, which may panic. If the other spans were dropped
/// while that panic unwinds, a second panic would abort the process: so each panic is caught.
pub(crate) fn end_all(spans: impl IntoIterator<Item = BoxedSpan>, mut change: impl FnMut(&mut BoxedSpan)) {
    for mut span in spans {
        let change = &mut change;
        let _ = catch_unwind(AssertUnwindSafe(move || {
            change(&mut span);
            span.end();
        }));
    }
}

fn remote(parent: Option<SpanContext>) -> Context {
    match parent {
        Some(parent) => Context::new().with_remote_span_context(parent),
        None => Context::new(),
    }
}

/// Returns the type of error and the status of a span whose item was not written.
fn not_written(why: NotWritten) -> (&'static str, Cow<'static, str>) {
    match why {
        NotWritten::RolledBack => ("rolled_back", "not written: the transaction was rolled back".into()),
        NotWritten::Failed(kind @ ErrorKind::Invalid) => {
            (error_name(kind), "not written: the store refused it".into())
        }
        NotWritten::Failed(kind) => {
            let name = error_name(kind);
            (name, format!("not written: {}", name.replace('_', " ")).into())
        }
        _ => ("other", "not written".into()),
    }
}

/// The span of one attempt.
pub(crate) struct AttemptSpan {
    context: Context,
    /// `None` if the span is not recorded, as nearly all are.
    recorded: Option<Box<Recorded>>,
}

/// The state of a span of an attempt that is recorded.
struct Recorded {
    spans: Arc<Spans>,
    /// The spans of `prepare` and `finish`, while they are open.
    stages: Mutex<[Option<BoxedSpan>; 2]>,
    has_ended: AtomicBool,
}

impl Recorded {
    fn new(spans: &Arc<Spans>) -> Self {
        Self { spans: Arc::clone(spans), stages: Mutex::default(), has_ended: AtomicBool::new(false) }
    }
}

impl AttemptSpan {
    /// Makes the span current on this thread, also if it is not sampled: then the handler's own spans are not sampled
    /// either.
    pub(crate) fn attach(&self) -> ContextGuard {
        self.context.clone().attach()
    }

    pub(crate) fn began(&self, stage: Stage) {
        if let Some(recorded) = &self.recorded {
            let (name, index) = stage_name(stage);
            let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal);
            let span = recorded.spans.tracer.build_with_context(builder, &self.context);
            if let Some(open) = lock(&recorded.stages).get_mut(index) {
                *open = Some(span);
            }
        }
    }

    pub(crate) fn closed(&self, stage: Stage, error: Option<&str>) {
        let Some(recorded) = &self.recorded else { return };
        let (_, index) = stage_name(stage);
        let span = lock(&recorded.stages).get_mut(index).and_then(Option::take);
        if let Some(mut span) = span {
            if let Some(error) = error {
                span.set_attribute(KeyValue::new(ERROR_TYPE, "rolled_back"));
                span.set_status(Status::error(error.to_owned()));
            }
            span.end();
        }
    }

    pub(crate) fn ended(&self, about: &About, ended: &Ended) {
        let Some(recorded) = &self.recorded else { return };
        recorded.has_ended.store(true, Ordering::Release);
        let span = self.context.span();
        if let Ended::Retried { .. } | Ended::Rescheduled { .. } | Ended::Released = ended {
            let context = span.span_context().clone();
            let _ = lock(&recorded.spans.attempts).update(about.job, |latest| *latest = Some(context));
        }
        span.set_attribute(KeyValue::new(RESULT, result(ended)));
        match ended {
            Ended::Retried { at, .. } | Ended::Rescheduled { at } => {
                span.set_attribute(KeyValue::new(DUE_AT, at.to_string()));
            }
            Ended::Continued(next) => span.set_attribute(KeyValue::new(NEXT_JOB, next.to_string())),
            _ => {}
        }
        match (error_type(ended), ended.error()) {
            (Some(kind), error) => {
                span.set_attribute(KeyValue::new(ERROR_TYPE, kind));
                let text = error.map_or(kind, |error| error.as_str());
                span.set_status(Status::error(text.to_owned()));
            }
            (None, _) => span.set_status(Status::Ok),
        }
        span.end();
    }
}

/// An attempt that ends without a result: its task was dropped, or the process stops.
impl Drop for AttemptSpan {
    fn drop(&mut self) {
        let Some(recorded) = &self.recorded else { return };
        let stages = std::mem::take(&mut *lock(&recorded.stages));
        end_all(stages.into_iter().flatten(), |_| {});
        if !recorded.has_ended.load(Ordering::Acquire) {
            let span = self.context.span();
            span.set_attribute(KeyValue::new(ERROR_TYPE, "dropped"));
            span.set_status(Status::error("the attempt was dropped before its end was stored"));
            span.end();
        }
    }
}

const fn stage_name(stage: Stage) -> (&'static str, usize) {
    match stage {
        Stage::Prepare => ("prepare", 0),
        Stage::Finish => ("finish", 1),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

impl fmt::Debug for AttemptSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSpan")
            .field("context", self.context.span().span_context())
            .finish_non_exhaustive()
    }
}
