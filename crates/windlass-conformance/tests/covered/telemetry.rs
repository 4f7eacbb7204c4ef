//! The source's specs of metrics, spans and gauges.
//!
//! Windlass has no metrics and no spans yet, so none of these specs is covered as such. Most of them check that something
//! is counted once, or not at all after a rollback. The events that metrics will be built on are checked now: each spec
//! has the case that checks them, or says what is missing.

use std::collections::HashSet;

use windlass_conformance::rules;

/// A spec by its title, with the case that checks the events behind it. `None` if no case does.
const SPECS: [(&str, Option<&str>); 34] = [
    ("tracks metrics and histograms for simple job lifecycle", Some("events.life")),
    ("tracks error metrics on retry", Some("events.retry")),
    ("tracks metrics for chain continuations", Some("events.continuation")),
    ("tracks metrics for blocker chains", Some("events.blockers")),
    ("tracks workerless completion metrics", Some("events.outside")),
    ("tracks lease renewal metric", Some("events.lease_renewed")),
    ("tracks lease expiration metric", Some("events.lease_expired")),
    ("tracks reaper metrics", Some("events.reaped")),
    ("tracks state adapter and worker error metrics", Some("events.store_fails")),
    ("tracks notify adapter error metric", Some("events.notifier_fails")),
    ("tracks metrics for chain deletion", Some("events.deleted")),
    ("tracks metrics for job trigger", Some("events.triggered")),
    // Spans need the begin and the end of attempts with their trace contexts, which events do not have yet.
    ("tracks spans for simple job lifecycle", None),
    ("tracks error spans on retry", None),
    ("tracks spans for chain continuations with origin links", None),
    ("tracks spans for blocker chains with blocker links", None),
    ("tracks blocker spans when blocker chain is already completed", None),
    ("tracks deduplication attributes on spans", None),
    ("tracks workerless completion spans", None),
    ("tracks complex workerless completion spans", None),
    // Gauges need the number of free and busy slots, which no event has.
    ("tracks idle and processing gauges", None),
    ("tracks gauges for multiple job types", None),
    ("discards creation metrics and spans on rollback", Some("untold.start")),
    ("discards creation metrics and spans with blockers on rollback", Some("untold.blockers")),
    ("discards workerless completion metrics and spans on rollback", Some("untold.outside")),
    ("discards completion metrics on worker complete rollback", Some("untold.completion")),
    ("discards error-handling metrics on reschedule rollback", Some("untold.reschedule")),
    (
        "discards continuation metrics when user callback throws after continueWith",
        Some("untold.continuation"),
    ),
    ("discards completion metrics on unblockJobs rollback", Some("untold.unblocked")),
    ("discards workerless completion metrics on finishJob internal failure", Some("untold.outside_refused")),
    ("discards continuation metrics on createJob rollback", Some("untold.continuation_refused")),
    ("ends job spans when transaction rolls back", None),
    ("ends rolled-back continuation span when user callback throws after continueWith", None),
    ("ends rolled-back startChain spans when handler throws after complete returns", None),
];

#[test]
fn every_spec_of_telemetry_is_listed_with_the_case_of_its_events() {
    let ids: HashSet<_> = rules().iter().map(|rule| rule.id).collect();
    let titles: HashSet<_> = SPECS.iter().map(|(title, _)| title).collect();
    assert_eq!(titles.len(), SPECS.len(), "each title is listed once");
    for (title, id) in SPECS.iter().filter_map(|(title, id)| Some((title, (*id)?))) {
        assert!(ids.contains(id), "{title}: there is no case {id}");
    }
}
