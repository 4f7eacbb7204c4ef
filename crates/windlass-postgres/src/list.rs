//! Listing and counting jobs and chains.

use std::collections::BTreeMap;

use windlass_core::command::{
    Count, CountReply, Cursor, EndedJobs, ListAttempts, ListAttemptsReply, ListChains, ListChainsReply,
    ListDependents, ListDependentsReply, ListJobs, ListJobsReply, Order, Page, TypeCount,
};
use windlass_core::limit::PAGE_SCAN_MAX;
use windlass_core::{AttemptRecord, Error, ErrorKind, Fence, JobRecord, Result, Status, Timestamp, TypeName};

use crate::enum_text::enum_text;
use crate::get::{chains_by_item, cursor};
use crate::provider::{Parameter, Provider, Row};
use crate::reply::Values;
use crate::request::{id, names, types};
use crate::store::{Call, Execute};

impl Execute for ListJobs {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ListJobsReply> {
        self.check()?;
        let filter = &self.filter;
        let [order, after, max] = page(&self.page)?;
        let mut parameters = vec![
            order,
            after,
            max,
            names(&filter.types),
            statuses(&filter.statuses),
            names(&filter.chain_types),
        ];
        let is_open = filter.chain.is_none() && is_open(&filter.statuses);
        if !is_open {
            parameters.push(Parameter::Id(filter.chain.map(|chain| *chain.as_uuid())));
        }
        parameters.extend([
            time(filter.created_from),
            time(filter.created_to),
            time(filter.closed_from),
            time(filter.closed_to),
            Parameter::Number(Some(scan_max())),
        ]);
        let statements = call.statements();
        let statement = if is_open { &statements.list_open } else { &statements.list_jobs };
        let (jobs, next) = jobs_and_next(call.run(statement, parameters).await?)?;
        Ok(ListJobsReply { jobs, next })
    }
}

impl Execute for ListChains {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ListChainsReply> {
        self.check()?;
        let filter = &self.filter;
        let [order, after, max] = page(&self.page)?;
        let parameters = vec![
            order,
            after,
            max,
            names(&filter.types),
            statuses(&filter.statuses),
            Parameter::Flag(filter.top_level),
            time(filter.created_from),
            time(filter.created_to),
            time(filter.closed_from),
            time(filter.closed_to),
            Parameter::Text(filter.key.as_ref().map(ToString::to_string)),
            Parameter::Number(Some(scan_max())),
        ];
        let (chains, next) = chains_by_item(call.run(&call.statements().list_chains, parameters).await?)?;
        Ok(ListChainsReply { chains: chains.into_values().collect(), next })
    }
}

impl Execute for ListDependents {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ListDependentsReply> {
        let [order, after, max] = page(&self.page)?;
        let parameters = vec![order, after, max, id(self.chain.as_uuid())];
        let (jobs, next) = jobs_and_next(call.run(&call.statements().list_dependents, parameters).await?)?;
        Ok(ListDependentsReply { jobs, next })
    }
}

impl Execute for ListAttempts {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ListAttemptsReply> {
        let rows = call.run(&call.statements().list_attempts, vec![id(self.job.as_uuid())]).await?;
        let attempt = |row: Row| {
            let mut values = Values::from(row);
            Ok(AttemptRecord {
                worker: values.worker_id()?,
                end: values.enum_value()?,
                error: values.error(),
                worker_name: values.worker_name()?,
                attempt: values.number()?,
                fence: Fence(values.number()?),
                started_at: values.time()?,
                ended_at: values.maybe_time()?,
            })
        };
        Ok(ListAttemptsReply { attempts: rows.into_iter().map(attempt).collect::<Result<_>>()? })
    }
}

impl Execute for Count {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<CountReply> {
        self.types.check()?;
        let parameters = vec![call.time(), types(&self.types)];
        // Sorted here, because the collation of the database may order names differently.
        let mut counts = BTreeMap::<TypeName, TypeCount>::new();
        for row in call.run(&call.statements().count, parameters).await? {
            let mut values = Values::from(row);
            let job_type = values.type_name()?;
            let (blocked, pending, running) = (values.number()?, values.number()?, values.number()?);
            let (completed, failed, cancelled) = (values.number()?, values.number()?, values.number()?);
            let stored = EndedJobs { completed, failed, cancelled };
            let former = EndedJobs {
                completed: values.number()?,
                failed: values.number()?,
                cancelled: values.number()?,
            };
            let count = TypeCount {
                job_type: job_type.clone(),
                blocked,
                pending,
                running,
                completed,
                failed,
                cancelled,
                ended: stored.and(former),
                expired_leases: values.number()?,
                paused: values.flag()?,
                oldest_ready: values.maybe_time()?,
            };
            counts.insert(job_type, count);
        }
        Ok(CountReply { types: counts.into_values().collect(), closed_estimated: false })
    }
}

/// Returns the jobs in order, and the cursor of the next page.
fn jobs_and_next(rows: Vec<Row>) -> Result<(Vec<JobRecord>, Option<Cursor>)> {
    let (mut jobs, mut next) = (Vec::new(), None);
    for row in rows {
        let mut values = Values::from(row);
        if values.part == "next" {
            next = Some(cursor(&mut values)?);
        } else {
            jobs.push(values.job()?);
        }
    }
    Ok((jobs, next))
}

/// Whether a filter accepts certain statuses, without `completed`. Such a list does not read completed jobs.
fn is_open(statuses: &[Status]) -> bool {
    !statuses.is_empty() && !statuses.contains(&Status::Completed)
}

/// Returns the parameters of a page: order, last row of the previous page, and size.
fn page(page: &Page) -> Result<[Parameter; 3]> {
    let not_ours = |_| {
        let text = "the cursor is not from this store: start from the first page";
        Error::new(ErrorKind::Invalid, text)
    };
    let after = page.after.as_ref().map(|Cursor(text)| text.parse::<i64>().map_err(not_ours)).transpose()?;
    page.check()?;
    Ok([
        Parameter::Flag(page.order == Order::Newest),
        Parameter::Number(after),
        Parameter::Number(Some(page.max.into())),
    ])
}

/// Returns the maximum number of rows that one page scans.
fn scan_max() -> i64 {
    i64::try_from(PAGE_SCAN_MAX).unwrap_or(i64::MAX)
}

fn statuses(statuses: &[Status]) -> Parameter {
    Parameter::Texts(Some(statuses.iter().map(|status| enum_text(*status)).collect()))
}

fn time(time: Option<Timestamp>) -> Parameter {
    Parameter::Number(time.map(Timestamp::as_millis))
}
