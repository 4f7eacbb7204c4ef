//! Line charts as SVG: one panel per curve, one line per command. The number of jobs is on a logarithmic scale.

use std::fmt::Write;

use super::{Curve, PostgresScale};
use crate::report::grouped;

const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 250.0;
/// The area of the lines inside a panel.
const LEFT: f64 = 46.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 84.0;
const BOTTOM: f64 = 34.0;

/// Colors that are readable on white and on black, one per command.
const COLORS: [&str; 3] = ["#2f7ed8", "#c9a15a", "#5aa469"];
const TEXT_COLOR: &str = "#808080";

pub(super) fn render(scale: &PostgresScale) -> String {
    let mut body = String::new();
    for (index, curve) in scale.curves.iter().enumerate() {
        let (column, row) = (index % 2, index / 2);
        let (x, y) = (if column == 0 { 0.0 } else { WIDTH }, (0..row).fold(0.0, |y, _| y + HEIGHT));
        let _ = writeln!(body, "<g transform=\"translate({x:.0} {y:.0})\">");
        panel(&mut body, curve);
        let _ = writeln!(body, "</g>");
    }
    let height = (0..scale.curves.len().div_ceil(2)).fold(0.0, |height, _| height + HEIGHT);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {height}\" width=\"{0}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"{TEXT_COLOR}\">\n{body}</svg>\n",
        2.0 * WIDTH
    )
}

/// Draws the costs per job. `count` is not per job, so it is left to the table.
fn panel(body: &mut String, curve: &Curve) {
    let costs = curve.points.iter().flat_map(|point| point.costs().into_iter().take(COLORS.len()));
    let greatest = costs.map(|(_, cost)| cost).fold(f64::MIN_POSITIVE, f64::max);
    let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |count: u64| LEFT + width * place(curve, count);
    let y = |cost: f64| TOP + height * (1.0 - cost / greatest);
    let (bottom, right) = (TOP + height, LEFT + width);
    let title = escape(&format!("{}: µs of the server per job", curve.name));
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        body,
        "<text x=\"8\" y=\"20\" font-weight=\"bold\">{title}</text>\n\
         <path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"{TEXT_COLOR}\"/>\n\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{greatest:.1}</text>\n\
         <text x=\"{:.0}\" y=\"{bottom:.0}\" text-anchor=\"end\">0</text>",
        LEFT - 6.0,
        TOP + 4.0,
        LEFT - 6.0
    );
    for point in &curve.points {
        #[expect(clippy::cast_precision_loss, reason = "a number of jobs is far below 2^52")]
        let label = grouped(point.count as f64);
        let (x, y) = (x(point.count), bottom + 18.0);
        let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>");
    }
    for (index, color) in COLORS.iter().enumerate() {
        let line = curve.points.iter().filter_map(|point| {
            let (name, cost) = *point.costs().get(index)?;
            Some((name, x(point.count), y(cost)))
        });
        let line: Vec<_> = line.collect();
        let places: Vec<_> = line.iter().map(|(_, x, y)| format!("{x:.1},{y:.1}")).collect();
        let Some((name, x, y)) = line.last() else { continue };
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{name}</text>",
            places.join(" "),
            x + 8.0,
            y + 4.0
        );
    }
}

/// Returns where a number is between the first and the last one of a curve, on a logarithmic scale.
#[expect(clippy::cast_precision_loss, reason = "a number of jobs is far below 2^52")]
fn place(curve: &Curve, count: u64) -> f64 {
    let log = |count: u64| (count.max(1) as f64).ln();
    let (first, last) = (curve.points.first(), curve.points.last());
    let (Some(first), Some(last)) = (first, last) else { return 0.0 };
    let span = log(last.count) - log(first.count);
    if span > 0.0 { (log(count) - log(first.count)) / span } else { 0.0 }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_command() {
        let scale = example();
        let chart = render(&scale);
        assert_eq!(chart.matches("<polyline ").count(), COLORS.len() * scale.curves.len());
        // The line of the greatest cost ends at the top, and the lines end at the right.
        assert!(chart.contains("346.0,40.0"), "{chart}");
        assert!(chart.contains(">1,000<"), "{chart}");
    }
}
