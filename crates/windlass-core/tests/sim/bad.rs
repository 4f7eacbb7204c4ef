//! Known-bad variants: systems with a defect that the invariants must detect.

use std::time::Duration;

use windlass_core::command::*;
use windlass_core::{MemoryStore, Occurrence, RequestId, Result, Status, Store, Transactional};

use super::invariant::Invariant;
use super::store::{SimStore, SimTx};
use super::world::pass;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// A settlement is applied whichever attempt holds the job.
    FenceDropped,
    /// A commit is reported before it is attempted, and may still fail.
    AnnouncedBeforeCommit,
    /// A batch of settlements is acknowledged but not stored.
    SettleBatchDropped,
    /// A renewal is answered but not stored.
    LeaseNotRenewed,
    /// A stop returns without requeuing its jobs.
    StopForgets,
    /// A key does not prevent another chain from being started.
    KeyIgnored,
    /// A stored chain disappears.
    ChainMislaid,
    /// Expired leases are not reaped.
    NothingReaped,
    /// A handler's rows persist when its transaction is rolled back.
    RowsOutsideTransaction,
    /// A change of a schedule that is repeated after a lost reply starts its occurrence again.
    OccurrenceRepeated,
    /// A schedule moves on before its chain is created, and its process is suspended in between.
    OccurrenceLost,
    /// Schedules are due by a worker's clock, which is a minute fast.
    WorkersClock,
}

impl Bad {
    pub(crate) const ALL: [Self; 12] = [
        Self::FenceDropped,
        Self::AnnouncedBeforeCommit,
        Self::SettleBatchDropped,
        Self::LeaseNotRenewed,
        Self::StopForgets,
        Self::KeyIgnored,
        Self::ChainMislaid,
        Self::NothingReaped,
        Self::RowsOutsideTransaction,
        Self::OccurrenceRepeated,
        Self::OccurrenceLost,
        Self::WorkersClock,
    ];

    /// Returns the invariant that must detect the defect.
    pub(crate) const fn found_by(self) -> Invariant {
        match self {
            Self::FenceDropped => Invariant::StaleAttemptsWriteNothing,
            Self::AnnouncedBeforeCommit | Self::SettleBatchDropped => Invariant::OnlyCommitsAreAnnounced,
            Self::LeaseNotRenewed => Invariant::LeasesAreKept,
            Self::StopForgets => Invariant::StopsGiveBack,
            Self::KeyIgnored => Invariant::KeysPointAtOneChain,
            Self::ChainMislaid => Invariant::StartsAreKept,
            Self::NothingReaped => Invariant::NothingIsStuck,
            Self::RowsOutsideTransaction => Invariant::EffectsCommitWithTheEnd,
            Self::OccurrenceRepeated | Self::OccurrenceLost => Invariant::OccurrencesStartOnce,
            Self::WorkersClock => Invariant::OccurrencesStartInTime,
        }
    }
}

/// How a defect changes a command.
pub(super) enum Distorted {
    /// Execute this command instead.
    Command(Command),
    /// Execute nothing and return this reply.
    Reply(Reply),
}

impl SimStore {
    /// Applies the defect to a command outside transactions.
    pub(super) async fn distort(&self, command: Command) -> Result<Distorted> {
        let answer = match (self.world.bad, &command) {
            (Some(Bad::SettleBatchDropped), Command::Settle(_)) if self.world.percent(25) => {
                Some(pretend(&self.inner, command.clone()).await?)
            }
            (Some(Bad::LeaseNotRenewed), Command::Renew(_)) => {
                Some(pretend(&self.inner, command.clone()).await?)
            }
            (Some(Bad::NothingReaped), Command::Reap(_)) => {
                Some(Reply::Reap(ReapReply { reaped: Vec::new(), ripple: Ripple::default() }))
            }
            (Some(Bad::ChainMislaid), Command::Beat(_)) => {
                self.mislay().await?;
                None
            }
            (Some(Bad::WorkersClock), Command::DueSchedules(due)) => {
                Some(Reply::DueSchedules(self.due_on_a_fast_clock(*due).await?))
            }
            _ => None,
        };
        match answer {
            Some(reply) => Ok(Distorted::Reply(reply)),
            None => self.distort_in_tx(command).await,
        }
    }

    /// Applies the defects that also affect transactions.
    pub(super) async fn distort_in_tx(&self, mut command: Command) -> Result<Distorted> {
        match (self.world.bad, &mut command) {
            (Some(Bad::FenceDropped), Command::Settle(settle)) => {
                let jobs = settle.settlements.iter().map(|settlement| settlement.job).collect();
                let stored = self.inner.get_jobs(GetJobs { jobs }).await?.jobs;
                for (settlement, job) in settle.settlements.iter_mut().zip(stored) {
                    settlement.fence = job.map_or(settlement.fence, |job| job.fence);
                }
            }
            (Some(Bad::OccurrenceRepeated), Command::ChangeSchedules(ChangeSchedules { changes })) => {
                self.repeat_occurrences(changes).await?;
            }
            (Some(bad), Command::ChangeSchedules(ChangeSchedules { changes })) => {
                for change in changes {
                    if let (Bad::OccurrenceLost, true, ScheduleAction::Put(put)) =
                        (bad, self.world.percent(5), &mut change.action)
                    {
                        put.chain = None;
                    }
                    if bad == Bad::WorkersClock {
                        change.not_before = None;
                    }
                }
            }
            (Some(Bad::KeyIgnored), Command::Create(create)) => {
                create.chains.iter_mut().for_each(|new| new.key = None);
            }
            _ => {}
        }
        Ok(Distorted::Command(command))
    }

    pub(super) async fn commit_or_pretend(&self, tx: SimTx) -> Result<()> {
        if self.world.bad != Some(Bad::AnnouncedBeforeCommit) {
            return tx.commit_now().await;
        }
        let fails = self.world.percent(50);
        tokio::spawn(async move {
            pass(Duration::from_millis(5)).await;
            if fails { drop(tx) } else { drop(tx.commit_now().await) }
        });
        Ok(())
    }

    pub(super) fn leaks_rows(&self) -> bool {
        self.world.bad == Some(Bad::RowsOutsideTransaction)
    }

    /// Makes each change that was applied before apply again, and start its occurrence under another id.
    async fn repeat_occurrences(&self, changes: &mut [ScheduleChange]) -> Result<()> {
        for change in changes {
            let schedules = vec![ScheduleTarget::Name(change.name.clone())];
            let stored = self.inner.get_schedules(GetSchedules { schedules }).await?.schedules.remove(0);
            if stored.is_none_or(|stored| stored.revision != change.revision) {
                continue;
            }
            (change.expected, change.revision) = (Some(change.revision), RequestId::new());
            if let ScheduleAction::Put(PutSchedule { chain: Some(chain), .. }) = &mut change.action
                && let Some(occurrence) = chain.id.occurrence()
            {
                chain.id = Occurrence { is_manual: true, ..occurrence }.chain();
            }
        }
        Ok(())
    }

    /// Returns the schedules that are due in a minute.
    async fn due_on_a_fast_clock(&self, due: DueSchedules) -> Result<DueSchedulesReply> {
        let reply = self.inner.list_schedules(ListSchedules { after: None, max: due.max }).await?;
        let now = reply.now + Duration::from_secs(60);
        let (mut schedules, later): (Vec<_>, Vec<_>) =
            reply.schedules.into_iter().partition(|row| row.due_at.is_some_and(|due_at| due_at <= now));
        schedules.drain(..schedules.len().min(due.skip as usize));
        let next_due = later.iter().filter_map(|row| row.due_at).min();
        Ok(DueSchedulesReply { now, schedules, next_due })
    }

    /// Deletes a pending chain.
    async fn mislay(&self) -> Result<()> {
        let filter = ChainFilter { statuses: vec![Status::Pending], ..ChainFilter::default() };
        let found = self.inner.list_chains(ListChains { filter, page: Page::default() }).await?;
        let chains = found.chains.iter().take(1).map(|chain| chain.id.into()).collect();
        self.inner.delete(Delete { chains, cascade: false, seen: None }).await.map(drop)
    }
}

/// Returns the reply that a command would get, without storing anything.
async fn pretend(store: &MemoryStore, command: Command) -> Result<Reply> {
    let mut tx = store.begin().await?;
    let reply = store.execute_in(&mut tx, command).await?;
    store.rollback(tx).await?;
    Ok(reply)
}
