//! Charts over time, as SVG.
//!
//! The picture is stretched to the width of its card, so its texts are HTML around it.

use std::fmt::Write;

use maud::{Markup, html};

use super::format::compact;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// Points: seconds and values.
pub(super) type Points = Vec<(f64, f64)>;

/// A line of a chart, divided at gaps.
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) lines: Vec<Points>,
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
}

impl Chart {
    pub(super) fn draw(&self) -> Markup {
        let points = || self.series.iter().flat_map(|series| series.lines.iter().flatten());
        let (from, to) =
            points().fold((f64::MAX, f64::MIN), |(from, to), (at, _)| (from.min(*at), to.max(*at)));
        let top = nice(points().fold(0.0, |top, (_, value)| top.max(*value)));
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
                                @let lines = scaled(&series.lines, from, to, top);
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
}

/// Scales points to the size of the picture.
fn scaled(lines: &[Points], from: f64, to: f64, top: f64) -> Vec<Points> {
    let scale = |(at, value): &(f64, f64)| {
        ((at - from) / (to - from) * WIDTH, HEIGHT - value / top * (HEIGHT - 4.0) - 1.0)
    };
    lines.iter().map(|line| line.iter().map(scale).collect()).collect()
}

fn line(lines: &[Points]) -> String {
    let mut path = String::new();
    for (x, y, command) in lines.iter().flat_map(|line| {
        line.iter().enumerate().map(|(index, (x, y))| (x, y, if index == 0 { 'M' } else { 'L' }))
    }) {
        let _ = write!(path, "{command}{x:.1} {y:.1}");
    }
    path
}

fn area(lines: &[Points]) -> String {
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

    fn chart(lines: Vec<Points>) -> Chart {
        Chart {
            title: "Backlog",
            now: "1".to_owned(),
            unit: "jobs",
            note: "",
            series: vec![Series { name: "a", class: "a", lines }],
            axis: plain_axis,
        }
    }

    #[test]
    fn lines_are_not_connected() {
        let chart = chart(vec![vec![(0.0, 0.0), (2.0, 1.0)], vec![(60.0, 1.0), (62.0, 0.0)], Vec::new()]);
        let lines = scaled(&chart.series[0].lines, 0.0, 62.0, 1.0);
        assert_eq!(line(&lines).matches('M').count(), 2);
        assert_eq!(area(&lines).matches('Z').count(), 2);
        assert!(chart.draw().0.contains("62 s ago"));
    }

    #[test]
    fn one_sample_is_no_line() {
        let html = chart(vec![vec![(0.0, 1.0)]]).draw().0;
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
