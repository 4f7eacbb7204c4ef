use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use uuid::Uuid;

use super::sorted::Sorted;
use super::table::{OfType, Tables};
use super::{Execution, Rows};
use crate::command::{
    ChainFacts, Count, CountReply, Cursor, EndedJobs, GetChains, GetChainsReply, GetJobs, GetJobsReply,
    JobFacts, ListAttempts, ListAttemptsReply, ListChains, ListChainsReply, ListDependents,
    ListDependentsReply, ListJobs, ListJobsReply, NextDue, NextDueReply, Order, Page, TypeCount, Types,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};
use crate::limit::PAGE_SCAN_MAX;
use crate::name::TypeName;
use crate::record::{ChainRecord, JobRecord, Status};

impl<R: Rows> Execution<'_, R> {
    pub(super) fn get_chains(&mut self, request: &GetChains) -> Result<GetChainsReply> {
        request.check()?;
        let get = |target| self.find(target)?.map(|row| self.view(&row)).transpose();
        Ok(GetChainsReply { chains: request.chains.iter().map(get).collect::<Result<_>>()? })
    }

    pub(super) fn get_jobs(&mut self, request: &GetJobs) -> Result<GetJobsReply> {
        request.check()?;
        let get = |job: &JobId| Ok(self.rows.job(*job)?.map(|row| row.job.clone()));
        Ok(GetJobsReply { jobs: request.jobs.iter().map(get).collect::<Result<_>>()? })
    }

    pub(super) fn list_attempts(&mut self, request: ListAttempts) -> Result<ListAttemptsReply> {
        let Some(row) = self.rows.job(request.job)? else {
            return Ok(ListAttemptsReply { attempts: Vec::new() });
        };
        Ok(ListAttemptsReply { attempts: row.history.iter().cloned().chain(row.latest_attempt()).collect() })
    }
}

impl Execution<'_, Tables> {
    pub(super) fn next_due(&self, request: &NextDue) -> Result<NextDueReply> {
        request.types.check()?;
        let types: Vec<(&TypeName, &OfType)> = match &request.types {
            Types::All => self.rows.types.iter().collect(),
            Types::Only(names) => {
                names.iter().filter_map(|name| self.rows.types.get_key_value(name)).collect()
            }
        };
        let open = types.iter().filter(|(name, _)| !self.rows.has_paused(name));
        let levels = open.flat_map(|(_, of_type)| of_type.pending.values());
        let due_at = levels.filter_map(Sorted::first).map(|(due_at, ..)| *due_at).min();
        let leases = types.iter().filter_map(|(_, of_type)| of_type.running.first());
        let lease_until = leases.map(|(until, ..)| *until).min();
        Ok(NextDueReply { now: self.now, due_at, lease_until })
    }

    pub(super) fn list_chains(&self, request: &ListChains) -> Result<ListChainsReply> {
        request.check()?;
        let page = PageScan::new(&request.page)?;
        let (first, last) = (ChainId::from_uuid(Uuid::nil()), ChainId::from_uuid(Uuid::max()));
        let rows = page.within(&self.rows.chains_by_seq, first..=last);
        let (chains, next) = page.collect(rows.map(Ok), |chain| {
            let is_top_level = !self.rows.dependents.contains_key(&chain);
            let passes = |view: &ChainRecord| {
                request.filter.passes(ChainFacts {
                    chain_type: &view.chain_type,
                    status: view.status(),
                    created_at: view.created_at,
                    closed_at: view.closed.as_ref().map(|closed| closed.at),
                    key: view.key.as_ref().map(|key| key.key.as_str()),
                    is_top_level,
                })
            };
            Ok(self.rows.view(chain).filter(passes))
        })?;
        Ok(ListChainsReply { chains, next })
    }

    pub(super) fn list_jobs(&self, request: &ListJobs) -> Result<ListJobsReply> {
        request.check()?;
        let page = PageScan::new(&request.page)?;
        let rows = match request.filter.chain {
            None => {
                let (first, last) = (JobId::from_uuid(Uuid::nil()), JobId::from_uuid(Uuid::max()));
                page.within(&self.rows.jobs_by_seq, first..=last)
            }
            Some(chain) => {
                // A chain's jobs are created in sequence, so their index in the chain can number the rows of
                // the page too.
                let index = |number: &u64| u32::try_from(number.saturating_sub(1)).unwrap_or(u32::MAX);
                let (from, to) = (index(page.range().start()), index(page.range().end()));
                let jobs = (!page.range().is_empty()).then(|| self.rows.jobs_in(chain, from..=to));
                page.walk(jobs.into_iter().flatten().map(|(index, job)| (u64::from(index) + 1, job)))
            }
        };
        let (jobs, next) = page.collect(rows.map(Ok), |job| {
            let job = self.rows.get_job(job).map(|row| &row.job);
            let passes = |job: &&JobRecord| {
                request.filter.passes(JobFacts {
                    job_type: &job.job_type,
                    status: job.status,
                    chain_type: &job.chain_type,
                    created_at: job.created_at,
                    closed_at: job.closed_at,
                })
            };
            Ok(job.filter(passes).cloned())
        })?;
        Ok(ListJobsReply { jobs, next })
    }

    pub(super) fn list_dependents(&self, request: &ListDependents) -> Result<ListDependentsReply> {
        let page = PageScan::new(&request.page)?;
        let none = BTreeSet::new();
        let dependents = self.rows.dependents.get(&request.chain).unwrap_or(&none);
        let (lowest, highest) = (JobId::from_uuid(Uuid::nil()), JobId::from_uuid(Uuid::max()));
        let range = (*page.range().start(), lowest)..=(*page.range().end(), highest);
        let rows = (!page.range().is_empty()).then(|| dependents.range(range).copied());
        let rows = page.walk(rows.into_iter().flatten());
        let get = |job| Ok(self.rows.get_job(job).map(|row| row.job.clone()));
        let (jobs, next) = page.collect(rows.map(Ok), get)?;
        Ok(ListDependentsReply { jobs, next })
    }

    pub(super) fn count(&self, request: &Count) -> Result<CountReply> {
        request.types.check()?;
        let names: BTreeSet<&TypeName> = match &request.types {
            Types::All => self.rows.types.keys().chain(self.rows.paused()).collect(),
            Types::Only(types) => types.iter().collect(),
        };
        let known = |name: &&TypeName| self.rows.types.contains_key(*name) || self.rows.has_paused(name);
        let types = names.into_iter().filter(known).map(|name| self.count_type(name)).collect();
        Ok(CountReply { types, closed_estimated: false })
    }

    fn count_type(&self, name: &TypeName) -> TypeCount {
        let of_type = self.rows.types.get(name);
        let of = |status: Status| of_type.map_or(0, |of_type| of_type.count(status));
        let levels = of_type.into_iter().flat_map(|of_type| &of_type.pending);
        let heads = levels.filter_map(|(_, jobs)| jobs.first()).map(|(due_at, ..)| *due_at);
        let leases = of_type.into_iter().flat_map(|of_type| of_type.running.iter());
        let [completed, failed, cancelled] = [Status::Completed, Status::Failed, Status::Cancelled].map(of);
        TypeCount {
            job_type: name.clone(),
            blocked: of(Status::Blocked),
            pending: of(Status::Pending),
            running: of(Status::Running),
            completed,
            failed,
            cancelled,
            ended: self.rows.former_of(name).and(EndedJobs { completed, failed, cancelled }),
            oldest_ready: heads.min().filter(|due_at| *due_at <= self.now),
            expired_leases: leases.take_while(|(until, ..)| *until <= self.now).count() as u64,
            paused: self.rows.has_paused(name),
        }
    }
}

/// The start, order and size of a page. Rows are numbered from 1, and read in the order of their numbers.
#[derive(Clone, Copy, Debug)]
pub struct PageScan {
    order: Order,
    after: Option<u64>,
    max: usize,
}

impl PageScan {
    /// Reads the cursor of a page.
    ///
    /// # Errors
    /// Returns an error of kind [`Invalid`](ErrorKind::Invalid) if the cursor does not come from this store, or if the
    /// page is too large.
    pub fn new(page: &Page) -> Result<Self> {
        let not_ours = |_| {
            Error::new(
                ErrorKind::Invalid,
                "the cursor was not issued by this store: start from the first page",
            )
        };
        let after =
            page.after.as_ref().map(|Cursor(text)| text.parse::<u64>().map_err(not_ours)).transpose()?;
        page.check()?;
        Ok(Self { order: page.order, after, max: page.max as usize })
    }

    /// Returns the row numbers that remain after the cursor.
    #[must_use]
    pub fn range(&self) -> RangeInclusive<u64> {
        match (self.order, self.after) {
            (_, None) => 1..=u64::MAX,
            (Order::Newest, Some(after)) => 1..=after.saturating_sub(1),
            (Order::Oldest, Some(after)) => after.saturating_add(1)..=u64::MAX,
        }
    }

    /// Whether rows with higher numbers come first.
    #[must_use]
    pub fn is_newest_first(&self) -> bool {
        self.order == Order::Newest
    }

    /// Returns the rows of an index after the cursor, in the requested order. `ids` are all ids.
    fn within<'a, I: Copy + Ord>(
        &self,
        rows: &'a Sorted<(u64, I)>,
        ids: RangeInclusive<I>,
    ) -> Box<dyn Iterator<Item = (u64, I)> + 'a> {
        let (from, to) = self.range().into_inner();
        self.walk(rows.range((from, *ids.start())..=(to, *ids.end())).copied())
    }

    /// Returns the rows in the requested order.
    fn walk<'a, I: 'a>(
        &self,
        rows: impl DoubleEndedIterator<Item = (u64, I)> + 'a,
    ) -> Box<dyn Iterator<Item = (u64, I)> + 'a> {
        match self.order {
            Order::Newest => Box::new(rows.rev()),
            Order::Oldest => Box::new(rows),
        }
    }

    /// Returns the first rows for which `get` returns a value, and the cursor of the next page. Stops after scanning
    /// `PAGE_SCAN_MAX` rows.
    ///
    /// # Errors
    /// Returns the first error of the rows or of `get`.
    pub fn collect<I, T>(
        &self,
        mut rows: impl Iterator<Item = Result<(u64, I)>>,
        mut get: impl FnMut(I) -> Result<Option<T>>,
    ) -> Result<(Vec<T>, Option<Cursor>)> {
        let (mut found, mut last) = (Vec::new(), None);
        for _ in 0..PAGE_SCAN_MAX {
            if found.len() == self.max {
                break;
            }
            let Some(row) = rows.next() else { return Ok((found, None)) };
            let (number, id) = row?;
            last = Some(number);
            found.extend(get(id)?);
        }
        let next = rows.next().transpose()?.and(last).map(|number| Cursor(number.to_string()));
        Ok((found, next))
    }
}
