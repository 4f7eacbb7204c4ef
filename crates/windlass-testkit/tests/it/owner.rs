//! Servers end, and their directories are removed, when the process that started them ends.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use windlass_testkit::wait_until;

use crate::is_alive;

/// Number of servers that the owner starts.
const SERVERS: usize = 3;

/// Starts an owner of servers, ends it, and waits until its servers and their directories are gone.
async fn check(end: impl FnOnce(&mut Child)) {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_server_owner"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(owner.stdout.take().unwrap());
    let servers: Vec<(u32, PathBuf)> = output
        .lines()
        .take(SERVERS)
        .map(|line| {
            let line = line.unwrap();
            let (pid, directory) = line.split_once(' ').unwrap();
            (pid.parse().unwrap(), directory.into())
        })
        .collect();
    assert_eq!(servers.len(), SERVERS);
    assert!(servers.iter().all(|(pid, directory)| is_alive(*pid) && directory.is_dir()));

    end(&mut owner);
    owner.wait().unwrap();
    for (pid, directory) in servers {
        wait_until("the server is gone", Duration::from_secs(60), async || !is_alive(pid)).await;
        wait_until("the directory is gone", Duration::from_secs(60), async || !directory.exists()).await;
    }
}

#[tokio::test]
async fn servers_end_with_a_process_that_is_killed() {
    check(|owner| owner.kill().unwrap()).await;
}

#[tokio::test]
async fn servers_end_with_a_process_that_exits() {
    check(|owner| drop(owner.stdin.take())).await;
}
