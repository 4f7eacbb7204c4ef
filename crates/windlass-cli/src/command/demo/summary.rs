//! Compares what the store contains at the end with what it should contain.

use serde::Serialize;
use windlass::record::ChainRecord;
use windlass::{BoxError, Chain, Client, Queue, Status, Store};

use super::jobs::{Pack, PrintLabel, TakeOrder, rating_of};
use super::shop::{Backend, JobSummary, Shop};
use crate::exit::Result as Ended;
use crate::output::Output;

/// The checks and whether all of them passed.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    ok: bool,
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct Check {
    what: String,
    expected: u64,
    stored: u64,
}

impl Summary {
    pub(super) const fn ok(&self) -> bool {
        self.ok
    }

    pub(super) fn print(&self, output: Output) -> Ended {
        if output.is_json() {
            return output.object(self);
        }
        for Check { what, expected, stored } in &self.checks {
            let mark = if expected == stored { "\x1b[32m✓\x1b[0m" } else { "\x1b[31m✗\x1b[0m" };
            let expectation =
                if expected == stored { String::new() } else { format!(" (expected {expected})") };
            output.line(&format!("{mark} {stored:>4} {what}{expectation}"))?;
        }
        let verdict = if self.ok { "all checks passed" } else { "some checks failed" };
        output.line(&format!("compared with the store: {verdict}"))
    }
}

/// Queries the store for every order and compares the counts.
pub(super) async fn summarize<S: Store + ?Sized, W: Backend<S>>(
    shop: &Shop<S, W>,
    ratings: &Queue<u32, u32>,
    placed: &[JobSummary],
) -> Result<Summary, BoxError> {
    let mut found = Found::default();
    let (mut orders, mut large, mut busy, mut rolled_back) = (0, 0, 0, 0);
    for placed in placed {
        found.count(&shop.client, ratings, placed).await?;
        let kept = !placed.rolled_back;
        orders += u64::from(kept);
        rolled_back += u64::from(placed.rolled_back);
        large += u64::from(kept && placed.order.is_large());
        busy += u64::from(kept && placed.order.fails_first_charge());
    }
    let mut checks = Vec::new();
    let mut check = |what: &str, expected, stored| {
        checks.push(Check { what: what.to_owned(), expected, stored });
    };
    if let Some((rows, paid)) = shop.backend.rows(&shop.client).await? {
        check("orders committed with their chains", orders, u64::try_from(rows)?);
        let left = format!("chains left by orders that were rolled back on purpose ({rolled_back})");
        check(&left, 0, found.left_over);
        check(
            "orders marked as paid in the transaction that completed the job",
            orders,
            u64::try_from(paid)?,
        );
    }
    check("orders shipped with their own label and boxes", orders, found.shipped);
    check("chains that blocked shipping until they completed", 2 * orders, found.blockers);
    check("orders charged on the second attempt", busy, found.retried);
    check("large orders approved from outside", large, found.approved);
    check("customer ratings returned by a queue and cached", large, found.answered);
    let ok = checks.iter().all(|check| check.expected == check.stored);
    Ok(Summary { ok, checks })
}

/// Counts over the chains of all orders.
#[derive(Default)]
struct Found {
    left_over: u64,
    shipped: u64,
    blockers: u64,
    retried: u64,
    approved: u64,
    answered: u64,
}

impl Found {
    async fn count<S: Store + ?Sized>(
        &mut self,
        client: &Client<S>,
        ratings: &Queue<u32, u32>,
        placed: &JobSummary,
    ) -> Result<(), BoxError> {
        let TakeOrder { order, packing, label, .. } = placed.order;
        let (packing, label) = (Chain::<Pack>::from_id(packing), Chain::<PrintLabel>::from_id(label));
        let Some(record) = client.chain(placed.chain).await? else { return Ok(()) };
        if placed.rolled_back {
            self.left_over += 1;
            return Ok(());
        }
        let parcel = client.output(placed.chain).await?;
        self.shipped += u64::from(parcel.is_some_and(|parcel| parcel == placed.order.parcel()));
        self.retried += u64::from(record.first.attempt == 2);
        self.approved += u64::from(record.latest.index == 2);
        for blocker in [client.chain(packing).await?, client.chain(label).await?] {
            self.blockers += u64::from(blocker.is_some_and(|chain| is_awaited_by(&chain, &record)));
        }
        let rating = ratings.result(format!("customer-of-{order}")).await?;
        self.answered += u64::from(rating == Some(rating_of(order)));
        Ok(())
    }
}

/// Whether the order's last job was blocked by this chain, and the chain completed.
fn is_awaited_by(chain: &ChainRecord, order: &ChainRecord) -> bool {
    let is_blocker =
        order.latest.blockers.iter().any(|blocker| blocker.chain == chain.id && blocker.resolved);
    is_blocker && chain.status() == Status::Completed
}
