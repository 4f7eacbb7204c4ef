//! Limits on what is open at the same time: in total, and per caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::Problem;

/// A fixed number of permits. One caller can hold only some of them.
#[derive(Debug)]
pub(crate) struct Permits {
    /// The plural name of what is limited, for error messages.
    what: &'static str,
    max: usize,
    max_per_caller: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_caller: HashMap<String, Held>,
}

/// The permits of one caller. Forgotten when the caller has returned all of them.
#[derive(Debug, Default)]
struct Held {
    count: usize,
    was_refused: bool,
}

/// There is no permit for the caller.
#[derive(Debug)]
pub(crate) struct NoPermit {
    problem: Problem,
    /// Whether the caller has all the permits that it may hold, and was not refused since it held none.
    pub(crate) is_first: bool,
}

/// A permit, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    caller: String,
}

impl Permits {
    pub(crate) fn new(what: &'static str, max: usize, max_per_caller: usize) -> Arc<Self> {
        Arc::new(Self { what, max, max_per_caller, taken: Mutex::default() })
    }

    /// Takes a permit.
    ///
    /// # Errors
    /// If all permits are taken, or all that this caller may hold.
    pub(crate) fn take(self: &Arc<Self>, caller: &str) -> Result<Permit, NoPermit> {
        let mut taken = self.taken();
        if taken.total >= self.max {
            let text = format!("there are already {} {}: try later", self.max, self.what);
            return Err(NoPermit { problem: Problem::unavailable(text), is_first: false });
        }
        if let Some(held) = taken.by_caller.get_mut(caller).filter(|held| held.count >= self.max_per_caller) {
            let text = format!("{caller:?} already has {} {}: close one of them", held.count, self.what);
            let is_first = !std::mem::replace(&mut held.was_refused, true);
            return Err(NoPermit { problem: Problem::unavailable(text), is_first });
        }
        taken.total += 1;
        taken.by_caller.entry(caller.to_owned()).or_default().count += 1;
        Ok(Permit { permits: Arc::clone(self), caller: caller.to_owned() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<NoPermit> for Problem {
    fn from(refused: NoPermit) -> Self {
        refused.problem
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        taken.total = taken.total.saturating_sub(1);
        if let Some(held) = taken.by_caller.get_mut(&self.caller) {
            held.count = held.count.saturating_sub(1);
            if held.count == 0 {
                taken.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_per_caller_and_in_total() {
        let permits = Permits::new("event streams", 3, 2);
        let mut ada: Vec<_> = (0..2).map(|_| permits.take("ada").unwrap()).collect();
        let status = |caller: &str| Problem::from(permits.take(caller).unwrap_err()).status();
        assert_eq!(status("ada"), 503);
        let bob = permits.take("bob").unwrap();
        assert_eq!(status("eve"), 503);
        ada.pop();
        drop(bob);
        let _again = (permits.take("ada").unwrap(), permits.take("eve").unwrap());
        assert_eq!(permits.taken().by_caller.len(), 2, "callers without a permit are forgotten");
    }

    #[test]
    fn the_first_refusal_of_a_caller_is_known() {
        let permits = Permits::new("connections", 10, 2);
        let mut held: Vec<_> = (0..2).map(|_| permits.take("ada").unwrap()).collect();
        let is_first = || permits.take("ada").unwrap_err().is_first;
        assert_eq!([is_first(), is_first()], [true, false]);
        // At the limit again, and with all permits returned in between.
        held.pop();
        held.push(permits.take("ada").unwrap());
        assert!(!is_first());
        held.clear();
        held.extend((0..2).map(|_| permits.take("ada").unwrap()));
        assert!(is_first());
    }
}
