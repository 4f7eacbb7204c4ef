//! What is printed: tables and lines for people, an object a line for programs.

use std::io::{self, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::{Code, Failure, Result};

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read it.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// The object for programs, or the line for people.
    pub(crate) fn one(self, object: &impl Serialize, line: impl FnOnce() -> String) -> Result {
        if self.json { self.object(object) } else { self.line(&line()) }
    }

    /// The same for something that was done and cannot be taken back: that nobody reads it any more stops nothing.
    pub(crate) fn done(self, object: &impl Serialize, line: impl FnOnce() -> String) -> Result {
        match self.one(object, line) {
            Err(failure) if failure.is_done() => Ok(()),
            written => written,
        }
    }

    /// An object on a line of its own.
    pub(crate) fn object(self, object: &impl Serialize) -> Result {
        let text = serde_json::to_string(object).map_err(Failure::failed)?;
        self.line(&text)
    }

    /// A line. Whoever reads it may have gone, which is no error.
    pub(crate) fn line(self, text: &str) -> Result {
        let mut out = anstream::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| unwritten(&error))
    }

    /// Bytes as they are.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| unwritten(&error))
    }

    /// Rows for people, under their headings.
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

/// A note beside the results: what is done, or what a person may want to know.
pub(crate) fn note(text: &str) {
    // Nobody is harmed by a note that cannot be written.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Whether a person watches.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// The first line of a text, shortened to fit a table.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= width && line.len() == text.trim_end().len() {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn unwritten(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::told(Code::Done),
        _ => Failure::failed(format!("the output cannot be written: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened_with_a_mark() {
        assert_eq!(shortened("short", 10), "short");
        assert_eq!(shortened("a longer text", 8), "a longe…");
        assert_eq!(shortened("two\nlines", 8), "two…");
        assert_eq!(shortened("", 8), "");
    }
}
