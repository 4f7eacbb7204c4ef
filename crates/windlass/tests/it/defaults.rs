//! The figures in `docs/defaults.md` that are public constants and defaults are those of the code.

use std::fs;
use std::path::Path;
use std::time::Duration;

use windlass::command::Page;
use windlass::time::Millis;
use windlass::{Backoff, JobOptions, limit};

#[test]
fn the_page_of_defaults_states_the_values_of_the_code() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/defaults.md")).unwrap();
    let (options, backoff) = (JobOptions::default(), Backoff::default());
    let rows = [
        format!("| attempts | {} | `#[job(max_attempts", options.max_attempts.unwrap()),
        format!(
            "| backoff after a failed attempt | {} s, doubled up to {} h,",
            backoff.initial.as_secs(),
            backoff.max.as_secs() / 3_600
        ),
        format!(
            "| retention of a completed or cancelled chain | {} days |",
            days(options.retention.completed)
        ),
        format!("| retention of a failed chain | {} days |", days(options.retention.failed)),
        format!(
            "| page of a list | {}, newest first; at most {} |",
            Page::default().max,
            grouped(limit::PAGE_MAX)
        ),
        format!("| input or output of a job | {} MiB |", limit::PAYLOAD_MAX_BYTES >> 20),
        format!("| payloads of one command | {} MiB |", limit::BATCH_MAX_BYTES >> 20),
        format!("| payloads of an acquire | {} MiB, or one job |", limit::ACQUIRE_MAX_BYTES >> 20),
        format!("renew, ids) | {} |", grouped(limit::BATCH_MAX_ITEMS)),
        format!("| name of a job type, queue, worker or lock | {} bytes |", limit::NAME_MAX_BYTES),
        format!("| key, or id in a queue | {} bytes |", grouped(limit::KEY_MAX_BYTES)),
        format!("| stored error text | {} bytes |", grouped(limit::ERROR_MAX_BYTES)),
        format!("| name of an encoding | {} bytes |", limit::CODEC_MAX_BYTES),
        format!("| trace context | {} bytes |", limit::TRACE_MAX_BYTES),
        format!("| blockers of a job | {} |", grouped(limit::BLOCKERS_MAX)),
        format!("| blockers in one command | {} |", grouped(limit::BATCH_MAX_BLOCKERS)),
        format!("| chains that start with the end of a job | {} |", limit::CARRIED_MAX),
        format!("| steps of one completion from outside | {} |", limit::STEPS_MAX),
        format!("with those it cascades to | {} |", grouped(limit::DELETE_MAX_CHAINS)),
        format!("later commands unblock the rest | {} |", grouped(limit::RIPPLE_MAX)),
        format!("| attempts that a job remembers | {} |", limit::HISTORY_MAX),
        format!("that a page scans | {}; {} |", grouped(limit::PAGE_MAX), grouped(limit::PAGE_SCAN_MAX)),
        format!("so that repeated commands are recognized | {} minutes |", limit::REPEAT_WINDOW_MS / 60_000),
    ];
    for row in rows {
        assert!(page.contains(&row), "docs/defaults.md is outdated: it lacks `{row}`");
    }
}

fn days(span: Millis) -> u64 {
    Duration::from(span).as_secs() / (24 * 60 * 60)
}

/// Formats a number below a million with a comma: `1,000`.
fn grouped(number: usize) -> String {
    match (number / 1_000, number % 1_000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}
