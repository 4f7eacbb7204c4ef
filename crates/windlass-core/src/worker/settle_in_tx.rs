//! Settles a job in the transaction of its handler.

use std::sync::Arc;
use std::time::Duration;

use super::followed::StageGuard;
use super::hooks::Closing;
use super::stages::{OpenStep, Scope, View};
use crate::client::{AnnouncementGuard, Announcements, BusyRetries, Client};
use crate::command::{Lost, Outcome, Request, Ripple, Settle, SettleReply, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::maintenance::resolve_waits;
use crate::observer::Event;
use crate::store::{BoxFuture, Transactional};

/// A handler's transaction that was open for at least this long is reported to observers. It occupies a
/// connection, and may block other transactions on the rows that it read or wrote.
const LONG_TRANSACTION: Duration = Duration::from_secs(5);

/// Settles a job in a transaction and commits it.
pub(crate) type SettleAndCommit = BoxFuture<'static, Result<SettledInTx>>;

/// The result of settling a job in a transaction, which is committed only if the settlement was
/// applied.
#[doc(hidden)]
#[derive(Debug)]
pub struct SettledInTx {
    pub(super) settlement: Settlement,
    pub(super) settled: Settled,
    pub(super) ripple: Ripple,
    /// Announcements for the other commands of the transaction.
    pub(super) announcements: Announcements,
    /// The error of a commit whose reply was lost, and the stage that it ends. It is unknown whether the commit happened.
    pub(super) doubt: Option<(Error, StageGuard)>,
}

/// Runs the closing hooks in the handler's transaction. Returns a future that settles the job in it and
/// commits.
pub(crate) async fn run_closing_hooks<V: View, S: Transactional>(
    scope: Scope<S>,
    view: V,
    step: OpenStep<S>,
    mut outcome: Outcome,
) -> Result<SettleAndCommit> {
    let (hooks, client, attempt) = (scope.hooks(), scope.client, view.attempt());
    if step.open_for() >= LONG_TRANSACTION {
        let about = attempt.about(client.shared.dispatcher.now());
        client.shared.dispatcher.observe(&Event::TransactionLong(about, step.open_for()));
    }
    let (tx, announcements, guard) = step.take();
    let mut pending = AnnouncementGuard { announcements, dispatcher: Arc::clone(&client.shared.dispatcher) };
    // Declared after `pending`, so that the transaction is dropped before `pending` reports the rollback.
    let mut tx = tx;
    if let Err(error) = hooks.closing(attempt, Closing::Finish(&mut outcome), &mut tx).await {
        return client.roll_back_tx(tx).await.and(Err(error));
    }
    let dispatcher = &client.shared.dispatcher;
    let about = || attempt.about(dispatcher.now());
    pending.announcements.traced(dispatcher.request_outcome_traces(&mut outcome, about));
    let settlement = Settlement { job: attempt.job().id, fence: attempt.job().fence, outcome };
    Ok(Box::pin(settle_and_commit(client, tx, settlement, pending, guard)))
}

/// Rolls back the transaction of a handler, and reports the rollback to hooks and observers.
pub(crate) async fn roll_back<S: Transactional>(scope: Scope<S>, step: OpenStep<S>) -> Result<()> {
    let client = scope.client;
    let (tx, announcements, _guard) = step.take();
    let _pending = AnnouncementGuard { announcements, dispatcher: Arc::clone(&client.shared.dispatcher) };
    client.roll_back_tx(tx).await
}

/// Settles a job in its handler's transaction. Commits if the settlement was applied, rolls back otherwise.
async fn settle_and_commit<S: Transactional>(
    client: Client<S>,
    tx: S::Tx,
    settlement: Settlement,
    mut pending: AnnouncementGuard,
    guard: StageGuard,
) -> Result<SettledInTx> {
    // Rebound as a local, so that the transaction is dropped before `pending` reports the rollback.
    let mut tx = tx;
    let SettleReply { settled, ripple } = match settle(&client, &mut tx, &settlement).await {
        Ok(reply) => reply,
        Err(error) => return client.roll_back_tx(tx).await.and(Err(error)),
    };
    let settled = settled.into_iter().next().unwrap_or(Settled::Lost(Lost::NotFound));
    let Settled::Applied(applied) = &settled else {
        client.roll_back_tx(tx).await?;
        guard.close(Some("the settlement was not applied"));
        let announcements = Announcements::new(&client.shared.dispatcher);
        return Ok(SettledInTx { settlement, settled, ripple, announcements, doubt: None });
    };
    let carried = settlement.outcome.carried();
    pending.announcements.settled_in_tx(carried, &applied.created, &client.shared.dispatcher);
    if ripple.deferred {
        pending.announcements.resolve_waits(resolve_waits(&client));
    }
    let doubt = match client.commit_tx(tx).await {
        Ok(()) => None,
        Err(error) if error.kind() == ErrorKind::Unavailable => Some(error),
        Err(error) => return Err(error),
    };
    // The caller resolves the doubt, and reports the end of the stage only then.
    let guard = match &doubt {
        Some(_) => Some(guard),
        None => {
            guard.close(None);
            None
        }
    };
    let doubt = doubt.zip(guard);
    Ok(SettledInTx { settlement, settled, ripple, announcements: pending.take(), doubt })
}

/// Settles a job in a transaction. Retries up to 20 times, every 50 ms, while another transaction has locked a row that
/// the settlement needs.
async fn settle<S: Transactional>(
    client: &Client<S>,
    tx: &mut S::Tx,
    settlement: &Settlement,
) -> Result<SettleReply> {
    let settle = Settle { settlements: vec![settlement.clone()] };
    let mut retries = BusyRetries::new();
    loop {
        let call = client.store().run_in(S::tx_ref(tx), settle.clone());
        let reply = client.shared.dispatcher.measured(Settle::NAME, |_| 1, call).await?;
        if !matches!(reply.settled.first(), Some(Settled::Busy)) || !retries.wait().await {
            return Ok(reply);
        }
    }
}
