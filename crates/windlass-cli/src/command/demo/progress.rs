//! Progress display of the demo: bars on a terminal, one line per second otherwise.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use windlass::observer::Event;
use windlass::{Job, Observer};

use super::jobs::{LARGE_ORDER_EUROS, Pack, PrintLabel, Ship, TakeOrder};
use super::shop::is_rolled_back;
use crate::output::{note, stderr_is_terminal};
use crate::store::{StoreConfig, StoreUrl};

/// How often to print a line if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts completed stages and displays them.
pub(super) struct Progress {
    began_at: Instant,
    bars: [ProgressBar; Stage::ALL.len()],
    counts: [AtomicU64; Stage::ALL.len()],
    retries: AtomicU64,
    replies: AtomicU64,
}

/// A stage of an order, with its own counter and bar.
#[derive(Clone, Copy)]
enum Stage {
    JobSummary,
    Charged,
    Approved,
    Packed,
    Labeled,
    Shipped,
}

impl Stage {
    const ALL: [Self; 6] =
        [Self::JobSummary, Self::Charged, Self::Approved, Self::Packed, Self::Labeled, Self::Shipped];

    const fn as_str(self) -> &'static str {
        match self {
            Self::JobSummary => "placed",
            Self::Charged => "charged",
            Self::Approved => "approved",
            Self::Packed => "packed",
            Self::Labeled => "labeled",
            Self::Shipped => "shipped",
        }
    }

    /// Returns the stage that a completed job of this type finishes.
    fn of(job_type: &str) -> Option<Self> {
        match job_type {
            TakeOrder::NAME => Some(Self::Charged),
            Pack::NAME => Some(Self::Packed),
            PrintLabel::NAME => Some(Self::Labeled),
            Ship::NAME => Some(Self::Shipped),
            _ => None,
        }
    }
}

impl Progress {
    pub(super) fn new(orders: u32, config: &StoreConfig) -> Self {
        let target =
            if stderr_is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let all = MultiProgress::with_draw_target(target);
        let style = ProgressStyle::with_template("{prefix:>9} {bar:40.cyan/blue} {pos:>4} {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let kept = |order: &u32| !(has_transactions(&config.store) && is_rolled_back(*order));
        let (mut shipped, mut approved) = (0, 0);
        for order in (1..=orders).filter(kept) {
            shipped += 1;
            approved += u64::from(TakeOrder::euros(order) >= LARGE_ORDER_EUROS);
        }
        let rolled_back = match u64::from(orders) - shipped {
            0 => String::new(),
            some => format!(", {some} of them rolled back on purpose"),
        };
        note(&format!("running a shop on {}: {orders} orders{rolled_back}", store_name(&config.store)));
        let bars = Stage::ALL.map(|stage| {
            let expected = if matches!(stage, Stage::Approved) { approved } else { shipped };
            all.add(ProgressBar::new(expected).with_style(style.clone()).with_prefix(stage.as_str()))
        });
        Self {
            began_at: Instant::now(),
            bars,
            counts: Default::default(),
            retries: AtomicU64::new(0),
            replies: AtomicU64::new(0),
        }
    }

    /// Counts without a display.
    pub(super) fn hidden() -> Self {
        Self {
            began_at: Instant::now(),
            bars: std::array::from_fn(|_| ProgressBar::hidden()),
            counts: Default::default(),
            retries: AtomicU64::new(0),
            replies: AtomicU64::new(0),
        }
    }

    /// Prints a line per second if there is no terminal to show the bars. Never returns.
    pub(super) async fn print_lines(&self) -> Infallible {
        if stderr_is_terminal() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LINE_INTERVAL).await;
            note(&self.line());
        }
    }

    pub(super) fn placed(&self, rolled_back: bool) {
        match rolled_back {
            true => self.bar(Stage::JobSummary).set_message("one rolled back: no row, no chain"),
            false => self.add(Stage::JobSummary),
        }
    }

    pub(super) fn approved(&self) {
        self.add(Stage::Approved);
    }

    pub(super) fn rated(&self, rating: u32) {
        let replies = self.replies.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar(Stage::Approved)
            .set_message(format!("{replies} replies from the queue, latest: {rating} stars"));
    }

    /// Stops the bars and leaves them as they are.
    pub(super) fn finish(&self) {
        self.bars.iter().for_each(ProgressBar::abandon);
        if stderr_is_terminal() {
            note("");
        }
    }

    fn add(&self, stage: Stage) {
        if let Some(count) = self.counts.get(stage as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.bar(stage).inc(1);
    }

    fn bar(&self, stage: Stage) -> ProgressBar {
        self.bars.get(stage as usize).cloned().unwrap_or_else(ProgressBar::hidden)
    }

    fn line(&self) -> String {
        let counts = Stage::ALL.iter().zip(&self.counts);
        let counts: Vec<_> = counts
            .map(|(stage, count)| format!("{} {}", count.load(Ordering::Relaxed), stage.as_str()))
            .collect();
        let (seconds, retries) = (self.began_at.elapsed().as_secs(), self.retries.load(Ordering::Relaxed));
        format!("{seconds:>3} s: {}, {retries} retried", counts.join(", "))
    }
}

/// An observer that updates the progress display.
#[derive(Clone, Debug)]
pub(super) struct ProgressObserver(pub(super) Arc<Progress>);

impl Observer for ProgressObserver {
    fn observe(&self, event: &Event) {
        let Self(progress) = self;
        match event {
            Event::JobCompleted(about, _) => {
                if let Some(stage) = Stage::of(about.job_type.as_str()) {
                    progress.add(stage);
                }
            }
            Event::AttemptFailed(_, error, _) => {
                let retries = progress.retries.fetch_add(1, Ordering::Relaxed) + 1;
                progress.bar(Stage::Charged).set_message(format!("{retries} retried: {error}"));
            }
            _ => {}
        }
    }
}

const fn has_transactions(store: &StoreUrl) -> bool {
    matches!(store, StoreUrl::Sqlite(_) | StoreUrl::Postgres(_))
}

const fn store_name(store: &StoreUrl) -> &'static str {
    match store {
        StoreUrl::Memory => "the memory store",
        StoreUrl::Sqlite(_) => "SQLite",
        StoreUrl::File(_) => "a folder",
        StoreUrl::Postgres(_) => "PostgreSQL",
        StoreUrl::Redis(_) => "Redis",
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("began_at", &self.began_at).finish_non_exhaustive()
    }
}
