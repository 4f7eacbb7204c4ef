//! The notifier cases on the in-process notifier.

use std::sync::Arc;

use windlass_conformance::{NotifierFixture, NotifierSubject};
use windlass_core::{BoxFuture, InProcessNotifier};

struct InProcess;

impl NotifierFixture for InProcess {
    fn name(&self) -> &str {
        "in-process"
    }

    fn has_wake_budget(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, NotifierSubject> {
        let notifier = InProcessNotifier::new();
        let other = notifier.clone();
        Box::pin(async { NotifierSubject::new(Arc::new(notifier), Arc::new(other)) })
    }
}

fn main() {
    windlass_conformance::notifier_main(InProcess)
}
