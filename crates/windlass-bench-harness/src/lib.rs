//! The workloads that compare Windlass with other libraries.
//!
//! Each library has a program. The program implements [`Candidate`] for the library, and passes its [`Subject`]s to
//! [`main`]. All programs have the same arguments and the same output ([`protocol`]), so that one runner can measure
//! them in turn.
//!
//! The clock of a workload stops when the last completion is stored.

#![forbid(unsafe_code)]

pub mod protocol;

mod candidate;
mod handler;
mod subject;
mod workload;

pub use candidate::{Candidate, Guard, Work};
pub use handler::Handler;
pub use protocol::{Arguments, Reply, Workload};
pub use subject::{Description, Subject, main, main_with};

/// The error of any library.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of a call to a library.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// The reason why a library cannot run a workload.
#[derive(Clone, Copy, Debug)]
pub struct Unsupported(pub &'static str);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsupported {}
