//! Settling attempts.

use std::collections::HashMap;

use uuid::Uuid;
use windlass_core::Result;
use windlass_core::command::{
    Applied, Created, Exchange, ExchangeReply, Outcome, Ripple, Settle, SettleReply, Settled, Settlement,
};

use crate::acquire::{AcquireRows, acquire_parameters};
use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt, in_order, put, ripple};
use crate::request::Settlements;
use crate::store::{Call, Execute};

impl Execute for Settle {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<SettleReply> {
        self.check()?;
        if self.settlements.is_empty() {
            return Ok(SettleReply { settled: Vec::new(), ripple: Ripple::default() });
        }
        let (items, mut rows) = SettleRows::new(&self.settlements);
        let time = [call.time()].into_iter();
        let (statement, parameters) = if rows.is_plain(&items) {
            (&call.statements().settle_plain, time.chain(rows.plain_parameters(items)).collect())
        } else {
            (&call.statements().settle, time.chain(items.parameters()).collect())
        };
        for row in call.run(statement, parameters).await? {
            rows.take(row.into())?;
        }
        rows.reply()
    }
}

impl Execute for Exchange {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ExchangeReply> {
        self.settle.check()?;
        self.acquire.check()?;
        let (items, mut settled) = SettleRows::new(&self.settle.settlements);
        let (floors, scan) = call.floors().parameters(&self.acquire);
        let time = [call.time()].into_iter();
        let acquire = acquire_parameters(&self.acquire).into_iter().chain(floors);
        let (statement, parameters): (_, Vec<Parameter>) = if settled.is_plain(&items) {
            let parameters = time.chain(settled.plain_parameters(items)).chain(acquire);
            (&call.statements().exchange_plain, parameters.collect())
        } else {
            (&call.statements().exchange, time.chain(items.parameters()).chain(acquire).collect())
        };
        let mut acquired = AcquireRows::new(&self.acquire);
        // The row with the time separates the reply to the settle from the reply to the acquire.
        let mut settling = true;
        for row in call.run_careful(statement, parameters).await? {
            settling &= row.part != "now";
            if settling { settled.take(row.into())? } else { acquired.take(row.into())? }
        }
        let acquire = acquired.reply(&call, scan.as_ref())?;
        Ok(ExchangeReply { settle: settled.reply()?, acquire })
    }
}

/// Collects the rows of the reply to settlements.
struct SettleRows<'a> {
    settlements: &'a [Settlement],
    /// Index of each settlement by job id.
    indexes: HashMap<Uuid, usize>,
    /// Index of each settlement in the order in which they are sent, if that order differs.
    sent: Option<Vec<usize>>,
    /// For each new chain or job sent: the index of the settlement that carries the chain, or `None` for a next job.
    carriers: Vec<Option<usize>>,
    settled: Vec<Option<Settled>>,
    created: Vec<Option<Created>>,
    ripple: Ripple,
}

impl<'a> SettleRows<'a> {
    fn new(settlements: &'a [Settlement]) -> (Settlements, Self) {
        let (mut items, mut carriers) = (Settlements::default(), Vec::new());
        for (index, settlement) in settlements.iter().enumerate() {
            items.push(settlement);
            carriers.extend(settlement.outcome.carried().iter().map(|_| Some(index)));
            if matches!(settlement.outcome, Outcome::Continue { .. }) {
                carriers.push(None);
            }
        }
        let created = carriers.iter().map(|_| None).collect();
        let settled = settlements.iter().map(|_| None).collect();
        let indexes = items.indexes();
        let ripple = Ripple::default();
        (items, Self { settlements, indexes, sent: None, carriers, settled, created, ripple })
    }

    /// Whether all settlements are plain completions of distinct jobs.
    fn is_plain(&self, items: &Settlements) -> bool {
        items.is_plain() && self.indexes.len() == self.settlements.len()
    }

    fn plain_parameters(&mut self, items: Settlements) -> impl Iterator<Item = Parameter> + use<> {
        let (parameters, order) = items.plain_parameters();
        self.sent = Some(order);
        parameters
    }

    /// Returns the index of the settlement that a row belongs to.
    fn item_index(&self, values: &Values) -> Result<usize> {
        let item = values.item_index()?;
        let sent = |sent: &Vec<usize>| sent.get(item).copied().unwrap_or(usize::MAX);
        Ok(self.sent.as_ref().map_or(item, sent))
    }

    fn take(&mut self, mut values: Values) -> Result<()> {
        match values.part.as_str() {
            "settled" => {
                let index = self.item_index(&values)?;
                let settled = self.settled(index, &mut values)?;
                put(&mut self.settled, index, settled)
            }
            "completed" => {
                for (job, closed) in values.completed()? {
                    let index = self.indexes.get(job.job.as_uuid()).copied().unwrap_or(usize::MAX);
                    let applied = Applied { job, next: None, created: Vec::new() };
                    put(&mut self.settled, index, Settled::Applied(applied))?;
                    self.ripple.closed.push(closed);
                }
                Ok(())
            }
            "created" => put(&mut self.created, values.item_index()?, values.created()?),
            _ => ripple(&mut self.ripple, &mut values),
        }
    }

    fn settled(&self, index: usize, values: &mut Values) -> Result<Settled> {
        let kind = values.text()?;
        Ok(match kind.as_str() {
            "applied" => Settled::Applied(values.applied()?),
            "already_applied" => Settled::AlreadyApplied(values.summary()?),
            "busy" => Settled::Busy,
            "lost" => Settled::Lost(values.lost()?),
            "refused" => {
                let item = self.settlements.get(index);
                Settled::Refused(values.refusal(item.and_then(|item| item.outcome.check().err()))?)
            }
            _ => return Err(corrupt(&format!("the end {kind:?} of a settlement"))),
        })
    }

    fn reply(self) -> Result<SettleReply> {
        let mut settled = in_order(self.settled)?;
        for (carrier, created) in self.carriers.into_iter().zip(self.created) {
            let Some(created) = created else { continue };
            let carrier = carrier.and_then(|index| settled.get_mut(index));
            if let Some(Settled::Applied(applied)) = carrier {
                applied.created.push(created);
            }
        }
        Ok(SettleReply { settled, ripple: self.ripple })
    }
}
