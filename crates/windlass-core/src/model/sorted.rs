use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// The number of items in a full chunk.
const CHUNK: usize = 64;

/// A sorted set in chunks, for items that mostly arrive in order and leave in order: jobs by creation, by due time, by
/// the end of their lease.
///
/// Most items are larger than all others. They are appended to `tail` without a search. The other chunks are in a map,
/// each under a lower bound of its items. So an item in the middle costs a search of the map and moves within one chunk.
///
/// A `BTreeSet` took about 500 instructions for each insertion, because it compares a new item with nearly all items of
/// each node on its way to the end. A job is inserted five times.
#[derive(Debug)]
pub(super) struct Sorted<T> {
    /// Chunks that are not empty. The items of each are at least its key, and less than the next key.
    chunks: BTreeMap<T, VecDeque<T>>,
    /// Items that are larger than those in the chunks.
    tail: VecDeque<T>,
    len: usize,
}

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), tail: VecDeque::new(), len: 0 }
    }
}

impl<T: Copy + Ord> Sorted<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn first(&self) -> Option<&T> {
        self.chunks.values().next().unwrap_or(&self.tail).front()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.chunks.values().chain([&self.tail]).flatten()
    }

    /// Returns the items in the range, in order.
    pub(super) fn range(&self, range: RangeInclusive<T>) -> impl DoubleEndedIterator<Item = &T> {
        // The chunk that contains the start may have a smaller key.
        let from = self.chunks.range(..=range.start()).next_back().map_or(*range.start(), |(key, _)| *key);
        // `BTreeMap::range` panics if the range ends before it starts.
        let chunks = (from <= *range.end()).then(|| self.chunks.range(from..=*range.end()));
        let chunks = chunks.into_iter().flatten().map(|(_, chunk)| chunk);
        chunks.chain([&self.tail]).flatten().filter(move |item| range.contains(item))
    }

    /// Adds an item, unless it is in the set.
    pub(super) fn insert(&mut self, item: T) {
        if self.tail.back().is_none_or(|last| *last < item) && self.is_above_chunks(&item) {
            if self.tail.len() >= CHUNK {
                self.close_tail();
            }
            self.tail.push_back(item);
            self.len += 1;
            return;
        }
        let key = self.key_of(&item);
        let Some(chunk) = self.chunk_mut(key) else { return };
        let Err(index) = chunk.binary_search(&item) else { return };
        chunk.insert(index, item);
        self.len += 1;
        if let Some(key) = key {
            self.keep_in_order(key, item);
        } else if self.tail.len() > 2 * CHUNK {
            self.close_tail();
        }
    }

    /// Removes an item, if it is in the set.
    pub(super) fn remove(&mut self, item: &T) {
        if self.first() == Some(item) {
            return self.remove_first();
        }
        let key = self.key_of(item);
        let Some(chunk) = self.chunk_mut(key) else { return };
        let Ok(index) = chunk.binary_search(item) else { return };
        chunk.remove(index);
        let is_empty = shrink(chunk);
        self.len -= 1;
        if let Some(key) = key.filter(|_| is_empty) {
            self.chunks.remove(&key);
        }
    }

    /// Removes the first item. There is one.
    fn remove_first(&mut self) {
        self.len -= 1;
        let Some(mut first) = self.chunks.first_entry() else {
            self.tail.pop_front();
            return;
        };
        first.get_mut().pop_front();
        if shrink(first.get_mut()) {
            first.remove();
        }
    }

    /// Whether an item belongs to the tail.
    fn is_above_chunks(&self, item: &T) -> bool {
        // If the tail has items, the caller has compared the item with them.
        !self.tail.is_empty()
            || self.chunks.values().next_back().and_then(VecDeque::back).is_none_or(|last| last < item)
    }

    /// Returns the key of the chunk that an item belongs to, or `None` for the tail.
    fn key_of(&self, item: &T) -> Option<T> {
        if self.tail.front().is_some_and(|first| first <= item) {
            return None;
        }
        let below = self.chunks.range(..=item).next_back();
        below.or_else(|| self.chunks.first_key_value()).map(|(key, _)| *key)
    }

    fn chunk_mut(&mut self, key: Option<T>) -> Option<&mut VecDeque<T>> {
        match key {
            Some(key) => self.chunks.get_mut(&key),
            None => Some(&mut self.tail),
        }
    }

    /// Makes the tail a chunk.
    fn close_tail(&mut self) {
        let tail = std::mem::replace(&mut self.tail, VecDeque::with_capacity(CHUNK));
        if let Some(first) = tail.front() {
            self.chunks.insert(*first, tail);
        }
    }

    /// Restores the order of the chunks after `item` was inserted into one: its key may be too large, or it may have too
    /// many items.
    fn keep_in_order(&mut self, key: T, item: T) {
        let key = if item < key {
            let Some(chunk) = self.chunks.remove(&key) else { return };
            self.chunks.insert(item, chunk);
            item
        } else {
            key
        };
        let Some(chunk) = self.chunks.get_mut(&key).filter(|chunk| chunk.len() > 2 * CHUNK) else { return };
        let upper = chunk.split_off(CHUNK);
        if let Some(first) = upper.front() {
            self.chunks.insert(*first, upper);
        }
    }
}

/// Frees memory that a chunk does not need. A few items that stay for long must not keep the memory of those that have
/// left. Returns whether the chunk is empty.
fn shrink<T>(chunk: &mut VecDeque<T>) -> bool {
    if chunk.len() < chunk.capacity() / 4 {
        chunk.shrink_to(2 * chunk.len());
    }
    chunk.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Applies the same random changes to both sets, and compares them.
    fn check(seed: u64, next: impl Fn(&mut fastrand::Rng, u32) -> u32) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut sorted, mut expected) = (Sorted::default(), BTreeSet::new());
        for step in 0..5_000 {
            let item = next(&mut random, step);
            if random.u8(..100) < 60 {
                sorted.insert(item);
                expected.insert(item);
            } else {
                let leaving = if random.bool() { expected.first().copied().unwrap_or(item) } else { item };
                sorted.remove(&leaving);
                expected.remove(&leaving);
            }
            assert_eq!((sorted.len(), sorted.first()), (expected.len(), expected.first()), "seed {seed}");
            if step % 100 == 0 {
                assert!(sorted.iter().eq(&expected), "seed {seed}");
                assert!(sorted.iter().rev().eq(expected.iter().rev()), "seed {seed}");
                let (one, other) = (next(&mut random, step), next(&mut random, step));
                let range = one.min(other)..=one.max(other);
                assert!(sorted.range(range.clone()).eq(expected.range(range.clone())), "seed {seed}");
                assert!(sorted.range(range.clone()).rev().eq(expected.range(range).rev()), "seed {seed}");
            }
        }
        assert!(sorted.chunks.values().all(|chunk| !chunk.is_empty() && chunk.len() <= 2 * CHUNK));
        expected.iter().for_each(|item| sorted.remove(item));
        assert!(sorted.is_empty() && sorted.chunks.is_empty() && sorted.first().is_none());
    }

    #[test]
    fn it_behaves_like_a_tree() {
        for seed in 0..20 {
            check(seed, |random, _| random.u32(..1_000));
            check(seed, |_, step| step);
            check(seed, |_, step| 10_000 - step);
            check(seed, |random, step| step + random.u32(..300));
        }
    }

    #[test]
    fn items_that_stay_do_not_keep_the_memory_of_others() {
        let mut sorted = Sorted::default();
        (0..10_000u32).for_each(|item| sorted.insert(item));
        (0..10_000).filter(|item| item % 100 != 0).for_each(|item| sorted.remove(&item));
        let capacity: usize = sorted.chunks.values().map(VecDeque::capacity).sum();
        assert!(sorted.len() == 100 && capacity < 1_000, "{capacity}");
    }
}
