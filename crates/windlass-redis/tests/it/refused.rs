//! The server refuses a command or is unsuitable: missing permissions, full memory, old version.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use windlass_conformance::{Subject, complete, fail, json, retry, type_name};
use windlass_core::command::{Count, Create, Expire, NewChain, NewJob, Settle, Settlement, Types};
use windlass_core::{ChainId, Error, ErrorKind, ManualClock, Store};
use windlass_redis::{Options, RedisNotifier, RedisStore};
use windlass_testkit::{RedisServer, SharedRedis, shared_redis};

use crate::database::Database;
use crate::fixture::{connect, fresh};

const HUNDRED_DAYS: u64 = 100 * 24 * 60 * 60 * 1_000;

/// Adds ACL rules to the user that is named like the namespace.
async fn allow(rules: &str, server: &SharedRedis, database: &mut Database) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(server.namespace()).arg(rules.split(' ').collect::<Vec<_>>());
    let _: () = command.query_async(&mut database.connection).await.unwrap();
}

/// Returns the URL for that user.
fn url_of_user(server: &SharedRedis) -> String {
    server.url().replace("redis://", &format!("redis://{}:secret@", server.namespace()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_a_required_command_is_refused_when_opening() {
    let (server, _, options) = fresh().await;
    let mut database = Database::open(&server).await;
    let (url, tag) = (url_of_user(&server), format!("{{windlass:{}}}", server.namespace()));
    let store = async || RedisStore::open(&url, options.clone()).await;
    let notifier = async || RedisNotifier::open(&url, &options).await;
    let documented = "on >secret ~{windlass:*}* &{windlass:*}* +@all -@dangerous";
    allow(documented, &server, &mut database).await;
    store().await.unwrap();
    notifier().await.unwrap();

    let check = |error: Error, says: &[&str]| {
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
        assert!(says.iter().all(|part| error.to_string().contains(part)), "{error}");
    };
    allow("-zadd -@list", &server, &mut database).await;
    check(
        store().await.unwrap_err(),
        &[
            "ZADD",
            "RPUSH",
            "LRANGE",
            &format!("ACL SETUSER {}", server.namespace()),
            "+zadd",
            &format!("~{tag}*"),
        ],
    );
    notifier().await.unwrap();
    allow("allcommands -spublish", &server, &mut database).await;
    store().await.unwrap();
    check(notifier().await.unwrap_err(), &["SPUBLISH", "+spublish", &format!("&{tag}*")]);
    allow("allcommands resetchannels", &server, &mut database).await;
    check(notifier().await.unwrap_err(), &["SSUBSCRIBE", "SPUBLISH"]);
    allow("resetkeys ~another", &server, &mut database).await;
    check(store().await.unwrap_err(), &["allow the user scripts, and the keys"]);
    allow("allkeys -evalsha -eval", &server, &mut database).await;
    check(store().await.unwrap_err(), &["allow the user scripts"]);

    // `WAIT` is required only with `wait_for_replicas`, and a user without write commands may still read.
    allow("nocommands +@read +@write +@scripting +client +info +time", &server, &mut database).await;
    store().await.unwrap();
    let waiting = options.clone().wait_for_replicas(1, Duration::from_secs(1));
    check(RedisStore::open(&url, waiting).await.unwrap_err(), &["WAIT"]);
    allow("allcommands -@write", &server, &mut database).await;
    let looking = store().await.unwrap();
    looking.count(Count { types: Types::All }).await.unwrap();
    let create =
        Create { chains: vec![NewChain::new(ChainId::new(), NewJob::new(type_name("a"), json("1")))] };
    check(looking.create(create).await.unwrap_err(), &["may not use MSET"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_forbidden_command_is_not_written_partially() {
    let (server, clock, options) = fresh().await;
    let mut database = Database::open(&server).await;
    let allow = async |rules: &str, database: &mut Database| allow(rules, &server, database).await;
    allow("on >secret allkeys allcommands", &mut database).await;
    let url = url_of_user(&server);
    let store = Arc::new(RedisStore::open(&url, options).await.unwrap());
    let subject = Subject::new(store.clone(), store, clock);
    for job_type in ["a", "b"] {
        subject.start(job_type).await;
    }
    let (first, second) = (subject.acquire_one("a").await, subject.acquire_one("b").await);
    let outcomes = [(&first, complete("1")), (&second, retry("no"))];
    let settlements =
        outcomes.map(|(of, outcome)| Settlement { job: of.job.id, fence: of.job.fence, outcome });
    let settle = Settle { settlements: settlements.to_vec() };

    let before = database.dump().await;
    let commands = [
        "rpush", "ltrim", "exists", "zrem", "zadd", "hset", "hdel", "type", "hmget", "get", "mset", "unlink",
    ];
    let forbidden = commands.map(|command| format!("-{command}")).into_iter();
    for rules in forbidden.chain(["resetkeys %R~* ~*:job:*".to_owned()]) {
        allow(&rules, &mut database).await;
        let error = subject.store.settle(settle.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{rules}: {error}");
        assert!(error.to_string().contains("allow the user"), "{rules}: {error}");
        assert!(database.dump().await == before, "{rules}: something was written");
        allow("allkeys allcommands", &mut database).await;
    }
    subject.run(settle).await;
}

/// Redis 8.6 refuses to check a permission if the number of arguments is wrong. Other servers do not notice it.
#[tokio::test]
async fn permissions_are_checked_with_a_number_of_arguments_that_the_command_accepts() {
    let server = shared_redis().await;
    let mut connection = connect(server.url()).await;
    let count = "local redis = { acl_check_cmd = function(...) return select('#', ...) end }\n";
    let layout = include_str!("../../lua/lib/layout.lua");
    let script = redis::Script::new(&format!("{count}{layout}\nreturn is_allowed(ARGV[1], 'key')"));
    let commands = [
        "append",
        "exists",
        "hdel",
        "hset",
        "ltrim",
        "mset",
        "rpush",
        "sadd",
        "set",
        "srem",
        "unlink",
        "zadd",
        "zrem",
        "zremrangebyrank",
    ];
    for command in commands {
        let count: i64 =
            script.key("tag").arg(command.to_uppercase()).invoke_async(&mut connection).await.unwrap();
        let info: Vec<Vec<redis::Value>> =
            redis::cmd("COMMAND").arg("INFO").arg(command).query_async(&mut connection).await.unwrap();
        let redis::Value::Int(arity) = info[0][1] else { panic!("{info:?}") };
        // The arity includes the name. A negative one is a minimum.
        assert!(count == arity || arity < 0 && count >= -arity, "{command}: {count} and {arity}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_chains_are_removed_on_a_server_without_memory() {
    let server = RedisServer::builder().arg("--maxmemory-policy", "noeviction").start().await;
    let clock = Arc::new(ManualClock::default());
    let options = Options::default().clock(clock.clone());
    let store = Arc::new(RedisStore::open(&server.url(), options).await.unwrap());
    let subject = Subject::new(store.clone(), store, clock);
    // Failed jobs need their blocker, so removing each of them writes to the blocker's row.
    let blocker = subject.start("a").await;
    subject.work("a", complete("1")).await;
    for _ in 0..3 {
        subject.start("b").blocked_by([blocker]).await;
        subject.work("b", fail("no")).await;
    }
    subject.advance(HUNDRED_DAYS);

    let mut connection = connect(server.url()).await;
    let mut limit = redis::cmd("CONFIG");
    let _: () = limit.arg("SET").arg("maxmemory").arg(1).query_async(&mut connection).await.unwrap();
    let create = Create { chains: vec![subject.start("a").build()] };
    let error = subject.store.create(create).await.unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");

    for more in [true, false] {
        let reply = subject.run(Expire { max: 2 }).await;
        assert_eq!((reply.chains.len(), reply.more), (2, more));
    }
}

/// Starts a fake server that replies to the commands used to open a store, with this `INFO`. Returns its port.
fn server_of_version(info: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.unwrap(), info));
        }
    });
    port
}

/// Replies to commands until the connection ends.
fn answer(mut stream: TcpStream, info: &str) {
    for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
        let answer = match line.as_str() {
            "INFO" => format!("${}\r\n{info}\r\n", info.len()),
            "CLIENT" | "CONFIG" => "-ERR unknown command\r\n".to_owned(),
            "EVALSHA" => "*0\r\n".to_owned(),
            _ => continue,
        };
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_old_is_refused() {
    let open = async |info| {
        let url = format!("redis://127.0.0.1:{}/", server_of_version(info));
        RedisStore::open(&url, Options::default()).await
    };
    let error = open("# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("6.2.14") && error.to_string().contains("upgrade"), "{error}");

    let fine = [
        "# Server\r\nredis_version:7.0.0\r\n",
        "# Server\r\nredis_version:10.1.2\r\n",
        "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n",
        "# Server\r\nvalkey_version:9.0.0\r\n",
    ];
    for info in fine {
        open(info).await.unwrap();
    }
}
