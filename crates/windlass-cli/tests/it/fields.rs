//! Checks that the commands print exactly the JSON fields that docs/cli.md lists.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use windlass_testkit::wait_until;

use crate::program::{Program, ended, objects, terminate};
use crate::serve::Serving;

const PAGE: &str = include_str!("../../../../docs/cli.md");

#[tokio::test]
async fn documented_fields_are_printed() {
    let mut page = Page::read();
    let program = Program::on_sqlite();
    page.check("migrate", &program.json(&["migrate"]).await);
    page.check("migrate --status", &program.json(&["migrate", "--status"]).await);
    let started = program.json(&["start", "mail", "--key", "k"]).await;
    page.check("start", &started);
    let chain = started[0]["chain"].as_str().unwrap();
    page.check("enqueue", &program.json(&["enqueue", "shout", "1", "7"]).await);
    for change in ["trigger", "cancel", "retry"] {
        page.check(change, &program.json(&[change, chain]).await);
    }
    program.drain(&["shout", "mail"], "cat").await;
    page.check("wait", &program.json(&["wait", chain]).await);
    page.check("enqueue --wait", &program.json(&["enqueue", "shout", "1", "--wait"]).await);
    page.check("chains", &program.json(&["chains"]).await);
    page.check("jobs", &program.json(&["jobs"]).await);
    page.check("chains ID", &program.json(&["chains", chain]).await);
    let job = program.json(&["jobs", chain]).await;
    page.check("one of attempts", job[0]["attempts"].as_array().unwrap());
    page.check("jobs ID", &job);
    page.check("queues", &program.json(&["queues"]).await);
    page.check("stats", &program.json(&["stats"]).await);
    let put = ["schedules", "put", "nightly", "mail", "--cron", "@daily"];
    page.check("schedules put", &program.json(&put).await);
    page.check("schedules run", &program.json(&["schedules", "run", "nightly"]).await);
    page.check("schedules", &program.json(&["schedules"]).await);
    let nightly = program.json(&["schedules", "nightly"]).await;
    page.check("schedules NAME", &nightly);
    page.check("one of runs", nightly[0]["runs"].as_array().unwrap());
    for change in ["pause", "resume", "accept", "delete"] {
        let name = format!("schedules {change}");
        page.check(&name, &program.json(&["schedules", change, "nightly"]).await);
    }
    program.drain(&["mail"], "cat").await;
    let healthy = program.doctor(&["--json"], |ran| ran.code == 0).await;
    page.check("doctor", &objects(&healthy.stdout));
    page.check("pause", &program.json(&["pause", "mail"]).await);
    page.check("resume", &program.json(&["resume", "mail"]).await);
    page.check("delete", &program.json(&["delete", chain]).await);
    let other = program.ok(&["start", "approval"]).await;
    page.check("complete", &program.json(&["complete", &other, "1"]).await);
    let folder = Program::on_file();
    folder.ok(&["migrate"]).await;
    page.check("backup", &folder.json(&["backup", "copy"]).await);
    check_worker(&mut page, &program).await;
    let tokens = ["--tokens", "tokens.toml"];
    let token = |arguments: &[&'static str]| [&["serve", "token"], arguments, &tokens].concat();
    page.check("serve token create", &program.json(&token(&["create", "ada", "--role", "read"])).await);
    page.check("serve token list", &program.json(&token(&["list"])).await);
    page.check("serve token revoke", &program.json(&token(&["revoke", "ada"])).await);
    let server = Serving::start(&program, &["--json"]).await;
    page.check("serve", &objects(&server.first_line));
    server.stop().await;
    let demo = program.json(&["demo", "--orders", "2"]).await;
    page.check("one of checks", demo[0]["checks"].as_array().unwrap());
    page.check("demo", &demo);
    page.check("bench", &program.json(&["bench", "--jobs", "10"]).await);
    assert_eq!(page.unchecked, BTreeSet::new(), "documented, but not checked here");
}

async fn check_worker(page: &mut Page, program: &Program) {
    let worker =
        program.command(&["work", "greet", "--exec", "echo hello"]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the worker is listed", Duration::from_secs(60), async || {
        !program.json(&["workers"]).await.is_empty()
    })
    .await;
    page.check("workers", &program.json(&["workers"]).await);
    page.check("start --wait", &program.json(&["start", "greet", "--wait"]).await);
    terminate(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
}

/// The field table of docs/cli.md.
struct Page {
    fields: BTreeMap<String, BTreeSet<String>>,
    unchecked: BTreeSet<String>,
}

impl Page {
    fn read() -> Self {
        let (_, json) = PAGE.split_once("\n## JSON\n").unwrap();
        let (table, _) = json.split_once("\n## ").unwrap();
        let mut fields = BTreeMap::<String, BTreeSet<String>>::new();
        for row in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
            let [_, commands, documented, _] = row.split('|').collect::<Vec<_>>()[..] else {
                panic!("{row}")
            };
            let mut names: BTreeSet<_> = quoted(documented).map(str::to_owned).collect();
            if let Some((_, other)) = documented.split_once("the fields of `") {
                let (other, _) = other.split_once('`').unwrap();
                names.remove(other);
                names.extend(fields[other].iter().cloned());
            }
            let is_part = commands.contains("one of");
            for command in quoted(commands) {
                let name = if is_part { format!("one of {command}") } else { command.to_owned() };
                fields.insert(name, names.clone());
            }
        }
        Self { unchecked: fields.keys().cloned().collect(), fields }
    }

    fn check(&mut self, name: &str, printed: &[Value]) {
        assert!(!printed.is_empty(), "{name}");
        for object in printed {
            let printed: BTreeSet<_> = object.as_object().unwrap().keys().cloned().collect();
            assert_eq!(printed, self.fields[name], "{name}");
        }
        self.unchecked.remove(name);
    }
}

/// Returns the words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}
