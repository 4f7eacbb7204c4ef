//! Type names and keys that look like the store's own Redis keys. The conformance cases cover other unusual names.

use windlass_conformance::{complete, type_name};
use windlass_core::command::{Count, Expire, Types};
use windlass_core::{ErrorKind, Key, LockName, TypeName};
use windlass_redis::{Options, RedisNotifier, RedisStore};
use windlass_testkit::shared_redis;

use crate::database::subject;

const HUNDRED_DAYS: u64 = 100 * 24 * 60 * 60 * 1_000;
const PRIORITIES: [i8; 4] = [10, 1, 0, -1];

#[tokio::test(flavor = "multi_thread")]
async fn names_that_look_like_the_stores_keys_are_only_names() {
    let (subject, mut database) = subject().await;
    let own = ["", "meta", "pending_sets", "counts", "pending:0:a", "running:a", "job:", "keys"]
        .map(|key| database.key(key));
    let plain = [
        "a",
        "0:a",
        "1:a",
        "-1:a",
        ":a",
        "1:",
        "a:",
        "pending:0:a",
        "completed:a",
        "failed:a",
        "long:a",
        "order:00000000000000",
        "pending_sets",
        "}:{",
        "{a}:{b}",
        "*",
    ];
    let names: Vec<&str> = own.iter().map(String::as_str).chain(plain).collect();
    for name in &names {
        for (at, priority) in PRIORITIES.iter().rev().enumerate() {
            subject.start(name).key(&format!("{name}{at}")).priority(*priority).await;
        }
    }

    let counts = subject.run(Count { types: Types::All }).await.types;
    assert_eq!(counts.len(), names.len());
    for name in &names {
        let count = counts.iter().find(|count| count.job_type.as_str() == *name).unwrap();
        assert_eq!(count.pending, PRIORITIES.len() as u64, "{name:?}");
        for (at, priority) in PRIORITIES.iter().rev().enumerate() {
            let chain = subject.by_key(name, &format!("{name}{at}")).await.unwrap();
            assert_eq!(subject.job(chain.first_job()).await.priority, *priority, "{name:?}");
        }
        for priority in PRIORITIES {
            let attempt = subject.work(name, complete("1")).await;
            assert_eq!((attempt.job.job_type.as_str(), attempt.job.priority), (*name, priority));
        }
    }
    subject.advance(HUNDRED_DAYS);
    while subject.run(Expire { max: 1_000 }).await.more {}
    assert_eq!(database.names().await, [database.key("former"), database.key("meta")]);
    for name in &names {
        subject.start(name).await;
        let count = subject.run(Count { types: Types::Only(vec![type_name(name)]) }).await.types.remove(0);
        assert_eq!(count.ended.completed, PRIORITIES.len() as u64, "{name:?}");
    }
}

#[test]
fn invalid_names_are_refused_before_they_reach_the_store() {
    let long = "x".repeat(10_000);
    for bad in ["", "a\0b", &long] {
        assert!(
            TypeName::new(bad).is_err() && Key::new(bad).is_err() && LockName::new(bad).is_err(),
            "{bad:.10}"
        );
    }
    assert!(TypeName::new("a\nb").is_err());
}

#[tokio::test]
async fn an_invalid_namespace_is_refused() {
    let server = shared_redis().await;
    let long = "x".repeat(10_000);
    for bad in ["", "a}", "{a", "a:b", "a\nb", "a\0b", "a*", "A", "ä", " ", &long] {
        let options = Options::default().namespace(bad);
        let store = RedisStore::open(&server.url(), options.clone()).await.unwrap_err();
        let notifier = RedisNotifier::open(&server.url(), &options).await.unwrap_err();
        for error in [store, notifier] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:.10}");
            assert!(error.to_string().contains("use 1 to 64 characters of a-z"), "{error}");
        }
    }
}
