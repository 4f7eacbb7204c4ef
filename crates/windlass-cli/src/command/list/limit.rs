//! The limit of a list. A list must not be cut silently.

use crate::output::note;

/// Counts the rows of a list up to a limit, and detects whether more rows match.
pub(super) struct Limit {
    listed: usize,
    left: usize,
    /// Whether a page beyond the limit was requested.
    has_looked_further: bool,
    more: More,
}

/// Whether more rows match than are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    No,
    /// There are more pages, but they may contain no matching row.
    Maybe,
    Yes,
}

impl Limit {
    /// Creates a limit from the argument, where 0 means no limit.
    pub(super) const fn new(max: usize) -> Self {
        let left = if max == 0 { usize::MAX } else { max };
        Self { listed: 0, left, has_looked_further: false, more: More::No }
    }

    /// Returns how many rows to request: those left to list, and one to detect that there are more.
    pub(super) const fn wanted(&self) -> usize {
        self.left.saturating_add(1)
    }

    /// Whether to list another matching row.
    pub(super) const fn take(&mut self) -> bool {
        if self.left == 0 {
            self.more = More::Yes;
            return false;
        }
        self.left -= 1;
        self.listed += 1;
        true
    }

    /// Whether to request the next page, if there is one. Requests at most one page beyond the limit: if few rows match
    /// the filter, the next match may be many pages away.
    pub(super) fn needs_next_page(&mut self) -> bool {
        if self.left > 0 || self.more == More::Yes {
            return self.left > 0;
        }
        // No row beyond the limit was found so far.
        if self.has_looked_further {
            self.more = More::Maybe;
            return false;
        }
        self.has_looked_further = true;
        true
    }

    /// Reports on standard error if the list was cut.
    pub(super) fn report(&self, rows: &str) {
        let there_are_more = match self.more {
            More::No => return,
            More::Maybe => "there may be more",
            More::Yes => "there are more",
        };
        let listed = self.listed;
        note(&format!(
            "{rows} listed: {listed}, and {there_are_more}; pass --limit NUMBER to list more, or --limit 0 for all"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists pages with these numbers of rows, the last of which has no successor. Returns the number of rows that were
    /// listed, the number of pages that were requested, and the limit.
    fn list(max: usize, pages: &[usize]) -> (usize, usize, Limit) {
        let mut limit = Limit::new(max);
        for (page, rows) in pages.iter().enumerate() {
            for _ in 0..*rows {
                if !limit.take() {
                    break;
                }
            }
            if page + 1 == pages.len() || !limit.needs_next_page() {
                return (limit.listed, page + 1, limit);
            }
        }
        unreachable!("the last page ends the list")
    }

    #[track_caller]
    fn check(max: usize, pages: &[usize], listed: usize, requested: usize, more: &More) {
        let (was_listed, was_requested, limit) = list(max, pages);
        assert_eq!((was_listed, was_requested), (listed, requested));
        assert!(limit.more == *more);
    }

    #[test]
    fn a_cut_is_detected_with_at_most_one_more_page() {
        check(2, &[2], 2, 1, &More::No);
        check(2, &[3], 2, 1, &More::Yes);
        check(2, &[1, 0, 1], 2, 3, &More::No);
        check(2, &[2, 1], 2, 2, &More::Yes);
        check(2, &[2, 0], 2, 2, &More::No);
        check(2, &[2, 0, 0, 1], 2, 2, &More::Maybe);
        check(0, &[2, 0, 3], 5, 3, &More::No);
    }
}
