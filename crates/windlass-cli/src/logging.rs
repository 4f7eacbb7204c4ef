//! Writes the library's log events to standard error.

use std::io::{self, Write};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::{Arguments, Command};
use crate::secret::Secrets;

/// Installs the log subscriber. The default level is `WARN`; for `work` and `serve` it is `INFO`, for `demo` `ERROR`.
/// Each `-v` raises it by one.
pub(crate) fn start(arguments: &Arguments, secrets: Secrets) {
    let usual = match arguments.command {
        // Attempts in the demo fail on purpose.
        Command::Demo(_) => 0,
        Command::Work(_) | Command::Serve(_) => 2,
        _ => 1,
    };
    let level = match usual + arguments.global.verbose {
        0 => Level::ERROR,
        1 => Level::WARN,
        2 => Level::INFO,
        _ => Level::DEBUG,
    };
    // Show messages of database drivers only at the highest verbosity, and only warnings.
    let others = if level == Level::DEBUG { LevelFilter::WARN } else { LevelFilter::OFF };
    let targets = [
        "windlass",
        "windlass_core",
        "windlass_nats",
        "windlass_postgres",
        "windlass_redis",
        "windlass_file",
        "windlass_server",
        "windlass_sqlite",
    ];
    let filter = Targets::new().with_default(others).with_targets(targets.map(|target| (target, level)));
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_writer(Lines(secrets));
    tracing_subscriber::registry().with(filter).with(lines).init();
}

/// Writes log lines without secrets, and without colors where they are disabled.
struct Lines(Secrets);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Lines {
    /// The layer passes one complete line per call, so a secret is never split between two calls.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = self.0.hide(&String::from_utf8_lossy(line));
        anstream::stderr().write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        anstream::stderr().flush()
    }
}
