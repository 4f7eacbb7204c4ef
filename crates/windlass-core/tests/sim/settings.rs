//! What a seed chooses once for its whole world.

use std::cell::Cell;
use std::time::Duration;

use fastrand::Rng;

/// The settings of one world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: u64,
    pub(crate) clients: u64,
    /// How many things each client does.
    pub(crate) actions: u64,
    /// How often a call meets a fault, and a hint.
    pub(crate) fault_permille: u64,
    pub(crate) hint_fault_permille: u64,
    /// How often the world is disturbed: crashes, stops, outages.
    pub(crate) disturbances: u64,
    /// How long a call takes at most, on its way and on the way back.
    pub(crate) latency: Duration,
    pub(crate) lease: Duration,
    /// Of the type that has one.
    pub(crate) timeout: Duration,
    pub(crate) backoff: Duration,
    pub(crate) max_attempts: Option<u32>,
}

thread_local! {
    /// Job types ask for their options by a function without arguments; one world runs in a thread at a time.
    static PRESENT: Cell<Option<Settings>> = const { Cell::new(None) };
}

impl Settings {
    /// What this seed chooses. A fifth of the worlds is calm, so that there is no excuse in them.
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
        };
        PRESENT.set(Some(settings));
        settings
    }

    /// The settings of the world that runs in this thread.
    pub(crate) fn present() -> Self {
        PRESENT.get().expect("a world chooses its settings before its jobs ask for them")
    }
}
