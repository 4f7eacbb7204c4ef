//! Schedules, for applications and tools.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::executor::Executor;
use super::firing::visit_due;
use super::plan::IntoPlan;
use super::send::BusyRetries;
use super::{Client, InTx};
use crate::command::{
    ChangeSchedules, ChangeSchedulesReply, Created, GetSchedules, GetSchedulesReply, ListSchedules,
    ListSchedulesReply, NewChain, PutSchedule, ScheduleAction, ScheduleChange, ScheduleChanged,
    ScheduleRecord, ScheduleTarget,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, Occurrence, RequestId, ScheduleId};
use crate::name::ScheduleName;
use crate::schedule::{
    Definition, EncodedChain, ScheduleRun, ScheduleSpec, State, drop_paused, due_at, set_aside, time,
};
use crate::store::{BoxFuture, Store, Transactional};
use crate::time::Timestamp;

/// How often a change is computed again after a conflict with another one.
const TRIES: u32 = 20;
/// How often a worker notes that it still declares a schedule.
pub(crate) const DECLARED_EVERY: Duration = Duration::from_secs(60 * 60);
/// The number of next times that a [`Schedule`] has.
const NEXT_TIMES: usize = 5;
/// The number of schedules per page of a list.
const PAGE: u32 = 100;

/// The schedules of a store. See [`Client::schedules`](crate::Client::schedules).
pub struct Schedules<'c> {
    store: Box<dyn ScheduleStore + 'c>,
}

/// A stored schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schedule {
    /// The name.
    pub name: ScheduleName,
    /// The id, chosen when the schedule was created.
    pub id: ScheduleId,
    /// What the schedule starts and when, or why this program cannot read it.
    pub details: Result<ScheduleDetails, String>,
    /// When the schedule needs attention next: at its next occurrence, or to check on its latest run.
    pub due_at: Option<Timestamp>,
    /// The last occurrence that was started or dropped.
    pub handled: Option<Timestamp>,
    /// The store's time when the schedule was read.
    pub now: Timestamp,
}

/// The content of a [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleDetails {
    /// When the schedule fires, and its policies.
    pub spec: ScheduleSpec,
    /// The type of the job that it starts.
    pub job_type: String,
    /// The input of the job, if it is text.
    pub input: Option<String>,
    /// The next occurrences, without jitter. Empty while the schedule is paused, or if it has ended.
    pub next: Vec<Timestamp>,
    /// When the schedule was created.
    pub created_at: Timestamp,
    /// When the schedule was paused, if it is paused.
    pub paused_at: Option<Timestamp>,
    /// When the schedule ended: it has no further occurrences, and is removed after its retention.
    pub ended_at: Option<Timestamp>,
    /// An occurrence that waits until the previous chain closes.
    pub waiting: Option<Timestamp>,
    /// The latest runs, oldest first: at most 20.
    pub runs: Vec<ScheduleRun>,
    /// The latest occurrence whose chain completed.
    pub last_success: Option<Timestamp>,
    /// The number of occurrences that were dropped because no worker started them in time. For each outage, at most 1,000
    /// are counted.
    pub missed: u64,
    /// The number of occurrences that were skipped because the previous chain was open.
    pub overlapped: u64,
    /// The number of occurrences that were skipped because another chain held the key, or because the chain was refused.
    pub key_held: u64,
    /// The number of occurrences that were dropped because the schedule was paused. For each pause, at most 1,000 are
    /// counted.
    pub paused: u64,
    /// The program that declared the schedule, if one did.
    pub program: Option<String>,
    /// When a worker last declared the schedule, accurate to an hour, even if its declaration was not applied. If this is
    /// long ago, the declaration was removed from the code, or the program no longer runs.
    pub declared_at: Option<Timestamp>,
    /// The program whose declaration was not applied, because its content was superseded. See
    /// [`Schedules::accept`]. `None` again when the program has not declared it for three hours and another program
    /// declares the current content.
    pub refused_program: Option<String>,
}

impl Schedule {
    /// Returns how late the schedule is, if it is due and no worker has visited it.
    #[must_use]
    pub fn overdue_by(&self) -> Option<Duration> {
        let due_at = self.due_at.filter(|due_at| *due_at < self.now)?;
        Some(self.now.since(due_at))
    }

    /// Reads a schedule from its stored row. `now` is the time in the store's reply.
    #[must_use]
    pub fn read(row: &ScheduleRecord, now: Timestamp) -> Self {
        Self {
            name: row.name.clone(),
            id: row.id,
            details: ScheduleDetails::read(row).map_err(|error| error.to_string()),
            due_at: row.due_at,
            handled: row.handled,
            now,
        }
    }
}

impl ScheduleDetails {
    fn read(row: &ScheduleRecord) -> Result<Self> {
        let (definition, state) = (Definition::decode(&row.definition)?, State::decode(&row.state)?);
        let is_active = state.paused_at.is_none() && state.ended_at.is_none();
        let base = row.handled.unwrap_or_default().max(time(state.since));
        let next = if is_active { definition.spec.upcoming(base, NEXT_TIMES)? } else { Vec::new() };
        let declaration = definition.declaration;
        Ok(Self {
            job_type: definition.job.job_type,
            input: definition.job.input,
            next,
            created_at: time(state.created_at),
            paused_at: state.paused_at.map(time),
            ended_at: state.ended_at.map(time),
            waiting: state.waiting.map(time),
            runs: state.shown_runs(),
            last_success: state.last_success.map(time),
            missed: state.missed,
            overlapped: state.overlapped,
            key_held: state.key_held,
            paused: state.paused,
            declared_at: state.declared_at.map(time),
            program: declaration.as_ref().map(|declaration| declaration.program.clone()),
            refused_program: declaration.and_then(|declaration| Some(declaration.refused?.program)),
            spec: definition.spec,
        })
    }
}

/// What a change of a schedule needs to know.
struct Edit {
    definition: Definition,
    state: State,
    /// Whether the definition has changed.
    is_redefined: bool,
    /// The last occurrence handled, if the change handles occurrences.
    handled: Option<Timestamp>,
    chain: Option<ChainId>,
}

/// What became of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    Unchanged,
    Applied,
    /// A single time in the past: the schedule was removed after it, or never stored.
    Over,
    /// Superseded content, or a lower version.
    Refused,
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
        let edit = |row: Option<(&ScheduleRecord, Definition, State)>, now: Timestamp| {
            Ok(Some(match row {
                Some((row, known, state)) => {
                    let spec = spec.clone().anchored_like(&known.spec).anchored(now);
                    let definition =
                        Definition { spec, job: job.clone(), declaration: known.declaration.clone() };
                    redefined(row, &known, definition, state, now)
                }
                None => {
                    let spec = spec.clone().anchored(now);
                    let definition = Definition { spec, job: job.clone(), declaration: None };
                    Edit {
                        definition,
                        state: State::new(now),
                        is_redefined: true,
                        handled: None,
                        chain: None,
                    }
                }
            }))
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
        let mut reply = self.store.get(GetSchedules { schedules: vec![target] }).await?;
        let row = reply.schedules.pop().flatten();
        Ok(row.map(|row| Schedule::read(&row, reply.now)))
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
        let edit = |row: Option<(&ScheduleRecord, Definition, State)>, now: Timestamp| {
            let Some((_, definition, mut state)) = row else { return Err(not_found(name.as_ref())) };
            if state.paused_at.is_some() {
                return Ok(None);
            }
            state.paused_at = Some(now.as_millis());
            Ok(Some(Edit { definition, state, is_redefined: false, handled: None, chain: None }))
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
        let edit = |row: Option<(&ScheduleRecord, Definition, State)>, now: Timestamp| {
            let Some((row, definition, mut state)) = row else { return Err(not_found(name.as_ref())) };
            let Some(paused_at) = state.paused_at.take() else { return Ok(None) };
            let handled = set_aside(row.id, &definition, &mut state, row.handled, (time(paused_at), now))?;
            let handled = drop_paused(row.id, &definition, &mut state, handled, now)?;
            Ok(Some(Edit { definition, state, is_redefined: false, handled, chain: None }))
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
        let edit = |row: Option<(&ScheduleRecord, Definition, State)>, now: Timestamp| {
            let Some((row, definition, mut state)) = row else { return Err(not_found(name.as_ref())) };
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
            Ok(Some(Edit { definition, state, is_redefined: false, handled: None, chain: Some(chain) }))
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
        let edit = |row: Option<(&ScheduleRecord, Definition, State)>, now: Timestamp| {
            let Some((row, known, state)) = row else { return Err(not_found(name.as_ref())) };
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
            let Some(row) = self.row(&name).await?.0 else { return Ok(first.is_some()) };
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
                action: ScheduleAction::Delete,
            };
            if !matches!(self.send(change).await?, ScheduleChanged::Conflict) {
                return Ok(true);
            }
        }
        Err(contended(&name))
    }

    /// Applies the declaration of a program.
    pub(crate) async fn declare(
        &mut self,
        name: &ScheduleName,
        program: &str,
        spec: &ScheduleSpec,
        job: &EncodedChain,
    ) -> Result<Declared> {
        let mut declared = Declared::Unchanged;
        let edit = |row: Option<(&ScheduleRecord, Definition, State)>, now: Timestamp| {
            let declared_at = Some(now.as_millis());
            let Some((row, known, state)) = row else {
                if is_over(spec, now)? {
                    declared = Declared::Over;
                    return Ok(None);
                }
                let mut definition = Definition::declared(program, spec, job);
                definition.spec = definition.spec.anchored(now);
                declared = Declared::Applied;
                let state = State { declared_at, ..State::new(now) };
                return Ok(Some(Edit { definition, state, is_redefined: true, handled: None, chain: None }));
            };
            let is_stale = state.declared_at.is_none_or(|at| time(at) + DECLARED_EVERY <= now);
            let state =
                State { declared_at: if is_stale { declared_at } else { state.declared_at }, ..state };
            let Some(mut new) = known.declare(program, spec, job, now) else {
                let is_current = known.has_content(spec, job);
                declared = if is_current { Declared::Unchanged } else { Declared::Refused };
                let seen = Edit { definition: known, state, is_redefined: false, handled: None, chain: None };
                return Ok(Some(seen).filter(|_| is_stale));
            };
            if new.has_content(spec, job) {
                declared = Declared::Applied;
                new.spec = new.spec.anchored_like(&known.spec).anchored(now);
                return Ok(Some(redefined(row, &known, new, State { declared_at, ..state }, now)));
            }
            declared = Declared::Refused;
            Ok(Some(Edit { definition: new, state, is_redefined: true, handled: None, chain: None }))
        };
        self.change(name.as_str(), edit).await?;
        Ok(declared)
    }

    /// Reads a schedule, computes a change and writes it, until no other change comes in between. Returns `None` if
    /// nothing was to be changed.
    async fn change(
        &mut self,
        name: &str,
        mut edit: impl FnMut(Option<(&ScheduleRecord, Definition, State)>, Timestamp) -> Result<Option<Edit>>,
    ) -> Result<Option<(Option<ChainId>, Option<Created>)>> {
        let name = ScheduleName::new(name)?;
        for _ in 0..TRIES {
            let (row, now) = self.row(&name).await?;
            let known = match &row {
                Some(row) => Some((row, Definition::decode(&row.definition)?, State::decode(&row.state)?)),
                None => None,
            };
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

    async fn row(&mut self, name: &ScheduleName) -> Result<(Option<ScheduleRecord>, Timestamp)> {
        let schedules = vec![ScheduleTarget::Name(name.clone())];
        let mut reply = self.store.get(GetSchedules { schedules }).await?;
        Ok((reply.schedules.pop().flatten(), reply.now))
    }

    /// Sends a change, and repeats it for about a second while a row is locked.
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

/// Returns an edit with another definition. If the times have changed, occurrences before now do not count, except those
/// that were due already.
fn redefined(
    row: &ScheduleRecord,
    known: &Definition,
    definition: Definition,
    mut state: State,
    now: Timestamp,
) -> Edit {
    let mut handled = None;
    if !definition.spec.fires_like(&known.spec) {
        let due_until = state.paused_at.map_or(now, time);
        // If this program cannot compute the former times, it cannot keep their occurrences.
        handled = set_aside(row.id, known, &mut state, row.handled, (due_until, now)).ok().flatten();
        state.since = state.since.max(now.as_millis());
        state.ended_at = None;
    }
    Edit { is_redefined: definition != *known, definition, state, handled, chain: None }
}

/// Whether a declaration has a single time, which has passed. If its schedule is not stored, it was started and removed
/// by its retention, or an operator deleted it: it must not start again.
fn is_over(spec: &ScheduleSpec, now: Timestamp) -> Result<bool> {
    Ok(spec.is_once() && spec.next_after(None)?.is_some_and(|at| at + spec.grace_ms() < now))
}

fn change(
    name: &ScheduleName,
    row: Option<&ScheduleRecord>,
    edit: Edit,
    now: Timestamp,
) -> Result<ScheduleChange> {
    let Edit { definition, mut state, is_redefined, handled, chain } = edit;
    let id = row.map_or_else(ScheduleId::new, |row| row.id);
    let handled = handled.max(row.and_then(|row| row.handled));
    // A schedule that is not stored has no run to check.
    let due_at = due_at(id, &definition, &mut state, handled, now)?;
    let text: Arc<str> = state.encode().into();
    let mut other = state.clone();
    let chain = chain.map(|chain| definition.job.decode(chain)).transpose()?;
    if chain.is_some() {
        other.runs.pop_back();
    }
    let put = PutSchedule {
        due_at,
        handled,
        definition: is_redefined.then(|| definition.encode().into()),
        state: text,
        chain,
        state_if_not_created: other.encode().into(),
    };
    Ok(ScheduleChange {
        name: name.clone(),
        id,
        expected: row.map(|row| row.revision),
        revision: RequestId::new(),
        not_before: None,
        action: ScheduleAction::Put(put),
    })
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no schedule has the name `{name}`: list the schedules"))
}

fn contended(name: &ScheduleName) -> Error {
    let text = format!("the schedule `{name}` was changed by others {TRIES} times in a row: try again");
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
    /// Starts due occurrences, as workers do. For test harnesses that turn the clock.
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
