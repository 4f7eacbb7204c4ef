//! A memory store on virtual time, behind a connection that delays calls, fails, and fails after the commit.

use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Decorator, Error, ErrorKind, MemoryStore, MemoryTx, Result, Store, Transactional,
};

use super::bad::Distorted;
use super::fate::Fate;
use super::invariant::Invariant;
use super::jobs::TIMED;
use super::journal::{Findings, Row};
use super::world::{NodeId, RuntimeClock, World, pass, short};

/// Calls that take longer count as trouble, whatever the reason.
const SLOW: Duration = Duration::from_millis(200);

/// The store as one node reaches it. Every commit is recorded in the journal.
#[derive(Clone, Debug)]
pub(crate) struct SimStore {
    pub(super) world: Arc<World>,
    pub(super) node: NodeId,
    pub(super) inner: MemoryStore,
    connections: Arc<Mutex<Vec<Weak<Connection>>>>,
}

impl SimStore {
    pub(crate) fn new(world: &Arc<World>, node: NodeId) -> Self {
        let clock = RuntimeClock { began: Instant::now(), start: world.settings.epoch.start };
        let inner = MemoryStore::with_clock(Arc::new(clock));
        Self { world: Arc::clone(world), node, inner, connections: Arc::default() }
    }

    /// Returns the same store as another node reaches it.
    pub(crate) fn at(&self, node: NodeId) -> Self {
        Self { node, ..self.clone() }
    }

    /// Returns the underlying store, without faults.
    pub(crate) const fn truth(&self) -> &MemoryStore {
        &self.inner
    }

    /// Ends the open transactions of one node, because it crashed, or of all nodes, because the store
    /// restarts.
    pub(crate) fn disconnect(&self, node: Option<NodeId>) {
        let mut connections = self.connections.lock().unwrap();
        for connection in connections.iter().filter_map(Weak::upgrade) {
            if node.is_none_or(|node| node == connection.node) {
                connection.tx.lock().unwrap().take();
            }
        }
        connections.retain(|connection| connection.strong_count() > 0);
    }

    async fn execute(&self, command: Command) -> Result<Reply> {
        let (name, fate) = (command.name(), self.meet().await);
        let this = self.clone();
        let carry_out = async move {
            match fate {
                Fate::IsBusy => this.carry_out_in_part(command).await,
                _ => this.carry_out(command).await,
            }
        };
        self.deliver(name, fate, carry_out).await
    }

    /// Chooses the fate of the next call. A crashed node makes no calls.
    async fn meet(&self) -> Fate {
        self.world.alive(self.node).await;
        self.world.fate(self.node)
    }

    async fn deliver<T: Send + 'static>(
        &self,
        name: &'static str,
        fate: Fate,
        carry_out: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let asked_at = Instant::now();
        let _trouble = (fate != Fate::Fine).then(|| self.world.trouble_begins(self.node));
        let answer = match fate {
            // Spawned, so that it continues when the caller gives up.
            Fate::IsLate(_) => {
                let late = tokio::spawn(self.clone().answer(fate, carry_out));
                late.await.unwrap_or_else(|_| Err(down()))
            }
            _ => self.clone().answer(fate, carry_out).await,
        };
        if !self.world.is_alive(self.node) {
            // The caller has crashed. Dropping the answer ends a transaction that it may contain.
            drop(answer);
            return std::future::pending().await;
        }
        let busy = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
        if busy || asked_at.elapsed() > SLOW {
            self.world.trouble(self.node);
        }
        let came_to = answer.as_ref().map_or_else(|error| error.to_string(), |_| "done".to_owned());
        self.world.trace(Some(self.node), format_args!("{name}: {came_to} ({})", fate.name()));
        answer
    }

    async fn answer<T>(
        self,
        fate: Fate,
        carry_out: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.travel().await;
        let answer = match fate {
            Fate::Fine | Fate::IsBusy => carry_out.await,
            Fate::Fails => Err(down()),
            Fate::LosesReply => carry_out.await.and(Err(down())),
            Fate::IsLate(time) => {
                pass(time).await;
                carry_out.await
            }
            Fate::AnswersLate(time) => {
                let answer = carry_out.await;
                pass(time).await;
                answer
            }
            Fate::Hangs(time) => {
                pass(time).await;
                Err(down())
            }
        };
        self.travel().await;
        answer
    }

    async fn travel(&self) {
        let time = self.world.between(Duration::ZERO, self.world.settings.latency);
        if !time.is_zero() {
            pass(time).await;
        }
    }

    /// Executes a command and records it in the journal.
    async fn carry_out(&self, command: Command) -> Result<Reply> {
        match (&command, self.world.bad) {
            (Command::Exchange(exchange), Some(_)) => {
                return self.carry_out_apart(exchange.clone(), Fate::Fine).await;
            }
            (Command::CreateAndAcquire(joined), Some(_)) => return self.carry_out_each(joined.clone()).await,
            _ => {}
        }
        let command = match self.distort(command).await? {
            Distorted::Command(command) => command,
            Distorted::Reply(reply) => return Ok(reply),
        };
        let recorded = (!command.is_query()).then(|| command.clone());
        let reply = self.forward(command).await?;
        if let Some(command) = recorded {
            self.committed(&command, &reply);
        }
        Ok(reply)
    }

    /// Executes an exchange as its two parts, so that faults and defects of a settlement apply to exchanges
    /// too.
    async fn carry_out_apart(&self, Exchange { settle, acquire }: Exchange, fate: Fate) -> Result<Reply> {
        let settle = match fate {
            Fate::IsBusy => Box::pin(self.carry_out_in_part(settle.into())).await?,
            _ => Box::pin(self.carry_out(settle.into())).await?,
        };
        let acquire = Box::pin(self.carry_out(acquire.into())).await?;
        Ok(Reply::Exchange(ExchangeReply { settle: settle.try_into()?, acquire: acquire.try_into()? }))
    }

    /// Executes a creation and an acquire one after the other, so that their defects apply.
    async fn carry_out_each(&self, CreateAndAcquire { create, acquire }: CreateAndAcquire) -> Result<Reply> {
        let create = Box::pin(self.carry_out(create.into())).await?.try_into()?;
        let acquire = Box::pin(self.carry_out(acquire.into())).await?.try_into()?;
        Ok(Reply::CreateAndAcquire(CreateAndAcquireReply { create, acquire }))
    }

    /// Answers some items as busy and executes the others.
    async fn carry_out_in_part(&self, command: Command) -> Result<Reply> {
        let busy = |items: usize| (0..items).map(|_| self.world.percent(60)).collect::<Vec<_>>();
        match command {
            Command::Settle(Settle { mut settlements }) => {
                let busy = busy(settlements.len());
                keep(&mut settlements, &busy);
                let reply = self.carry_out(Settle { settlements }.into()).await?;
                let SettleReply { settled, ripple } = reply.try_into()?;
                Ok(Reply::Settle(SettleReply { settled: merge(settled, &busy, &Settled::Busy), ripple }))
            }
            Command::Renew(Renew { mut leases }) => {
                let busy = busy(leases.len());
                keep(&mut leases, &busy);
                let RenewReply { leases, now } = self.carry_out(Renew { leases }.into()).await?.try_into()?;
                Ok(Reply::Renew(RenewReply { leases: merge(leases, &busy, &Renewed::Busy), now }))
            }
            Command::Exchange(exchange) => self.carry_out_apart(exchange, Fate::IsBusy).await,
            Command::ChangeSchedules(ChangeSchedules { mut changes }) => {
                let busy = busy(changes.len());
                keep(&mut changes, &busy);
                let reply = self.carry_out(ChangeSchedules { changes }.into()).await?;
                let ChangeSchedulesReply { now, changes } = reply.try_into()?;
                self.world.count("schedule busy");
                let changes = merge(changes, &busy, &ScheduleChanged::Busy);
                Ok(Reply::ChangeSchedules(ChangeSchedulesReply { now, changes }))
            }
            command => {
                let text = format!("another transaction has locked a row that `{}` needs", command.name());
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    pub(super) fn committed(&self, command: &Command, reply: &Reply) {
        self.world.count(format!("command {}", command.name()));
        self.world.trace(Some(self.node), format_args!("committed {}", Shown(command, reply)));
        if let (Command::ChangeSchedules(request), Reply::ChangeSchedules(reply)) = (command, reply) {
            self.count_changes(request, reply);
        }
        let findings = self.world.state().journal.commit(self.node, command, reply);
        self.judge(findings);
    }

    fn count_changes(&self, request: &ChangeSchedules, reply: &ChangeSchedulesReply) {
        for (change, changed) in request.changes.iter().zip(&reply.changes) {
            let starts = matches!(&change.action, ScheduleAction::Put(put) if put.chain.is_some());
            match changed {
                ScheduleChanged::Applied { .. } if starts => self.world.count("schedule started"),
                ScheduleChanged::Repeated => self.world.count("schedule repeated"),
                ScheduleChanged::Conflict => self.world.count("schedule conflict"),
                _ => {}
            }
        }
    }

    fn committed_rows(&self, rows: &[Row]) {
        let findings = self.world.state().journal.commit_rows(rows);
        self.judge(findings);
    }

    fn judge(&self, findings: Findings) {
        for violation in findings.violations {
            self.world.violate(violation.invariant, violation.what);
        }
        for (job, acquisition) in findings.reaped {
            let is_timed = acquisition.job_type.as_str() == TIMED;
            if !is_timed && self.world.was_well_since(acquisition.node, acquisition.at) {
                let name = short(job.as_uuid());
                let what = format!("job {name} was reaped from a worker that had no trouble");
                self.world.violate(Invariant::LeasesAreKept, what);
            }
        }
    }
}

pub(crate) fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is down")
}

fn keep<T>(items: &mut Vec<T>, busy: &[bool]) {
    let mut busy = busy.iter();
    items.retain(|_| busy.next() != Some(&true));
}

fn merge<T: Clone>(answers: Vec<T>, busy: &[bool], is_busy: &T) -> Vec<T> {
    let mut answers = answers.into_iter();
    busy.iter().filter_map(|busy| if *busy { Some(is_busy.clone()) } else { answers.next() }).collect()
}

impl Decorator for SimStore {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn supported(&self) -> Capabilities {
        let capabilities = self.inner.capabilities().exchanges_in_flight(self.world.settings.exchanges);
        if self.world.settings.joins { capabilities.joining() } else { capabilities }
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(self.execute(command))
    }
}

/// An open transaction on the side of the store. It ends when its node crashes or the store restarts.
#[derive(Debug)]
struct Connection {
    node: NodeId,
    tx: Mutex<Option<MemoryTx>>,
}

/// A transaction that contains rows of the application.
#[derive(Debug)]
pub(crate) struct SimTx {
    store: SimStore,
    connection: Arc<Connection>,
    written: Written,
    savepoints: Vec<(usize, usize)>,
}

#[derive(Debug, Default)]
struct Written {
    commands: Vec<(Command, Reply)>,
    rows: Vec<Row>,
}

impl SimTx {
    /// Writes a row of the application.
    pub(crate) fn write(&mut self, row: Row) {
        self.written.rows.push(row);
    }

    fn take(&self) -> Result<MemoryTx> {
        self.connection.tx.lock().unwrap().take().ok_or_else(down)
    }

    fn put(&self, tx: MemoryTx) {
        *self.connection.tx.lock().unwrap() = Some(tx);
    }

    pub(super) async fn commit_now(mut self) -> Result<()> {
        let store = self.store.clone();
        store.inner.commit(self.take()?).await?;
        let Written { commands, rows } = std::mem::take(&mut self.written);
        commands.iter().for_each(|(command, reply)| store.committed(command, reply));
        store.committed_rows(&rows);
        Ok(())
    }
}

impl Drop for SimTx {
    fn drop(&mut self) {
        if self.store.leaks_rows() {
            self.store.committed_rows(&self.written.rows);
        }
    }
}

impl Transactional for SimStore {
    type Tx = SimTx;
    type TxRef<'t> = &'t mut SimTx;
    type Connection<'t> = &'t mut SimTx;

    fn tx_ref(tx: &mut SimTx) -> &mut SimTx {
        tx
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        tx
    }

    fn reborrow<'t>(tx: &'t mut &mut SimTx) -> &'t mut SimTx {
        tx
    }

    fn begin(&self) -> BoxFuture<'_, Result<SimTx>> {
        Box::pin(async move {
            let (fate, this) = (self.meet().await, self.clone());
            let begin = async move {
                let tx = Mutex::new(Some(this.inner.begin().await?));
                let connection = Arc::new(Connection { node: this.node, tx });
                this.connections.lock().unwrap().push(Arc::downgrade(&connection));
                Ok(SimTx { store: this, connection, written: Written::default(), savepoints: Vec::new() })
            };
            self.deliver("begin", fate, begin).await
        })
    }

    fn commit(&self, tx: SimTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (fate, this) = (self.meet().await, self.clone());
            self.deliver("commit", fate, async move { this.commit_or_pretend(tx).await }).await
        })
    }

    fn rollback(&self, tx: SimTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let fate = self.meet().await;
            self.deliver("rollback", fate, async move {
                drop(tx);
                Ok(())
            })
            .await
        })
    }

    fn savepoint<'a>(&'a self, tx: &'a mut SimTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut inner = tx.take()?;
            self.inner.savepoint(&mut inner).await?;
            tx.put(inner);
            tx.savepoints.push((tx.written.commands.len(), tx.written.rows.len()));
            Ok(())
        })
    }

    fn release<'a>(&'a self, tx: &'a mut SimTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut inner = tx.take()?;
            self.inner.release(&mut inner).await?;
            tx.put(inner);
            tx.savepoints.pop();
            Ok(())
        })
    }

    fn rollback_to<'a>(&'a self, tx: &'a mut SimTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut inner = tx.take()?;
            self.inner.rollback_to(&mut inner).await?;
            tx.put(inner);
            if let Some((commands, rows)) = tx.savepoints.pop() {
                tx.written.commands.truncate(commands);
                tx.written.rows.truncate(rows);
            }
            Ok(())
        })
    }

    /// In a transaction, a fault delays a call or makes it fail. A failure loses the connection and the
    /// transaction with it.
    fn execute_in<'a>(&'a self, tx: &'a mut SimTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            let (name, fate) = (command.name(), self.meet().await);
            self.deliver(name, fate, async { Ok(()) }).await.inspect_err(|_| drop(tx.take()))?;
            let mut inner = tx.take()?;
            let command = match self.distort_in_tx(command).await? {
                Distorted::Command(command) => command,
                Distorted::Reply(reply) => return Ok(reply),
            };
            let reply = self.inner.execute_in(&mut inner, command.clone()).await;
            tx.put(inner);
            let reply = reply?;
            if !command.is_query() {
                tx.written.commands.push((command, reply.clone()));
            }
            Ok(reply)
        })
    }
}

/// Formats a command for the trace.
struct Shown<'a>(&'a Command, &'a Reply);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0, self.1) {
            (Command::Create(create), Reply::Create(reply)) => {
                let new = create.chains.iter().zip(&reply.chains);
                let new = new.map(|(new, created)| {
                    format!("{}:{}={}", short(new.id.as_uuid()), new.job.job_type, Variant(created))
                });
                write!(f, "create {}", new.collect::<Vec<_>>().join(" "))
            }
            (Command::Acquire(_), Reply::Acquire(reply)) => {
                let jobs = reply.jobs.iter().map(|Acquired { job, .. }| {
                    format!("{}:{}#{}", short(job.id.as_uuid()), job.job_type, job.attempt)
                });
                write!(f, "acquire {}", jobs.collect::<Vec<_>>().join(" "))
            }
            (Command::Settle(settle), Reply::Settle(reply)) => {
                let settled = settle.settlements.iter().zip(&reply.settled).map(|(settlement, settled)| {
                    let job = short(settlement.job.as_uuid());
                    format!("{job}:{}={}", Variant(&settlement.outcome), Variant(settled))
                });
                write!(f, "settle {}", settled.collect::<Vec<_>>().join(" "))
            }
            (Command::Exchange(exchange), Reply::Exchange(reply)) => {
                let settle = (exchange.settle.clone().into(), Reply::Settle(reply.settle.clone()));
                let acquire = (exchange.acquire.clone().into(), Reply::Acquire(reply.acquire.clone()));
                write!(f, "{}, {}", Shown(&settle.0, &settle.1), Shown(&acquire.0, &acquire.1))
            }
            (Command::CreateAndAcquire(joined), Reply::CreateAndAcquire(reply)) => {
                let create = (joined.create.clone().into(), Reply::Create(reply.create.clone()));
                let acquire = (joined.acquire.clone().into(), Reply::Acquire(reply.acquire.clone()));
                write!(f, "{}, {}", Shown(&create.0, &create.1), Shown(&acquire.0, &acquire.1))
            }
            (Command::Renew(renew), Reply::Renew(reply)) => {
                let leases = renew.leases.iter().zip(&reply.leases);
                let leases = leases
                    .map(|(lease, renewed)| format!("{}={}", short(lease.job.as_uuid()), Variant(renewed)));
                write!(f, "renew {}", leases.collect::<Vec<_>>().join(" "))
            }
            (Command::Reap(_), Reply::Reap(reply)) => {
                let jobs = reply.reaped.iter().map(|reaped| short(reaped.job.job.as_uuid()).to_string());
                write!(f, "reap {}", jobs.collect::<Vec<_>>().join(" "))
            }
            (command, reply) => write!(f, "{} {}", command.name(), Variant(reply)),
        }
    }
}

/// Formats the name of a value's variant.
struct Variant<T>(T);

impl<T: std::fmt::Debug> std::fmt::Display for Variant<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:?}", self.0);
        f.write_str(text.split([' ', '(', '{']).next().unwrap_or(""))
    }
}
