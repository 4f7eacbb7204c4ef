//! Types that cannot be job types.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::Job;

#[derive(Serialize, Deserialize, Job)]
struct Parcel<T> {
    content: T,
}

#[derive(Serialize, Deserialize, Job)]
enum Sized<const N: usize> {
    Only,
}

#[derive(Clone, Copy, Job)]
union Either {
    number: u32,
    real: f32,
}

fn main() {}
