//! Something else has written under the namespace.

use std::sync::Arc;

use redis::AsyncCommands;
use windlass_conformance::{LEASE, Subject, complete, retry, type_name};
use windlass_core::command::{Acquire, Command, Create, Quota, Renew, RenewLease, Settle, Settlement};
use windlass_core::{ErrorKind, RequestId, WorkerId};
use windlass_redis::RedisStore;

use crate::database::Database;
use crate::fixture::fresh;

/// Puts a text where the store has something else: the command fails, names the key, and changes nothing.
async fn check(key: &str, command: &Command, subject: &Subject, database: &mut Database) {
    let key = database.key(key);
    let former: Option<Vec<u8>> =
        redis::cmd("DUMP").arg(&key).query_async(&mut database.connection).await.unwrap();
    let _: () = database.connection.set(&key, "not ours").await.unwrap();
    let before = database.dump().await;

    let error = subject.store.execute(command.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&key), "the key {key} is not named: {error}");
    assert_eq!(database.dump().await, before, "{key}");

    let _: () = database.connection.del(&key).await.unwrap();
    if let Some(former) = former {
        let mut restore = redis::cmd("RESTORE");
        let _: () = restore.arg(&key).arg(0).arg(former).query_async(&mut database.connection).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_wrong_kind_is_named_and_nothing_is_written() {
    let (server, clock, options) = fresh();
    let mut database = Database::open(&server).await;
    let store = Arc::new(RedisStore::open(&server.url(), options).await.unwrap());
    let subject = Subject::new(store.clone(), store, clock);

    let blocker = subject.start("b").await;
    let keyed = subject.start("a").key("k").blocked_by([blocker]).build();
    let waits = format!("waits:{}", keyed.id);
    let dependents = format!("dependents:{blocker}");
    let own = format!("job:{}", keyed.id);
    let create = Command::from(Create { chains: vec![subject.start("a").build(), keyed] });
    for key in ["pending:0:a", "lanes", "keys", "seq", &waits, &dependents, &own] {
        check(key, &create, &subject, &mut database).await;
    }

    subject.start("c").await;
    let request = RequestId::new();
    let quota = Quota { job_type: type_name("c"), max: 1, lease: LEASE };
    let acquire = Command::from(Acquire { request, worker: WorkerId::new(), types: vec![quota], max: 1 });
    for key in ["pending:0:c", "lanes", "running:c", "busy", "rippling", &format!("request:{request}")] {
        check(key, &acquire, &subject, &mut database).await;
    }

    let attempt = subject.acquire_one("c").await;
    let (job, fence) = (attempt.job.id, attempt.job.fence);
    let settle = |outcome| Command::from(Settle { settlements: vec![Settlement { job, fence, outcome }] });
    let lease = attempt.job.lease.unwrap();
    for key in ["running:c", "busy", "leaving", &format!("request:{}", lease.request), &format!("job:{job}")]
    {
        check(key, &settle(complete("1")), &subject, &mut database).await;
    }
    check(&format!("history:{job}"), &settle(retry("no")), &subject, &mut database).await;
    let renew = Command::from(Renew { leases: vec![RenewLease { job, fence, lease: LEASE }] });
    check("running:c", &renew, &subject, &mut database).await;

    // After all that the store works as if nothing had happened.
    subject.complete(&attempt, "1").await;
    assert_eq!(subject.acquire("b", 10).await.len(), 1);
}
