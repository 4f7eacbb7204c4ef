//! The first page: the whole store at a glance, from the samples.

use maud::{Markup, html};

use super::Visit;
use super::chart::{Chart, Points, Series, plain_axis};
use super::format::{compact, counted, duration, number};
use super::layout::{Page, Refresh, Section};
use super::part::{empty, type_link};
use crate::api::Problem;
use crate::api::overview::{self, Overview};
use crate::api::route::Json;
use crate::sampler::{Point, Sample, TypeSample};

/// The number of types on the page.
const TYPES_SHOWN: usize = 8;

/// The throughput is an average over this many seconds.
const RATE_SECONDS: f64 = 10.0;

/// The number of points of a line. The ends of its pieces come on top.
const POINTS_MAX: usize = 150;

/// Samples further apart than this many intervals are not connected: no client watched in between.
const GAP_INTERVALS: f64 = 4.0;

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let Json(overview) = overview::get(visit.call.clone(), visit.given()?).await?;
    let sample = &overview.sample;
    let body = html! {
        h1 { "Overview" }
        div id="content" data-part="" {
            @if sample.types.is_empty() {
                (nothing_yet())
            } @else {
                (tiles(visit.base(), sample))
                (charts(&overview))
                (busiest(visit.base(), sample))
            }
            p class="cost" {
                "This page costs the store " (format!("{:.1}", overview.sampler.calls_per_second))
                " calls a second, however many people watch."
            }
        }
    };
    Ok(Page::new("Overview", Section::Overview, Refresh::Sample, body))
}

fn nothing_yet() -> Markup {
    empty(
        "No jobs are stored yet",
        &html! {
            p { "Start one from the shell, and it appears here:" }
            pre { code { "windlass start mail '{\"to\": \"ada\"}'" } }
            p { "Or try " code { "windlass demo --serve" } " to see this page with work." }
        },
    )
}

fn tiles(base: &str, sample: &Sample) -> Markup {
    let sums = &sample.sums;
    let tile = |name: &str, value: String, note: String, link: Option<&str>, class: &str| {
        html! {
            div class={ "tile " (class) } {
                p class="name" {
                    @if let Some(link) = link { a href={ (base) (link) } { (name) } } @else { (name) }
                }
                p class="value" { (value) }
                p class="note" { (note) }
            }
        }
    };
    let oldest = sums.oldest_ready_ms.map(duration);
    let oldest = oldest.map_or_else(|| "none is due".to_owned(), |age| format!("oldest due for {age}"));
    let workers = &sample.workers;
    let load = match (workers.busy * 100).checked_div(workers.slots) {
        Some(load) => format!("{load} % of {}", counted(workers.slots, "slot")),
        None => "none is live".to_owned(),
    };
    let expired = match sums.expired_leases {
        0 => "all leases are valid".to_owned(),
        count => counted(count, "expired lease"),
    };
    let estimated = if sample.closed_estimated { "estimated" } else { "stored" };
    html! {
        div class="tiles" {
            (tile("Pending", number(sums.pending), oldest, Some("/jobs?status=pending"), "pending"))
            (tile("Running", number(sums.running), expired, Some("/jobs?status=running"), "running"))
            (tile("Blocked", number(sums.blocked), "waiting for other chains".to_owned(),
                Some("/jobs?status=blocked"), "blocked"))
            (tile("Failed", number(sums.failed), estimated.to_owned(), Some("/chains?status=failed"), "failed"))
            (tile("Workers", number(workers.count), load,
                Some("/workers"), "workers"))
        }
        @if sums.paused_types > 0 {
            p class="warning" {
                a href={ (base) "/types" } { (counted(sums.paused_types, "type")) " paused" }
                ": jobs of paused types do not start."
            }
        }
        @if workers.count == 0 && sums.pending > 0 {
            p class="warning" { "Jobs are pending, and no worker is live. Start one with " code { "windlass work TYPE --exec COMMAND" } "." }
        }
    }
}

/// Returns the seconds of a point, relative to any fixed time.
fn seconds(point: &Point) -> Option<f64> {
    let at = point.at.parse().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a few centuries are exact")]
    Some(at.as_millis() as f64 / 1_000.0)
}

#[expect(clippy::cast_precision_loss, reason = "charts have no more than a few hundred pixels")]
fn charts(overview: &Overview) -> Markup {
    let interval = overview.sampler.interval_ms as f64 / 1_000.0;
    let points: Vec<_> = overview.history.iter().filter_map(|point| Some((seconds(point)?, point))).collect();
    let pieces = divided(&points, interval);
    let level = |name, class, of: fn(&Point) -> f64| {
        let line = |piece: &&[(f64, &Point)]| piece.iter().map(|(at, point)| (*at, of(point))).collect();
        Series { name, class, lines: thinned(pieces.iter().map(line).collect()) }
    };
    // A rate over a gap would be an average over a time that was not sampled.
    let rate = |name, class, of: fn(&Point) -> u64| {
        let line = |piece: &&[(f64, &Point)]| rates(piece.iter().map(|(at, point)| (*at, of(point))));
        Series { name, class, lines: thinned(pieces.iter().map(line).collect()) }
    };
    let throughput = vec![
        rate("completed", "completed", |point| point.ended.completed),
        rate("failed", "failed", |point| point.ended.failed),
    ];
    let backlog = vec![
        level("pending", "pending", |point| point.pending as f64),
        level("running", "running", |point| point.running as f64),
        level("blocked", "blocked", |point| point.blocked as f64),
    ];
    let latency =
        vec![level("oldest due job", "latency", |point| point.oldest_ready_ms.unwrap_or(0) as f64 / 1_000.0)];
    let sums = &overview.sample.sums;
    let latest = |series: &Series| series.lines.last().and_then(|line| line.last()).map(|(_, value)| *value);
    let current: f64 = throughput.iter().filter_map(latest).sum();
    let chart = |title, now, unit, series, note, axis| Chart { title, now, unit, note, series, axis }.draw();
    html! {
        div class="charts" {
            (chart("Throughput", compact(current), "jobs/s", throughput, "", plain_axis))
            (chart("Latency", duration(sums.oldest_ready_ms.unwrap_or(0)), "", latency, "waits for a worker", |value| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
                duration((value * 1_000.0) as u64)
            }))
            (chart("Backlog", number(sums.blocked + sums.pending + sums.running), "open jobs", backlog, "", plain_axis))
        }
    }
}

/// Returns the rates between totals that only grow: an average over a few seconds.
#[expect(clippy::cast_precision_loss, reason = "differences of totals are small")]
fn rates(totals: impl Iterator<Item = (f64, u64)>) -> Vec<(f64, f64)> {
    let totals: Vec<_> = totals.collect();
    let mut rates = Vec::new();
    let mut first = 0;
    for (index, (at, total)) in totals.iter().enumerate().skip(1) {
        // The window begins with the newest point that is old enough.
        while first + 1 < index
            && totals.get(first + 1).is_some_and(|(earlier, _)| at - earlier >= RATE_SECONDS)
        {
            first += 1;
        }
        if let Some((from, before)) = totals.get(first)
            && at > from
        {
            rates.push((*at, total.saturating_sub(*before) as f64 / (at - from)));
        }
    }
    rates
}

/// Divides samples at times that no client watched. A store that is slow takes longer than the interval for each of them.
fn divided<T>(points: &[(f64, T)], interval: f64) -> Vec<&[(f64, T)]> {
    let mut steps: Vec<_> =
        points.iter().zip(points.iter().skip(1)).map(|((at, _), (next, _))| next - at).collect();
    steps.sort_unstable_by(f64::total_cmp);
    let usual = steps.get(steps.len() / 2).copied().unwrap_or(0.0).max(interval);
    points.chunk_by(|(at, _), (next, _)| next - at <= GAP_INTERVALS * usual).collect()
}

/// Leaves out points in between, so that all lines together have few enough. The last point of each stays.
fn thinned(lines: Vec<Points>) -> Vec<Points> {
    let step = lines.iter().map(Vec::len).sum::<usize>().div_ceil(POINTS_MAX).max(1);
    let thin = |line: Points| {
        let offset = line.len().wrapping_sub(1) % step;
        let kept = line.into_iter().enumerate().filter(|(index, _)| index % step == offset);
        kept.map(|(_, point)| point).collect()
    };
    lines.into_iter().map(thin).collect()
}

fn busiest(base: &str, sample: &Sample) -> Markup {
    html! {
        section class="card" {
            h2 { "Busiest types" }
            div class="scroll" tabindex="0" role="region" aria-label="Busiest types" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Type" }
                            @for name in ["Pending", "Running", "Blocked", "Failed"] {
                                th scope="col" class="number" { (name) }
                            }
                            th scope="col" class="number" { "Oldest due" }
                        }
                    }
                    tbody { @for sample in sample.types.iter().take(TYPES_SHOWN) { (row(base, sample)) } }
                }
            }
            p { a href={ (base) "/types" } { "All types" } }
        }
    }
}

fn row(base: &str, sample: &TypeSample) -> Markup {
    let count = &sample.count;
    html! {
        tr {
            td { (type_link(base, "jobs", &count.job_type)) @if count.paused { " " (super::part::label("paused")) } }
            td class="number" { (number(count.pending)) }
            td class="number" { (number(count.running)) }
            td class="number" { (number(count.blocked)) }
            td class={ "number" @if count.failed > 0 { " bad" } } { (number(count.failed)) }
            td class="number" { (sample.oldest_ready_ms.map(duration).unwrap_or_else(|| "–".to_owned())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_averages_of_growing_totals() {
        let totals = [(0.0, 0), (2.0, 10), (4.0, 10), (6.0, 30)];
        assert_eq!(rates(totals.into_iter()), [(2.0, 5.0), (4.0, 2.5), (6.0, 5.0)]);
        let long: Vec<_> = (0..100_u64).map(|n| (n as f64, n * 3)).collect();
        assert!(rates(long.into_iter()).iter().all(|(_, rate)| (rate - 3.0).abs() < 1e-9));
        assert!(rates(std::iter::empty()).is_empty());
    }

    #[test]
    fn thinned_lines_keep_their_ends() {
        let line = |from: u64, to: u64| -> Points { (from..to).map(|n| (n as f64, 0.0)).collect() };
        let thin = thinned(vec![line(0, 500), line(600, 1_100), Vec::new()]);
        assert!(thin.iter().map(Vec::len).sum::<usize>() <= POINTS_MAX + 2);
        let ends: Vec<_> = thin.iter().map(|line| line.last().map(|(at, _)| *at)).collect();
        assert_eq!(ends, [Some(499.0), Some(1_099.0), None]);
        assert!(thinned(Vec::new()).is_empty());
    }

    #[test]
    fn lines_are_divided_where_nobody_watched() {
        let sizes = |times: &[f64]| -> Vec<usize> {
            let points: Vec<_> = times.iter().map(|at| (*at, ())).collect();
            divided(&points, 2.0).iter().map(|piece| piece.len()).collect()
        };
        assert_eq!(sizes(&[0.0, 2.0, 4.0, 60.0, 62.0]), [3, 2]);
        // Each sample takes 12 s.
        assert_eq!(sizes(&[0.0, 12.0, 24.0, 36.0, 600.0, 612.0]), [4, 2]);
        assert!(sizes(&[]).is_empty());
    }
}
