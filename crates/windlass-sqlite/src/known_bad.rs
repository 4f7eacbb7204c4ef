//! Stores that break the contract on purpose. The conformance suite must catch each of them.

use std::collections::HashMap;

use windlass_core::Result;
use windlass_core::command::{Acquire, AcquireReply, Command, Create, Reply, Ripple, Settle, SettleReply};

use crate::acquire::{take_values, taken};
use crate::provider::{Provider, Statement};
use crate::session::{Reading, Session, Writing, execute};
use crate::settle::AttemptState;
use crate::statement::{Statements, fill};
use crate::store::SqliteStore;
use crate::unit_of_work::{Needs, UnitOfWork};

/// The way in which a store is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBad {
    /// Settlements and renewals ignore the fence.
    FenceIgnored,
    /// Whether a key is free is read before the write transaction begins, and no unique index guards it.
    KeyNotUnique,
    /// Whether a blocker is open is read before the write transaction begins.
    AttachedEarly,
    /// How many other chains a job waits for is read before the write transaction begins.
    UnblockLost,
    /// Whether an attempt holds its job is read before the write transaction begins.
    HeldEarly,
    /// Which jobs are due is read before the write transaction begins.
    TakenTwice,
    /// A refused settlement leaves behind the chains that it had created.
    SettleHalfApplied,
    /// The settlements of a batch are committed one by one.
    BatchHalfApplied,
}

/// Stale data and switches that a broken store passes to a command.
#[derive(Debug, Default)]
pub(crate) struct Spoiled {
    /// Rows as they were before the transaction.
    pub(crate) early: Option<UnitOfWork>,
    /// The state of attempts before the transaction.
    pub(crate) known: Option<HashMap<usize, AttemptState>>,
    /// Whether a refused settlement leaves behind what it created.
    pub(crate) keeps_refused: bool,
}

impl KnownBad {
    /// Breaks statements and indexes.
    pub(crate) async fn spoil<P: Provider>(
        self,
        provider: &P,
        statements: &mut Statements,
        prefix: &str,
    ) -> Result<()> {
        match self {
            Self::FenceIgnored => {
                for statement in [&mut statements.load_jobs, &mut statements.load_leases] {
                    without(statement, " and job.fence = asked.fence as held", " as held");
                }
                without(&mut statements.renew_leases, " and job.fence = renewed.fence", "");
            }
            Self::KeyNotUnique => {
                provider.script(&fill("drop index if exists {prefix}job_key", prefix)).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl<P: Provider> SqliteStore<P> {
    /// Executes a command in its own transaction, as a broken store would.
    pub(crate) async fn carry_out_badly(&self, command: &Command) -> Result<Reply> {
        match command {
            Command::Settle(request)
                if self.variant() == Some(KnownBad::BatchHalfApplied) && request.settlements.len() > 1 =>
            {
                self.settle_piecemeal(request).await.map(Reply::Settle)
            }
            Command::Acquire(request) if self.variant() == Some(KnownBad::TakenTwice) => {
                self.take_early(request).await.map(Reply::Acquire)
            }
            _ => self.carry_out_alone(command).await,
        }
    }

    /// Takes the jobs that were due before the transaction began.
    async fn take_early(&self, request: &Acquire) -> Result<AcquireReply> {
        let now = self.base().now();
        let text = self.base().statements.take_jobs.text();
        let (due, _) = text.split_once("update ").unwrap_or_default();
        let due = Statement::new(format!("{due} select json_group_array(seq) as jobs from stream"));
        let mut values = take_values(request, now)?;
        let rows = self.provider().run(&due, values.clone()).await?;
        values.push(rows.first().map_or(Ok("[]"), |row| row.text("jobs"))?.into());
        let mut take = self.base().statements.take_jobs.clone();
        without(&mut take, "(select seq from stream)", "(select value from json_each(?7))");
        let mut tx = windlass_core::Transactional::begin(self).await?;
        let mut connection = Writing { provider: self.provider(), tx: &mut tx };
        let mut session = Session::new(&mut connection, self.base());
        session.run(&take, values).await?;
        let jobs = taken(&mut session, request.request).await?;
        windlass_core::Transactional::commit(self, tx).await?;
        Ok(AcquireReply { jobs, ripple: Ripple::default(), now })
    }

    async fn carry_out_alone(&self, command: &Command) -> Result<Reply> {
        let (early, known) = self.read_early(command).await?;
        let spoiled =
            Spoiled { early, known, keeps_refused: self.variant() == Some(KnownBad::SettleHalfApplied) };
        let mut tx = windlass_core::Transactional::begin(self).await?;
        let mut connection = Writing { provider: self.provider(), tx: &mut tx };
        let mut session = Session::new(&mut connection, self.base());
        session.spoiled = spoiled;
        let reply = execute(&mut session, command).await?;
        windlass_core::Transactional::commit(self, tx).await?;
        Ok(reply)
    }

    /// Reads the rows of a command before its transaction begins.
    async fn read_early(
        &self,
        command: &Command,
    ) -> Result<(Option<UnitOfWork>, Option<HashMap<usize, AttemptState>>)> {
        let mut connection = Reading(self.provider());
        let mut session = Session::new(&mut connection, self.base());
        let mut early = UnitOfWork::new(session.now());
        match (self.variant(), command) {
            (Some(KnownBad::KeyNotUnique | KnownBad::AttachedEarly), Command::Create(Create { chains })) => {
                early.load_chains(&mut session, &Needs::of(chains)).await?;
            }
            (Some(KnownBad::UnblockLost), Command::Settle(request)) => {
                early.load_settlements(&mut session, request).await?;
            }
            (Some(KnownBad::HeldEarly), Command::Settle(request)) => {
                let known = early.load_settlements(&mut session, request).await?;
                return Ok((Some(early), Some(known)));
            }
            _ => return Ok((None, None)),
        }
        Ok((Some(early), None))
    }

    /// Settles a batch with one transaction per item.
    async fn settle_piecemeal(&self, request: &Settle) -> Result<SettleReply> {
        let mut all = SettleReply { settled: Vec::new(), ripple: Ripple::default() };
        for settlement in &request.settlements {
            let one = Settle { settlements: vec![settlement.clone()] };
            let reply: SettleReply = self.carry_out_alone(&one.into()).await?.try_into()?;
            all.settled.extend(reply.settled);
            all.ripple.unblocked.extend(reply.ripple.unblocked);
            all.ripple.closed.extend(reply.ripple.closed);
        }
        Ok(all)
    }
}

impl UnitOfWork {
    /// Breaks a settlement, if this store is meant to.
    pub(crate) fn spoil(&mut self, spoiled: &mut Spoiled) {
        self.keeps_refused = spoiled.keeps_refused;
        if let Some(early) = spoiled.early.take() {
            match spoiled.known {
                Some(_) => self.believe_rows(early),
                None => self.believe_waits(&early),
            }
        }
    }
}

/// Replaces a piece of a statement. Panics if the statement does not contain it.
fn without(statement: &mut Statement, piece: &str, replacement: &str) {
    let text = statement.text();
    assert!(text.contains(piece), "the statement has no {piece:?} to break:\n{text}");
    *statement = Statement::new(text.replace(piece, replacement));
}
