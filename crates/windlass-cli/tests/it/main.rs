//! Runs the program as users do: every command, calls that must fail, and workers that are killed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod program;

mod batch;
mod bench;
mod bulk;
mod crash;
mod default_store;
mod demo;
mod errors;
mod fields;
mod file;
mod generate;
mod interrupt;
mod list;
mod manage;
mod migrate;
mod notifier;
mod pooler;
mod queue;
mod schedules;
mod serve;
mod start;
mod tls;
mod why;
mod work;
