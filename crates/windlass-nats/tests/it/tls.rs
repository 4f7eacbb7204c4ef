//! TLS, users and passwords, given in the URL or by the caller's own client.

use std::time::Duration;

use async_nats::ConnectOptions;
use tokio::time::timeout;
use windlass_core::{ChainId, ErrorKind, Hint, Notifier, Signal};
use windlass_nats::{NatsNotifier, Options};
use windlass_testkit::NatsServer;
use windlass_testkit::crash::{is_worker_process, this_test};

const TIMEOUT: Duration = Duration::from_secs(30);
const URL: &str = "WINDLASS_TLS_URL";
const PASSWORD: &str = "s3:cr@t/100%";
const PASSWORD_IN_URL: &str = "s3%3Acr%40t%2F100%25";

/// Starts a TLS server with a user `ada`.
async fn server() -> NatsServer {
    NatsServer::builder().tls().arg("--user", "ada").arg("--pass", PASSWORD).start().await
}

fn url(server: &NatsServer, password: &str) -> String {
    server.url().replace("tls://", &format!("tls://ada:{password}@"))
}

async fn hear_a_hint(notifier: NatsNotifier) {
    let hint = Hint::ChainClosed(ChainId::new());
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();
    notifier.publish(hint.clone()).await.unwrap();
    assert_eq!(timeout(TIMEOUT, subscription.next()).await.unwrap(), Some(Signal::Hint(hint)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_client_uses_its_own_certificates() {
    let server = server().await;
    let options = ConnectOptions::with_user_and_password("ada".to_owned(), PASSWORD.to_owned());
    let client = options.add_root_certificates(server.certificate()).connect(server.url()).await.unwrap();
    hear_a_hint(NatsNotifier::with_client(client, Options::default()).await.unwrap()).await;
}

/// Runs in its own process, whose system trusts the certificate.
#[tokio::test(flavor = "multi_thread")]
async fn by_url_alone() {
    if is_worker_process() {
        let url = std::env::var(URL).unwrap();
        hear_a_hint(NatsNotifier::open(&url, Options::default()).await.unwrap()).await;
    }
}

/// Like [`by_url_alone`], with a wrong password.
#[tokio::test(flavor = "multi_thread")]
async fn by_url_with_a_wrong_password() {
    if is_worker_process() {
        let url = std::env::var(URL).unwrap();
        check_refused(&url, ErrorKind::AccessDenied, "check the password of user `ada`").await;
    }
}

async fn in_a_process_that_trusts(server: &NatsServer, test: &str, password: &str) {
    let mut command = this_test(test);
    command.env(URL, url(server, password)).env("SSL_CERT_FILE", server.certificate());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_is_enough_where_the_system_trusts_the_certificate() {
    let server = server().await;
    in_a_process_that_trusts(&server, "tls::by_url_alone", PASSWORD_IN_URL).await;
    in_a_process_that_trusts(&server, "tls::by_url_with_a_wrong_password", "wr0ng").await;
}

/// Asserts that the error states the remedy and contains no secret.
async fn check_refused(url: &str, kind: ErrorKind, says: &str) {
    let error = NatsNotifier::open(url, Options::default()).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(says), "{text}");
    assert!(!text.contains("s3") && !text.contains("wr0ng"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_state_the_remedy_and_no_secret() {
    let server = server().await;
    check_refused(&url(&server, PASSWORD_IN_URL), ErrorKind::Unavailable, "add the server's certificate")
        .await;
    let plain = NatsServer::builder().arg("--user", "ada").arg("--pass", PASSWORD).start().await;
    let with = |password| plain.url().replace("nats://", &format!("nats://ada:{password}@"));
    let began = std::time::Instant::now();
    check_refused(&with("wr0ng"), ErrorKind::AccessDenied, "check the password of user `ada`").await;
    check_refused(&plain.url(), ErrorKind::AccessDenied, "check the user name and password").await;
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "{:?}", began.elapsed());
    hear_a_hint(NatsNotifier::open(&with(PASSWORD_IN_URL), Options::default()).await.unwrap()).await;

    for bad in ["nats://ada:s3cret@127.0.0.1:port", "http://ada:s3cret@127.0.0.1"] {
        let error = NatsNotifier::open(bad, Options::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(!format!("{error} {error:?}").contains("s3"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_a_user_without_a_password() {
    let server = NatsServer::builder().arg("--auth", "t0ken/1").start().await;
    let url = server.url().replace("nats://", "nats://t0ken%2F1@");
    hear_a_hint(NatsNotifier::open(&url, Options::default()).await.unwrap()).await;
}
