//! Types in quotes.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::Job;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = "String")]
struct Quoted;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then("Quoted"))]
struct Next;

fn main() {}
