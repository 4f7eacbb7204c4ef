//! `windlass retry`, `cancel` and `delete` with a filter: change all chains that match, page by page.

mod delete;

use std::slice;

use windlass::client::ChainPages;
use windlass::command::{CancelMode, ChainFilter, Order};
use windlass::record::ChainRecord;
use windlass::{Status, Store};

use super::Context;
use super::list::StateFilter;
use super::manage::{Outcome, cancel_one, print_outcome, retry_one};
use crate::arguments::{ChainSelection, JobState};
use crate::exit::{Failure, Result};
use crate::output::note;
use crate::signal::Interrupt;
use crate::store::{Connection, OpenMode};

/// The number of chains between two reports of progress.
const PROGRESS_CHAINS: usize = 1_000;

/// A change to each selected chain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Retry,
    Cancel(CancelMode),
    Delete {
        /// Whether to delete running chains too.
        running: bool,
    },
}

/// Changes all chains that match the filter, or prints them if it is a dry run.
pub(crate) async fn run(context: &Context, selection: &ChainSelection, change: Change) -> Result {
    if !selection.has_filter() {
        return Err(Failure::usage(
            "no chains are selected: pass ids, or a filter with --status, --since, --until, \
             --closed-since, --closed-until or --top-level; --type only narrows it down",
        ));
    }
    let states = StateFilter(change.states(&selection.statuses)?);
    let interrupt = Interrupt::listen();
    let connection = interrupt.cancels(context.open(OpenMode::Existing)).await?;
    let pages = interrupt.cancels(pages(&connection, selection, &states, change)).await?;
    let mut bulk = Bulk {
        context,
        connection,
        states,
        change,
        is_dry_run: selection.dry_run,
        interrupt,
        done: 0,
        skipped: 0,
    };
    let ended = bulk.run(pages).await;
    bulk.report(ended)
}

/// Returns the chains that match, page by page.
async fn pages(
    connection: &Connection,
    selection: &ChainSelection,
    states: &StateFilter,
    change: Change,
) -> Result<ChainPages<dyn Store>> {
    let filter = ChainFilter {
        types: selection.types.clone(),
        statuses: states.statuses(),
        top_level: selection.top_level,
        created_from: selection.since,
        created_to: selection.until,
        closed_from: selection.closed_since,
        closed_to: selection.closed_until,
        key: None,
    };
    Ok(connection.client().chain_pages(filter, change.order()).await?)
}

struct Bulk<'a> {
    context: &'a Context,
    connection: Connection,
    states: StateFilter,
    change: Change,
    is_dry_run: bool,
    interrupt: Interrupt,
    /// The number of chains that were changed, or would be if this was not a dry run.
    done: usize,
    /// The number of chains that could not be changed.
    skipped: usize,
}

impl Bulk<'_> {
    /// Changes the chains of all pages.
    async fn run(&mut self, mut pages: ChainPages<dyn Store>) -> Result {
        while let Some(mut chains) = self.interrupt.cancels(async { Ok(pages.next().await?) }).await? {
            chains.retain(|chain| self.states.matches(&chain.latest));
            for step in chains.chunks(self.change.step_chains()) {
                self.step(step).await?;
            }
        }
        Ok(())
    }

    /// Changes some chains: together, or one by one if one of them prevents that.
    async fn step(&mut self, chains: &[ChainRecord]) -> Result {
        if let Some(outcomes) = self.outcomes(chains).await? {
            return self.record(chains, outcomes);
        }
        for chain in chains {
            let chain = slice::from_ref(chain);
            let outcomes = self.outcomes(chain).await?.unwrap_or_default();
            self.record(chain, outcomes)?;
        }
        Ok(())
    }

    /// Changes these chains together. Returns `None` if that is not possible. An interrupt takes effect only before or
    /// after this.
    async fn outcomes(&self, chains: &[ChainRecord]) -> Result<Option<Vec<Outcome>>> {
        if self.is_dry_run {
            return Ok(Some(chains.iter().map(|chain| self.change.preview(chain)).collect()));
        }
        self.interrupt.delayed_by(self.change.apply(&self.connection, chains)).await
    }

    fn record(&mut self, chains: &[ChainRecord], outcomes: Vec<Outcome>) -> Result {
        let before = self.done + self.skipped;
        for (chain, outcome) in chains.iter().zip(outcomes) {
            match outcome {
                Ok(_) => self.done += 1,
                Err(_) => self.skipped += 1,
            }
            let is_done = outcome.is_ok() && !self.is_dry_run;
            print_outcome(self.context.output, chain.id.to_string(), is_done, outcome)?;
        }
        if before / PROGRESS_CHAINS < (self.done + self.skipped) / PROGRESS_CHAINS {
            note(&format!("{} so far", self.count()));
        }
        Ok(())
    }

    fn count(&self) -> String {
        let (done, changed) = (self.done, self.change.participle());
        let verb = if self.is_dry_run { format!("that would be {changed}") } else { changed.to_owned() };
        format!("chains {verb}: {done}")
    }

    fn report(&self, ended: Result) -> Result {
        if let Err(failure) = ended {
            let next = if self.is_dry_run { "" } else { "; run the command again to continue" };
            return Err(failure.with_note(format!("{}{next}", self.count())));
        }
        note(&self.count());
        let (skipped, changed) = (self.skipped, self.change.participle());
        match (skipped, self.is_dry_run) {
            (0, _) => Ok(()),
            (_, true) => {
                note(&format!("chains that would be skipped: {skipped}"));
                Ok(())
            }
            (_, false) => Err(Failure::failed(format!(
                "chains skipped: {skipped}; they were not {changed} for the reasons above: resolve these, and run the \
                 command again"
            ))),
        }
    }
}

impl Change {
    /// Returns the states to select: the given ones, or a default if there are none.
    ///
    /// # Errors
    /// A usage failure if chains in one of the given states cannot be changed.
    fn states(self, given: &[JobState]) -> Result<Vec<JobState>> {
        let (possible, default): (&[JobState], &[JobState]) = match self {
            Self::Retry => (&[JobState::Failed, JobState::Cancelled], &[JobState::Failed]),
            Self::Cancel(_) => {
                let open = &[JobState::Blocked, JobState::Pending, JobState::Running];
                (open, open)
            }
            Self::Delete { .. } if given.is_empty() => {
                return Ok(vec![JobState::Completed, JobState::Failed, JobState::Cancelled]);
            }
            Self::Delete { .. } => return Ok(given.to_vec()),
        };
        let is_possible = |state: &JobState| possible.iter().any(|other| other.status() == state.status());
        if let Some(impossible) = given.iter().find(|state| !is_possible(state)) {
            let possible: Vec<_> = possible.iter().map(|state| state.as_str()).collect();
            return Err(Failure::usage(format!(
                "--status {}: such chains cannot be {}; pass one of {}",
                impossible.as_str(),
                self.participle(),
                possible.join(", ")
            )));
        }
        Ok(if given.is_empty() { default } else { given }.to_vec())
    }

    /// Returns the order in which chains are changed. A blocker is usually older than the chains that wait for it. It
    /// must be retried before them, and cancelled or deleted after them.
    const fn order(self) -> Order {
        match self {
            Self::Retry => Order::Oldest,
            Self::Cancel(_) | Self::Delete { .. } => Order::Newest,
        }
    }

    /// Returns how many chains of a page are changed in one step.
    const fn step_chains(self) -> usize {
        match self {
            Self::Retry | Self::Cancel(_) => 1,
            Self::Delete { .. } => usize::MAX,
        }
    }

    const fn participle(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Cancel(_) => "cancelled",
            Self::Delete { .. } => "deleted",
        }
    }

    /// Changes these chains. Returns `None` if they have to be changed one by one.
    async fn apply(self, connection: &Connection, chains: &[ChainRecord]) -> Result<Option<Vec<Outcome>>> {
        if let Self::Delete { running } = self {
            return delete::delete(connection, chains, running).await;
        }
        let (client, mut outcomes) = (connection.client(), Vec::new());
        for chain in chains {
            outcomes.push(match self {
                Self::Cancel(mode) => cancel_one(&client, chain.id, mode).await?,
                _ => retry_one(&client, chain.id).await?,
            });
        }
        Ok(Some(outcomes))
    }

    /// Returns what the change would do with a chain in its current state. The store may still refuse the change.
    fn preview(self, chain: &ChainRecord) -> Outcome {
        let is_running = chain.status() == Status::Running;
        match self {
            Self::Cancel(CancelMode::UnlessRunning) if is_running => {
                Err(super::manage::NOT_CANCELLED.to_owned())
            }
            Self::Cancel(CancelMode::Ask) if is_running => Ok("would be asked to stop".to_owned()),
            Self::Delete { running: false } if is_running => Err(delete::NOT_DELETED.to_owned()),
            _ => Ok(format!("would be {}", self.participle())),
        }
    }
}
