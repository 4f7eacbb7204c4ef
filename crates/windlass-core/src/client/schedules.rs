//! Schedules, for applications and tools.

mod declare;
mod edit;
mod view;

use std::fmt;
use std::time::Duration;

use super::executor::Executor;
use super::firing::visit_due;
use super::plan::IntoPlan;
use super::send::BusyRetries;
use super::{Client, InTx};
use crate::command::{
    ChangeSchedules, ChangeSchedulesReply, Created, GetSchedules, GetSchedulesReply, ListSchedules,
    ListSchedulesReply, NewChain, ScheduleAction, ScheduleChange, ScheduleChanged, ScheduleRecord,
    ScheduleTarget,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, Occurrence, RequestId, ScheduleId};
use crate::name::ScheduleName;
use crate::schedule::{Definition, EncodedChain, ScheduleSpec, State, drop_paused, set_aside, time};
use crate::store::{BoxFuture, Store, Transactional};
use crate::time::Timestamp;
pub(crate) use declare::{DECLARED_EVERY, Declaration, Declared, Declarer, is_noted};
use edit::{Edit, StoredSchedule, change, redefined};
pub use view::{Schedule, ScheduleDetails};

/// How often a change is computed again after a conflict with another one.
const TRIES: u32 = 20;
/// The number of schedules per page of a list.
const PAGE: u32 = 100;

/// The schedules of a store. See [`Client::schedules`](crate::Client::schedules).
pub struct Schedules<'c> {
    store: Box<dyn ScheduleStore + 'c>,
}

impl Schedules<'_> {
    /// Creates a schedule, or changes what a stored one starts and when. Its state, such as a pause, its runs and the last
    /// occurrence handled, is kept.
    ///
    /// ```
    /// # use windlass::{Client, Entry, Job, MemoryStore, plan};
    /// # use windlass::schedule::Cron;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { of: String }
    /// # impl Job for Report { const NAME: &'static str = "report"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Report {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let client = Client::new(MemoryStore::new());
    /// let weekdays = Cron::new("0 9 * * MON-FRI")?.in_zone("Europe/Berlin");
    /// client.schedules().put("daily-report", weekdays, Report { of: "sales".into() }).await?;
    /// let schedule = client.schedules().get("daily-report").await?.expect("it was just created");
    /// assert_eq!(schedule.details.unwrap().job_type, "report");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty or too long, if the schedule never fires, if its zone is unknown, or if
    /// the job has blockers or is too large.
    pub async fn put(
        &mut self,
        name: impl AsRef<str>,
        spec: impl Into<ScheduleSpec>,
        job: impl IntoPlan,
    ) -> Result<()> {
        let chain = job.into_plan().build()?;
        self.put_encoded(name.as_ref(), spec.into(), EncodedChain::new(&chain)?).await
    }

    /// Like [`put`](Self::put), for tools that do not know job types. The chain's id is ignored.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub async fn put_chain(
        &mut self,
        name: impl AsRef<str>,
        spec: ScheduleSpec,
        chain: &NewChain,
    ) -> Result<()> {
        self.put_encoded(name.as_ref(), spec, EncodedChain::new(chain)?).await
    }

    async fn put_encoded(&mut self, name: &str, spec: ScheduleSpec, job: EncodedChain) -> Result<()> {
        spec.check()?;
        let edit = |known: Option<StoredSchedule<'_>>, now: Timestamp| {
            let (spec, job) = (spec.clone(), job.clone());
            let Some(StoredSchedule { row, definition: known, state }) = known else {
                let definition = Definition { spec: spec.anchored(now), job, declaration: None };
                return Ok(Some(Edit::redefined(definition, State::new(now))));
            };
            let spec = spec.anchored_like(&known.spec).anchored(now);
            let definition = Definition { spec, job, declaration: known.declaration.clone() };
            Ok(Some(redefined(row, &known, definition, state, now)))
        };
        self.change(name, edit).await.map(drop)
    }

    /// Returns a schedule, or `None` if it is not stored.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub async fn get(&mut self, name: impl AsRef<str>) -> Result<Option<Schedule>> {
        let target = ScheduleTarget::Name(ScheduleName::new(name)?);
        self.get_target(target).await
    }

    /// Returns the schedule that has started a chain. See [`ChainId::occurrence`].
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub async fn get_by_id(&mut self, id: ScheduleId) -> Result<Option<Schedule>> {
        self.get_target(ScheduleTarget::Id(id)).await
    }

    async fn get_target(&mut self, target: ScheduleTarget) -> Result<Option<Schedule>> {
        let (row, now) = self.row(target).await?;
        Ok(row.map(|row| Schedule::read(&row, now)))
    }

    /// Returns the state of a schedule, or `None` if the schedule is not stored.
    pub(crate) async fn state(&mut self, id: ScheduleId) -> Result<Option<State>> {
        let (row, _) = self.row(ScheduleTarget::Id(id)).await?;
        row.map(|row| State::decode(&row.state)).transpose()
    }

    /// Lists all schedules, sorted by name.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub async fn list(&mut self) -> Result<Vec<Schedule>> {
        let (mut schedules, mut after) = (Vec::new(), None);
        loop {
            let reply = self.store.list(ListSchedules { after, max: PAGE }).await?;
            let Some(last) = reply.schedules.last() else { return Ok(schedules) };
            after = Some(last.name.clone());
            schedules.extend(reply.schedules.iter().map(|row| Schedule::read(row, reply.now)));
        }
    }

    /// Pauses a schedule. Occurrences during the pause are dropped. Returns whether it was running before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the schedule is not stored.
    pub async fn pause(&mut self, name: impl AsRef<str>) -> Result<bool> {
        let edit = |known: Option<StoredSchedule<'_>>, now: Timestamp| {
            let Some(StoredSchedule { definition, mut state, .. }) = known else {
                return Err(not_found(name.as_ref()));
            };
            if state.paused_at.is_some() {
                return Ok(None);
            }
            state.paused_at = Some(now.as_millis());
            Ok(Some(Edit::new(definition, state)))
        };
        Ok(self.change(name.as_ref(), edit).await?.is_some())
    }

    /// Resumes a schedule. Occurrences that were due during the pause are dropped and counted. The newest one that was due
    /// before the pause, and that no worker started, is started now or dropped, as the policy for missed occurrences says.
    /// Returns whether the schedule was paused before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the schedule is not stored.
    pub async fn resume(&mut self, name: impl AsRef<str>) -> Result<bool> {
        let edit = |known: Option<StoredSchedule<'_>>, now: Timestamp| {
            let Some(StoredSchedule { row, definition, mut state }) = known else {
                return Err(not_found(name.as_ref()));
            };
            let Some(paused_at) = state.paused_at.take() else { return Ok(None) };
            let handled = set_aside(row.id, &definition, &mut state, row.handled, (time(paused_at), now))?;
            let handled = drop_paused(row.id, &definition, &mut state, handled, now)?;
            Ok(Some(Edit { handled, ..Edit::new(definition, state) }))
        };
        Ok(self.change(name.as_ref(), edit).await?.is_some())
    }

    /// Starts the job of a schedule now, in addition to its occurrences, even if the schedule is paused or its previous
    /// chain is open. Returns the chain; or the chain that holds the job's key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the schedule is not stored.
    pub async fn run_now(&mut self, name: impl AsRef<str>) -> Result<ChainId> {
        // If a reply is lost and the schedule changes before the repeat, the run is found by this id.
        let (request, mut applied) = (RequestId::new(), None);
        let edit = |known: Option<StoredSchedule<'_>>, now: Timestamp| {
            let Some(StoredSchedule { row, definition, mut state }) = known else {
                return Err(not_found(name.as_ref()));
            };
            applied = state.runs.iter().find(|run| run.request == Some(request)).map(|run| run.chain);
            if applied.is_some() {
                return Ok(None);
            }
            // Two runs in the same millisecond must not get the same id.
            let latest = state.runs.iter().map(|run| run.at).max().unwrap_or_default();
            let at = time(now.as_millis().max(latest + 1));
            let chain = Occurrence { schedule: row.id, at, is_manual: true }.chain();
            state.push_run(at, chain, now, Some(request));
            (state.check_at, state.check_delay) = (Some((now + Duration::from_secs(1)).as_millis()), 0);
            Ok(Some(Edit { chain: Some(chain), ..Edit::new(definition, state) }))
        };
        let changed = self.change(name.as_ref(), edit).await?;
        if let Some(chain) = applied {
            return Ok(chain);
        }
        match changed {
            Some((Some(chain), Some(Created::Existing(existing)))) if existing.chain != chain => {
                Ok(existing.chain)
            }
            Some((_, Some(Created::Refused(refusal)))) => Err(refusal.into()),
            Some((Some(chain), _)) => Ok(chain),
            _ => Err(Error::new(ErrorKind::Corrupt, "the store returned no reply for a chain")),
        }
    }

    /// Applies a declaration that was refused because a newer one had replaced it. Call this after rolling back a program
    /// on purpose. Returns whether there was a refused declaration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the schedule is not stored.
    pub async fn accept(&mut self, name: impl AsRef<str>) -> Result<bool> {
        let edit = |known: Option<StoredSchedule<'_>>, now: Timestamp| {
            let Some(StoredSchedule { row, definition: known, state }) = known else {
                return Err(not_found(name.as_ref()));
            };
            let Some(mut accepted) = known.accept() else { return Ok(None) };
            accepted.spec = accepted.spec.anchored_like(&known.spec).anchored(now);
            Ok(Some(redefined(row, &known, accepted, state, now)))
        };
        Ok(self.change(name.as_ref(), edit).await?.is_some())
    }

    /// Deletes a schedule. The chains that it has started are kept. Returns whether it was stored.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub async fn delete(&mut self, name: impl AsRef<str>) -> Result<bool> {
        let name = ScheduleName::new(name)?;
        let mut first = None;
        for _ in 0..TRIES {
            let Some(row) = self.row(ScheduleTarget::Name(name.clone())).await?.0 else {
                return Ok(first.is_some());
            };
            if *first.get_or_insert(row.id) != row.id {
                // The schedule is gone. This one was created after it.
                return Ok(true);
            }
            let change = ScheduleChange {
                name: name.clone(),
                id: row.id,
                expected: Some(row.revision),
                revision: RequestId::new(),
                not_before: None,
                not_after: None,
                action: ScheduleAction::Delete,
            };
            if !matches!(self.send(change).await?, ScheduleChanged::Conflict) {
                return Ok(true);
            }
        }
        Err(contended(&name))
    }

    /// Reads a schedule, computes a change and writes it, until no other change comes in between. Returns `None` if
    /// nothing was to be changed.
    async fn change(
        &mut self,
        name: &str,
        mut edit: impl FnMut(Option<StoredSchedule<'_>>, Timestamp) -> Result<Option<Edit>>,
    ) -> Result<Option<(Option<ChainId>, Option<Created>)>> {
        let name = ScheduleName::new(name)?;
        for _ in 0..TRIES {
            let (row, now) = self.row(ScheduleTarget::Name(name.clone())).await?;
            let known = row.as_ref().map(StoredSchedule::decode).transpose()?;
            let Some(edit) = edit(known, now)? else { return Ok(None) };
            let chain = edit.chain;
            match self.send(change(&name, row.as_ref(), edit, now)?).await? {
                ScheduleChanged::Applied { created } => return Ok(Some((chain, created))),
                // The reply does not say whether the chain was created. Read the schedule again.
                ScheduleChanged::Repeated if chain.is_some() => {}
                ScheduleChanged::Repeated => return Ok(Some((None, None))),
                _ => {}
            }
        }
        Err(contended(&name))
    }

    /// Returns the row of a schedule, if it is stored, and the store's time.
    async fn row(&mut self, target: ScheduleTarget) -> Result<(Option<ScheduleRecord>, Timestamp)> {
        let mut reply = self.store.get(GetSchedules { schedules: vec![target] }).await?;
        Ok((reply.schedules.pop().flatten(), reply.now))
    }

    /// Sends a change, and repeats it up to 20 times, every 50 ms, while a row is locked.
    async fn send(&mut self, change: ScheduleChange) -> Result<ScheduleChanged> {
        let mut retries = BusyRetries::new();
        loop {
            let reply = self.store.change(ChangeSchedules { changes: vec![change.clone()] }).await?;
            let changed = reply.changes.into_iter().next();
            let changed =
                changed.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the store returned no reply"))?;
            if !matches!(changed, ScheduleChanged::Busy) {
                return Ok(changed);
            }
            if !retries.wait().await {
                let text =
                    format!("another transaction has locked the schedule `{}`: try again", change.name);
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
    }
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no schedule has the name `{name}`: list the schedules"))
}

fn contended(name: &ScheduleName) -> Error {
    let text =
        format!("the schedule `{name}` was changed by other programs {TRIES} times in a row: try again");
    Error::new(ErrorKind::Busy, text)
}

/// The part of an executor that schedules need. It is dyn-compatible.
trait ScheduleStore: Send {
    fn get(&mut self, request: GetSchedules) -> BoxFuture<'_, Result<GetSchedulesReply>>;

    fn list(&mut self, request: ListSchedules) -> BoxFuture<'_, Result<ListSchedulesReply>>;

    /// Sends changes and announces what they did.
    fn change(&mut self, request: ChangeSchedules) -> BoxFuture<'_, Result<ChangeSchedulesReply>>;
}

struct On<E>(E);

impl<E: Executor> ScheduleStore for On<E> {
    fn get(&mut self, request: GetSchedules) -> BoxFuture<'_, Result<GetSchedulesReply>> {
        Box::pin(async move { self.0.send(&request).await })
    }

    fn list(&mut self, request: ListSchedules) -> BoxFuture<'_, Result<ListSchedulesReply>> {
        Box::pin(async move { self.0.send(&request).await })
    }

    fn change(&mut self, request: ChangeSchedules) -> BoxFuture<'_, Result<ChangeSchedulesReply>> {
        Box::pin(async move {
            let reply = self.0.send(&request).await?;
            self.0.announce(|announcements| {
                for (change, changed) in request.changes.iter().zip(&reply.changes) {
                    announcements.schedule_changed(change, changed);
                }
                announcements.schedules_changed();
            });
            Ok(reply)
        })
    }
}

impl<S: Store + ?Sized> Client<S> {
    /// Returns the schedules of the store: jobs that start by themselves, at certain times.
    #[must_use]
    pub fn schedules(&self) -> Schedules<'_> {
        Schedules { store: Box::new(On(self)) }
    }
}

impl<S: Store + ?Sized> Client<S> {
    /// Starts due occurrences, as workers do. For test harnesses that advance the clock.
    #[doc(hidden)]
    pub async fn visit_schedules(&self) -> Result<()> {
        visit_due(self.store(), &self.shared.dispatcher).await.map(drop)
    }
}

impl<S: Transactional> InTx<'_, S> {
    /// Returns the schedules of the store, to read and change them inside the transaction.
    #[must_use]
    pub fn schedules(&mut self) -> Schedules<'_> {
        Schedules { store: Box::new(On(self)) }
    }
}

impl fmt::Debug for Schedules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schedules")
    }
}
