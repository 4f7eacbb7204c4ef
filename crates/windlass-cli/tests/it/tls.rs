//! TLS connections, configured by the URL alone.

use windlass_testkit::{PostgresServer, RedisServer};

use crate::program::{Program, run};

#[tokio::test]
async fn stores_are_opened_over_tls() {
    let (postgres, redis) =
        (PostgresServer::builder().tls().start().await, RedisServer::builder().tls().start().await);
    let stores = [
        (format!("{}?sslmode=verify-full", postgres.url()), postgres.certificate()),
        (redis.url(), redis.certificate()),
    ];
    let program = Program::on_sqlite();
    for (url, certificate) in stores {
        let migrate = |trusted: bool| {
            let mut command = program.bare(&["migrate", "--store", &url]);
            if trusted {
                command.env("SSL_CERT_FILE", &certificate);
            }
            run(command)
        };
        let refused = migrate(false).await;
        assert_eq!((refused.code, refused.stderr.lines().count()), (4, 1), "{refused:?}");
        let reached = migrate(true).await;
        assert_eq!(reached.code, 0, "{reached:?}");
    }
}
