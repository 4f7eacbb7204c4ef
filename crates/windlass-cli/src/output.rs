//! Prints results: tables and lines for people, one JSON object per line for programs.

use std::io::{self, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::{Code, Failure, Result};

/// Prints results to standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether `--json` was given.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints `object` as JSON with `--json`, or `line` otherwise.
    pub(crate) fn print(self, object: &impl Serialize, line: impl FnOnce() -> String) -> Result {
        if self.json { self.object(object) } else { self.line(&line()) }
    }

    /// Like [`print`](Self::print), for a change that is already made. Ignores a closed pipe, so that a command with
    /// several changes continues.
    pub(crate) fn print_change(self, object: &impl Serialize, line: impl FnOnce() -> String) -> Result {
        match self.print(object, line) {
            Err(failure) if failure.is_success() => Ok(()),
            written => written,
        }
    }

    /// Prints an object as JSON on a separate line.
    pub(crate) fn object(self, object: &impl Serialize) -> Result {
        let text = serde_json::to_string(object).map_err(Failure::failed)?;
        self.line(&text)
    }

    /// Prints a line.
    ///
    /// # Errors
    /// If the reader has closed the pipe, returns a failure with exit code 0 and no message.
    pub(crate) fn line(self, text: &str) -> Result {
        let mut out = anstream::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| write_failure(&error))
    }

    /// Prints bytes unchanged.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| write_failure(&error))
    }

    /// Prints a table with headings.
    pub(crate) fn table<const N: usize>(self, headings: [&str; N], rows: &[[String; N]]) -> Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings);
        table.add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().try_for_each(|line| self.line(line.trim_end()))
    }
}

/// Prints a message to standard error, apart from the results.
pub(crate) fn note(text: &str) {
    // Ignore errors: the result of the command does not depend on this message.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Returns the first line of a text, truncated to `width` characters. An ellipsis marks what was cut.
pub(crate) fn truncated(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= width && line.len() == text.trim_end().len() {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn write_failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(Code::Success),
        _ => Failure::failed(format!("cannot write the output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_with_an_ellipsis() {
        assert_eq!(truncated("short", 10), "short");
        assert_eq!(truncated("a longer text", 8), "a longe…");
        assert_eq!(truncated("two\nlines", 8), "two…");
        assert_eq!(truncated("", 8), "");
    }
}
