//! Type names with characters that are special in NATS stay exact, in subjects and in keys of the bucket. The
//! conformance suite covers other names.

use std::time::Duration;

use tokio::time::timeout;
use windlass_core::{ErrorKind, Hint, Signal, Timestamp, TypeName};
use windlass_nats::{NatsNotifier, Options};
use windlass_testkit::NatsServer;

const TIMEOUT: Duration = Duration::from_secs(30);

fn scheduled(name: &str) -> Hint {
    let (job_type, due_at) = (TypeName::new(name).unwrap(), Timestamp::from_millis(1).unwrap());
    Hint::Scheduled { job_type, count: 1, due_at }
}

#[tokio::test(flavor = "multi_thread")]
async fn type_names_are_exact_in_subjects_and_budgets() {
    let notifiers = crate::fixture::notifiers(true).await;
    let long = "ü".repeat(100);
    let names =
        [".", "a.b", "a.*", "*", ">", "a.>", "$KV.a", "$SYS", " ", "a b", "_INBOX.a", "=", "/", &long];
    let all: Vec<_> = names.iter().map(|name| scheduled(name).topic()).collect();
    let mut heard = notifiers[0].subscribe(all).await.unwrap();
    for name in names {
        let mut one = notifiers[0].subscribe(vec![scheduled(name).topic()]).await.unwrap();
        notifiers[1].publish(scheduled(name)).await.unwrap();
        for subscription in [&mut heard, &mut one] {
            let signal = timeout(TIMEOUT, subscription.next()).await.unwrap();
            assert_eq!(signal, Some(Signal::Hint(scheduled(name))), "{name:?}");
        }
    }
    // Each name has its own budget of one.
    for name in names {
        let job_type = TypeName::new(name).unwrap();
        assert!(notifiers[0].claim_wake(job_type.clone()).await.unwrap(), "{name:?}");
        assert!(!notifiers[1].claim_wake(job_type).await.unwrap(), "{name:?}");
    }
}

#[tokio::test]
async fn invalid_namespaces_and_buckets_are_refused() {
    let server = NatsServer::start().await;
    let long = "x".repeat(10_000);
    for bad in ["", "a.b", "a*", ">", "a b", "a\nb", "a\0b", "A", "ä", &long] {
        let error = NatsNotifier::open(&server.url(), Options::default().namespace(bad)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:.10}");
    }
    for bad in ["", "a.b", "a*", ">", "a b", "a\nb", "a\0b", "ä"] {
        let error = NatsNotifier::open(&server.url(), Options::default().bucket(bad)).await.unwrap_err();
        assert!(error.to_string().contains("check the name of the bucket"), "{error}");
    }
}
