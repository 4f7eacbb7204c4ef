//! Workers in processes of their own, to be killed and paused, and what must hold afterwards.
//!
//! The harness does not know what the processes do. A test gives it a command, usually [`this_test`]: the test's own
//! program again, running one test function that is the worker's main. That function returns at once unless it
//! [is in such a process](is_worker_process). There it starts a worker, with [`reporting`] as its middleware, and hands it
//! to [`serve`]. Handlers say by [`applied`] what they have done.
//!
//! A [`Crew`] keeps a number of such processes, kills them while they work, puts others in their place, and lets paused
//! ones be overtaken. In the end [`audit`] looks at what is stored: nothing lost, nothing stuck, no lease held, and no
//! effect missing or applied twice. On a store with transactions a [`Voyage`] has jobs for all that: they write their
//! effects to a [`Ledger`], in the transactions that end them.
//!
//! ```no_run
//! # async fn test(store: &dyn windlass_core::Store, chains: &[windlass_core::ChainId]) {
//! use std::{collections::HashMap, time::Duration};
//! use windlass_testkit::crash::{Audit, Crew, audit, this_test, wait_until_closed};
//!
//! let mut crew = Crew::start(3, || this_test("crash::worker_process")).await;
//! // … start chains …
//! let _counts = crew.kill_one(store).await;
//! wait_until_closed(store, chains, Duration::from_secs(60)).await;
//! let log = crew.stop().await;
//! println!("{log}");
//! let effects = HashMap::new(); // how often each chain's effect was applied, by the test's own ledger
//! assert_eq!(audit(store, chains, &effects).await, Audit::default());
//! # }
//! ```

mod audit;
mod crew;
mod report;
mod voyage;
mod worker_process;

pub use audit::{Audit, audit, wait_until_closed};
pub use crew::{Crew, CrewLog};
pub use report::{Run, Transcript, applied, is_worker_process, reporting, serve, this_test};
pub use voyage::{Effect, JOBS_PER_LOAD, Ledger, Voyage, sailor, stale_effects};
pub use worker_process::WorkerProcess;
