//! The server denies access: a wrong password, a missing permission, a user that is disabled while a worker runs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use windlass_core::command::Types;
use windlass_core::{BoxError, Client, Ctx, Entry, Error, ErrorKind, Job, Notifier, Result, Topic, Worker};
use windlass_redis::{Options, RedisNotifier, RedisStore};
use windlass_testkit::{RedisServer, wait_until};

use crate::fixture::connect;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Less than a response timeout.
const IMMEDIATE: Duration = Duration::from_secs(8);

const CHECK_LOGIN: &[&str] = &["(user `jobs`)", "check the user name and password"];

#[derive(Serialize, Deserialize)]
struct Greet;

impl Job for Greet {
    const NAME: &'static str = "greet";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Greet {}

async fn greet(_: Ctx<Greet>) -> Result<(), BoxError> {
    Ok(())
}

/// A server with the user `jobs`, whose password is `right`.
async fn server() -> (RedisServer, MultiplexedConnection) {
    let server = RedisServer::start().await;
    let mut admin = connect(server.url()).await;
    run("ACL SETUSER jobs on >right ~{windlass:*}* &{windlass:*}* +@all", &mut admin).await;
    (server, admin)
}

async fn run(command: &str, connection: &mut MultiplexedConnection) {
    let mut words = command.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    command.arg(words.collect::<Vec<_>>()).exec_async(connection).await.unwrap();
}

fn url(server: &RedisServer, login: &str) -> String {
    server.url().replace("redis://", &format!("redis://{login}@"))
}

#[track_caller]
fn check(error: &Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_reported_after_one_login() {
    let (server, mut admin) = server().await;
    let url = url(&server, "jobs:wrong");
    for url in [url.clone(), format!("{url}?protocol=resp3")] {
        check(&RedisStore::open(&url, Options::default()).await.unwrap_err(), CHECK_LOGIN);
        check(&RedisNotifier::open(&url, &Options::default()).await.unwrap_err(), CHECK_LOGIN);
    }
    // The server counts equal refusals in one entry.
    let log: Vec<HashMap<String, redis::Value>> =
        redis::cmd("ACL").arg("LOG").query_async(&mut admin).await.unwrap();
    let logins: i64 =
        log.iter().filter_map(|entry| i64::from_redis_value_ref(entry.get("count")?).ok()).sum();
    assert_eq!(logins, 4, "one login each: {log:?}");
}

/// Runs a worker while `deny` revokes its user's access and `allow` restores it.
async fn check_worker(deny: &[&str], allow: &str, parts: &[&str]) {
    let (server, mut admin) = server().await;
    let url = url(&server, "jobs:right");
    let client = Client::new(RedisStore::open(&url, Options::default()).await.unwrap());
    let worker = Worker::new(&client)
        .concurrency(1)
        .poll(Duration::from_millis(100))
        .handle(greet)
        .start()
        .await
        .unwrap();
    let chain = client.start(Greet).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.health().unwrap();

    for command in deny {
        run(command, &mut admin).await;
    }
    let is_denied = |error: &Error| error.kind() == ErrorKind::AccessDenied;
    let unhealthy = async || worker.health().is_err_and(|unhealthy| is_denied(&unhealthy.error));
    wait_until("the worker is unhealthy", TIMEOUT, unhealthy).await;
    let began = Instant::now();
    check(&client.count(Types::All).await.unwrap_err(), parts);
    assert!(began.elapsed() < IMMEDIATE, "{:?}", began.elapsed());

    run(allow, &mut admin).await;
    wait_until("the worker is healthy again", TIMEOUT, async || worker.health().is_ok()).await;
    let chain = client.start(Greet).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
}

/// The driver's connection manager alone would never log in again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_recovers_when_its_user_is_enabled_again() {
    let deny = ["ACL SETUSER jobs off", "CLIENT KILL USER jobs"];
    check_worker(&deny, "ACL SETUSER jobs on", CHECK_LOGIN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_recovers_when_its_user_may_run_scripts_again() {
    let parts =
        ["(user `jobs`)", "allow the user scripts", "`ACL SETUSER <user> ~{windlass:*}* &{windlass:*}*"];
    check_worker(&["ACL SETUSER jobs -@scripting"], "ACL SETUSER jobs +@all", &parts).await;
}

/// With RESP2 the driver reports too many clients as a failed login.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_recovers_when_the_server_accepts_clients_again() {
    for protocol in ["resp2", "resp3"] {
        let (server, mut admin) = server().await;
        let url = format!("{}?protocol={protocol}", url(&server, "jobs:right"));
        let client = Client::new(RedisStore::open(&url, Options::default()).await.unwrap());
        client.start(Greet).await.unwrap();
        run("CONFIG SET maxclients 1", &mut admin).await;
        run("CLIENT KILL USER jobs", &mut admin).await;
        // The server closes the connection. Depending on the moment, the driver reports that or the reason.
        let refused = async || {
            client.count(Types::All).await.is_err_and(|error| {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                true
            })
        };
        wait_until("the server refuses clients", TIMEOUT, refused).await;
        run("CONFIG SET maxclients 100", &mut admin).await;
        client.start(Greet).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_whose_user_is_disabled_refuses_subscriptions_until_it_is_enabled() {
    let (server, mut admin) = server().await;
    let notifier = RedisNotifier::open(&url(&server, "jobs:right"), &Options::default()).await.unwrap();
    let subscribe = async || notifier.subscribe(vec![Topic::Events]).await;
    let mut early = subscribe().await.unwrap();
    run("ACL SETUSER jobs off", &mut admin).await;
    run("CLIENT KILL USER jobs", &mut admin).await;
    wait_until("subscriptions are refused", TIMEOUT, async || {
        subscribe().await.is_err_and(|error| error.kind() == ErrorKind::AccessDenied)
    })
    .await;
    check(&subscribe().await.unwrap_err(), CHECK_LOGIN);
    run("ACL SETUSER jobs on", &mut admin).await;
    wait_until("subscriptions are accepted", TIMEOUT, async || subscribe().await.is_ok()).await;
    assert!(early.next().await.is_some(), "the earlier subscription learns of the gap");
}
