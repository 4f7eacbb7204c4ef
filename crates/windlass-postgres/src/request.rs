//! Conversion of commands into the arrays that the SQL functions take.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use uuid::Uuid;
use windlass_core::Payload;
use windlass_core::command::{DueTime, NewChain, NewJob, NextJob, Outcome, Settlement, Step, Target, Types};
use windlass_core::{ErrorText, Millis, TypeName};

use crate::create::Kind;
use crate::enum_text::enum_text;
use crate::provider::Parameter;

type Numbers = Vec<Option<i64>>;
type Texts = Vec<Option<String>>;
type Ids = Vec<Option<Uuid>>;

/// Jobs to create, one array per column, in the order of `new_jobs_v1`.
#[derive(Debug, Default)]
pub(crate) struct NewJobs {
    ids: Ids,
    types: Texts,
    codecs: Texts,
    inputs: Vec<Option<Bytes>>,
    due_at: Numbers,
    due_after: Numbers,
    priorities: Numbers,
    max_attempts: Numbers,
    on_blocker_failure: Texts,
    traces: Texts,
    keep_completed: Numbers,
    keep_failed: Numbers,
    keep_cancelled: Numbers,
    chain_traces: Texts,
    keys: Texts,
    key_holds: Texts,
    key_windows: Numbers,
    replaces: Ids,
    blocked: Numbers,
    blockers: Ids,
    blocker_traces: Texts,
}

impl NewJobs {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn push_chain(&mut self, chain: &NewChain) {
        self.push_job(*chain.id.as_uuid(), &chain.job);
        let key = chain.key.as_ref();
        self.keys.push(key.map(|key| key.key.to_string()));
        self.key_holds.push(key.and_then(|key| enum_text(key.hold)));
        self.key_windows.push(key.and_then(|key| key.window).map(span));
        self.replaces.push(key.and_then(|key| key.replaces).map(|chain| *chain.as_uuid()));
        self.keep_completed.push(Some(span(chain.retention.completed)));
        self.keep_failed.push(Some(span(chain.retention.failed)));
        self.keep_cancelled.push(Some(span(chain.retention.cancelled)));
        self.chain_traces.push(chain.trace.as_ref().map(|trace| trace.as_str().to_owned()));
    }

    pub(crate) fn push_next(&mut self, next: &NextJob) {
        self.push_job(*next.id.as_uuid(), &next.job);
        for texts in [&mut self.keys, &mut self.key_holds, &mut self.chain_traces] {
            texts.push(None);
        }
        self.replaces.push(None);
        for numbers in
            [&mut self.key_windows, &mut self.keep_completed, &mut self.keep_failed, &mut self.keep_cancelled]
        {
            numbers.push(None);
        }
    }

    fn push_job(&mut self, id: Uuid, job: &NewJob) {
        self.ids.push(Some(id));
        self.types.push(Some(job.job_type.to_string()));
        self.codecs.push(Some(job.input.codec().to_string()));
        self.inputs.push(Some(job.input.bytes().clone()));
        let (at, after) = schedule(job.schedule);
        self.due_at.push(at);
        self.due_after.push(after);
        self.priorities.push(Some(job.priority.into()));
        self.max_attempts.push(job.max_attempts.map(i64::from));
        self.on_blocker_failure.push(enum_text(job.on_blocker_failure));
        self.traces.push(job.trace.as_ref().map(|trace| trace.as_str().to_owned()));
        let number = number(self.ids.len());
        for blocker in &job.blockers {
            self.blocked.push(Some(number));
            self.blockers.push(Some(*blocker.chain.as_uuid()));
            self.blocker_traces.push(blocker.trace.as_ref().map(|trace| trace.as_str().to_owned()));
        }
    }

    /// Returns the index of each new job by id.
    pub(crate) fn indexes(&self) -> HashMap<Uuid, usize> {
        self.ids.iter().enumerate().filter_map(|(index, id)| Some(((*id)?, index))).collect()
    }

    /// Returns which function creates the chains.
    pub(crate) fn kind(&self) -> Kind {
        if !self.are_apart() {
            Kind::Any
        } else if self.keys.iter().any(Option::is_some) {
            Kind::Keyed
        } else {
            Kind::Plain
        }
    }

    /// Whether the chains can be created as a set: none has blockers, and no two share an id or a key.
    fn are_apart(&self) -> bool {
        let ids: HashSet<_> = self.ids.iter().collect();
        let mut keys = HashSet::new();
        let keyed = self.types.iter().zip(&self.keys).filter(|(_, key)| key.is_some());
        self.blocked.is_empty() && ids.len() == self.len() && keyed.into_iter().all(|key| keys.insert(key))
    }

    /// Returns the parameters for chains without keys and blockers, in the order of `create_plain_v1`. Most chains of a
    /// batch differ only in id and input, and the other columns have one value.
    pub(crate) fn plain_parameters(self) -> impl Iterator<Item = Parameter> {
        // A time and a delay exclude each other, so both are needed if either differs.
        let (due_at, due_after) = match is_constant(&self.due_at) && is_constant(&self.due_after) {
            true => (shortened(self.due_at), shortened(self.due_after)),
            false => (self.due_at, self.due_after),
        };
        let parameters = [
            Parameter::Ids(self.ids),
            Parameter::Texts(Some(shortened(self.types))),
            Parameter::Texts(Some(shortened(self.codecs))),
            Parameter::Bytes(self.inputs),
            Parameter::Numbers(due_at),
            Parameter::Numbers(due_after),
            Parameter::Numbers(shortened(self.priorities)),
            Parameter::Numbers(shortened(self.max_attempts)),
            Parameter::Texts(Some(shortened(self.on_blocker_failure))),
            Parameter::Texts(Some(shortened(self.traces))),
            Parameter::Numbers(shortened(self.keep_completed)),
            Parameter::Numbers(shortened(self.keep_failed)),
            Parameter::Numbers(shortened(self.keep_cancelled)),
            Parameter::Texts(Some(shortened(self.chain_traces))),
        ];
        parameters.into_iter()
    }

    /// Returns the parameters for chains without blockers: the first of [`parameters`](Self::parameters).
    pub(crate) fn keyed_parameters(self) -> impl Iterator<Item = Parameter> {
        self.parameters().into_iter().take(18)
    }

    pub(crate) fn parameters(self) -> [Parameter; 21] {
        [
            Parameter::Ids(self.ids),
            Parameter::Texts(Some(self.types)),
            Parameter::Texts(Some(self.codecs)),
            Parameter::Bytes(self.inputs),
            Parameter::Numbers(self.due_at),
            Parameter::Numbers(self.due_after),
            Parameter::Numbers(self.priorities),
            Parameter::Numbers(self.max_attempts),
            Parameter::Texts(Some(self.on_blocker_failure)),
            Parameter::Texts(Some(self.traces)),
            Parameter::Numbers(self.keep_completed),
            Parameter::Numbers(self.keep_failed),
            Parameter::Numbers(self.keep_cancelled),
            Parameter::Texts(Some(self.chain_traces)),
            Parameter::Texts(Some(self.keys)),
            Parameter::Texts(Some(self.key_holds)),
            Parameter::Numbers(self.key_windows),
            Parameter::Ids(self.replaces),
            Parameter::Numbers(self.blocked),
            Parameter::Ids(self.blockers),
            Parameter::Texts(Some(self.blocker_traces)),
        ]
    }
}

/// Settlements and the jobs they create, one array per column, in the order of `settlements_v1`.
#[derive(Debug, Default)]
pub(crate) struct Settlements {
    jobs: Ids,
    fences: Numbers,
    outcomes: Texts,
    codecs: Texts,
    outputs: Vec<Option<Bytes>>,
    errors: Texts,
    due_at: Numbers,
    due_after: Numbers,
    retentions: Numbers,
    invalid: Numbers,
    created: Numbers,
    carried: Numbers,
    pub(crate) new_jobs: NewJobs,
}

/// The values of one outcome or step.
#[derive(Default)]
struct OutcomeColumns<'a> {
    outcome: &'static str,
    output: Option<&'a Payload>,
    error: Option<&'a ErrorText>,
    schedule: Option<DueTime>,
    retention: Option<Millis>,
    create: &'a [NewChain],
    next: Option<&'a NextJob>,
}

impl Settlements {
    pub(crate) fn push(&mut self, item: &Settlement) {
        self.jobs.push(Some(*item.job.as_uuid()));
        self.fences.push(Some(item.fence.0.cast_signed()));
        let said = match &item.outcome {
            Outcome::Complete { output, retention, create } => OutcomeColumns {
                outcome: "complete",
                output: Some(output),
                retention: *retention,
                create,
                ..OutcomeColumns::default()
            },
            Outcome::Continue { next, create } => {
                OutcomeColumns { outcome: "continue", next: Some(next), create, ..OutcomeColumns::default() }
            }
            Outcome::Retry { schedule, error } => OutcomeColumns {
                outcome: "retry",
                schedule: Some(*schedule),
                error: Some(error),
                ..OutcomeColumns::default()
            },
            Outcome::Reschedule { schedule, error } => OutcomeColumns {
                outcome: "reschedule",
                schedule: Some(*schedule),
                error: error.as_ref(),
                ..OutcomeColumns::default()
            },
            Outcome::Fail { error, retention } => OutcomeColumns {
                outcome: "fail",
                error: Some(error),
                retention: *retention,
                ..OutcomeColumns::default()
            },
            Outcome::Release => OutcomeColumns { outcome: "release", ..OutcomeColumns::default() },
        };
        self.say(&said, item.outcome.check().is_err());
    }

    pub(crate) fn push_step(&mut self, step: &Step) {
        self.jobs.push(None);
        self.fences.push(None);
        let said = match step {
            Step::Complete { output, retention, create } => OutcomeColumns {
                outcome: "complete",
                output: Some(output),
                retention: *retention,
                create,
                ..OutcomeColumns::default()
            },
            Step::Continue { next, create } => {
                OutcomeColumns { outcome: "continue", next: Some(next), create, ..OutcomeColumns::default() }
            }
            Step::Fail { error, retention } => OutcomeColumns {
                outcome: "fail",
                error: Some(error),
                retention: *retention,
                ..OutcomeColumns::default()
            },
        };
        self.say(&said, false);
    }

    fn say(&mut self, said: &OutcomeColumns<'_>, invalid: bool) {
        self.outcomes.push(Some(said.outcome.to_owned()));
        self.codecs.push(said.output.map(|output| output.codec().to_string()));
        self.outputs.push(said.output.map(|output| output.bytes().clone()));
        self.errors.push(said.error.map(ToString::to_string));
        let (at, after) = said.schedule.map_or((None, None), schedule);
        self.due_at.push(at);
        self.due_after.push(after);
        self.retentions.push(said.retention.map(span));
        self.invalid.push(Some(invalid.into()));
        self.created.push(Some(number(self.new_jobs.len())));
        self.carried.push(Some(number(said.create.len())));
        said.create.iter().for_each(|chain| self.new_jobs.push_chain(chain));
        if let Some(next) = said.next {
            self.new_jobs.push_next(next);
        }
    }

    /// Returns the index of each settlement by job id.
    pub(crate) fn indexes(&self) -> HashMap<Uuid, usize> {
        self.jobs.iter().enumerate().filter_map(|(index, job)| Some(((*job)?, index))).collect()
    }

    /// Whether all settlements are valid completions that create nothing.
    pub(crate) fn is_plain(&self) -> bool {
        let completes = self.outcomes.iter().all(|outcome| outcome.as_deref() == Some("complete"));
        completes && self.new_jobs.len() == 0 && self.invalid.iter().all(|invalid| *invalid == Some(0))
    }

    /// Returns the parameters for plain completions, in the order of `settle_plain_v1`, sorted by job: all commands lock
    /// jobs in this order. Also returns the index of each settlement that is sent. If all completions have the same codec, output
    /// and retention, sends these once: many jobs have no output.
    pub(crate) fn plain_parameters(mut self) -> (impl Iterator<Item = Parameter>, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.sort_by_key(|index| self.jobs.get(*index));
        if is_constant(&self.outputs) && is_constant(&self.codecs) && is_constant(&self.retentions) {
            self.codecs.truncate(1);
            self.outputs.truncate(1);
            self.retentions.truncate(1);
        } else {
            self.codecs = sorted(self.codecs, &order);
            self.outputs = sorted(self.outputs, &order);
            self.retentions = sorted(self.retentions, &order);
        }
        let own = [
            Parameter::Ids(sorted(self.jobs, &order)),
            Parameter::Numbers(sorted(self.fences, &order)),
            Parameter::Texts(Some(self.codecs)),
            Parameter::Bytes(self.outputs),
            Parameter::Numbers(self.retentions),
        ];
        (own.into_iter(), order)
    }

    pub(crate) fn parameters(self) -> impl Iterator<Item = Parameter> {
        let own = [
            Parameter::Ids(self.jobs),
            Parameter::Numbers(self.fences),
            Parameter::Texts(Some(self.outcomes)),
            Parameter::Texts(Some(self.codecs)),
            Parameter::Bytes(self.outputs),
            Parameter::Texts(Some(self.errors)),
            Parameter::Numbers(self.due_at),
            Parameter::Numbers(self.due_after),
            Parameter::Numbers(self.retentions),
            Parameter::Numbers(self.invalid),
            Parameter::Numbers(self.created),
            Parameter::Numbers(self.carried),
        ];
        own.into_iter().chain(self.new_jobs.parameters())
    }
}

/// Returns a column in another order.
fn sorted<T>(mut column: Vec<Option<T>>, order: &[usize]) -> Vec<Option<T>> {
    order.iter().map(|index| column.get_mut(*index).and_then(Option::take)).collect()
}

/// Returns a column as it is, or with a single value if all values are equal, or with none if they are null.
fn shortened<T: PartialEq>(mut column: Vec<Option<T>>) -> Vec<Option<T>> {
    if is_constant(&column) {
        let is_null = column.first().is_none_or(Option::is_none);
        column.truncate(usize::from(!is_null));
    }
    column
}

fn is_constant<T: PartialEq>(column: &[T]) -> bool {
    column.split_first().is_none_or(|(first, rest)| rest.iter().all(|value| value == first))
}

/// Returns targets in the order of `find_v1`: chains, jobs, types, keys.
pub(crate) fn targets(targets: &[Target]) -> [Parameter; 4] {
    let (mut chains, mut jobs) = (Ids::new(), Ids::new());
    let (mut types, mut keys) = (Texts::new(), Texts::new());
    for target in targets {
        let (chain, job, key) = match target {
            Target::Chain(chain) => (Some(*chain.as_uuid()), None, None),
            Target::Job(job) => (None, Some(*job.as_uuid()), None),
            Target::Key(chain_type, key) => (None, None, Some((chain_type.to_string(), key.to_string()))),
        };
        chains.push(chain);
        jobs.push(job);
        let (chain_type, key) = key.unzip();
        types.push(chain_type);
        keys.push(key);
    }
    [
        Parameter::Ids(chains),
        Parameter::Ids(jobs),
        Parameter::Texts(Some(types)),
        Parameter::Texts(Some(keys)),
    ]
}

/// Returns the names of the types, or null for all types.
pub(crate) fn types(types: &Types) -> Parameter {
    match types {
        Types::All => Parameter::Texts(None),
        Types::Only(types) => names(types),
    }
}

pub(crate) fn names(types: &[TypeName]) -> Parameter {
    Parameter::Texts(Some(types.iter().map(|name| Some(name.to_string())).collect()))
}

pub(crate) fn id(id: &Uuid) -> Parameter {
    Parameter::Id(Some(*id))
}

pub(crate) fn count(count: u32) -> Parameter {
    Parameter::Number(Some(count.into()))
}

/// Converts a duration. It is at most a hundred years, so it cannot overflow.
pub(crate) fn span(span: Millis) -> i64 {
    span.get().cast_signed()
}

/// Converts a count, which the limits of commands keep small.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the due time or the delay of a schedule. Both are null for now.
fn schedule(schedule: DueTime) -> (Option<i64>, Option<i64>) {
    match schedule {
        DueTime::Now => (None, None),
        DueTime::At(at) => (Some(at.as_millis()), None),
        DueTime::After(delay) => (None, Some(span(delay))),
    }
}
