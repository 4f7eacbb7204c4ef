//! The settings that a seed chooses for its simulation.

use std::cell::Cell;
use std::time::Duration;

use fastrand::Rng;

use super::schedules::Epoch;

/// The settings of one simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: u64,
    pub(crate) clients: u64,
    /// How many actions each client performs.
    pub(crate) actions: u64,
    /// How many of 1,000 store calls, and of 1,000 hints, meet a fault.
    pub(crate) fault_permille: u64,
    pub(crate) hint_fault_permille: u64,
    /// How many disturbances there are: crashes, stops, outages.
    pub(crate) disturbances: u64,
    /// The maximum latency of a call, in each direction.
    pub(crate) latency: Duration,
    pub(crate) lease: Duration,
    /// The timeout of the one type that has one.
    pub(crate) timeout: Duration,
    pub(crate) backoff: Duration,
    pub(crate) max_attempts: Option<u32>,
    /// How many exchanges a worker may have in flight.
    pub(crate) exchanges: u8,
    /// Whether creations acquire for idle workers.
    pub(crate) joins: bool,
    /// How many schedules there are whose occurrences are checked.
    pub(crate) schedules: u64,
    pub(crate) epoch: Epoch,
}

thread_local! {
    /// `Job::options` takes no arguments, so the settings are thread-local.
    /// Each thread runs one simulation at a time.
    static PRESENT: Cell<Option<Settings>> = const { Cell::new(None) };
}

impl Settings {
    /// Chooses the settings of a seed. A fifth of the simulations have no faults, so that the invariants that
    /// excuse faults apply without exception.
    pub(crate) fn choose(seed: u64) -> Self {
        let mut chance = Rng::with_seed(seed);
        let fault_permille = match chance.u8(..10) {
            0..2 => 0,
            2..6 => chance.u64(5..40),
            _ => chance.u64(40..200),
        };
        let hint_fault_permille = *chance.choice(&[0, 50, 300, 1_000]).unwrap();
        let settings = Self {
            workers: chance.u64(1..=4),
            clients: chance.u64(1..=3),
            actions: chance.u64(5..=40),
            fault_permille,
            hint_fault_permille,
            disturbances: if fault_permille == 0 { chance.u64(0..=2) } else { chance.u64(0..=8) },
            latency: Duration::from_millis(*chance.choice(&[0, 1, 5, 40]).unwrap()),
            lease: Duration::from_millis(chance.u64(800..10_000)),
            timeout: Duration::from_millis(chance.u64(300..5_000)),
            backoff: Duration::from_millis(*chance.choice(&[0, 10, 500, 3_000]).unwrap()),
            max_attempts: *chance.choice(&[None, None, Some(1), Some(3), Some(6)]).unwrap(),
            exchanges: chance.u8(1..=3),
            schedules: chance.u64(0..=3),
            epoch: Epoch::choose(&mut chance),
            joins: chance.bool(),
        };
        PRESENT.set(Some(settings));
        settings
    }

    /// Returns the settings of the simulation that runs in this thread.
    pub(crate) fn present() -> Self {
        PRESENT.get().expect("the settings are chosen before jobs read them")
    }
}
