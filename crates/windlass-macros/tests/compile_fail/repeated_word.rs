//! Words and names that are given twice, in one attribute or in several.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::Job;

#[derive(Serialize, Deserialize, Job)]
#[job(name = "last")]
struct Last;

#[derive(Serialize, Deserialize, Job)]
#[job(then(Last), then(Last))]
struct TwoContinuations;

#[derive(Serialize, Deserialize, Job)]
#[job(name = "one", entry)]
#[job(name = "two")]
struct TwoNames;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, entry)]
struct TwoEntries;

#[derive(Serialize, Deserialize, Job)]
#[job(alias("one"))]
#[job(alias("two"))]
struct TwoAliasLists;

#[derive(Serialize, Deserialize, Job)]
#[job(alias("one", "two", "one"))]
struct OneAliasTwice;

#[derive(Serialize, Deserialize, Job)]
#[job(alias("own-name"))]
struct OwnName;

#[derive(Serialize, Deserialize, Job)]
#[job(alias("given"), name = "given")]
struct GivenName;

fn main() {}
