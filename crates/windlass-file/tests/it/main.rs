//! Tests of behavior that is specific to the file store.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
