//! Batches: one JSON object per line of standard input, up to 1,000 lines per call to the store.

use std::fmt::Display;
use std::io::{self, BufRead, Read, stdin};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use windlass::limit::{BATCH_MAX_BYTES, BATCH_MAX_ITEMS, PAYLOAD_MAX_BYTES};
use windlass::shutdown_signal;

use crate::exit::{Code, Failure, Result};
use crate::input;
use crate::output::{Output, note, stderr_is_terminal};

/// How many lines the reader thread may read ahead.
const READ_AHEAD: usize = 2 * BATCH_MAX_ITEMS;

/// The longest accepted line, in bytes: a payload of the maximum size plus room for the other fields.
const LINE_MAX_BYTES: usize = PAYLOAD_MAX_BYTES + 64 * 1024;

/// Converts lines to items and sends them to the store.
pub(crate) trait Batch {
    /// One parsed line.
    type Line: DeserializeOwned;
    /// The result for one line, as it is printed.
    type Done: Serialize + Display;

    /// A valid line, shown in error messages.
    const EXAMPLE: &'static str;

    /// Adds a line to the next call and returns the size of its payload in bytes.
    fn add(&mut self, line: Self::Line) -> Result<usize>;

    /// Sends all added lines in one call and returns one result per line, in the same order.
    async fn send(&mut self) -> Result<Vec<Result<Self::Done>>>;
}

/// Reads and sends all lines. An invalid line stops the batch before the call that would have contained it.
pub(crate) async fn run<B: Batch>(batch: B, output: Output) -> Result {
    let mut sender = Sender {
        batch,
        output,
        numbers: Vec::new(),
        bytes: 0,
        sent: 0,
        last_line: 0,
        unsure: None,
        refused: 0,
    };
    let progress = progress();
    let outcome = sender.run(&progress).await;
    progress.finish_and_clear();
    let Sender { sent, last_line, unsure, refused, .. } = sender;
    match outcome {
        Ok(()) if refused > 0 => Err(Failure::usage(format!(
            "{refused} of {sent} lines were refused: correct the lines listed above and send them again"
        ))),
        Ok(()) => {
            note(&format!("lines sent: {sent}"));
            Ok(())
        }
        Err(failure) => Err(failure.with_note(match unsure {
            Some(line) => {
                format!("lines {} to {line} may have been stored; later lines were not sent", last_line + 1)
            }
            None => format!("lines after line {last_line} were not sent"),
        })),
    }
}

struct Sender<B> {
    batch: B,
    output: Output,
    /// The line numbers of the items in the next call.
    numbers: Vec<u64>,
    bytes: usize,
    sent: u64,
    /// The last line that was sent.
    last_line: u64,
    /// The last line of a call that returned an error. The store may have applied that call anyway.
    unsure: Option<u64>,
    refused: u64,
}

impl<B: Batch> Sender<B> {
    async fn run(&mut self, progress: &ProgressBar) -> Result {
        let mut lines = lines();
        let mut shutdown_requested = std::pin::pin!(shutdown_signal());
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                // An interrupt takes effect only here, between two calls: `send` is not part of this `select!`.
                () = &mut shutdown_requested => return Err(Failure::new(Code::Interrupted, "interrupted")),
            };
            let Some((number, line)) = line else { return self.send().await };
            let added = line.and_then(|line| self.add(number, &line));
            added.map_err(|failure| {
                Failure::usage(format!("line {number}: {}", failure.line().unwrap_or_default()))
            })?;
            // Send at half of the size limit: the next line may contain a payload of the maximum size.
            if self.numbers.len() >= BATCH_MAX_ITEMS || self.bytes >= BATCH_MAX_BYTES / 2 {
                self.send().await?;
                progress.set_position(self.sent);
            }
        }
    }

    fn add(&mut self, number: u64, line: &str) -> Result {
        let line = serde_json::from_str(line)
            .map_err(|error| input::json_error(&error))
            .map_err(|error| Failure::usage(format!("{error}; expected an object like {}", B::EXAMPLE)))?;
        self.bytes += self.batch.add(line)?;
        self.numbers.push(number);
        Ok(())
    }

    async fn send(&mut self) -> Result {
        if self.numbers.is_empty() {
            return Ok(());
        }
        let sent = self.batch.send().await.inspect_err(|_| self.unsure = self.numbers.last().copied())?;
        self.sent += sent.len() as u64;
        self.bytes = 0;
        for (number, done) in std::mem::take(&mut self.numbers).into_iter().zip(sent) {
            self.last_line = number;
            match done {
                Ok(done) => self.output.print_change(&done, || done.to_string())?,
                // A refused line does not affect the others.
                Err(failure) => {
                    self.refused += 1;
                    note(&format!("line {number} was refused: {}", failure.line().unwrap_or_default()));
                }
            }
        }
        Ok(())
    }
}

/// Returns the non-empty lines of standard input with their line numbers. A separate thread reads them, because a
/// blocking read of standard input cannot be cancelled.
fn lines() -> mpsc::Receiver<(u64, Result<String>)> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    std::thread::spawn(move || {
        for number in 1.. {
            let line = match read_line(&mut stdin().lock()) {
                Ok(None) => return,
                Ok(Some(line)) if line.len() > LINE_MAX_BYTES => Err(input::too_large("line")),
                Ok(Some(line)) => Ok(line),
                Err(error) => Err(Failure::usage(format!("cannot read the line: {error}"))),
            };
            let (is_error, is_empty) =
                (line.is_err(), line.as_ref().is_ok_and(|line| line.trim().is_empty()));
            // The batch stops at the first line that cannot be read.
            if !is_empty && (sender.blocking_send((number, line)).is_err() || is_error) {
                return;
            }
        }
    });
    receiver
}

/// Reads the next line, but at most one byte more than `LINE_MAX_BYTES`. That is enough to detect that it is too long.
fn read_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let length = from.take(LINE_MAX_BYTES as u64 + 1).read_line(&mut line)?;
    Ok((length > 0).then_some(line))
}

fn progress() -> ProgressBar {
    if !stderr_is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} lines, {per_sec}");
    ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
