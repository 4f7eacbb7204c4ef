use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{Backoff, Entry, Job, JobOptions};

/// Defines an entry job type with its input, output, continuations, blockers and options. The name only needs to be
/// unique within a case.
macro_rules! job {
    ($type:ident { $($field:ident: $kind:ty),* $(,)? } -> $output:ty
        $(, then($($next:ty),*))? $(, blocked_by $blockers:ty)? $(, options $options:expr)?) => {
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        struct $type { $($field: $kind),* }
        impl windlass_core::Job for $type {
            const NAME: &'static str = stringify!($type);
            type Output = $output;
            type Next = ($($($next,)*)?);
            type Blockers = $crate::behavior::job::blockers!($($blockers)?);
            fn options() -> windlass_core::JobOptions {
                $crate::behavior::job::options!($($options)?)
            }
        }
        impl windlass_core::Entry for $type {}
        $($(impl windlass_core::Then<$next> for $type {})*)?
    };
}
pub(super) use job;

macro_rules! blockers {
    () => {
        ()
    };
    ($blockers:ty) => {
        $blockers
    };
}
pub(super) use blockers;

macro_rules! options {
    () => {
        $crate::behavior::job::quick()
    };
    ($options:expr) => {
        $options
    };
}
pub(super) use options;

/// Returns options with the default lease, which does not expire on a busy machine, and short retry delays.
pub(super) fn quick() -> JobOptions {
    JobOptions { backoff: Some(QUICK_BACKOFF), ..JobOptions::default() }
}

/// Short retry delays.
pub(super) const QUICK_BACKOFF: Backoff = Backoff {
    initial: Duration::from_millis(2),
    multiplier: 2.0,
    max: Duration::from_millis(20),
    jitter: 0.0,
};

/// Stands for a row of the application. It has no handler.
#[derive(Serialize, Deserialize)]
pub(super) struct Mark;

impl Job for Mark {
    const NAME: &'static str = "mark";
    type Output = ();
    type Next = ();
    type Blockers = ();
}
impl Entry for Mark {}
