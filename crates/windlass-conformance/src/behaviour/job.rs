use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{Backoff, Entry, Job, JobOptions};

/// Makes a job type that may start a chain: its input, output, continuations, blockers and options. Names are
/// the caller's to keep apart within a case only.
macro_rules! job {
    ($type:ident { $($field:ident: $kind:ty),* $(,)? } -> $output:ty
        $(, then($($next:ty),*))? $(, blocked_by $blockers:ty)? $(, options $options:expr)?) => {
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        struct $type { $($field: $kind),* }
        impl windlass_core::Job for $type {
            const NAME: &'static str = stringify!($type);
            type Output = $output;
            type Next = ($($($next,)*)?);
            type Blockers = $crate::behaviour::job::blockers!($($blockers)?);
            fn options() -> windlass_core::JobOptions {
                $crate::behaviour::job::options!($($options)?)
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
        $crate::behaviour::job::quick()
    };
    ($options:expr) => {
        $options
    };
}
pub(super) use options;

/// Long leases, so that a busy machine loses none, and short delays.
pub(super) fn quick() -> JobOptions {
    let backoff = Backoff {
        initial: Duration::from_millis(2),
        multiplier: 2.0,
        max: Duration::from_millis(20),
        jitter: 0.0,
    };
    JobOptions { backoff, ..JobOptions::default() }
}

/// What stands for a row of the application: nobody handles it.
#[derive(Serialize, Deserialize)]
pub(super) struct Mark;

impl Job for Mark {
    const NAME: &'static str = "mark";
    type Output = ();
    type Next = ();
    type Blockers = ();
}
impl Entry for Mark {}
