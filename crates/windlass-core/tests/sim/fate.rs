//! What may become of a call.

use std::time::Duration;

use fastrand::Rng;

/// What becomes of a call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Fine,
    /// Nothing is carried out, and the caller hears of an error.
    Fails,
    /// It is carried out, and the caller hears of an error.
    LosesReply,
    /// It is carried out after this time. A caller that gave up does not keep it from that.
    IsLate(Duration),
    /// It is carried out, and the answer comes after this time.
    AnswersLate(Duration),
    /// Nothing is carried out, and the caller hears of an error after this time.
    Hangs(Duration),
    /// Some of its items are answered as busy.
    IsBusy,
}

impl Fate {
    /// A fate by chance; one that is cut off gets nowhere.
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
