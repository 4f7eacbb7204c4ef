//! Each case declares its needs correctly: it passes on a store with exactly these capabilities, and is skipped on a
//! store with fewer.

use std::sync::Arc;

use windlass_conformance::{Erased, Fixture, Subject, Verdict, cases, run, run_cases};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Capability, Clock, Decorator, Error, ManualClock, MemoryStore, Result,
};

/// A memory store that supports only the declared capabilities.
#[derive(Debug)]
struct Limited {
    inner: MemoryStore,
    capabilities: Capabilities,
}

impl Decorator for Limited {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn supported(&self) -> Capabilities {
        self.capabilities
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        match capability(&command) {
            Some(capability) if !self.capabilities.has(capability) => {
                Box::pin(async move { Err(Error::unsupported(command.name())) })
            }
            _ => self.forward(command),
        }
    }
}

/// Returns the capability that a command needs.
fn capability(command: &Command) -> Option<Capability> {
    Some(match command {
        Command::Exchange(_) => Capability::Exchange,
        Command::CreateAndAcquire(_) => Capability::CreateAndAcquire,
        Command::NextDue(_) => Capability::NextDue,
        Command::CompleteFromOutside(_) => Capability::Outside,
        Command::Cancel(_) => Capability::Cancel,
        Command::Trigger(_) => Capability::Trigger,
        Command::Retry(_) => Capability::Retry,
        Command::Delete(_) => Capability::Delete,
        Command::SetRetention(_) => Capability::SetRetention,
        Command::Pause(_) => Capability::Pause,
        Command::ListChains(_) | Command::ListJobs(_) | Command::ListDependents(_) => Capability::Lists,
        Command::ListAttempts(_) => Capability::Attempts,
        Command::Count(_) => Capability::Count,
        Command::Beat(_) | Command::Retire(_) | Command::ListWorkers(_) => Capability::Workers,
        Command::LeaderLock(_) => Capability::LeaderLock,
        _ => return None,
    })
}

impl Fixture for Capable {
    fn name(&self) -> &str {
        "limited"
    }

    fn capabilities(&self) -> Capabilities {
        self.0
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        let clock = Arc::new(ManualClock::default());
        let memory = MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let limited = || Arc::new(Limited { inner: memory.clone(), capabilities: self.0 });
        let mut subject = Subject::new(limited(), limited(), clock);
        if self.0.has(Capability::Transactions) {
            subject = subject.with_transactions(Arc::new(Erased::new(Arc::new(memory))));
        }
        Box::pin(async { subject })
    }
}

struct Capable(Capabilities);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_case_passes_with_the_capabilities_it_declares() {
    for case in cases() {
        let capabilities = case.needs.iter().fold(Capabilities::CORE, |all, need| all.with(*need));
        let report = run_cases(&Capable(capabilities), &[case.id]).await;
        assert!(report.is_conformant(), "with {:?} {report}", case.needs);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_capability_skips_its_cases() {
    let report = run(&Capable(Capabilities::CORE)).await;
    assert!(report.is_conformant(), "{report}");
    for (case, verdict) in &report.verdicts {
        let expected = match case.needs.first() {
            None => Verdict::Passed,
            Some(need) => Verdict::Skipped(format!("lacks {need:?}")),
        };
        assert_eq!(*verdict, expected, "{}", case.id);
    }
}
