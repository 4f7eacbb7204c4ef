//! Limits of what is open at the same time: in all, and for each caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::Problem;

/// A number of places, of which one caller can take only a part.
#[derive(Debug)]
pub(crate) struct Places {
    /// What has a place, in the plural.
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

/// A place. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    caller: String,
}

impl Places {
    pub(crate) fn new(what: &'static str, max: usize, max_per_caller: usize) -> Arc<Self> {
        Arc::new(Self { what, max, max_per_caller, taken: Mutex::default() })
    }

    /// Takes a place, if there is one left for this caller.
    pub(crate) fn take(self: &Arc<Self>, caller: &str) -> Result<Place, Problem> {
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
        Ok(Place { places: Arc::clone(self), caller: caller.to_owned() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
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
    fn places_are_limited_by_caller_and_in_all() {
        let places = Places::new("event streams", 3, 2);
        let mut ada: Vec<_> = (0..2).map(|_| places.take("ada").unwrap()).collect();
        assert_eq!(places.take("ada").unwrap_err().status(), 503);
        let bob = places.take("bob").unwrap();
        assert_eq!(places.take("eve").unwrap_err().status(), 503);
        ada.pop();
        drop(bob);
        let _again = (places.take("ada").unwrap(), places.take("eve").unwrap());
        assert_eq!(places.taken().by_caller.len(), 2, "callers without a place are forgotten");
    }
}
