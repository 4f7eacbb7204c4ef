use std::collections::VecDeque;
use std::hash::Hash;

use foldhash::{HashMap, HashMapExt as _};

/// A map that holds the latest entries, up to a limit.
pub(crate) struct Recent<K, V> {
    entries: HashMap<K, (u64, V)>,
    /// The keys in the order of their insertion, each with the number of the insertion. Some of them have been removed
    /// since, and perhaps inserted again with another number.
    order: VecDeque<(u64, K)>,
    inserted: u64,
    max: usize,
}

impl<K: Eq + Hash + Copy, V: Default> Recent<K, V> {
    pub(crate) fn new(max: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), inserted: 0, max }
    }

    /// Changes an entry. Inserts it if it is missing. Returns the oldest ones if there are too many: drop them outside of
    /// a lock, if that runs other code.
    #[must_use]
    pub(crate) fn update(&mut self, key: K, change: impl FnOnce(&mut V)) -> Vec<V> {
        let mut dropped = Vec::new();
        if !self.entries.contains_key(&key) {
            while self.entries.len() >= self.max {
                let Some((number, oldest)) = self.order.pop_front() else { break };
                if self.entries.get(&oldest).is_some_and(|(latest, _)| *latest == number) {
                    dropped.extend(self.entries.remove(&oldest).map(|(_, value)| value));
                }
            }
            // Most entries are removed long before the map is full, and leave their keys.
            if self.order.len() >= 2 * self.max {
                let entries = &self.entries;
                self.order
                    .retain(|(number, key)| entries.get(key).is_some_and(|(latest, _)| latest == number));
            }
            self.inserted += 1;
            self.order.push_back((self.inserted, key));
        }
        let (_, value) = self.entries.entry(key).or_insert_with(|| (self.inserted, V::default()));
        change(value);
        dropped
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        // Most jobs are not sampled, and leave the map empty.
        if self.entries.is_empty() {
            return None;
        }
        self.entries.remove(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_are_dropped() {
        let mut recent = Recent::<u32, u32>::new(10);
        for key in 0..100 {
            let dropped = recent.update(key, |value| *value = key);
            assert_eq!(dropped, key.checked_sub(10).into_iter().collect::<Vec<_>>());
        }
        assert_eq!(recent.entries.len(), 10);
        assert_eq!((recent.remove(&89), recent.remove(&90), recent.remove(&99)), (None, Some(90), Some(99)));
    }

    #[test]
    fn removed_entries_leave_nothing() {
        let mut recent = Recent::<u32, u32>::new(10);
        for key in 0..10_000 {
            assert!(recent.update(key, |_| {}).is_empty());
            recent.remove(&key);
        }
        assert!(recent.entries.is_empty() && recent.order.len() <= 20, "{} keys", recent.order.len());
    }

    #[test]
    fn an_entry_that_was_removed_and_inserted_again_is_new() {
        let mut recent = Recent::<u32, u32>::new(2);
        assert!(recent.update(1, |_| {}).is_empty());
        recent.remove(&1);
        for key in [2, 1, 3] {
            let _ = recent.update(key, |value| *value = key);
        }
        assert_eq!((recent.remove(&1), recent.remove(&2)), (Some(1), None), "2 is the oldest");
    }
}
