//! Limits on what is open at the same time: in total, and per caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::Problem;

/// A fixed number of permits. One caller can hold only some of them.
#[derive(Debug)]
pub(crate) struct Permits {
    /// What a permit is for, in the plural.
    what: &'static str,
    max: usize,
    max_per_caller: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_caller: HashMap<String, usize>,
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
    pub(crate) fn take(self: &Arc<Self>, caller: &str) -> Result<Permit, Problem> {
        let mut taken = self.taken();
        let of_caller = taken.by_caller.get(caller).copied().unwrap_or(0);
        if taken.total >= self.max {
            return Err(Problem::unavailable(format!(
                "there are already {} {}: try later",
                self.max, self.what
            )));
        }
        if of_caller >= self.max_per_caller {
            let text = format!("{caller:?} already has {of_caller} {}: close one of them", self.what);
            return Err(Problem::unavailable(text));
        }
        taken.total += 1;
        taken.by_caller.insert(caller.to_owned(), of_caller + 1);
        Ok(Permit { permits: Arc::clone(self), caller: caller.to_owned() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        taken.total = taken.total.saturating_sub(1);
        if let Some(count) = taken.by_caller.get_mut(&self.caller) {
            *count = count.saturating_sub(1);
            if *count == 0 {
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
        assert_eq!(permits.take("ada").unwrap_err().status(), 503);
        let bob = permits.take("bob").unwrap();
        assert_eq!(permits.take("eve").unwrap_err().status(), 503);
        ada.pop();
        drop(bob);
        let _again = (permits.take("ada").unwrap(), permits.take("eve").unwrap());
        assert_eq!(permits.taken().by_caller.len(), 2, "callers without a permit are forgotten");
    }
}
