//! Calls the router as clients do. Every answer is checked against the OpenAPI document.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod harness;

mod audit;
mod bulk;
mod chain_page;
mod changes;
mod events;
mod faults;
mod filters;
mod fuzz;
mod listen;
mod logs;
mod mount;
mod openapi;
mod pages;
mod payloads;
mod queries;
mod refusals;
mod roles;
mod schedules;
mod sessions;
mod sqlite;
