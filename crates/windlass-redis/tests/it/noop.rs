//! A job that does nothing.

use serde::{Deserialize, Serialize};
use windlass_core::{BoxError, Ctx, Entry, Job};

#[derive(Serialize, Deserialize)]
pub(crate) struct Noop;

impl Job for Noop {
    const NAME: &'static str = "noop";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Noop {}

pub(crate) async fn noop(_: Ctx<Noop>) -> Result<(), BoxError> {
    Ok(())
}
