//! Jobs that would fail before their first attempt.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::Job;

#[derive(Serialize, Deserialize, Job)]
#[job(max_attempts = 0)]
struct Zero;

#[derive(Serialize, Deserialize, Job)]
#[job(max_attempts = (0x0_u32))]
struct Hexadecimal;

macro_rules! with_attempts {
    ($type:ident, $attempts:expr) => {
        #[derive(Serialize, Deserialize, Job)]
        #[job(max_attempts = $attempts)]
        struct $type;
    };
}
with_attempts!(Once, 1);
with_attempts!(Generated, 0);

fn main() {}
