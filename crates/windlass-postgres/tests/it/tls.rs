//! Encrypted connections.

use windlass_conformance::type_name;
use windlass_core::command::{Count, Types};
use windlass_core::{ErrorKind, Hint, Notifier, Signal, Store, Timestamp};
use windlass_postgres::{Options, PostgresNotifier, PostgresStore, Sqlx};
use windlass_testkit::PostgresServer;

#[tokio::test(flavor = "multi_thread")]
async fn the_store_and_the_notifier_connect_with_tls() {
    let server = PostgresServer::builder().tls().start().await;
    let verified = format!("verify-full&sslrootcert={}", server.certificate().display());
    for mode in ["require", &verified] {
        let provider = Sqlx::connect(&format!("{}?sslmode={mode}", server.url())).await.unwrap();
        let store = PostgresStore::open(provider.clone(), Options::default()).await.unwrap();
        store.count(Count { types: Types::All }).await.unwrap();
        let notifier = PostgresNotifier::new(provider, &Options::default()).unwrap();
        let hint = Hint::Scheduled { job_type: type_name("a"), count: 1, due_at: Timestamp::default() };
        let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();
        notifier.publish(hint.clone()).await.unwrap();
        assert_eq!(subscription.next().await, Some(Signal::Hint(hint)));
        let others = "select count(*) filter (where s.ssl) > 1, count(*) filter (where not s.ssl) \
             from pg_stat_ssl s join pg_stat_activity a using (pid) \
             where a.backend_type = 'client backend' and a.application_name <> 'psql'";
        assert_eq!(server.query(others), "t|0", "all of them are encrypted: {mode}");
        notifier.close().await.unwrap();
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_untrusted_certificate_is_refused() {
    let server = PostgresServer::builder().tls().start().await;
    let error = Sqlx::connect(&format!("{}?sslmode=verify-full", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");

    let plain = PostgresServer::start().await;
    let error = Sqlx::connect(&format!("{}?sslmode=require", plain.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}
