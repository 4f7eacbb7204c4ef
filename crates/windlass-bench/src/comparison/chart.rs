//! Bar charts as SVG: one panel per workload, one bar per subject, with a line from the smallest to the largest round.

use std::fmt::Write;

use super::{Comparison, Measured, RowResults};
use crate::candidate::{BARE, WINDLASS};
use crate::report::grouped;

const WIDTH: f64 = 860.0;
/// Where the bars begin, and the length of the longest.
const LEFT: f64 = 240.0;
const LENGTH: f64 = 500.0;
const BAR: f64 = 18.0;
const GAP: f64 = 6.0;
const TITLE: f64 = 34.0;

/// Colors that are readable on white and on black.
const WINDLASS_COLOR: &str = "#2f7ed8";
const BARE_COLOR: &str = "#8a8a8a";
const OTHER_COLOR: &str = "#c9a15a";
const TEXT_COLOR: &str = "#808080";

pub(super) fn render(comparison: &Comparison) -> String {
    let mut y = 0.0;
    let mut body = String::new();
    for results in comparison.results.iter().filter(|results| !results.subjects.is_empty()) {
        y = panel(&mut body, y, results);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{TEXT_COLOR}\">\n{body}</svg>\n",
        height = y + GAP
    )
}

/// Draws a panel below `y`. Returns where it ends.
fn panel(body: &mut String, y: f64, results: &RowResults) -> f64 {
    let is_time = results.row.is_time();
    let unit = if is_time { "p50 in µs, less is better" } else { "jobs/s, more is better" };
    let title = escape(&format!("{} ({unit})", results.row.name));
    let baseline = y + TITLE - 10.0;
    // Writing to a `String` cannot fail.
    let _ = writeln!(body, "<text x=\"8\" y=\"{baseline}\" font-weight=\"bold\">{title}</text>");
    let mut subjects: Vec<&Measured> = results.subjects.iter().collect();
    subjects.sort_by(|one, other| {
        let order = other.median().total_cmp(&one.median());
        if is_time { order.reverse() } else { order }
    });
    let greatest = subjects.iter().map(|measured| measured.spread().1).fold(f64::MIN_POSITIVE, f64::max);
    let mut y = y + TITLE;
    for measured in subjects {
        bar(body, y, measured, LENGTH / greatest);
        y += BAR + GAP;
    }
    y
}

fn bar(body: &mut String, y: f64, measured: &Measured, scale: f64) {
    let color = match measured.subject.as_str() {
        WINDLASS => WINDLASS_COLOR,
        BARE => BARE_COLOR,
        _ => OTHER_COLOR,
    };
    let (name, value) = (escape(&measured.subject), grouped(measured.median()));
    let length = measured.median() * scale;
    let (least, greatest) = measured.spread();
    let (from, to) = (LEFT + least * scale, LEFT + greatest * scale);
    let (text, middle) = (y + BAR - 4.0, y + BAR / 2.0);
    let _ = writeln!(
        body,
        "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{name}</text>\n\
         <rect x=\"{LEFT:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR:.1}\" fill=\"{color}\"/>\n\
         <line x1=\"{from:.1}\" y1=\"{middle:.1}\" x2=\"{to:.1}\" y2=\"{middle:.1}\" stroke=\"{TEXT_COLOR}\" \
         stroke-width=\"2\"/>\n\
         <text x=\"{:.1}\" y=\"{text:.1}\">{value}</text>",
        LEFT - 8.0,
        to.max(LEFT + length) + 8.0
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;
    use super::*;

    #[test]
    fn a_chart_has_a_bar_for_each_result() {
        let comparison = comparison();
        let chart = render(&comparison);
        let results: usize = comparison.results.iter().map(|results| results.subjects.len()).sum();
        assert_eq!(chart.matches("<rect ").count(), results);
        // The longest bar of each panel ends where its largest round is.
        assert!(chart.contains("width=\"416.7\""), "{chart}");
        assert!(chart.contains(">5,000<") && chart.contains(WINDLASS_COLOR));
    }

    #[test]
    fn names_cannot_break_out_of_the_chart() {
        assert_eq!(escape("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
