//! Attributes that say nothing, or something wrong.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::Job;

#[derive(Serialize, Deserialize, Job)]
#[job(entrie)]
struct Misspelled;

#[derive(Serialize, Deserialize, Job)]
#[job(name = "")]
struct Nameless;

fn main() {}
