//! Charts over time, as SVG.
//!
//! The picture is stretched to the width of its card, so its texts are HTML around it.

use std::fmt::Write;

use maud::{Markup, html};

use super::format::compact;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// Samples further apart than this many intervals are not connected: nobody watched in between.
const GAP_INTERVALS: f64 = 4.0;

/// A line of a chart: seconds and values.
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart of one or more lines.
pub(super) struct Chart {
    pub(super) title: &'static str,
    /// The current value in words.
    pub(super) now: String,
    pub(super) unit: &'static str,
    pub(super) note: &'static str,
    pub(super) series: Vec<Series>,
    /// How the largest value of the axis is written.
    pub(super) axis: fn(f64) -> String,
    /// The time between two samples, in seconds.
    pub(super) interval: f64,
}

impl Chart {
    pub(super) fn draw(&self) -> Markup {
        let times = self.series.iter().flat_map(|series| series.points.iter().map(|(at, _)| *at));
        let (from, to) = times.fold((f64::MAX, f64::MIN), |(from, to), at| (from.min(at), to.max(at)));
        let values = self.series.iter().flat_map(|series| series.points.iter().map(|(_, value)| *value));
        let top = nice(values.fold(0.0, f64::max));
        let has_line = to > from;
        let name = format!("{}: {} {}", self.title, self.now, self.unit);
        html! {
            section class="card chart" {
                h2 { (self.title) }
                p class="big" { (self.now) " " small { (self.unit) } }
                div class="plot" {
                    @if has_line {
                        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                            aria-label=(name) {
                            line class="grid" x1="0" x2=(WIDTH) y1=(HEIGHT / 2.0) y2=(HEIGHT / 2.0) {}
                            @for series in &self.series {
                                @let lines = self.lines(series, from, to, top);
                                path class={ "area " (series.class) } d=(area(&lines)) {}
                                path class={ "line " (series.class) } d=(line(&lines)) {}
                            }
                        }
                        span class="top-label" { ((self.axis)(top)) }
                        span class="from-label" { (span_text(to - from)) " ago" }
                        span class="to-label" { "now" }
                    } @else {
                        p class="note" { "Waiting for more samples." }
                    }
                }
                p class="legend" {
                    @for series in &self.series { span class=(series.class) { (series.name) } }
                    @if !self.note.is_empty() { span class="plain" { (self.note) } }
                }
            }
        }
    }

    /// Returns the points of a line in the picture, divided at gaps.
    fn lines(&self, series: &Series, from: f64, to: f64, top: f64) -> Vec<Vec<(f64, f64)>> {
        let mut lines: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut latest: Option<f64> = None;
        for (at, value) in &series.points {
            let is_gap = latest.is_none_or(|latest| at - latest > GAP_INTERVALS * self.interval);
            latest = Some(*at);
            let point = ((at - from) / (to - from) * WIDTH, HEIGHT - value / top * (HEIGHT - 4.0) - 1.0);
            match lines.last_mut() {
                Some(line) if !is_gap => line.push(point),
                _ => lines.push(vec![point]),
            }
        }
        lines
    }
}

fn line(lines: &[Vec<(f64, f64)>]) -> String {
    let mut path = String::new();
    for (x, y, command) in lines.iter().flat_map(|line| {
        line.iter().enumerate().map(|(index, (x, y))| (x, y, if index == 0 { 'M' } else { 'L' }))
    }) {
        let _ = write!(path, "{command}{x:.1} {y:.1}");
    }
    path
}

fn area(lines: &[Vec<(f64, f64)>]) -> String {
    let mut path = String::new();
    for points in lines {
        if let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) {
            let _ = write!(path, "M{first:.1} {HEIGHT}");
            for (x, y) in points {
                let _ = write!(path, "L{x:.1} {y:.1}");
            }
            let _ = write!(path, "L{last:.1} {HEIGHT}Z");
        }
    }
    path
}

/// Returns a round number that is not smaller: 1, 2 or 5 times a power of ten.
fn nice(value: f64) -> f64 {
    if value <= 1.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

fn span_text(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// Writes a number on an axis.
pub(super) fn plain_axis(value: f64) -> String {
    compact(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "Backlog",
            now: "1".to_owned(),
            unit: "jobs",
            note: "",
            series: vec![Series { name: "a", class: "a", points }],
            axis: plain_axis,
            interval: 2.0,
        }
    }

    #[test]
    fn lines_are_divided_at_gaps() {
        let chart = chart(vec![(0.0, 0.0), (2.0, 1.0), (60.0, 1.0), (62.0, 0.0)]);
        let lines = chart.lines(&chart.series[0], 0.0, 62.0, 1.0);
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(line(&lines).matches('M').count(), 2);
        assert_eq!(area(&lines).matches('Z').count(), 2);
    }

    #[test]
    fn one_sample_is_no_line() {
        let html = chart(vec![(0.0, 1.0)]).draw().0;
        assert!(!html.contains("<svg") && html.contains("Waiting for more samples"), "{html}");
        assert!(!chart(Vec::new()).draw().0.contains("NaN"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (3.0, 5.0), (11.0, 20.0), (100.0, 100.0), (101.0, 200.0)] {
            assert!((nice(value) - top).abs() < 1e-9, "{value}");
        }
    }
}
