//! Log lines of one thread.

use std::fmt;
use std::sync::{Arc, Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest, set_default, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Sets the subscriber of this thread until the guard is dropped. All tasks of the test must run on this thread.
///
/// Tests call this instead of [`tracing::subscriber::set_default`]. That function alone loses lines at random: while only
/// one thread has a subscriber, `tracing` asks the thread that first reaches a log line whether anyone wants the line, and
/// caches the answer for all threads. If that thread belongs to another test, the answer is no.
pub fn subscribe(subscriber: impl Subscriber + Send + Sync + 'static) -> DefaultGuard {
    static UNDECIDED: Once = Once::new();
    UNDECIDED.call_once(|| {
        // Fails if the program has a global subscriber. Then that one decides.
        let _ = set_global_default(Undecided);
        // A line that was first reached just before has the old answer.
        tracing::callsite::rebuild_interest_cache();
    });
    set_default(subscriber)
}

/// Captures warnings and errors of a crate, and of its modules, on this thread until it is dropped.
///
/// All tasks of the test must run on this thread.
#[derive(Debug)]
pub struct Warnings {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Warnings {
    /// Captures the lines whose target begins with this prefix.
    #[must_use = "it captures until it is dropped"]
    pub fn capture(target: &'static str) -> Self {
        let lines = Arc::default();
        let guard = subscribe(Capture { target, lines: Arc::clone(&lines) });
        Self { lines, _guard: guard }
    }

    /// Returns the lines so far: each has the message, followed by its fields.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic while capturing").clone()
    }

    /// Returns the lines since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().expect("no panic while capturing"))
    }
}

/// The subscriber of threads without their own: it wants nothing, but its answer must not be cached.
struct Undecided;

impl Subscriber for Undecided {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Capture {
    target: &'static str,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with(self.target)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.lines.lock().expect("no panic while capturing").push(line.message + &line.fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.fields += &format!(" {}={value:?}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warn() {
        tracing::warn!(count = 1, "a warning");
    }

    /// Without the global subscriber, the first call below makes `tracing` ignore the line on every thread.
    #[test]
    fn a_line_that_another_thread_reached_first_is_captured() {
        let warnings = Warnings::capture("windlass_testkit");
        std::thread::spawn(warn).join().unwrap();
        warn();
        assert_eq!(warnings.take(), ["a warning count=1"]);
        assert_eq!(warnings.lines(), Vec::<String>::new());
    }
}
