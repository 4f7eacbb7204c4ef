//! A process that owns servers, for tests of what happens when their owner ends.
//!
//! It starts its own Redis server, the shared one and a PostgreSQL server, and prints one line with the process id and
//! the directory of each. Then it waits for its standard input to end, and exits.

use std::io;

use windlass_testkit::{PostgresServer, RedisServer, shared_redis};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let own = RedisServer::start().await;
    let shared = shared_redis().await;
    let postgres = PostgresServer::start().await;
    let servers = [
        (own.pid(), own.directory()),
        (shared.server().pid(), shared.server().directory()),
        (postgres.pid(), postgres.directory()),
    ];
    for (pid, directory) in servers {
        println!("{} {}", pid.expect("it runs"), directory.display());
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
