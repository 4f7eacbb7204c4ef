//! Hints by another server than the store's.

use std::time::{Duration, Instant};

use windlass_testkit::{NatsServer, wait_until};

use crate::program::{Program, ended, terminate};

/// A worker that hears nothing would look after a minute.
#[tokio::test]
async fn hints_travel_over_nats() {
    let server = NatsServer::start().await;
    let program = Program::on_redis().await;
    for url in [server.url(), format!("{}?bucket=windlass", server.url())] {
        let with = ["--notifier", url.as_str()];
        let checks = program.run(&[&["doctor"], &with[..]].concat()).await;
        assert!(checks.stdout.contains("notifier: ok"), "{checks:?}");

        let worker = program
            .command(&[&["work", "greet", "--exec", "echo hello"], &with[..]].concat())
            .spawn()
            .unwrap();
        wait_until("the worker is there", Duration::from_secs(20), async || {
            !program.json(&["workers"]).await.is_empty()
        })
        .await;
        let began = Instant::now();
        for _ in 0..3 {
            assert_eq!(program.ok(&[&["start", "greet", "--wait"], &with[..]].concat()).await, "\"hello\"");
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        terminate(&worker).await;
        assert_eq!(ended(worker).await.code, 0);
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_told_without_its_password() {
    let mut server = NatsServer::start().await;
    server.kill().await;
    let program = Program::on_sqlite();
    let url = format!("nats://s3cret@127.0.0.1:{}", server.port());
    let ran = program.run(&["start", "mail", "--notifier", &url]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
    assert!(ran.stderr.starts_with("error: --notifier: NATS: ") && !ran.stderr.contains("s3cret"), "{ran:?}");
}
