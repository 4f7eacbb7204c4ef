//! Roles with the least privileges: each can do its part and nothing else.

use std::sync::Arc;

use sqlx::PgPool;
use windlass_conformance::{LEASE, Subject, complete, type_name};
use windlass_core::command::{
    Cancel, CancelMode, Command, Count, Delete, Expire, GetChains, JobFilter, LeaderLock, ListChains,
    ListJobs, ListWorkers, LockAction, NextDue, Page, Pause, Reap, Retire, SetRetention, Settle, Types,
};
use windlass_core::{ErrorKind, ManualClock, Millis, Store, SystemClock, WorkerId};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::PostgresServer;

/// A server with a store, whose roles `app_reader`, `app_producer` and `app_worker` have one of the roles each.
async fn server() -> PostgresServer {
    let server = PostgresServer::builder().start().await;
    PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let roles = Options::default().roles_sql().unwrap();
    // Can be repeated.
    server.query(&roles);
    server.query(&roles);
    for role in ["reader", "producer", "worker"] {
        server.query(&format!("create role app_{role} login; grant windlass_{role} to app_{role}"));
    }
    server
}

async fn open(server: &PostgresServer, role: &str) -> Arc<PostgresStore<Sqlx>> {
    let url = server.url().replace("windlass@", &format!("app_{role}@"));
    let provider = Sqlx::connect(&url).await.unwrap();
    Arc::new(PostgresStore::open(provider, Options::default().migrate(false)).await.unwrap())
}

fn subject(store: &Arc<PostgresStore<Sqlx>>) -> Subject {
    Subject::new(store.clone(), store.clone(), Arc::new(ManualClock::default()))
}

async fn is_denied(store: &PostgresStore<Sqlx>, command: impl Into<Command>) -> bool {
    let command = command.into();
    let name = command.name();
    match (store as &dyn Store).execute(command).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{name}: {error}");
            true
        }
    }
}

/// Commands that only read.
fn reads() -> Vec<Command> {
    vec![
        GetChains { chains: Vec::new() }.into(),
        ListJobs { filter: JobFilter::default(), page: Page::default() }.into(),
        ListJobs {
            filter: JobFilter { statuses: vec![windlass_core::Status::Failed], ..JobFilter::default() },
            page: Page::default(),
        }
        .into(),
        ListChains { filter: Default::default(), page: Page::default() }.into(),
        ListWorkers {}.into(),
        Count { types: Types::All }.into(),
        NextDue { types: Types::All }.into(),
    ]
}

/// Commands of an application that starts jobs and looks after them.
fn productions(s: &Subject) -> Vec<Command> {
    vec![
        windlass_core::command::Create { chains: vec![s.start("a").build()] }.into(),
        windlass_core::command::Create { chains: vec![s.start("a").key("k").build()] }.into(),
        Cancel { chains: Vec::new(), mode: CancelMode::Ask }.into(),
        SetRetention { chains: Vec::new(), retention: LEASE }.into(),
    ]
}

/// Commands of a worker.
fn work(s: &Subject) -> Vec<Command> {
    vec![
        s.acquire_request(&["a"], 1).into(),
        create_and_acquire(s),
        Settle {
            settlements: vec![windlass_core::command::Settlement {
                job: windlass_core::JobId::new(),
                fence: windlass_core::Fence(1),
                outcome: complete("1"),
            }],
        }
        .into(),
        Reap { types: Types::All, max: 1, except: Vec::new(), renewal_interval: Millis::ZERO }.into(),
        Expire { max: 2 }.into(),
        Retire { worker: WorkerId::new() }.into(),
        LeaderLock {
            name: windlass_core::LockName::new("x").unwrap(),
            token: windlass_core::RequestId::new(),
            action: LockAction::Release,
        }
        .into(),
    ]
}

/// A creation of one chain that also acquires for an idle worker.
fn create_and_acquire(s: &Subject) -> Command {
    let create = windlass_core::command::Create { chains: vec![s.start("a").build()] };
    windlass_core::command::CreateAndAcquire { create, acquire: s.acquire_request(&["a"], 1) }.into()
}

/// Commands that only the owner may run.
fn administration() -> Vec<Command> {
    vec![
        Delete { chains: Vec::new(), cascade: false, seen: None }.into(),
        Pause { types: vec![type_name("a")], paused: true }.into(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_can_do_its_part_and_nothing_else() {
    let server = server().await;
    for (role, parts) in [("reader", 1), ("producer", 2), ("worker", 3)] {
        let store = open(&server, role).await;
        let s = subject(&store);
        for (part, commands) in [reads(), productions(&s), work(&s), administration()].into_iter().enumerate()
        {
            for command in commands {
                let name = command.name();
                assert_eq!(is_denied(&store, command).await, part >= parts, "{name} as {role}");
            }
        }
        assert_eq!(store.erase().await.unwrap_err().kind(), ErrorKind::AccessDenied);
        store.close().await.unwrap();
    }
    // A chain runs with the roles together.
    let (producer, worker) = (open(&server, "producer").await, open(&server, "worker").await);
    let started = subject(&producer).start("b").await;
    subject(&worker).work("b", complete("1")).await;
    subject(&producer).expect_status(started, windlass_core::Status::Completed).await;
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

/// Otherwise, a missing grant would show only when a worker first runs the statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_may_execute_every_statement_but_those_of_the_owner() {
    let server = server().await;
    let store = open(&server, "worker").await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let denied = "select array_agg(p.proname::text order by p.proname) from pg_proc p
        where p.pronamespace = 'windlass'::regnamespace and not has_function_privilege('app_worker', p.oid, 'execute')";
    let denied: Vec<String> = sqlx::query_scalar(denied).fetch_one(&pool).await.unwrap();
    let calls = |text: &str, function: &String| text.contains(&format!("\"windlass\".{function}("));
    let statements = store.statements();
    let refused = statements.iter().filter(|(_, text)| denied.iter().any(|function| calls(text, function)));
    let refused: Vec<_> = refused.map(|(name, _)| *name).collect();
    assert_eq!(refused, ["delete", "pause"]);
}

/// With another clock, every lease would seem to have expired.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_sets_the_time() {
    let server = server().await;
    let url = server.url().replace("windlass@", "app_worker@");
    let options = Options::default().migrate(false).clock(Arc::new(SystemClock));
    let store = PostgresStore::open(Sqlx::connect(&url).await.unwrap(), options.clone()).await.unwrap();
    for command in [Command::from(Count { types: Types::All }), Expire { max: 2 }.into()] {
        assert_eq!(
            (&store as &dyn Store).execute(command).await.unwrap_err().kind(),
            ErrorKind::AccessDenied
        );
    }
    let owner = PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), options).await.unwrap();
    owner.expire(Expire { max: 2 }).await.unwrap();
}
