//! What the conformance suite cannot know: PostgreSQL's own ways.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod random;
