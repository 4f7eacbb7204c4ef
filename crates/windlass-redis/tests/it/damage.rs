//! Another program has overwritten keys of the namespace.

use redis::AsyncCommands;
use windlass_conformance::{LEASE, Subject, complete, continue_with, fail, json, retry, type_name};
use windlass_core::command::{
    Acquire, Acquired, Beat, Cancel, CancelMode, Command, CompleteFromOutside, Create, Delete, Expire,
    LeaderLock, LockAction, Outcome, Pause, Quota, Reap, Renew, RenewLease, Retry, RetryTarget, Settle,
    Settlement, Step, Trigger, Types,
};
use windlass_core::{Error, ErrorKind, LockName, Millis, RequestId, WorkerId};

use crate::database::{Database, subject};

/// The block of the first jobs in the order of creation.
const BLOCK: &str = "order:00000000000000";

/// Overwrites a key with a string and checks that the command fails, names the key, and changes nothing.
async fn check(key: &str, command: &Command, subject: &Subject, database: &mut Database) {
    let (error, changed) = run_damaged(key, command, subject, database).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&database.key(key)), "the key {key} is not named: {error}");
    assert!(!changed, "{key}");
}

/// Overwrites a key and runs the command. Returns its error, and whether the command changed anything. Restores the key
/// afterwards.
async fn run_damaged(
    key: &str,
    command: &Command,
    subject: &Subject,
    database: &mut Database,
) -> (Error, bool) {
    let key = database.key(key);
    let former: Option<Vec<u8>> =
        redis::cmd("DUMP").arg(&key).query_async(&mut database.connection).await.unwrap();
    let _: () = database.connection.set(&key, "not ours").await.unwrap();
    let before = database.dump().await;

    let error = subject.store.execute(command.clone()).await.unwrap_err();
    let changed = database.dump().await != before;

    let _: () = database.connection.del(&key).await.unwrap();
    if let Some(former) = former {
        let mut restore = redis::cmd("RESTORE");
        let _: () = restore.arg(&key).arg(0).arg(former).query_async(&mut database.connection).await.unwrap();
    }
    (error, changed)
}

fn settlement(attempt: &Acquired, outcome: Outcome) -> Settlement {
    Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome }
}

fn settle(attempt: &Acquired, outcome: Outcome) -> Command {
    Settle { settlements: vec![settlement(attempt, outcome)] }.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_names_the_key_and_writes_nothing() {
    let (subject, mut database) = subject().await;
    let blocker = subject.start("b").await;
    let keyed = subject.start("a").key("k").blocked_by([blocker]).build();
    let waits = format!("waits:{}", keyed.id);
    let dependents = format!("dependents:{blocker}");
    let own = format!("job:{}", keyed.id);
    let create = Command::from(Create { chains: vec![subject.start("a").build(), keyed] });
    let shared =
        ["pending:0:a", "pending_sets", "keys", "meta", "counts", "blocked:a", "order_counts", BLOCK];
    for key in shared.into_iter().chain([&*waits, &*dependents, &*own]) {
        check(key, &create, &subject, &mut database).await;
    }
    // The store still works afterwards.
    assert_eq!(subject.acquire("b", 10).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempts_commands_name_the_key_and_write_nothing() {
    let (subject, mut database) = subject().await;
    subject.start("c").await;
    let request = RequestId::new();
    let quota = Quota { job_type: type_name("c"), max: 1, lease: LEASE };
    let acquire = Command::from(Acquire {
        request,
        worker: WorkerId::new(),
        worker_name: None,
        types: vec![quota],
        max: 1,
    });
    let taken = format!("request:{request}");
    let shared = ["pending:0:c", "pending_sets", "running:c", "busy", "rippling", "counts", "held"];
    for key in shared.into_iter().chain([&*taken]) {
        check(key, &acquire, &subject, &mut database).await;
    }

    let attempt = subject.acquire_one("c").await;
    let job = attempt.job.id;
    let lease = attempt.job.lease.clone().unwrap();
    let own = [format!("request:{}", lease.request), format!("job:{job}")];
    let shared = ["running:c", "busy", "leaving", "counts", "held", "order_counts", "order_unfinished"];
    for key in shared.into_iter().chain(own.iter().map(String::as_str)) {
        check(key, &settle(&attempt, complete("1")), &subject, &mut database).await;
    }
    check(&format!("history:{job}"), &settle(&attempt, retry("no")), &subject, &mut database).await;
    let renew = Renew { leases: vec![RenewLease { job, fence: attempt.job.fence, lease: LEASE }] };
    check("running:c", &renew.into(), &subject, &mut database).await;
    subject.complete(&attempt, "1").await;
}

/// Settles two attempts in one batch while a key of the second is damaged. Returns whether anything was written.
pub(crate) async fn settles_by_half(subject: &Subject, database: &mut Database) -> bool {
    for job_type in ["a", "b"] {
        subject.start(job_type).await;
    }
    let (first, second) = (subject.acquire_one("a").await, subject.acquire_one("b").await);
    let settlements = vec![settlement(&first, complete("1")), settlement(&second, retry("no"))];
    let key = format!("history:{}", second.job.id);
    run_damaged(&key, &Settle { settlements }.into(), subject, database).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_not_written_partially() {
    let (subject, mut database) = subject().await;
    assert!(!settles_by_half(&subject, &mut database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reap_names_the_key_and_writes_nothing() {
    let (subject, mut database) = subject().await;
    subject.start("again").await;
    subject.start("last").max_attempts(1).await;
    let (again, last) = (subject.acquire_one("again").await, subject.acquire_one("last").await);
    subject.advance(60_000);
    let reap = Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval: Millis::ZERO };
    let history = format!("history:{}", again.job.id);
    let request = format!("request:{}", again.job.lease.unwrap().request);
    let (first, second) = (format!("job:{}", again.job.id), format!("job:{}", last.job.id));
    let own = [&first, &second, &history, &request].map(String::as_str);
    let shared =
        ["busy", "running:again", "running:last", "pending:0:again", "pending_sets", "leaving", "rippling"];
    for key in shared.iter().chain(&own) {
        check(key, &reap.clone().into(), &subject, &mut database).await;
    }
    assert_eq!(subject.run(reap).await.reaped.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expire_names_the_key_and_writes_nothing() {
    let (subject, mut database) = subject().await;
    let blocker = subject.start("b").await;
    let chain = subject.start("a").key("k").blocked_by([blocker]).await;
    subject.work("b", complete("1")).await;
    subject.work("a", continue_with(subject.start("a").next_job())).await;
    subject.work("a", complete("2")).await;
    subject.advance(Millis::from_days(8).get());
    let expire = Expire { max: 1_000 };
    let (first, jobs) = (format!("job:{chain}"), format!("jobs:{chain}"));
    let dependents = format!("dependents:{blocker}");
    for key in ["leaving", "trimming", "keys", "former", &first, &jobs, &dependents] {
        check(key, &expire.into(), &subject, &mut database).await;
    }
    assert_eq!(subject.run(expire).await.chains.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_from_outside_name_the_key_and_write_nothing() {
    let (subject, mut database) = subject().await;
    let chain = subject.start("a").await;
    let row = format!("job:{chain}");
    let job = subject.job(chain.first_job()).await;
    let output = Step::Complete { output: json("1"), retention: None, create: Vec::new() };
    let outside = CompleteFromOutside {
        request: RequestId::new(),
        job: job.id,
        version: job.version,
        steps: vec![output],
    };
    let ends = ["pending:0:a", "pending_sets", "counts", "leaving", "rippling", &row];
    let open: [(Command, &[&str]); 4] = [
        (Cancel { chains: vec![chain.into()], mode: CancelMode::UnlessRunning }.into(), &ends),
        (outside.into(), &ends),
        (Trigger { jobs: vec![chain.into()] }.into(), &["pending:0:a", "pending_sets", &row]),
        (
            Delete { chains: vec![chain.into()], cascade: true, seen: None }.into(),
            &[
                "pending:0:a",
                "pending_sets",
                "counts",
                "order_counts",
                "order_blocks",
                "order_unfinished",
                &row,
            ],
        ),
    ];
    for (command, keys) in &open {
        for key in *keys {
            check(key, command, &subject, &mut database).await;
        }
    }

    subject.work("a", fail("no")).await;
    let version = subject.job(job.id).await.version;
    let retry = Command::from(Retry { chains: vec![RetryTarget { job: job.id, version }] });
    let history = format!("history:{}", job.id);
    for key in ["pending:0:a", "pending_sets", "counts", "former", "leaving", "rippling", &history, &row] {
        check(key, &retry, &subject, &mut database).await;
    }
    subject.store.execute(retry).await.unwrap();
    assert_eq!(subject.acquire("a", 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn registries_name_the_key_and_write_nothing() {
    let (subject, mut database) = subject().await;
    let beat = Beat {
        worker: WorkerId::new(),
        name: None,
        types: Vec::new(),
        concurrency: 1,
        running: 0,
        ttl: LEASE,
    };
    let lock = LeaderLock {
        name: LockName::new("l").unwrap(),
        token: RequestId::new(),
        action: LockAction::Hold(LEASE),
    };
    let pause = Pause { types: vec![type_name("a")], paused: true };
    let commands: [(Command, &[&str]); 3] = [
        (beat.into(), &["workers", "workers_ends"]),
        (lock.into(), &["locks", "locks_ends"]),
        (pause.into(), &["paused"]),
    ];
    for (command, keys) in &commands {
        for key in *keys {
            check(key, command, &subject, &mut database).await;
        }
        subject.store.execute(command.clone()).await.unwrap();
    }
}
