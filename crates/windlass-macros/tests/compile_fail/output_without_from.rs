//! A continuation whose output does not convert into that of the job it continues.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::Job;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Welcome), output = u64)]
struct Provision;

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct Welcome;

fn main() {}
