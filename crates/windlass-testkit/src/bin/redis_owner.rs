//! A process that owns servers, for the tests of what happens when it ends.
//!
//! It starts a server of its own and the shared one, and prints the process id and the folder of each,
//! a line for a server. Then it waits for its standard input to end, and exits.

use std::io;

use windlass_testkit::{RedisServer, shared_redis};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let own = RedisServer::start().await;
    let shared = shared_redis().await;
    for server in [&own, shared.server()] {
        let pid = server.pid().expect("it runs");
        println!("{pid} {}", server.folder().display());
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
