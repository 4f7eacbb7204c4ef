//! TLS, users and passwords, by URL and with the caller's own client.

use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::{Client, IntoConnectionInfo, TlsCertificates};
use tokio::time::timeout;
use windlass_conformance::{json, type_name};
use windlass_core::command::{Create, NewChain, NewJob};
use windlass_core::{ChainId, Error, ErrorKind, Hint, Notifier, Signal, Store};
use windlass_redis::{Options, RedisNotifier, RedisStore};
use windlass_testkit::RedisServer;
use windlass_testkit::crash::{is_worker_process, this_test};

use crate::fixture::connect;

const TIMEOUT: Duration = Duration::from_secs(30);
const URL: &str = "WINDLASS_TLS_URL";
const PASSWORD: &str = "s3:cr@t/100%";
const PASSWORD_IN_URL: &str = "s3%3Acr%40t%2F100%25";

/// Starts a TLS server with a user `ada`.
async fn server() -> RedisServer {
    let server = RedisServer::builder().tls().start().await;
    let client = trusting(&server.url(), &server.certificate());
    let mut connection = connect(client.get_connection_info().clone()).await;
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("ada").arg("on").arg(format!(">{PASSWORD}"));
    user.arg("~{windlass:*").arg("&{windlass:*").arg("+@all");
    let _: () = user.query_async(&mut connection).await.unwrap();
    let _: () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("default")
        .arg("off")
        .query_async(&mut connection)
        .await
        .unwrap();
    server
}

fn url(server: &RedisServer, password: &str) -> String {
    server.url().replace("rediss://", &format!("rediss://ada:{password}@"))
}

/// Returns a client that trusts this certificate.
fn trusting(url: &str, certificate: &Path) -> Client {
    let root_cert = Some(fs::read(certificate).unwrap());
    Client::build_with_tls(
        url.into_connection_info().unwrap(),
        TlsCertificates { client_tls: None, root_cert },
    )
    .unwrap()
}

/// Creates a chain and receives a hint.
async fn use_both(store: RedisStore, notifier: RedisNotifier) {
    let chain = NewChain::new(ChainId::new(), NewJob::new(type_name("a"), json("1")));
    let hint = Hint::ChainClosed(chain.id);
    store.create(Create { chains: vec![chain] }).await.unwrap();
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();
    notifier.publish(hint.clone()).await.unwrap();
    assert_eq!(timeout(TIMEOUT, subscription.next()).await.unwrap(), Some(Signal::Hint(hint)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_client_uses_its_own_certificates() {
    let server = server().await;
    let client = trusting(&url(&server, PASSWORD_IN_URL), &server.certificate());
    let store = RedisStore::with_client(&client, Options::default()).await.unwrap();
    use_both(store, RedisNotifier::with_client(&client, &Options::default()).await.unwrap()).await;
}

/// Runs in a separate process that trusts the certificate.
#[tokio::test(flavor = "multi_thread")]
async fn by_url_alone() {
    if !is_worker_process() {
        return;
    }
    let (url, options) = (std::env::var(URL).unwrap(), Options::default());
    let store = RedisStore::open(&url, options.clone()).await.unwrap();
    use_both(store, RedisNotifier::open(&url, &options).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_is_enough_where_the_system_trusts_the_certificate() {
    let server = server().await;
    let mut command = this_test("tls::by_url_alone");
    command.env(URL, url(&server, PASSWORD_IN_URL)).env("SSL_CERT_FILE", server.certificate());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Checks that the error says what to do and contains no password.
fn check(error: &Error, kind: ErrorKind, says: &str) {
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(says), "{text}");
    assert!(!text.contains("s3") && !text.contains("wrong"), "{text}");
}

async fn check_both(client: &Client, kind: ErrorKind, says: &str) {
    check(&RedisStore::with_client(client, Options::default()).await.unwrap_err(), kind, says);
    check(&RedisNotifier::with_client(client, &Options::default()).await.unwrap_err(), kind, says);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_state_the_remedy_and_no_secret() {
    let server = server().await;
    for url in [url(&server, "wrong"), server.url()] {
        let client = trusting(&url, &server.certificate());
        check_both(&client, ErrorKind::AccessDenied, "check the user name and password").await;
    }

    let stranger = RedisServer::builder().tls().start().await;
    let other = trusting(&url(&server, PASSWORD_IN_URL), &stranger.certificate());
    check_both(&other, ErrorKind::Unavailable, "add the server's certificate").await;
}

#[tokio::test]
async fn an_invalid_url_is_not_printed() {
    for url in [
        format!("rediss://ada:{PASSWORD_IN_URL}@127.0.0.1:port/"),
        format!("rediss//ada:{PASSWORD_IN_URL}@127.0.0.1/"),
        format!("redis://ada:{PASSWORD_IN_URL}@127.0.0.1/database"),
    ] {
        let error = RedisStore::open(&url, Options::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("correct the URL") && !text.contains("s3"), "{text}");
    }
}
