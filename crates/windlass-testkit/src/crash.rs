//! A harness that kills and pauses worker processes, and checks the result.
//!
//! The harness does not know what the processes do. A test passes it a command, usually [`this_test`]: the test's own
//! program again, running one test function that acts as the worker's main. That function returns immediately unless it
//! [runs in such a process](is_worker_process). There it starts a worker, with [`reporting`] as its middleware, and
//! passes it to [`serve`]. Handlers report their effects with [`applied`].
//!
//! A [`WorkerGroup`] runs a number of such processes. It kills them while they work, starts replacements, and pauses some
//! until others have taken over their jobs. At the end, [`audit`] checks the stored chains: none is lost or stuck, no
//! lease is held, and no effect is missing or applied twice. For stores with transactions, a [`Workload`] provides the
//! jobs: they write their effects to a [`Ledger`], in the transactions that complete them.
//!
//! ```no_run
//! # async fn test(store: &dyn windlass_core::Store, chains: &[windlass_core::ChainId]) {
//! use std::{collections::HashMap, time::Duration};
//! use windlass_testkit::crash::{Audit, WorkerGroup, audit, this_test, wait_until_closed};
//!
//! let mut group = WorkerGroup::start(3, || this_test("crash::worker_process")).await;
//! // … start chains …
//! let _counts = group.kill_one(store).await;
//! wait_until_closed(store, chains, Duration::from_secs(60)).await;
//! let log = group.stop().await;
//! println!("{log}");
//! let effects = HashMap::new(); // how often each chain's effect was applied, by the test's own ledger
//! assert_eq!(audit(store, chains, &effects).await, Audit::default());
//! # }
//! ```

mod audit;
mod report;
mod schedules;
mod worker_group;
mod worker_process;
mod workload;

pub use audit::{Audit, audit, wait_until_closed};
pub use report::{Run, Transcript, applied, is_worker_process, reporting, serve, this_test};
pub use schedules::{ScheduleReport, run_schedules, schedule_worker};
pub(crate) use schedules::{Tick, tick};
pub use worker_group::{GroupLog, WorkerGroup};
pub use worker_process::WorkerProcess;
pub use workload::{Effect, JOBS_PER_BATCH, Ledger, Workload, ledger_worker, stale_effects};
