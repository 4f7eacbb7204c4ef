//! Roles with the least privileges: each can do its part and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::PgPool;
use windlass_conformance::{LEASE, Subject, complete, fail, json, type_name};
use windlass_core::command::{
    Acquired, Beat, Cancel, CancelMode, ChangeSchedules, Command, CompleteFromOutside, Count, Create,
    CreateAndAcquire, Delete, DueSchedules, Exchange, Expire, GetChains, GetJobs, GetSchedules, JobFilter,
    LeaderLock, ListAttempts, ListChains, ListDependents, ListJobs, ListSchedules, ListWorkers, LockAction,
    NewChain, NextDue, Outcome, Pause, PutSchedule, Reap, Renew, RenewLease, Retire, Retry, RetryTarget,
    ScheduleAction, ScheduleChange, ScheduleTarget, SetRetention, Settle, Settlement, Step, Trigger, Types,
};
use windlass_core::{
    ChainId, ErrorKind, LockName, ManualClock, Millis, RequestId, ScheduleId, ScheduleName, Status, Store,
    SystemClock, Timestamp, Transactional,
};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::PostgresServer;

/// The roles, and the statements of the store that each may run besides those of the roles before it.
const ROLES: [(&str, &[&str]); 4] = [
    (
        "reader",
        &[
            "count",
            "due_schedules",
            "get_chains",
            "get_jobs",
            "get_schedules",
            "health",
            "list_attempts",
            "list_chains",
            "list_dependents",
            "list_jobs",
            "list_open",
            "list_schedules",
            "list_workers",
            "next_due",
        ],
    ),
    (
        "producer",
        &[
            "cancel",
            "change_schedules",
            "create",
            "create_keyed",
            "create_plain",
            "outside",
            "retry",
            "set_retention",
            "trigger",
        ],
    ),
    (
        "worker",
        &[
            "acquire",
            "beat",
            "create_acquire",
            "create_keyed_acquire",
            "create_one_acquire",
            "create_plain_acquire",
            "exchange",
            "exchange_plain",
            "expire",
            "leader_lock",
            "reap",
            "renew",
            "retire",
            "settle",
            "settle_plain",
            "tidy",
        ],
    ),
    ("owner", &["delete", "pause"]),
];

/// The statements without the time as a parameter.
const TIMELESS: [&str; 8] = [
    "get_jobs",
    "health",
    "list_attempts",
    "list_chains",
    "list_dependents",
    "list_jobs",
    "list_open",
    "tidy",
];

/// Returns the names of the statements that a role may run, sorted.
fn allowed(role: &str) -> Vec<&'static str> {
    let last = ROLES.iter().position(|(name, _)| *name == role).unwrap();
    let mut names: Vec<_> = ROLES[..=last].iter().flat_map(|(_, names)| *names).copied().collect();
    names.sort_unstable();
    names
}

async fn connect(server: &PostgresServer, role: &str) -> Sqlx {
    Sqlx::connect(&url(server, role)).await.unwrap()
}

fn url(server: &PostgresServer, role: &str) -> String {
    server.url().replace("windlass@", &format!("app_{role}@"))
}

/// A server with a store. The role `app_owner` owns the tables, and `app_reader`, `app_producer` and `app_worker` have one
/// of the roles each. None of them is a superuser.
async fn server() -> PostgresServer {
    let server = PostgresServer::builder().start().await;
    server.query("create role app_owner login createrole; grant create on database postgres to app_owner");
    let owner = connect(&server, "owner").await;
    PostgresStore::open(owner.clone(), Options::default()).await.unwrap();
    let roles = Options::default().roles_sql().unwrap();
    // Can be repeated.
    for _ in 0..2 {
        sqlx::raw_sql(sqlx::AssertSqlSafe(roles.clone())).execute(owner.pool()).await.unwrap();
    }
    for role in ["reader", "producer", "worker"] {
        server.query(&format!("create role app_{role} login; grant windlass_{role} to app_{role}"));
    }
    server
}

async fn open(server: &PostgresServer, role: &str) -> Arc<PostgresStore<Sqlx>> {
    let options = Options::default().migrate(false);
    Arc::new(PostgresStore::open(connect(server, role).await, options).await.unwrap())
}

fn subject(store: &Arc<PostgresStore<Sqlx>>) -> Subject {
    Subject::new(store.clone(), store.clone(), Arc::new(ManualClock::default()))
}

/// Stores chains in all states, and returns commands that need them: one for each statement of the store, with its name.
/// Only `health` and `tidy` belong to no command.
async fn commands(s: &Subject) -> Vec<(&'static str, Command)> {
    let [mut commands, worker, outside] = [queries(s).await, work(s).await, productions(s).await];
    commands.extend(worker);
    commands.extend(outside);
    let chains = vec![waiting(s).await.into()];
    commands.push(("delete", Delete { chains, cascade: false, seen: None }.into()));
    commands.push(("pause", Pause { types: vec![type_name("paused")], paused: true }.into()));
    commands
}

async fn queries(s: &Subject) -> Vec<(&'static str, Command)> {
    let blocker = waiting(s).await;
    let blocked = s.start("blocked").blocked_by([blocker]).await;
    let schedule = new_schedule();
    let by_name = ScheduleTarget::Name(schedule.name.clone());
    s.run(ChangeSchedules { changes: vec![schedule] }).await;
    s.run(beat(s)).await;
    let statuses = vec![Status::Failed];
    let open = ListJobs { filter: JobFilter { statuses, ..JobFilter::default() }, ..ListJobs::default() };
    vec![
        ("count", Count { types: Types::All }.into()),
        ("due_schedules", DueSchedules { skip: 0, max: 10 }.into()),
        ("get_chains", GetChains { chains: vec![blocked.into()] }.into()),
        ("get_jobs", GetJobs { jobs: vec![blocked.first_job()] }.into()),
        ("get_schedules", GetSchedules { schedules: vec![by_name] }.into()),
        ("list_attempts", ListAttempts { job: blocked.first_job() }.into()),
        ("list_chains", ListChains::default().into()),
        ("list_dependents", ListDependents { chain: blocker, page: Default::default() }.into()),
        ("list_jobs", ListJobs::default().into()),
        ("list_open", open.into()),
        ("list_schedules", ListSchedules { after: None, max: 10 }.into()),
        ("list_workers", ListWorkers.into()),
        ("next_due", NextDue { types: Types::All }.into()),
    ]
}

/// Commands of an application that starts jobs and manages them.
async fn productions(s: &Subject) -> Vec<(&'static str, Command)> {
    let (failed, completed) = (acquired(s).await, acquired(s).await);
    s.apply(&failed, fail("no such order")).await;
    s.apply(&completed, complete("1")).await;
    let version = async |job| s.job(job).await.version;
    let retry = RetryTarget { job: failed.job.id, version: version(failed.job.id).await };
    let job = waiting(s).await.first_job();
    let steps = vec![Step::Complete { output: json("1"), retention: None, create: Vec::new() }];
    let outside = CompleteFromOutside { request: RequestId::new(), job, version: version(job).await, steps };
    let (one, other) = (vec![waiting(s).await.into()], vec![waiting(s).await.into()]);
    let [plain, keyed, blocked] = new_chains(s, 1).await;
    vec![
        ("cancel", Cancel { chains: one, mode: CancelMode::Ask }.into()),
        ("change_schedules", ChangeSchedules { changes: vec![new_schedule()] }.into()),
        ("create", Create { chains: blocked }.into()),
        ("create_keyed", Create { chains: keyed }.into()),
        ("create_plain", Create { chains: plain }.into()),
        ("outside", outside.into()),
        ("retry", Retry { chains: vec![retry] }.into()),
        ("set_retention", SetRetention { chains: vec![completed.job.chain.into()], retention: LEASE }.into()),
        ("trigger", Trigger { jobs: other }.into()),
    ]
}

/// Commands of a worker.
async fn work(s: &Subject) -> Vec<(&'static str, Command)> {
    let acquire = || s.acquire_request(&["a"], 1);
    let join = |chains| Command::from(CreateAndAcquire { create: Create { chains }, acquire: acquire() });
    let settle = |attempt: &Acquired, outcome: Outcome| Settle {
        settlements: vec![Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome }],
    };
    let [one, _, blocked] = new_chains(s, 1).await;
    let [plain, keyed, _] = new_chains(s, 2).await;
    let (plainly, otherwise) = (complete("1"), fail("no such order"));
    let held = acquired(s).await;
    let lease = RenewLease { job: held.job.id, fence: held.job.fence, lease: LEASE };
    let exchange = settle(&acquired(s).await, otherwise.clone());
    let exchange_plain = settle(&acquired(s).await, plainly.clone());
    let lock = LeaderLock {
        name: LockName::new("x").unwrap(),
        token: RequestId::new(),
        action: LockAction::Hold(LEASE),
    };
    let reap = Reap { types: Types::All, max: 1, except: Vec::new(), renewal_interval: Millis::ZERO };
    vec![
        ("acquire", acquire().into()),
        ("beat", beat(s).into()),
        ("create_acquire", join(blocked)),
        ("create_keyed_acquire", join(keyed)),
        ("create_one_acquire", join(one)),
        ("create_plain_acquire", join(plain)),
        ("exchange", Exchange { settle: exchange, acquire: acquire() }.into()),
        ("exchange_plain", Exchange { settle: exchange_plain, acquire: acquire() }.into()),
        ("expire", Expire { max: 2 }.into()),
        ("leader_lock", lock.into()),
        ("reap", reap.into()),
        ("renew", Renew { leases: vec![lease] }.into()),
        ("retire", Retire { worker: s.worker }.into()),
        ("settle", settle(&acquired(s).await, otherwise).into()),
        ("settle_plain", settle(&acquired(s).await, plainly).into()),
    ]
}

/// Starts a chain that is due in an hour.
async fn waiting(s: &Subject) -> ChainId {
    s.start("waiting").after(3_600_000).await
}

/// Starts a chain and acquires its job.
async fn acquired(s: &Subject) -> Acquired {
    s.start("acquired").await;
    s.acquire_one("acquired").await
}

/// Returns chains to create: plain ones, some with keys, and some with a blocker.
async fn new_chains(s: &Subject, count: usize) -> [Vec<NewChain>; 3] {
    let blocker = waiting(s).await;
    [
        (0..count).map(|_| s.start("a").build()).collect(),
        (0..count).map(|_| s.start("a").key(&ChainId::new().to_string()).build()).collect(),
        (0..count).map(|_| s.start("a").blocked_by([blocker]).build()).collect(),
    ]
}

/// Returns a change that creates a schedule, which is due.
fn new_schedule() -> ScheduleChange {
    let put = PutSchedule {
        due_at: Some(Timestamp::from_millis(1_000).unwrap()),
        handled: None,
        definition: Some("a definition".into()),
        state: "new".into(),
        chain: None,
        state_if_not_created: "not created".into(),
    };
    let id = ScheduleId::new();
    ScheduleChange {
        name: ScheduleName::new(id.to_string()).unwrap(),
        id,
        expected: None,
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(put),
    }
}

fn beat(s: &Subject) -> Beat {
    let types = vec![type_name("a")];
    Beat { worker: s.worker, name: None, types, concurrency: 1, running: 0, ttl: LEASE }
}

/// Runs a command. Returns the message of the error if the command is denied, and panics at any other error.
async fn denied(store: &PostgresStore<Sqlx>, command: Command) -> Option<String> {
    let name = command.name();
    let error = (store as &dyn Store).execute(command).await.err()?;
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{name}: {error}");
    Some(error.to_string())
}

/// Whether a command is denied in a transaction, which is rolled back.
async fn is_denied_in_transaction(store: &PostgresStore<Sqlx>, command: Command) -> bool {
    let name = command.name();
    let mut tx = store.begin().await.unwrap();
    let done = store.execute_in((&mut tx).into(), command).await;
    store.rollback(tx).await.unwrap();
    done.is_err_and(|error| {
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{name}: {error}");
        true
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_can_run_its_statements_and_no_others() {
    let server = server().await;
    let owner = subject(&open(&server, "owner").await);
    for (role, _) in ROLES {
        let store = open(&server, role).await;
        let texts: BTreeMap<_, _> = store.statements().into_iter().collect();
        let mut ran = Vec::new();
        for (name, command) in commands(&owner).await {
            let in_transaction = match command.is_transactional() {
                true => Some(is_denied_in_transaction(&store, command.clone()).await),
                false => None,
            };
            let error = denied(&store, command).await;
            assert!(in_transaction.is_none_or(|is_denied| is_denied == error.is_some()), "{name} as {role}");
            match error {
                None => ran.push(name),
                // The command ran the statement that it is meant for.
                Some(error) => {
                    let function =
                        error.split_once("for function ").and_then(|(_, rest)| rest.split(' ').next());
                    let call =
                        format!(".{}(", function.unwrap_or_else(|| panic!("{name} as {role}: {error}")));
                    assert!(texts[name].contains(&call), "{name} as {role}: {error}");
                }
            }
        }
        store.health().await.unwrap();
        ran.push("health");
        let tidy = "select * from windlass.tidy_v1(windlass.own_v1(null), null, 10)";
        if sqlx::raw_sql(tidy).execute(store.provider().pool()).await.is_ok() {
            ran.push("tidy");
        }
        ran.sort_unstable();
        assert_eq!(ran, allowed(role), "as {role}");
        match role {
            "owner" => {
                assert_eq!(ran, texts.into_keys().collect::<Vec<_>>());
                store.erase().await.unwrap();
            }
            _ => assert_eq!(store.erase().await.unwrap_err().kind(), ErrorKind::AccessDenied),
        }
        store.close().await.unwrap();
    }
    // A chain runs with the roles together.
    let (producer, worker) = (open(&server, "producer").await, open(&server, "worker").await);
    let started = subject(&producer).start("b").await;
    subject(&worker).work("b", complete("1")).await;
    subject(&producer).expect_status(started, Status::Completed).await;
}

/// No role but the owner writes a table directly, or executes an inner function.
#[tokio::test(flavor = "multi_thread")]
async fn roles_write_no_table_and_call_no_inner_function() {
    let server = server().await;
    let url = server.url().replace("windlass@", "app_worker@");
    let pool = PgPool::connect(&url).await.unwrap();
    for statement in [
        "delete from windlass.job",
        "insert into windlass.tally values (1, 'a', 'pending')",
        "update windlass.chain set key = 'x'",
        "truncate windlass.ready",
        "select windlass.remove_jobs_v1('{}')",
        "select windlass.close_chain_v1(0, gen_random_uuid(), 'completed', null)",
        "select nextval('windlass.page')",
    ] {
        let error = sqlx::raw_sql(statement).execute(&pool).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
        assert_eq!(code.as_deref(), Some("42501"), "{statement}: {error}");
    }
    let public =
        "select array_agg(p.proname::text) from pg_proc p where p.pronamespace = 'windlass'::regnamespace
        and has_function_privilege('public', p.oid, 'execute')";
    let public: Vec<String> = sqlx::query_scalar(public).fetch_one(&pool).await.unwrap();
    assert_eq!(public, ["json_v1"], "functions that every role may execute");
}

/// The grants are the same as what each role can run. Otherwise, a missing grant would show only when a program first runs
/// the statement.
#[tokio::test(flavor = "multi_thread")]
async fn the_grants_of_each_role_match_the_statements() {
    let server = server().await;
    let store = open(&server, "owner").await;
    let statements = store.statements();
    for (role, _) in &ROLES[..3] {
        let denied = server.query(&format!(
            "select p.proname from pg_proc p where p.pronamespace = 'windlass'::regnamespace
             and not has_function_privilege('app_{role}', p.oid, 'execute')"
        ));
        let calls = |text: &str, function: &str| text.contains(&format!("\"windlass\".{function}("));
        let may = statements.iter().filter(|(_, text)| !denied.lines().any(|function| calls(text, function)));
        let mut may: Vec<_> = may.map(|(name, _)| *name).collect();
        may.sort_unstable();
        assert_eq!(may, allowed(role), "as {role}");
        let written = server.query(&format!(
            "select c.relname from pg_class c where c.relnamespace = 'windlass'::regnamespace and (
               c.relkind in ('r', 'v') and has_table_privilege('app_{role}', c.oid, 'insert, update, delete, truncate, trigger')
               or c.relkind = 'S' and has_sequence_privilege('app_{role}', c.oid, 'usage, update')
             )"
        ));
        assert_eq!(written, "", "tables and sequences that {role} may change");
    }
}

/// With another clock, every lease would seem to have expired.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_sets_the_time() {
    let server = server().await;
    server.query("create role app_member login; grant app_owner to app_member");
    let owner = subject(&open(&server, "owner").await);
    for role in ["reader", "producer", "worker", "owner", "member"] {
        let options = Options::default().migrate(false).clock(Arc::new(SystemClock));
        let store = PostgresStore::open(connect(&server, role).await, options).await.unwrap();
        for (name, command) in commands(&owner).await {
            let error = denied(&store, command).await;
            if matches!(role, "owner" | "member") {
                assert_eq!(error, None, "{name} as {role}");
            } else if allowed(role).contains(&name) && !TIMELESS.contains(&name) {
                let error = error.unwrap_or_else(|| panic!("{name} as {role} accepts a time"));
                assert!(error.contains("only the owner of the tables may set the time"), "{name}: {error}");
            }
        }
    }
}
