//! The shop's job types, and the handlers that need no transactions.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::job::Ready;
use windlass::worker::Continuation;
use windlass::{Backoff, BoxError, Chain, ChainId, Ctx, Data, Job, JobOptions, Next, next};

use super::shop::ShopState;

/// An order. It is charged, approved if it is large, and shipped once it is packed and its label is printed.
#[derive(Clone, Debug, Serialize, Deserialize, Job)]
#[job(entry, then(AwaitApproval, Ship), output = Parcel, options = fast_retries())]
pub(super) struct TakeOrder {
    pub(super) order: u32,
    pub(super) euros: u32,
    /// The chains that pack the order and print its label.
    pub(super) packing: ChainId,
    pub(super) label: ChainId,
}

/// Waits for a person: no worker handles this type, so the job is completed from outside.
#[derive(Clone, Debug, Serialize, Deserialize, Job)]
#[job(then(Ship), output = Parcel)]
pub(super) struct AwaitApproval {
    pub(super) order: TakeOrder,
}

#[derive(Clone, Debug, Serialize, Deserialize, Job)]
#[job(blocked_by(Pack, PrintLabel), output = Parcel)]
pub(super) struct Ship {
    pub(super) order: u32,
}

/// Packs an order and returns the number of boxes.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(entry, output = u32)]
pub(super) struct Pack {
    pub(super) order: u32,
}

/// Prints a label and returns its number.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(entry, output = String)]
pub(super) struct PrintLabel {
    pub(super) order: u32,
}

/// The output of an order's chain.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) label: String,
    pub(super) boxes: u32,
}

/// Orders of at least this many euros need a customer rating and then an approval.
pub(super) const LARGE_ORDER_EUROS: u32 = 800;

/// The bank is busy on the first attempt for one order in this many.
const BUSY_EACH: u32 = 6;

/// Shorter retry delays: the default of ten seconds is too long for a demo.
fn fast_retries() -> JobOptions {
    let backoff = Backoff { initial: Duration::from_millis(400), ..Backoff::default() };
    JobOptions { backoff: Some(backoff), ..JobOptions::default() }
}

impl TakeOrder {
    pub(super) const fn euros(order: u32) -> u32 {
        order * 137 % 1_000
    }

    pub(super) const fn is_large(&self) -> bool {
        self.euros >= LARGE_ORDER_EUROS
    }

    /// Whether the first attempt to charge this order fails.
    pub(super) const fn fails_first_charge(&self) -> bool {
        self.order.is_multiple_of(BUSY_EACH)
    }

    /// Charges the order. For a large order, also waits for the customer's rating from a queue.
    pub(super) async fn charge(&self, attempt: u32, state: &ShopState) -> Result<(), BoxError> {
        work(40).await;
        if self.fails_first_charge() && attempt == 1 {
            return Err("the bank is busy".into());
        }
        if self.is_large() {
            let rating =
                state.ratings.enqueue_and_wait(format!("customer-of-{}", self.order), self.order).await?;
            state.progress.rated(rating);
        }
        Ok(())
    }

    /// Returns the job that ships the order, blocked by packing and label.
    pub(super) fn shipping(&self) -> Continuation<Ship, Ready> {
        let blockers = (Chain::<Pack>::from_id(self.packing), Chain::<PrintLabel>::from_id(self.label));
        next(Ship { order: self.order }).blocked_by(blockers)
    }

    pub(super) fn parcel(&self) -> Parcel {
        Parcel { label: label_of(self.order), boxes: boxes_of(self.order) }
    }
}

/// Handler that charges an order, without a transaction.
pub(super) async fn take_order(
    job: Ctx<TakeOrder>,
    Data(state): Data<ShopState>,
) -> Result<Next<TakeOrder>, BoxError> {
    let order = job.input();
    order.charge(job.attempt(), &state).await?;
    Ok(match order.is_large() {
        true => Next::then(AwaitApproval { order: order.clone() }),
        false => Next::then(order.shipping()),
    })
}

pub(super) async fn pack(job: Ctx<Pack>) -> Result<u32, BoxError> {
    work(60).await;
    Ok(boxes_of(job.input().order))
}

pub(super) async fn print_label(job: Ctx<PrintLabel>) -> Result<String, BoxError> {
    work(30).await;
    Ok(label_of(job.input().order))
}

pub(super) async fn ship(job: Ctx<Ship>) -> Result<Parcel, BoxError> {
    work(50).await;
    let (boxes, label) = job.blockers();
    Ok(Parcel { label: label.clone(), boxes: *boxes })
}

/// Returns the rating that the queue's handler computes.
pub(super) const fn rating_of(order: u32) -> u32 {
    order % 5 + 1
}

const fn boxes_of(order: u32) -> u32 {
    order % 3 + 1
}

fn label_of(order: u32) -> String {
    format!("W-{order:06}")
}

/// Simulates work.
pub(super) async fn work(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
