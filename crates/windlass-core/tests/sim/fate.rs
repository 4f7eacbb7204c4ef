//! The faults of a store call.

use std::time::Duration;

use fastrand::Rng;

/// The fate of a store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Fine,
    /// Nothing is executed, and the caller gets an error.
    Fails,
    /// The command is executed, but the caller gets an error.
    LosesReply,
    /// The command is executed after this delay, even if the caller has given up by then.
    IsLate(Duration),
    /// The command is executed, and the reply arrives after this delay.
    AnswersLate(Duration),
    /// Nothing is executed, and the caller gets an error after this delay.
    Hangs(Duration),
    /// Some items are answered as busy.
    IsBusy,
}

impl Fate {
    /// Chooses a random fate. A call of a node that is cut off never succeeds.
    pub(crate) fn choose(chance: &mut Rng, fault_permille: u64, cut_off: bool) -> Self {
        if cut_off {
            return match chance.u8(..4) {
                0 => Self::Hangs(seconds(chance, 1, 30)),
                1 => Self::LosesReply,
                _ => Self::Fails,
            };
        }
        if chance.u64(..1_000) >= fault_permille {
            return Self::Fine;
        }
        match chance.u8(..12) {
            0..3 => Self::Fails,
            3..6 => Self::LosesReply,
            6..8 => Self::IsLate(Duration::from_millis(chance.u64(50..6_000))),
            8..10 => Self::AnswersLate(Duration::from_millis(chance.u64(50..6_000))),
            10 => Self::Hangs(seconds(chance, 5, 60)),
            _ => Self::IsBusy,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fine => "none",
            Self::Fails => "fails",
            Self::LosesReply => "loses the reply",
            Self::IsLate(_) => "is late",
            Self::AnswersLate(_) => "answers late",
            Self::Hangs(_) => "hangs",
            Self::IsBusy => "is busy",
        }
    }
}

fn seconds(chance: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_secs(chance.u64(from..to))
}
