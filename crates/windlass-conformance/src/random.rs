//! Random command sequences that run on a store and on the model; their replies must agree.
//!
//! The seed determines ids, times and choices. A failure names the seed and the number of the command, and the same
//! seed reproduces it.

mod agree;
mod generator;
mod parts;
mod schedules;
mod tally;

use windlass_core::command::{Command, Count, GetChains, GetJobs, NextDue, Reply, Target, Types};
use windlass_core::model::{Effect, Model};
use windlass_core::{Capability, Error, ErrorKind, Result};

use crate::fixture::Fixture;
use crate::subject::Subject;
use crate::transaction::ErasedTx;
use agree::normalized;
use generator::Generator;
use schedules::all_schedules;
pub use tally::Tally;

/// Number of commands after which the latest chains and jobs are compared. All of them are compared at the end.
const LOOK_AROUND: usize = 50;

/// Number of chains and jobs that count as the latest.
const LATEST: usize = 200;

/// Maximum number of commands in a transaction.
const IN_TRANSACTION: usize = 6;

/// Runs the same random commands on a fresh store and on the model, and compares every reply. At intervals it also
/// compares the stored chains and jobs.
///
/// Commands that the store does not support are left out. If the store has transactions, some commands run in one. Most
/// transactions are rolled back and must leave no trace.
///
/// # Panics
///
/// If the store and the model disagree. The message has the seed, the command and both replies.
pub async fn random(fixture: &dyn Fixture, seed: u64, commands: usize) -> Tally {
    let subject = fixture.open().await;
    let mut run = Run {
        subject,
        in_snapshots: fixture.has_snapshots(),
        model: Model::new(),
        replica: Model::new(),
        seed,
        done: 0,
        tally: Tally::default(),
    };
    let mut generator = Generator::new(seed, fixture.capabilities());
    while run.done < commands {
        if run.subject.transactions.is_some() && generator.begins() {
            run.transaction(&mut generator).await;
        }
        run.subject.clock.advance(generator.pause());
        let command = generator.command(&mut run.model, run.subject.clock.now());
        let reply = run.step(command.clone()).await;
        if let Ok(reply) = &reply {
            generator.learn(&command, reply);
        }
        if run.done.is_multiple_of(LOOK_AROUND) {
            run.compare_latest(&generator, LATEST).await;
        }
    }
    run.compare_latest(&generator, usize::MAX).await;
    run.subject.store.close().await.expect("the store closes");
    run.tally
}

struct Run {
    subject: Subject,
    /// Whether transactions read from a snapshot.
    in_snapshots: bool,
    model: Model,
    /// Receives only the model's effects: replaying a journal must lead to the same state.
    replica: Model,
    seed: u64,
    done: usize,
    tally: Tally,
}

impl Run {
    /// Runs a command on the store and on the model, compares the replies, and counts the model's reply.
    async fn step(&mut self, command: Command) -> Result<Reply> {
        self.done += 1;
        let expected = self.model.apply(self.subject.clock.now(), &command).map(|(reply, effects)| {
            self.replica.replay(&effects);
            if self.done.is_multiple_of(5) {
                // Undoing and replaying a command's effects must leave no trace.
                self.model.undo(&effects);
                self.model.replay(&effects);
            }
            reply
        });
        // Use both handles, as two processes would.
        let store = if self.done.is_multiple_of(3) { &self.subject.other } else { &self.subject.store };
        let actual = store.execute(command.clone()).await;
        self.compare(&command, &expected, &actual);
        self.tally.count(&command, &expected);
        expected
    }

    /// Runs commands in a transaction and ends it, usually with a rollback, on the store and on the model.
    async fn transaction(&mut self, generator: &mut Generator) {
        let (size, commits) = generator.transaction(IN_TRANSACTION);
        let mut tx = self.subject.begin().await;
        let mut undone: Vec<Effect> = Vec::new();
        let mut learned = Vec::new();
        for _ in 0..size {
            self.subject.clock.advance(generator.pause());
            let command = generator.command_in_transaction(&mut self.model, self.subject.clock.now());
            if let Some((reply, effects)) = self.step_in(&mut *tx, &command).await {
                undone.extend(effects);
                learned.push((command, reply));
            }
        }
        if commits {
            tx.commit().await.expect("the transaction commits");
            self.replica.replay(&undone);
            learned.iter().for_each(|(command, reply)| generator.learn(command, reply));
        } else {
            tx.rollback().await.expect("the transaction is rolled back");
            self.model.undo(&undone);
            self.tally.rolled_back += size;
        }
    }

    /// Runs a command in a transaction and on the model, compares the replies, and counts the model's reply.
    async fn step_in(&mut self, tx: &mut dyn ErasedTx, command: &Command) -> Option<(Reply, Vec<Effect>)> {
        self.done += 1;
        let now = self.subject.clock.now();
        let expected = match command {
            Command::Delete(_) if self.in_snapshots => {
                Err(Error::new(ErrorKind::Invalid, "a snapshot may hide jobs that need a chain"))
            }
            _ if self.in_snapshots => self.model.apply_in_snapshot(now, command),
            _ => self.model.apply(now, command),
        };
        let actual = tx.execute(command.clone()).await;
        let reply = expected.as_ref().map(|(reply, _)| reply.clone()).map_err(Clone::clone);
        self.compare(command, &reply, &actual);
        self.tally.count(command, &reply);
        expected.ok()
    }

    fn compare(&self, command: &Command, expected: &Result<Reply>, actual: &Result<Reply>) {
        let agree = match (expected, actual) {
            (Ok(expected), Ok(actual)) => {
                normalized(command, expected.clone()) == normalized(command, actual.clone())
            }
            (Err(expected), Err(actual)) => expected.kind() == actual.kind(),
            _ => false,
        };
        assert!(
            agree,
            "seed {}, command {}: the store and the model disagree\n\ncommand: {command:#?}\n\nmodel: {expected:#?}\n\nstore: {actual:#?}",
            self.seed, self.done,
        );
    }

    /// Compares the latest chains and jobs of the model with the store and with the replica.
    async fn compare_latest(&mut self, generator: &Generator, latest: usize) {
        let chains: Vec<Target> =
            generator.chains(latest).map(Target::Chain).chain(generator.keys()).collect();
        for chains in chains.chunks(500) {
            self.query(GetChains { chains: chains.to_vec() }.into()).await;
        }
        let jobs: Vec<_> = generator.jobs(latest).collect();
        for jobs in jobs.chunks(500) {
            self.query(GetJobs { jobs: jobs.to_vec() }.into()).await;
        }
        if self.subject.store.capabilities().has(Capability::Schedules) {
            self.query(all_schedules().into()).await;
        }
        for query in [Command::from(Count { types: Types::All }), NextDue { types: Types::All }.into()] {
            self.compare_replica(&query).expect("a query within its limits is answered");
        }
    }

    async fn query(&mut self, query: Command) {
        let expected = self.compare_replica(&query);
        let actual = self.subject.store.execute(query.clone()).await;
        self.compare(&query, &expected, &actual);
    }

    fn compare_replica(&mut self, query: &Command) -> Result<Reply> {
        let now = self.subject.clock.now();
        let expected = self.model.apply(now, query).map(|(reply, _)| reply);
        let replayed = self.replica.apply(now, query).map(|(reply, _)| reply);
        self.compare(query, &expected, &replayed);
        expected
    }
}
