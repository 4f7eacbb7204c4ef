use serde::Serialize;

use super::{Comparison, Measured};
use crate::candidate::{BARE, PREFETCH, WINDLASS};
use crate::figure::{median, spread};

/// The figures of Windlass divided by those of another subject, in the same rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Name of the workload.
    pub workload: String,
    /// What Windlass is compared with.
    pub with: String,
    /// The ratios by round.
    pub rounds: Vec<f64>,
    /// The goal, if there is one.
    pub goal: Goal,
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// For rates.
    AtLeast(f64),
    /// For times.
    AtMost(f64),
}

/// What to compare with.
#[derive(Clone, Copy, Debug)]
enum With {
    Bare,
    /// The subject with this name.
    Subject(&'static str),
    /// The bare store; Windlass acquires jobs in advance.
    BareWithPrefetch,
    /// The subject with this name, which reads ahead; so does Windlass.
    ReadingAhead(&'static str),
    /// The library with the best median.
    BestPeer,
    /// The library with the best median among those that do not read ahead.
    BestPeerWithoutReadAhead,
    /// Windlass, with another workload.
    Own(&'static str),
}

type Row = (&'static str, With, Goal);

const POSTGRES: [Row; 11] = [
    ("start, 16 producers", With::Bare, Goal::AtLeast(2.0)),
    ("start, 16 producers", With::BestPeer, Goal::AtLeast(4.0)),
    ("start, batches of 1000", With::BestPeer, Goal::AtLeast(1.5)),
    ("drain, 10 slots", With::BestPeerWithoutReadAhead, Goal::AtLeast(3.0)),
    ("drain, 100 slots", With::Bare, Goal::AtLeast(0.6)),
    ("drain, 100 slots", With::BareWithPrefetch, Goal::AtLeast(0.6)),
    ("drain, 100 slots", With::ReadingAhead("graphile_worker, local queue"), Goal::AtLeast(1.15)),
    ("drain in transactions, 100 slots", With::Bare, Goal::AtLeast(1.0)),
    ("latency", With::BestPeer, Goal::AtMost(0.7)),
    ("round trip", With::Bare, Goal::AtMost(1.3)),
    ("round trip", With::Own("latency"), Goal::AtMost(2.0)),
];

const REDIS: [Row; 6] = [
    ("start, 16 producers", With::Subject("bullmq-official"), Goal::AtLeast(1.3)),
    ("start, batches of 1000", With::Subject("bullmq-official"), Goal::AtLeast(2.0)),
    ("drain, 100 slots", With::Subject("bullmq-official"), Goal::AtLeast(2.0)),
    ("drain, 100 slots", With::Subject("chasquimq"), Goal::AtLeast(1.5)),
    ("latency", With::BestPeer, Goal::AtMost(1.2)),
    ("round trip", With::Own("latency"), Goal::AtMost(2.0)),
];

const SQLITE: [Row; 3] = [
    ("start, 16 producers", With::BestPeer, Goal::AtLeast(4.0)),
    ("start, batches of 1000", With::BestPeer, Goal::AtLeast(1.0)),
    ("drain, 100 slots", With::BestPeer, Goal::AtLeast(3.0)),
];

/// Compares Windlass with the subjects that its goals name. Omits comparisons of which one side did not run.
pub(super) fn ratios(comparison: &Comparison) -> Vec<Ratio> {
    let rows: &[Row] = match comparison.store.as_str() {
        "postgres" => &POSTGRES,
        "redis" => &REDIS,
        "sqlite" => &SQLITE,
        _ => &[],
    };
    rows.iter().filter_map(|row| ratio(comparison, *row)).collect()
}

fn ratio(comparison: &Comparison, (workload, with, goal): Row) -> Option<Ratio> {
    let subject = match with {
        With::BareWithPrefetch | With::ReadingAhead(_) => PREFETCH,
        _ => WINDLASS,
    };
    let own = comparison.measured(workload, subject)?;
    let (name, other) = match with {
        With::Bare => ("the bare store".to_owned(), comparison.measured(workload, BARE)?),
        With::Subject(name) => (name.to_owned(), comparison.measured(workload, name)?),
        With::BareWithPrefetch => {
            ("the bare store; with a prefetch".to_owned(), comparison.measured(workload, BARE)?)
        }
        With::ReadingAhead(name) => {
            (format!("{name}; with a prefetch"), comparison.measured(workload, name)?)
        }
        With::BestPeer => named("the best library", best(comparison, workload, false)?),
        With::BestPeerWithoutReadAhead => {
            named("the best library without read-ahead", best(comparison, workload, true)?)
        }
        With::Own(other) => (format!("its own {other}"), comparison.measured(other, WINDLASS)?),
    };
    let rounds = own.rounds.iter().zip(&other.rounds).map(|(own, other)| own / other).collect();
    Some(Ratio { workload: workload.to_owned(), with: name, rounds, goal })
}

fn named<'a>(what: &str, measured: &'a Measured) -> (String, &'a Measured) {
    (format!("{what}: {}", measured.subject), measured)
}

/// Returns the library with the best median.
fn best<'a>(comparison: &'a Comparison, workload: &str, without_read_ahead: bool) -> Option<&'a Measured> {
    let results = comparison.results.iter().find(|results| results.row.name == workload)?;
    let reads_ahead = |name: &str| {
        let info = comparison.subjects.iter().find(|info| info.description.name == name);
        info.is_some_and(|info| info.description.reads_ahead)
    };
    let peers = results.subjects.iter().filter(|measured| {
        let name = measured.subject.as_str();
        let excluded = [WINDLASS, PREFETCH, BARE].contains(&name) || without_read_ahead && reads_ahead(name);
        !excluded
    });
    let score =
        |measured: &Measured| if results.row.is_time() { -measured.median() } else { measured.median() };
    peers.max_by(|one, other| score(one).total_cmp(&score(other)))
}

impl Ratio {
    /// Returns the median of the rounds.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// Returns the smallest and the largest ratio.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        spread(&self.rounds)
    }

    /// Whether the median reaches the goal.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        match self.goal {
            Goal::AtLeast(goal) => self.median() >= goal,
            Goal::AtMost(goal) => self.median() <= goal,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, "at least {goal:.2}"),
            Self::AtMost(goal) => write!(f, "at most {goal:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;
    use super::*;

    #[test]
    fn windlass_is_compared_with_the_best_library_round_by_round() {
        let comparison = comparison();
        let ratios = ratios(&comparison);
        let start = ratios.iter().find(|ratio| ratio.with == "the best library: fast").unwrap();
        assert_eq!((start.rounds.as_slice(), start.is_reached()), ([5.0, 4.0, 6.0].as_slice(), true));
        let bare = ratios.iter().find(|ratio| ratio.with == "the bare store").unwrap();
        assert!(!bare.is_reached());
        let drain = ratios.iter().find(|ratio| ratio.workload == "drain, 10 slots").unwrap();
        assert_eq!(drain.with, "the best library without read-ahead: slow");
        let latency = ratios.iter().find(|ratio| ratio.workload == "latency").unwrap();
        assert_eq!((latency.with.as_str(), latency.is_reached()), ("the best library: fast", true));
    }
}
