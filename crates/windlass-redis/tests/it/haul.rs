//! A job that does nothing.

use serde::{Deserialize, Serialize};
use windlass_core::{BoxError, Ctx, Entry, Job};

#[derive(Serialize, Deserialize)]
pub(crate) struct Haul;

impl Job for Haul {
    const NAME: &'static str = "haul";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Haul {}

pub(crate) async fn haul(_: Ctx<Haul>) -> Result<(), BoxError> {
    Ok(())
}
