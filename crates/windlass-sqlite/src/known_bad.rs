//! Stores that break the contract on purpose. The conformance suite must catch each of them.

use std::sync::Arc;

use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;
use windlass_core::Result;
use windlass_core::command::{Ripple, Settle, SettleReply};

use crate::error::from_driver;
use crate::sql::{Statements, fill};
use crate::store::SqliteStore;
use crate::working::{Needs, Working};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBad {
    /// Settlements and renewals do not look at the fence.
    FenceIgnored,
    /// Whether a key is free is read before the write transaction begins, and no index watches over it.
    KeyNotUnique,
    /// What else a job waits for is read before the write transaction begins.
    UnblockLost,
    /// A settlement that is refused leaves the chains that it had created before it was.
    SettleHalfApplied,
    /// The settlements of a batch are committed one after the other.
    BatchHalfApplied,
}

impl KnownBad {
    /// Breaks what lies in statements and indexes.
    pub(crate) async fn spoil(
        self,
        writer: &mut SqliteConnection,
        statements: &mut Statements,
        prefix: &str,
    ) -> Result<()> {
        match self {
            Self::FenceIgnored => {
                without(&mut statements.load_jobs, " and job.fence = asked.fence as held", " as held");
                without(&mut statements.renew_leases, " and job.fence = renewed.fence", "");
            }
            Self::KeyNotUnique => {
                let drop = fill("drop index if exists {prefix}job_key", prefix);
                sqlx::raw_sql(AssertSqlSafe(drop)).execute(writer).await.map_err(from_driver)?;
            }
            Self::UnblockLost | Self::SettleHalfApplied | Self::BatchHalfApplied => {}
        }
        Ok(())
    }
}

impl SqliteStore {
    /// Reads whom the keys point at, too early.
    pub(crate) async fn read_keys_early(&self, needs: &Needs) -> Result<Option<Working>> {
        if self.variant() != Some(KnownBad::KeyNotUnique) {
            return Ok(None);
        }
        let mut early = Working::new(self.now());
        early.load_chains(&mut self.reader().await?.session(), needs).await?;
        Ok(Some(early))
    }

    /// Reads what jobs wait for, too early.
    pub(crate) async fn read_waits_early(&self, request: &Settle) -> Result<Option<Working>> {
        if self.variant() != Some(KnownBad::UnblockLost) {
            return Ok(None);
        }
        let mut early = Working::new(self.now());
        early.load_settlements(&mut self.reader().await?.session(), request).await?;
        Ok(Some(early))
    }

    /// Settles a batch in as many transactions as it has items, if this store is one where that is done.
    pub(crate) async fn settle_piecemeal(&self, request: &Settle) -> Result<Option<SettleReply>> {
        if self.variant() != Some(KnownBad::BatchHalfApplied) || request.settlements.len() < 2 {
            return Ok(None);
        }
        let mut all = SettleReply { settled: Vec::new(), ripple: Ripple::default() };
        for settlement in &request.settlements {
            let one = Settle { settlements: vec![settlement.clone()] };
            let reply = Box::pin(self.settle_attempts(one)).await?;
            all.settled.extend(reply.settled);
            all.ripple.unblocked.extend(reply.ripple.unblocked);
            all.ripple.closed.extend(reply.ripple.closed);
        }
        Ok(Some(all))
    }

    /// Makes a settlement go wrong, if this store is one where it does.
    pub(crate) fn spoil(&self, working: &mut Working, early: Option<Working>) {
        working.keeps_refused = self.variant() == Some(KnownBad::SettleHalfApplied);
        if let Some(early) = early {
            working.believe_waits(&early);
        }
    }
}

/// Replaces a piece of a statement, which must be there.
fn without(statement: &mut Arc<str>, piece: &str, replacement: &str) {
    assert!(statement.contains(piece), "the statement has no {piece:?} to break:\n{statement}");
    *statement = statement.replace(piece, replacement).into();
}
