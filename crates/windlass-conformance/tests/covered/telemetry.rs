//! The source's specs of metrics, spans and gauges, and what else it says about telemetry.
//!
//! Most specs check that something is counted once, or not at all after a rollback. A case of this crate checks the events
//! behind the metrics on every store. A test of `windlass-otel` checks what an OTLP receiver gets.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use windlass_conformance::rules;

/// A spec by its title, with the case that checks the events behind it, if there are any, and the test that checks its
/// metrics or spans: the file in `windlass-otel/tests/it`, and the function.
type Spec = (&'static str, Option<&'static str>, (&'static str, &'static str));

const SIMPLE: (&str, &str) = ("specs", "a_simple_job_has_metrics_and_histograms");
const CHAINS: (&str, &str) = ("specs", "continuations_and_blockers_are_counted");
const OUTSIDE: (&str, &str) = ("specs", "completions_from_outside_deletions_and_triggers_are_counted");
const LEASES: (&str, &str) = ("specs", "expired_leases_and_the_reaper_are_counted");
const SLOTS: (&str, &str) = ("specs", "idle_and_busy_slots_are_gauges_of_each_type");
const CREATED: (&str, &str) = ("specs", "creations_that_are_rolled_back_are_not_counted");
const OUTSIDE_BACK: (&str, &str) = ("specs", "completions_from_outside_that_are_rolled_back_are_not_counted");
const ENDED_BACK: (&str, &str) = ("specs", "ends_of_attempts_that_are_rolled_back_are_not_counted");

const SPECS: [Spec; 34] = [
    ("tracks metrics and histograms for simple job lifecycle", Some("events.life"), SIMPLE),
    ("tracks error metrics on retry", Some("events.retry"), ("specs", "retries_are_counted_as_errors")),
    ("tracks metrics for chain continuations", Some("events.continuation"), CHAINS),
    ("tracks metrics for blocker chains", Some("events.blockers"), CHAINS),
    ("tracks workerless completion metrics", Some("events.outside"), OUTSIDE),
    (
        "tracks lease renewal metric",
        Some("events.lease_renewed"),
        ("specs", "renewals_of_leases_are_counted"),
    ),
    (
        "tracks lease expiration metric",
        Some("events.lease_expired"),
        ("specs", "a_lease_that_expires_during_an_attempt_is_counted"),
    ),
    ("tracks reaper metrics", Some("events.reaped"), LEASES),
    (
        "tracks state adapter and worker error metrics",
        Some("events.store_fails"),
        ("specs", "errors_of_the_store_and_the_worker_are_counted"),
    ),
    (
        "tracks notify adapter error metric",
        Some("events.notifier_fails"),
        ("specs", "errors_of_the_notifier_are_counted"),
    ),
    ("tracks metrics for chain deletion", Some("events.deleted"), OUTSIDE),
    ("tracks metrics for job trigger", Some("events.triggered"), OUTSIDE),
    (
        "tracks spans for simple job lifecycle",
        None,
        ("traces", "an_attempt_has_spans_for_its_transactions_over_both_protocols"),
    ),
    ("tracks error spans on retry", None, ("traces", "a_retry_links_to_the_attempt_before")),
    (
        "tracks spans for chain continuations with origin links",
        None,
        ("story", "a_chain_across_processes_is_one_readable_tree"),
    ),
    (
        "tracks spans for blocker chains with blocker links",
        None,
        ("traces", "a_resolved_wait_links_to_the_chain_that_ended"),
    ),
    (
        "tracks blocker spans when blocker chain is already completed",
        None,
        ("rollbacks", "a_wait_for_a_chain_that_has_ended_is_a_span"),
    ),
    ("tracks deduplication attributes on spans", None, ("traces", "a_held_key_links_to_the_existing_chain")),
    ("tracks workerless completion spans", None, ("traces", "a_completion_from_outside_is_a_span")),
    (
        "tracks complex workerless completion spans",
        None,
        ("rollbacks", "a_completion_from_outside_with_a_continuation_and_a_blocker_is_one_tree"),
    ),
    ("tracks idle and processing gauges", None, SLOTS),
    ("tracks gauges for multiple job types", None, SLOTS),
    ("discards creation metrics and spans on rollback", Some("rollback.start"), CREATED),
    ("discards creation metrics and spans with blockers on rollback", Some("rollback.blockers"), CREATED),
    ("discards workerless completion metrics and spans on rollback", Some("rollback.outside"), OUTSIDE_BACK),
    ("discards completion metrics on worker complete rollback", Some("rollback.completion"), ENDED_BACK),
    ("discards error-handling metrics on reschedule rollback", Some("rollback.reschedule"), ENDED_BACK),
    (
        "discards continuation metrics when user callback throws after continueWith",
        Some("rollback.continuation"),
        ENDED_BACK,
    ),
    (
        "discards completion metrics on unblockJobs rollback",
        Some("rollback.unblocked"),
        ("specs", "a_job_is_unblocked_once_although_the_first_write_fails"),
    ),
    (
        "discards workerless completion metrics on finishJob internal failure",
        Some("rollback.outside_refused"),
        OUTSIDE_BACK,
    ),
    (
        "discards continuation metrics on createJob rollback",
        Some("rollback.continuation_refused"),
        ("specs", "a_continuation_that_is_refused_is_not_counted"),
    ),
    (
        "ends job spans when transaction rolls back",
        None,
        ("traces", "rolled_back_work_ends_its_spans_with_an_error"),
    ),
    (
        "ends rolled-back continuation span when user callback throws after continueWith",
        None,
        ("rollbacks", "a_handler_that_fails_after_its_continuation_ends_every_span"),
    ),
    (
        "ends rolled-back startChain spans when handler throws after complete returns",
        None,
        ("rollbacks", "a_handler_that_fails_after_its_end_ends_every_span"),
    ),
];

/// The instruments of the source, with ours.
const INSTRUMENTS: &[(&str, &str)] = &[
    ("worker.started", "windlass.worker.started"),
    ("worker.error", "windlass.worker.error"),
    ("worker.stopping", "windlass.worker.stopping"),
    ("worker.stopped", "windlass.worker.stopped"),
    ("job.created", "windlass.job.created"),
    ("job.completed", "windlass.job.completed"),
    ("job.reaped", "windlass.job.reaped"),
    ("job.blocked", "windlass.job.blocked"),
    ("job.unblocked", "windlass.job.unblocked"),
    ("job.triggered", "windlass.job.triggered"),
    ("job.attempt.started", "windlass.attempt.started"),
    ("job.attempt.completed", "windlass.attempt.completed"),
    ("job.attempt.failed", "windlass.attempt.failed"),
    // The attribute `windlass.result` says why an attempt was lost.
    ("job.attempt.taken_by_another_worker", "windlass.attempt.lost"),
    ("job.attempt.already_completed", "windlass.attempt.lost"),
    ("job.attempt.lease_expired", "windlass.job.reaped"),
    ("job.attempt.lease_renewed", "windlass.attempt.lease_renewed"),
    ("chain.created", "windlass.chain.created"),
    ("chain.completed", "windlass.chain.closed"),
    ("chain.deleted", "windlass.chain.deleted"),
    ("state_adapter.error", "windlass.store.error"),
    ("notify_adapter.error", "windlass.notifier.error"),
    ("chain.duration", "windlass.chain.duration"),
    ("job.duration", "windlass.job.duration"),
    ("job.attempt.duration", "windlass.attempt.duration"),
    ("job_type.idle", "windlass.job_type.idle"),
    ("job_type.processing", "windlass.job_type.processing"),
    // What the source plans.
    ("planned: open jobs by type and status", "windlass.state.jobs"),
    ("planned: age of the oldest ready job", "windlass.state.oldest_ready.age"),
    // Here, jobs have a maximum number of attempts, and fail.
    ("planned: stuck jobs and chains", "windlass.state.blocked_by_failed"),
    ("planned: the conventions for messaging", "messaging.process.duration"),
];

/// The spans of the source, with ours.
const SPANS: &[(&str, &str)] = &[
    ("create chain.{type}", "create chain {type}"),
    ("create job.{type}", "create {type}"),
    ("await chain.{type}", "await chain"),
    ("resolve chain.{type}", "resolve chain"),
    ("start job-attempt.{type}", "process {type}"),
    ("prepare", "prepare"),
    ("complete", "finish"),
    ("complete job.{type}", "settle {type}"),
    ("complete chain.{type}", "close chain {type}"),
];

/// What the source says or plans, and what has no counterpart here, with the reason.
const EXCLUDED: &[(&str, &str)] = &[
    ("the attribute worker.id of metrics", "a restarted worker has a new id, so that series would never end"),
    ("a log signal of OpenTelemetry", "log lines are those of `tracing`, which has its own exporter"),
    ("a periodic job that takes snapshots", "the process that holds a lock queries the store, without a job"),
    ("a record of an exception in the span of a refused start", "the status of the span has the reason"),
];

/// What the source says about its observer, and the test of `windlass-otel` or of the core that checks it here.
const STATEMENTS: &[(&str, &str, &str)] = &[
    ("without an adapter, observability is off", "metrics", "an_observer_without_providers_is_off"),
    ("an adapter that throws never breaks processing", "trouble", "observers_that_panic_do_not_affect_jobs"),
    ("stored contexts that are invalid have no span", "traces", "an_unreadable_context_starts_no_new_trace"),
    (
        "attempts belong to the trace of their chain, in any process",
        "story",
        "a_chain_across_processes_is_one_readable_tree",
    ),
    ("spans start before the write", "traces", "a_start_is_a_child_of_the_callers_span"),
];

fn tests_of_otel() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../windlass-otel/tests/it")
}

/// Whether a file of the tests of `windlass-otel` has this test.
fn has_test(file: &str, function: &str) -> bool {
    let text = std::fs::read_to_string(tests_of_otel().join(file).with_extension("rs")).unwrap();
    let (mut is_test, mut found) = (false, false);
    for line in text.lines() {
        found |= is_test && line.starts_with(&format!("async fn {function}("));
        is_test = line.starts_with("#[tokio::test");
    }
    found
}

#[test]
fn every_spec_of_telemetry_has_a_test_and_the_case_of_its_events() {
    let ids: HashSet<_> = rules().iter().map(|rule| rule.id).collect();
    let titles: HashSet<_> = SPECS.iter().map(|(title, ..)| title).collect();
    assert_eq!(titles.len(), SPECS.len(), "each title is listed once");
    for (title, case, (file, function)) in &SPECS {
        assert!(case.is_none_or(|id| ids.contains(id)), "{title}: there is no case {case:?}");
        assert!(has_test(file, function), "{title}: there is no test {function} in {file}.rs");
    }
    for (statement, file, function) in STATEMENTS {
        assert!(has_test(file, function), "{statement}: there is no test {function} in {file}.rs");
    }
    assert!(EXCLUDED.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn every_instrument_and_span_of_the_source_is_in_the_catalogue() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (theirs, ours) in INSTRUMENTS.iter().chain(SPANS) {
        assert!(page.contains(&format!("| `{ours}` |")), "{theirs}: the catalogue has no {ours}");
    }
    let names: HashSet<_> = INSTRUMENTS.iter().map(|(theirs, _)| theirs).collect();
    assert_eq!(names.len(), INSTRUMENTS.len(), "each instrument is listed once");
}
