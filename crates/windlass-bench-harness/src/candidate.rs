use std::any::Any;
use std::future::{Future, ready};
use std::ops::Range;

use crate::{Arguments, Handler, Result, Unsupported};

/// Keeps a worker running until the program ends.
pub type Guard = Box<dyn Any + Send>;

/// A library to measure, opened on an empty store.
pub trait Candidate: Send + Sync + Sized + 'static {
    /// Connects to the store and creates what the library needs.
    fn open(arguments: &Arguments) -> impl Future<Output = Result<Self>> + Send;

    /// Starts one job with the given number as its input. Returns when the job is stored. Calls with the same producer
    /// do not overlap.
    fn start(&self, producer: u64, number: u64) -> impl Future<Output = Result> + Send;

    /// Starts many jobs with one call.
    ///
    /// # Errors
    /// [`Unsupported`] if the library has no such call.
    fn start_batch(&self, numbers: Range<u64>) -> impl Future<Output = Result> + Send {
        let _ = numbers;
        ready(Err(Unsupported("no call that starts many jobs").into()))
    }

    /// Runs a worker, which calls the handler for each job, until the guard is dropped.
    ///
    /// # Errors
    /// [`Unsupported`] if the jobs are to be completed in transactions and the library cannot do that.
    fn work(&self, work: Work) -> impl Future<Output = Result<Guard>> + Send;

    /// Returns the number of jobs whose completion is not stored yet.
    fn unfinished(&self) -> impl Future<Output = Result<u64>> + Send;

    /// Starts one job and waits for its result, which a worker of [`work`](Self::work) stores.
    ///
    /// # Errors
    /// [`Unsupported`] if the library cannot wait for a result.
    fn round_trip(&self, number: u64) -> impl Future<Output = Result> + Send {
        let _ = number;
        ready(Err(Unsupported("no call that waits for a result").into()))
    }
}

/// How to run a worker.
#[derive(Clone, Debug)]
pub struct Work {
    /// Number of jobs that may run at the same time.
    pub slots: u32,
    /// Whether each job is completed in a transaction of its handler.
    pub in_transactions: bool,
    /// What to call for each job.
    pub handler: Handler,
}

impl Work {
    /// Returns an error if the jobs are to be completed in transactions.
    ///
    /// # Errors
    /// [`Unsupported`]
    pub fn without_transactions(&self) -> Result {
        if self.in_transactions {
            return Err(Unsupported("no completion in a transaction of the handler").into());
        }
        Ok(())
    }
}
