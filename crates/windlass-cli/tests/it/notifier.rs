//! Hints through a server other than the store's.

use std::time::Duration;

use windlass_testkit::{NatsServer, wait_until};

use crate::program::{Program, ended, terminate};

/// Without hints, the worker would poll only after an hour, and the wait times out after 30 s.
#[tokio::test]
async fn hints_are_delivered_over_nats() {
    let server = NatsServer::start().await;
    let program = Program::on_redis().await;
    for url in [server.url(), format!("{}?bucket=windlass", server.url())] {
        let with = ["--notifier", url.as_str()];
        program.doctor(&with, |ran| ran.stdout.contains("notifier: ok")).await;
        let worker = program
            .command(&[&["work", "greet", "--exec", "echo hello", "--poll", "1h"], &with[..]].concat())
            .spawn()
            .unwrap();
        wait_until("the worker is listed", Duration::from_secs(60), async || {
            !program.json(&["workers"]).await.is_empty()
        })
        .await;
        for _ in 0..3 {
            assert_eq!(program.ok(&[&["start", "greet", "--wait"], &with[..]].concat()).await, "\"hello\"");
        }
        terminate(&worker).await;
        assert_eq!(ended(worker).await.code, 0);
    }
}

#[tokio::test]
async fn errors_about_an_unreachable_server_hide_the_password() {
    let mut server = NatsServer::start().await;
    server.kill().await;
    let program = Program::on_sqlite();
    let url = format!("nats://s3cret@127.0.0.1:{}", server.port());
    let ran = program.run(&["start", "mail", "--notifier", &url]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
    assert!(ran.stderr.starts_with("error: --notifier: NATS: ") && !ran.stderr.contains("s3cret"), "{ran:?}");
}
