use std::fs;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use windlass::Store;
use windlass::command::{LeaderLock, LockAction, LockState};
use windlass::id::RequestId;
use windlass::name::LockName;
use windlass::time::Millis;
use windlass_testkit::wait_until;

use crate::program::{Program, ended, run, terminate};

#[tokio::test]
async fn a_command_receives_the_job_and_its_environment() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    program.drain(&["first"], "echo '{\"a\": 1}'").await;
    let chain = program
        .ok(&["start", "second", "[7]", "--key", "k", "--blocked-by", &blocker, "--max-attempts", "9"])
        .await;
    let script = r#"printf '%s|' "$WINDLASS_JOB_ID" "$WINDLASS_JOB_TYPE" "$WINDLASS_CHAIN_ID" "$WINDLASS_ATTEMPT" \
        "$WINDLASS_MAX_ATTEMPTS" "$WINDLASS_KEY" "$(cat "$WINDLASS_BLOCKERS")" "$(cat)""#;
    program.drain(&["second"], script).await;
    let expected = format!("\"{chain}|second|{chain}|1|9|k|[{{\\\"a\\\": 1}}]|[7]|\"");
    assert_eq!(program.ok(&["wait", &chain]).await, expected);
}

#[tokio::test]
async fn a_trace_context_is_passed_on_to_every_step() {
    let program = Program::on_sqlite();
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut start = program.command(&["start", "first"]);
    start.env("TRACEPARENT", context);
    let chain = run(start).await;
    let chain = chain.stdout.trim().to_owned();
    let script = r#"if [ "$WINDLASS_JOB_TYPE" = first ]; then
        echo "{\"then\": {\"type\": \"second\", \"input\": \"$TRACEPARENT\"}}" > "$WINDLASS_OUTCOME"
    else printf '%s %s' "$(cat)" "$TRACEPARENT"; fi"#;
    program.drain(&["first", "second"], script).await;
    assert_eq!(program.ok(&["wait", &chain]).await, format!("\"\\\"{context}\\\" {context}\""));
    let mut start = program.command(&["start", "third"]);
    start.env("TRACEPARENT", "malformed");
    let malformed = run(start).await;
    let note = "TRACEPARENT is ignored: \"malformed\" is not a trace context";
    assert_eq!((malformed.code, malformed.stderr.matches(note).count()), (0, 1), "{malformed:?}");
    let malformed = malformed.stdout.trim().to_owned();
    for chain in [program.ok(&["start", "third"]).await, malformed] {
        program.drain(&["third"], "echo \"[${TRACEPARENT-none}]\"").await;
        assert_eq!(program.ok(&["wait", &chain]).await, "\"[none]\"");
    }
}

#[tokio::test]
async fn a_drained_type_that_is_not_stored_is_noted() {
    let program = Program::on_sqlite();
    program.ok(&["start", "first"]).await;
    let script = "if [ $WINDLASS_JOB_TYPE = first ]; then echo '{\"then\": {\"type\": \"second\"}}' > $WINDLASS_OUTCOME; fi";
    let ran = program.drain(&["first", "second", "frist"], script).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let notes: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("no job of type")).collect();
    assert_eq!(notes, ["no job of type `frist` is stored: check the name, --store and --namespace"]);
}

#[tokio::test]
async fn metrics_are_served_while_the_worker_runs() {
    let program = Program::on_sqlite();
    program.ok(&["start", "seen"]).await;
    let arguments = ["work", "seen", "--exec", "true", "--metrics", "127.0.0.1:0"];
    let mut child = program.command(&arguments).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = loop {
        let note = notes.next_line().await.unwrap().expect("the worker prints its address");
        if let Some((_, url)) = note.split_once("metrics at http://") {
            break url.to_owned();
        }
    };
    let (address, path) = url.split_once('/').unwrap();
    let expected = "windlass_job_completed_total{messaging_destination_name=\"seen\"";
    wait_until("the job is counted", Duration::from_secs(60), async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /{path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.contains(expected) && answer.contains("windlass_state_jobs{")
    })
    .await;
    terminate(&child).await;
    assert!(child.wait().await.unwrap().success());
    assert!(can_report_state(&program).await, "the lock is released when the worker stops");
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = program.run(&["work", "seen", "--exec", "true", "--metrics", &address]).await;
    let text = format!("--metrics: cannot listen at {address}");
    assert!(refused.code == 1 && refused.stderr.contains(&text), "{refused:?}");
}

/// Whether no process holds the lock of the state gauges.
async fn can_report_state(program: &Program) -> bool {
    let store = windlass::sqlite::open(program.directory().join("jobs.db")).await.unwrap();
    let (name, token) = (LockName::new("windlass-telemetry").unwrap(), RequestId::new());
    let action = LockAction::Hold(Millis::from_secs(1));
    let reply = store.leader_lock(LeaderLock { name, token, action }).await.unwrap();
    store.close().await.unwrap();
    matches!(reply.state, LockState::Held(_))
}

#[tokio::test]
async fn exit_codes_determine_the_outcome() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "once"]).await;
    let ran = program.drain(&["once"], "echo hopeless >&2; exit 65").await;
    assert!(ran.stderr.contains("hopeless"), "standard error is forwarded: {ran:?}");
    let waited = program.run(&["wait", &chain]).await;
    assert_eq!((waited.code, waited.stderr.contains("hopeless")), (1, true), "{waited:?}");

    let chain = program.ok(&["start", "later"]).await;
    program
        .drain(&["later"], r#"echo '{"again_at": "2999-01-01T00:00:00Z"}' > "$WINDLASS_OUTCOME"; exit 75"#)
        .await;
    let job = &program.json(&["jobs", &chain]).await[0];
    assert_eq!(
        (&job["due_at"], &job["attempt"]),
        (&"2999-01-01T00:00:00.000Z".into(), &0.into()),
        "the attempt does not count"
    );

    let chain = program.ok(&["start", "again"]).await;
    program.drain(&["again"], "[ \"$WINDLASS_ATTEMPT\" = 3 ] || exit 1").await;
    wait_until("the third attempt", Duration::from_secs(60), async || {
        program.drain(&["again"], "[ \"$WINDLASS_ATTEMPT\" = 3 ] || exit 1").await;
        program.json(&["jobs", &chain]).await[0]["status"] == "completed"
    })
    .await;
    assert_eq!(program.json(&["jobs", &chain]).await[0]["attempt"], 3);
}

#[tokio::test]
async fn a_command_returns_a_continuation() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "pay", "{\"order\": 7}"]).await;
    let script = r#"if [ "$WINDLASS_JOB_TYPE" = pay ]; then
        echo '{"then": {"type": "ship", "input": {"order": 7}}, "start": [{"type": "mail", "key": "7"}]}' > "$WINDLASS_OUTCOME"
    else cat; fi"#;
    program.drain(&["pay", "ship"], script).await;
    assert_eq!(program.ok(&["wait", &chain]).await, "{\"order\": 7}");
    let found = &program.json(&["chains", &chain]).await[0];
    assert_eq!((&found["jobs"], &found["job_type"]), (&2.into(), &"ship".into()));
    assert_eq!(program.json(&["jobs", "--type", "mail"]).await.len(), 1);
}

#[tokio::test]
async fn a_command_may_call_the_program_itself() {
    let program = Program::on_sqlite();
    program.ok(&["start", "parent"]).await;
    let script = format!("'{}' start child 7 > /dev/null", env!("CARGO_BIN_EXE_windlass"));
    program.drain(&["parent"], &script).await;
    assert_eq!(program.json(&["jobs", "--type", "child"]).await.len(), 1);
}

/// The command always receives the store, with a path that is valid in every directory.
#[tokio::test]
async fn a_command_finds_the_store_from_any_directory() {
    let program = Program::on_sqlite();
    let script = format!(
        "cd / && '{}' start child 7 > /dev/null && echo \"$WINDLASS_STORE|$WINDLASS_NAMESPACE|$WINDLASS_NOTIFIER\"",
        env!("CARGO_BIN_EXE_windlass")
    );
    let cases: [(&[&str], &str, &str); 2] = [
        (&[], "windlass.db", "||"),
        (&["--store", "sqlite:other.db", "--namespace", "ns", "--notifier", "none"], "other.db", "|ns|none"),
    ];
    for (place, file, rest) in cases {
        let call = async |arguments: &[&str]| {
            let ran = run(program.bare(&[arguments, place].concat())).await;
            assert_eq!(ran.code, 0, "{ran:?}");
            ran.stdout.trim().to_owned()
        };
        let chain = call(&["start", "parent"]).await;
        call(&["work", "parent", "--exec", &script, "--drain"]).await;
        let directory = program.directory().canonicalize().unwrap();
        let expected = format!("\"sqlite:{}{rest}\"", directory.join(file).display());
        assert_eq!(call(&["wait", &chain]).await, expected);
        assert_eq!(call(&["jobs", "--type", "child", "--json"]).await.lines().count(), 1);
    }
}

#[tokio::test]
async fn an_invalid_outcome_fails_the_attempt() {
    let program = Program::on_sqlite();
    let cases = [
        (r#"{"again_in": "5m"}"#, 0, "$WINDLASS_OUTCOME: `again_in` requires exit code 75"),
        (r#"{"then": {"type": "b", "key": "k"}}"#, 0, "`then` must not have a `key`"),
        (r#"{"thenn": 1}"#, 0, "$WINDLASS_OUTCOME is invalid: unknown field `thenn`"),
        (r#"{"then": {"type": "b"}}"#, 65, "the command ended with exit status: 65"),
    ];
    for (said, code, error) in cases {
        let chain = program.ok(&["start", "a", "--max-attempts", "1"]).await;
        let ran = program.drain(&["a"], &format!("echo '{said}' > \"$WINDLASS_OUTCOME\"; exit {code}")).await;
        let job = &program.json(&["jobs", &chain]).await[0];
        assert!(job["status"] == "failed" && job["error"].as_str().unwrap().contains(error), "{said}: {job}");
        assert_eq!(ran.stderr.contains("; ignored"), code != 0, "{ran:?}");
    }
    assert!(program.json(&["jobs", "--type", "b"]).await.is_empty());
}

#[tokio::test]
async fn a_stopping_worker_lets_commands_finish() {
    let program = Program::on_sqlite();
    let first = program.ok(&["start", "slow"]).await;
    let second = program.ok(&["start", "slow"]).await;
    // The command ends when the test creates a file. The second job must not start.
    let command = "touch begun; until [ -e go ]; do sleep 0.02; done; echo ended";
    let worker = program.command(&["work", "slow", "--exec", command]).spawn().unwrap();
    wait_until("the command runs", Duration::from_secs(60), async || {
        program.directory().join("begun").exists()
    })
    .await;
    terminate(&worker).await;
    fs::write(program.directory().join("go"), "").unwrap();
    let ran = ended(worker).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(program.ok(&["wait", &first]).await, "\"ended\"");
    assert_eq!(program.json(&["jobs", &second]).await[0]["status"], "pending");
}

/// The shell ignores SIGTERM, so only SIGKILL ends it and its child.
const STUBBORN: &str =
    "trap '' TERM; (until [ -e never ]; do sleep 0.05; done) & echo $! > child; touch begun; wait; wait";

/// Starts a worker with a stubborn command, which runs when this returns.
async fn stubborn(program: &Program, options: &[&str]) -> tokio::process::Child {
    let arguments = ["work", "slow", "--exec", STUBBORN, "--grace", "200ms"];
    let worker = program.command(&[&arguments, options].concat()).spawn().unwrap();
    let begun = program.directory().join("begun");
    wait_until("the command runs", Duration::from_secs(60), async || begun.exists()).await;
    worker
}

/// Checks that the worker has ended, that its command and the command's child have too, and that the job is released.
async fn gave_up(program: &Program, worker: tokio::process::Child, chain: &str) {
    assert_eq!(ended(worker).await.code, 0);
    let child: u32 = fs::read_to_string(program.directory().join("child")).unwrap().trim().parse().unwrap();
    wait_until("its child has ended", Duration::from_secs(60), async || has_ended(child)).await;
    let job = &program.json(&["jobs", chain]).await[0];
    assert_eq!((&job["status"], &job["attempt"]), (&"pending".into(), &0.into()), "{job}");
}

#[tokio::test]
async fn a_second_signal_terminates_commands_at_once() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "slow"]).await;
    let worker = stubborn(&program, &["--stop-timeout", "10m"]).await;
    terminate(&worker).await;
    // A signal that arrives before the first one was handled counts as the same.
    let stopping = Instant::now();
    wait_until("the worker has noticed the first signal", Duration::from_secs(60), async || {
        stopping.elapsed() > Duration::from_secs(1)
    })
    .await;
    terminate(&worker).await;
    gave_up(&program, worker, &chain).await;
    assert!(stopping.elapsed() < Duration::from_secs(60), "{:?}", stopping.elapsed());
}

#[tokio::test]
async fn commands_are_terminated_after_the_stop_timeout() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "slow"]).await;
    let worker = stubborn(&program, &["--stop-timeout", "500ms"]).await;
    terminate(&worker).await;
    gave_up(&program, worker, &chain).await;
}

#[tokio::test]
async fn a_timeout_terminates_the_command_and_its_children() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "slow"]).await;
    let arguments =
        ["work", "slow", "--exec", STUBBORN, "--timeout", "5s", "--grace", "200ms", "--backoff", "1h"];
    let worker = program.command(&arguments).spawn().unwrap();
    wait_until("the attempt has ended", Duration::from_secs(60), async || {
        !program.json(&["jobs", &chain]).await[0]["error"].is_null()
    })
    .await;
    let job = &program.json(&["jobs", &chain]).await[0];
    assert_eq!(job["error"], "the command was terminated: it ran longer than --timeout");
    let child: u32 = fs::read_to_string(program.directory().join("child")).unwrap().trim().parse().unwrap();
    wait_until("its child has ended", Duration::from_secs(60), async || has_ended(child)).await;
    terminate(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
}

/// Whether a process has ended. A zombie has.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, facts)| facts.starts_with('Z'))
}

#[tokio::test]
async fn cancelling_a_chain_stops_its_command() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "slow"]).await;
    let command = "trap 'touch asked; exit 1' TERM; touch begun; while :; do sleep 0.02; done";
    let worker = program.command(&["work", "slow", "--exec", command, "--lease", "10s"]).spawn().unwrap();
    wait_until("the command runs", Duration::from_secs(60), async || {
        program.directory().join("begun").exists()
    })
    .await;
    assert_eq!(program.run(&["cancel", &chain]).await.code, 1, "it keeps running");
    assert!(program.ok(&["cancel", "--running", &chain]).await.ends_with("asked to stop"));
    wait_until("it is cancelled", Duration::from_secs(60), async || {
        program.json(&["jobs", &chain]).await[0]["status"] == "cancelled"
    })
    .await;
    assert!(program.directory().join("asked").exists());
    terminate(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
}
