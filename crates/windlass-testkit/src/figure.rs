use std::fmt::Display;
use std::io::{self, Write};

/// Prints what a test measured. The line also appears if the test passes: the test harness captures only the output of
/// macros such as `println!`.
pub fn print_figure(what: &str, figure: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{what}: {figure}");
}
