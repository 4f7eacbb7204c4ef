//! The shared state of a simulation: randomness, faults, the trace, and violations.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use windlass_core::uuid::Uuid;
use windlass_core::{Clock, Millis, Timestamp};

use super::bad::Bad;
use super::fate::Fate;
use super::invariant::{Invariant, Violation};
use super::journal::Journal;
use super::settings::Settings;

/// One simulation.
pub(crate) struct World {
    pub(crate) settings: Settings,
    /// The known-bad variant that is simulated, if any.
    pub(crate) bad: Option<Bad>,
    /// Notified when an invariant is violated.
    pub(crate) broken: Notify,
    began: Instant,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) chance: Rng,
    pub(crate) journal: Journal,
    nodes: Vec<Node>,
    trace: Trace,
    tally: BTreeMap<String, u64>,
    violation: Option<Violation>,
    /// Whether faults are injected.
    troubled: bool,
    /// The time until which no node reaches the store.
    outage_until: Instant,
}

/// A process of the simulation: a worker's or a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(usize);

#[derive(Debug)]
struct Node {
    alive: bool,
    /// Whether its worker was stopped or dropped.
    ending: bool,
    cut_off_until: Instant,
    /// When a fault last affected a call of this node, and how many calls are affected now.
    troubled_at: Option<Instant>,
    in_trouble: usize,
}

/// A running call that is affected by a fault.
pub(crate) struct Trouble {
    world: Arc<World>,
    node: NodeId,
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.world.trouble(self.node);
        self.world.state().nodes[self.node.0].in_trouble -= 1;
    }
}

impl Node {
    fn was_untroubled_since(&self, since: Instant) -> bool {
        self.in_trouble == 0 && self.troubled_at.is_none_or(|at| at < since)
    }
}

#[derive(Default)]
struct Trace {
    /// How many of the last lines are kept for the report.
    shown: usize,
    last: VecDeque<String>,
    hash: DefaultHasher,
}

/// The result of a simulation.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) trace_hash: u64,
    pub(crate) trace_end: Vec<String>,
    pub(crate) tally: BTreeMap<String, u64>,
    pub(crate) violation: Option<Violation>,
}

impl World {
    pub(crate) fn new(seed: u64, settings: Settings, bad: Option<Bad>, shown: usize) -> Arc<Self> {
        let began = Instant::now();
        let state = State {
            chance: Rng::with_seed(seed ^ 0x5EED),
            journal: Journal::default(),
            nodes: Vec::new(),
            trace: Trace { shown, ..Trace::default() },
            tally: BTreeMap::new(),
            violation: None,
            troubled: true,
            outage_until: began,
        };
        Arc::new(Self { settings, bad, broken: Notify::new(), began, state: Mutex::new(state) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.state().chance.u64(..end.max(1))
    }

    /// Returns true with a probability of `chance` percent.
    pub(crate) fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a random duration from `from` to `to`.
    pub(crate) fn between(&self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_millis()).unwrap();
        from + Duration::from_millis(self.below(span + 1))
    }

    /// Adds a line to the trace.
    pub(crate) fn trace(&self, node: Option<NodeId>, what: fmt::Arguments<'_>) {
        self.state().line(self.began, node, what);
    }

    /// Counts something that was exercised.
    pub(crate) fn count(&self, what: impl Into<String>) {
        *self.state().tally.entry(what.into()).or_default() += 1;
    }

    /// Records that an invariant is violated. Only the first violation is reported.
    pub(crate) fn violate(&self, invariant: Invariant, what: impl Into<String>) {
        let mut state = self.state();
        let what = what.into();
        state.line(self.began, None, format_args!("BROKEN {invariant:?}: {what}"));
        state.violation.get_or_insert(Violation { invariant, what });
        self.broken.notify_one();
    }

    /// Adds a process to the simulation.
    pub(crate) fn join(&self) -> NodeId {
        let mut state = self.state();
        let now = Instant::now();
        state.nodes.push(Node {
            alive: true,
            ending: false,
            cut_off_until: now,
            troubled_at: None,
            in_trouble: 0,
        });
        NodeId(state.nodes.len() - 1)
    }

    /// Crashes a process between two instructions. It performs and receives nothing from then on.
    pub(crate) fn crash(&self, node: NodeId) {
        self.state().nodes[node.0].alive = false;
        self.trace(Some(node), format_args!("crashes"));
    }

    pub(crate) fn is_alive(&self, node: NodeId) -> bool {
        self.state().nodes[node.0].alive
    }

    /// Continues only if the process is alive.
    pub(crate) async fn alive(&self, node: NodeId) {
        if !self.is_alive(node) {
            pending::<()>().await;
        }
    }

    /// Marks a node whose worker ends on purpose. Jobs that it leaves may be reaped.
    pub(crate) fn ending(&self, node: NodeId) {
        self.state().nodes[node.0].ending = true;
    }

    /// Makes the store unreachable for a node.
    pub(crate) fn cut_off(&self, node: NodeId, until: Instant) {
        self.state().nodes[node.0].cut_off_until = until;
    }

    /// Makes the store unreachable for all nodes.
    pub(crate) fn outage(&self, until: Instant) {
        self.state().outage_until = until;
    }

    /// Stops injecting faults.
    pub(crate) fn heal(&self) {
        self.state().troubled = false;
        self.trace(None, format_args!("no more faults from here on"));
    }

    /// Chooses the fate of a node's next call.
    pub(crate) fn fate(&self, node: NodeId) -> Fate {
        let mut state = self.state();
        if !state.troubled {
            return Fate::Fine;
        }
        let now = Instant::now();
        let cut_off = now < state.outage_until.max(state.nodes[node.0].cut_off_until);
        let fate = Fate::choose(&mut state.chance, self.settings.fault_permille, cut_off);
        drop(state);
        if fate != Fate::Fine {
            self.count(format!("fault {}", fate.name()));
        }
        fate
    }

    /// Whether the next hint meets a fault.
    pub(crate) fn hint_fails(&self) -> bool {
        let mut state = self.state();
        state.troubled && state.chance.u64(..1_000) < self.settings.hint_fault_permille
    }

    /// Records that a fault affects a call of this node now.
    pub(crate) fn trouble(&self, node: NodeId) {
        self.state().nodes[node.0].troubled_at = Some(Instant::now());
    }

    /// Records that a fault affects a call of this node until the returned value is dropped.
    pub(crate) fn trouble_begins(self: &Arc<Self>, node: NodeId) -> Trouble {
        self.trouble(node);
        self.state().nodes[node.0].in_trouble += 1;
        Trouble { world: Arc::clone(self), node }
    }

    /// Whether the node was alive, not stopping, and free of faults since then.
    pub(crate) fn was_well_since(&self, node: NodeId, since: Instant) -> bool {
        let state = self.state();
        let node = &state.nodes[node.0];
        node.alive && !node.ending && node.was_untroubled_since(since)
    }

    /// Whether no fault affected a call of the node since then.
    pub(crate) fn was_untroubled_since(&self, node: NodeId, since: Instant) -> bool {
        self.state().nodes[node.0].was_untroubled_since(since)
    }

    pub(crate) fn report(&self) -> Report {
        let mut state = self.state();
        Report {
            trace_hash: state.trace.hash.finish(),
            trace_end: state.trace.last.drain(..).collect(),
            tally: std::mem::take(&mut state.tally),
            violation: state.violation.take(),
        }
    }
}

impl State {
    /// Adds a line to the trace, which ends with the first violation.
    fn line(&mut self, began: Instant, node: Option<NodeId>, what: fmt::Arguments<'_>) {
        if self.violation.is_some() {
            return;
        }
        let at = began.elapsed().as_millis();
        let line = match node {
            Some(NodeId(node)) => format!("{at:>7} n{node:<2} {what}"),
            None => format!("{at:>7}     {what}"),
        };
        self.trace.hash.write(line.as_bytes());
        if self.trace.last.len() == self.trace.shown {
            self.trace.last.pop_front();
        }
        self.trace.last.push_back(line);
    }
}

/// A clock that follows the runtime's paused time.
#[derive(Debug)]
pub(crate) struct RuntimeClock {
    pub(crate) began: Instant,
    /// The time when it began.
    pub(crate) start: Timestamp,
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        self.start + Millis::try_from(self.began.elapsed()).unwrap()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// Lets this much virtual time pass.
pub(crate) async fn pass(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// Returns an id in the short form that traces show. Seeded ids count up in their first 48 bits.
pub(crate) fn short(id: &Uuid) -> u128 {
    id.as_u128() >> 80
}
