//! Visits schedules: starts due occurrences, and records the outcomes of runs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use super::outbox::Outbox;
use super::send::{Repeat, send, send_repeatedly};
use super::{Announcements, Dispatcher};
use crate::command::{
    Cancel, CancelMode, ChangeSchedules, DueSchedules, GetChains, GetSchedules, PutSchedule, Request,
    ScheduleAction, ScheduleChange, ScheduleChanged, ScheduleRecord, ScheduleTarget, Target,
};
use crate::error::Result;
use crate::id::{ChainId, RequestId, ScheduleId};
use crate::limit::SCHEDULE_PAGE_MAX;
use crate::name::ErrorText;
use crate::observer::Event;
use crate::schedule::{ChainStatus, Definition, State, Visit, visit};
use crate::store::{AnyStore, Store};
use crate::time::Timestamp;

/// The number of due schedules that one command queries, and changes.
const DUE_MAX: u32 = 100;
/// The number of pages that one pass handles. If more are due, the next pass continues.
const PAGES_MAX: usize = 200;
/// The largest total size of the texts and inputs in one command, in bytes.
const CHANGES_MAX_BYTES: usize = 4 * 1024 * 1024;
/// How often a schedule is visited again to record a closed run, if another worker changes it at the same time. After
/// that, the next check records the outcome.
const CONFLICTS_MAX: u32 = 10;
/// How long the record of closed runs waits for a pass over the due schedules. A pass over 20,000 schedules takes longer: then
/// a batch of outcomes is recorded each second.
const PASS_LIMIT: Duration = Duration::from_secs(1);
/// The number of closed runs that wait to be recorded. Later ones are recorded by a check.
const WAITING_MAX: usize = 10_000;

/// The result of a pass over the due schedules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    /// The store's time.
    pub(crate) now: Timestamp,
    /// When the next schedule is due.
    pub(crate) next_due: Option<Timestamp>,
    /// Whether other workers handled most of the schedules at the same time.
    pub(crate) is_contended: bool,
    /// Whether open transactions had locked some of the due schedules.
    pub(crate) is_busy: bool,
}

/// The results of visiting schedules.
#[derive(Clone, Debug, Default)]
struct Visited {
    /// Schedules that stay due: this program cannot read them, or an open transaction has locked them.
    left: HashSet<ScheduleId>,
    is_busy: bool,
    applied: u32,
    /// Schedules that another worker changed at the same time.
    conflicts: Vec<ScheduleId>,
}

impl Visited {
    fn leave(&mut self, schedule: ScheduleId) {
        self.left.insert(schedule);
    }

    fn add(&mut self, other: Self) {
        self.left.extend(other.left);
        self.is_busy |= other.is_busy;
        self.applied += other.applied;
        self.conflicts.extend(other.conflicts);
    }
}

/// Visits all due schedules. A schedule that cannot be changed does not delay the others.
pub(crate) async fn visit_due<S: Store + ?Sized>(store: &S, dispatcher: &Dispatcher) -> Result<Pass> {
    visit_pages(store, dispatcher, PAGES_MAX).await
}

/// Visits the schedules that have been due for longest, at most 100.
pub(crate) async fn visit_due_page<S: Store + ?Sized>(store: &S, dispatcher: &Dispatcher) -> Result<()> {
    visit_pages(store, dispatcher, 1).await.map(drop)
}

/// Sends a command, and reports the call to the observers.
async fn measured<S: Store + ?Sized, R: Repeat>(
    store: &S,
    dispatcher: &Dispatcher,
    request: &R,
) -> Result<R::Reply> {
    dispatcher.measured(R::NAME, |_| request.items(), send(store, request)).await
}

async fn visit_pages<S: Store + ?Sized>(store: &S, dispatcher: &Dispatcher, max: usize) -> Result<Pass> {
    let _running = dispatcher.closed_runs.passes.begin();
    let (mut skip, mut total) = (0, Visited::default());
    let (mut pages, mut is_second_pass) = (0, false);
    loop {
        let reply = measured(store, dispatcher, &DueSchedules { skip, max: DUE_MAX }).await?;
        pages += 1;
        let mut schedules = reply.schedules;
        let is_full = count(schedules.len()) == DUE_MAX;
        if is_full && pages < max {
            // If another worker has just handled some schedules of the first page, this skips as many. A later pass finds
            // them.
            let next =
                measured(store, dispatcher, &DueSchedules { skip: skip + DUE_MAX, max: DUE_MAX }).await?;
            pages += 1;
            schedules.extend(next.schedules);
        }
        let (known, mut rows): (Vec<_>, Vec<_>) =
            schedules.into_iter().partition(|row| total.left.contains(&row.id));
        let is_last = rows.is_empty() && !is_full;
        if is_last && skip > 0 && !is_second_pass && pages < max {
            // If another worker handled a schedule that this pass left, the next due schedule was skipped instead.
            (skip, is_second_pass) = (0, true);
            continue;
        }
        let left = total.left.len();
        // Two commands at the same time: a store that has several connections commits one while it runs the other.
        let others = rows.split_off(rows.len().min(DUE_MAX as usize));
        let (mut one, mut other) = (Visited::default(), Visited::default());
        tokio::try_join!(
            visit_all(store, dispatcher, (rows, &[]), reply.now, &mut one),
            visit_all(store, dispatcher, (others, &[]), reply.now, &mut other),
        )?;
        total.add(one);
        total.add(other);
        // What was left stays at the front: the others are due later now.
        skip += count(known.len() + total.left.len() - left);
        if is_last || pages >= max {
            let next_due = if is_last { reply.next_due } else { Some(reply.now) };
            let is_contended = count(total.conflicts.len()) > total.applied;
            return Ok(Pass { now: reply.now, next_due, is_contended, is_busy: total.is_busy });
        }
    }
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

/// Visits all schedules, due or not, so that each has the due time that this program computes. Time-zone data may have
/// changed since they were stored. Passes each page to `inspect` first.
pub(crate) async fn visit_every<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    mut inspect: impl FnMut(&[ScheduleRecord]),
) -> Result<()> {
    let mut after = None;
    loop {
        let request = crate::command::ListSchedules { after, max: DUE_MAX };
        let reply = measured(store, dispatcher, &request).await?;
        let Some(last) = reply.schedules.last() else { return Ok(()) };
        after = Some(last.name.clone());
        inspect(&reply.schedules);
        visit_all(store, dispatcher, (reply.schedules, &[]), reply.now, &mut Visited::default()).await?;
    }
}

/// Visits the schedules whose runs have closed. A schedule that another worker changes is visited again: it may
/// have read the status of its runs before.
async fn visit_closed<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    closed: &[ChainId],
) -> Result<()> {
    let ids = closed.iter().filter_map(|chain| Some(chain.occurrence()?.schedule));
    // Sorted, so that a simulation with the same seed sends the same commands.
    let mut ids: Vec<_> = ids.collect::<BTreeSet<_>>().into_iter().collect();
    for _ in 0..CONFLICTS_MAX {
        let mut visited = Visited::default();
        for ids in ids.chunks(SCHEDULE_PAGE_MAX) {
            let schedules = ids.iter().copied().map(ScheduleTarget::Id).collect();
            let reply = measured(store, dispatcher, &GetSchedules { schedules }).await?;
            let rows = reply.schedules.into_iter().flatten().collect();
            visit_all(store, dispatcher, (rows, closed), reply.now, &mut visited).await?;
        }
        ids = visited.conflicts;
        if ids.is_empty() {
            break;
        }
    }
    Ok(())
}

/// A visited schedule whose row is to be changed.
struct PlannedChange {
    change: ScheduleChange,
    cancel: Option<ChainId>,
}

/// Visits schedules. `closed` are chains to read in addition to those that each visit needs.
async fn visit_all<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    (rows, closed): (Vec<ScheduleRecord>, &[ChainId]),
    now: Timestamp,
    visited: &mut Visited,
) -> Result<()> {
    let mut read = Vec::with_capacity(rows.len());
    for row in rows {
        match decode(&row) {
            Ok((definition, state)) => read.push((row, definition, state)),
            Err(_) => visited.leave(row.id),
        }
    }
    let watched = read
        .iter()
        .flat_map(|(_, definition, state)| state.watched_chains(definition.spec.overlap_policy(), now));
    let statuses = statuses(store, dispatcher, watched.chain(closed.iter().copied())).await?;
    let mut plans = Vec::with_capacity(read.len());
    for (row, definition, state) in read {
        let status = |chain| statuses.get(&chain).copied();
        match visit(&row, &definition, state, now, status) {
            Ok(Visit::Nothing) => visited.leave(row.id),
            Ok(Visit::Put(planned)) => {
                let cancel = planned.cancel;
                let times = (planned.not_before, planned.not_after);
                let change = change(&row, times, ScheduleAction::Put(planned.put));
                plans.push(PlannedChange { change, cancel });
            }
            Ok(Visit::Delete) => {
                plans.push(PlannedChange {
                    change: change(&row, (None, None), ScheduleAction::Delete),
                    cancel: None,
                });
            }
            Err(_) => visited.leave(row.id),
        }
    }
    for batch in in_batches(plans, |plan| &plan.change) {
        apply(store, dispatcher, batch, visited).await?;
    }
    Ok(())
}

/// Splits changes into batches for one command each.
pub(super) fn in_batches<T>(items: Vec<T>, change: impl Fn(&T) -> &ScheduleChange) -> Vec<Vec<T>> {
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for item in items {
        let more = size(change(&item));
        if !batch.is_empty() && bytes + more > CHANGES_MAX_BYTES {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += more;
        batch.push(item);
    }
    batches.push(batch);
    batches.retain(|batch| !batch.is_empty());
    batches
}

fn decode(row: &ScheduleRecord) -> Result<(Definition, State)> {
    Ok((Definition::decode(&row.definition)?, State::decode(&row.state)?))
}

/// The earliest and the latest time of a change.
type Times = (Option<Timestamp>, Option<Timestamp>);

fn change(row: &ScheduleRecord, (not_before, not_after): Times, action: ScheduleAction) -> ScheduleChange {
    ScheduleChange {
        name: row.name.clone(),
        id: row.id,
        expected: Some(row.revision),
        revision: RequestId::new(),
        not_before,
        not_after,
        action,
    }
}

fn size(change: &ScheduleChange) -> usize {
    let ScheduleAction::Put(put) = &change.action else { return 0 };
    let input = put.chain.as_ref().map_or(0, |chain| chain.job.input.bytes().len());
    let definition = put.definition.as_ref().map_or(0, |text| text.len());
    definition + put.state.len() + put.state_if_not_created.len() + input
}

/// Returns the status of chains that schedules have started.
async fn statuses<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    chains: impl Iterator<Item = ChainId>,
) -> Result<HashMap<ChainId, ChainStatus>> {
    let chains: Vec<_> = chains.collect::<BTreeSet<_>>().into_iter().collect();
    let mut statuses = HashMap::with_capacity(chains.len());
    for chains in chains.chunks(SCHEDULE_PAGE_MAX) {
        let targets = chains.iter().copied().map(Target::Chain).collect();
        let reply = measured(store, dispatcher, &GetChains { chains: targets }).await?;
        for (chain, record) in chains.iter().zip(reply.chains) {
            let status = match record.map(|record| record.closed) {
                None => ChainStatus::Gone,
                Some(None) => ChainStatus::Open,
                Some(Some(closed)) => ChainStatus::Closed(closed.closed_as, closed.at),
            };
            statuses.insert(*chain, status);
        }
    }
    Ok(statuses)
}

async fn apply<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    plans: Vec<PlannedChange>,
    visited: &mut Visited,
) -> Result<()> {
    let request = ChangeSchedules { changes: plans.iter().map(|plan| plan.change.clone()).collect() };
    let reply = measured(store, dispatcher, &request).await?;
    let mut announcements = Announcements::committed(dispatcher);
    let mut cancelled = Vec::new();
    for (plan, changed) in plans.iter().zip(&reply.changes) {
        match changed {
            ScheduleChanged::Applied { .. } | ScheduleChanged::Repeated => {
                visited.applied += 1;
                cancelled.extend(plan.cancel.map(Target::Chain));
            }
            // After a suspension of this process, the next page has the schedule again.
            ScheduleChanged::Conflict | ScheduleChanged::TooLate => visited.conflicts.push(plan.change.id),
            ScheduleChanged::NotDue | ScheduleChanged::Busy => {
                visited.is_busy |= *changed == ScheduleChanged::Busy;
                visited.leave(plan.change.id);
            }
        }
        announcements.schedule_changed(&plan.change, changed);
    }
    announcements.send(dispatcher);
    if !cancelled.is_empty() {
        let request = Cancel { chains: cancelled, mode: CancelMode::Ask };
        let call = send_repeatedly(store, &request);
        let reply = dispatcher.measured(Cancel::NAME, |reply| reply.chains.len(), call).await?;
        let mut announcements = Announcements::committed(dispatcher);
        announcements.ripple(&reply.ripple);
        reply.chains.iter().for_each(|cancelled| announcements.cancelled(*cancelled, &reply.ripple));
        announcements.send(dispatcher);
    }
    Ok(())
}

impl Announcements {
    /// Announces the chain that a change of a schedule has created.
    pub(super) fn schedule_changed(&mut self, change: &ScheduleChange, changed: &ScheduleChanged) {
        if let (
            ScheduleAction::Put(PutSchedule { chain: Some(chain), .. }),
            ScheduleChanged::Applied { created: Some(created) },
        ) = (&change.action, changed)
        {
            self.created(chain, created);
        }
    }
}

/// Records the outcomes of runs when their chains close, in the background.
///
/// The process that closes a chain sees from its id that a schedule has started it. Other chains cost nothing. If the
/// process ends before the outcome is recorded, a later visit of the schedule records it.
pub(super) struct ClosedRuns {
    store: Arc<AnyStore>,
    dispatcher: Weak<Dispatcher>,
    outbox: Outbox<Message>,
    pub(super) passes: Arc<Passes>,
}

/// The passes of this process over the due schedules that are running now.
///
/// The outcomes of runs are recorded between passes, because that costs as much as to start occurrences: if thousands
/// are due at once, they start in half the time. A pass does not wait for anything.
#[derive(Debug, Default)]
pub(super) struct Passes {
    running: AtomicUsize,
    over: Notify,
}

impl Passes {
    fn begin(self: &Arc<Self>) -> RunningPass {
        self.running.fetch_add(1, Ordering::AcqRel);
        RunningPass(Arc::clone(self))
    }

    /// Waits until no pass is running.
    async fn wait(&self) {
        loop {
            let mut over = pin!(self.over.notified());
            // Subscribe before the check, so that the end of a pass in between is noticed.
            over.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            over.await;
        }
    }
}

struct RunningPass(Arc<Passes>);

impl Drop for RunningPass {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.over.notify_waiters();
        }
    }
}

enum Message {
    Closed(ChainId),
    /// Asks the task to answer when it has handled all messages before this one.
    Flush(oneshot::Sender<()>),
}

impl ClosedRuns {
    pub(super) fn new(store: AnyStore, dispatcher: Weak<Dispatcher>) -> Self {
        Self { store: Arc::new(store), dispatcher, outbox: Outbox::new(WAITING_MAX), passes: Arc::default() }
    }

    /// Visits the schedule that has started this chain, if any.
    pub(super) fn note(&self, chain: ChainId) {
        if chain.occurrence().is_none() {
            return;
        }
        let sender = self.outbox.sender(|runtime, receiver| {
            let passes = Arc::clone(&self.passes);
            runtime.spawn(record(receiver, Arc::clone(&self.store), self.dispatcher.clone(), passes));
        });
        if let Some(sender) = sender {
            let _ = sender.try_send(Message::Closed(chain));
        }
    }

    /// Waits until all runs so far have been recorded.
    pub(super) async fn flush(&self) {
        self.outbox.flush(Message::Flush).await;
    }
}

impl fmt::Debug for ClosedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClosedRuns").finish_non_exhaustive()
    }
}

async fn record(
    mut messages: mpsc::Receiver<Message>,
    store: Arc<AnyStore>,
    dispatcher: Weak<Dispatcher>,
    passes: Arc<Passes>,
) {
    while let Some(first) = messages.recv().await {
        let _ = timeout(PASS_LIMIT, passes.wait()).await;
        let (mut closed, mut waiting) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Closed(chain) => closed.push(chain),
                Message::Flush(done) => waiting.push(done),
            }
            next = if closed.len() < SCHEDULE_PAGE_MAX { messages.try_recv().ok() } else { None };
        }
        let Some(dispatcher) = dispatcher.upgrade() else { return };
        // After an error, a check of the schedule finds the outcome.
        if let Err(error) = visit_closed(&*store, &dispatcher, &closed).await {
            dispatcher.observe(&Event::StoreFailed("change_schedules", ErrorText::new(error.to_string())));
        }
        for done in waiting {
            let _ = done.send(());
        }
    }
}
