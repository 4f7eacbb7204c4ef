//! Runs the workloads on a store and counts instructions. `cargo xtask bench` builds and runs this program.

#![forbid(unsafe_code)]

use std::env;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{self, ExitCode};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use windlass::sqlite::Synchronous;
use windlass::{BoxError, Client, MemoryStore};
use windlass_bench::commits::{Commits, GOAL};
use windlass_bench::comparison::{self, Absent, Program};
use windlass_bench::instructions::{BUDGET, Instructions};
use windlass_bench::subject::{File, Footprint, Memory, Postgres, Redis, Sqlite};
use windlass_bench::suite::{self, Plan, depths};
use windlass_bench::telemetry::{
    GaugeCost, OBSERVER_MAX, ObserverCost, Providers, TELEMETRY_MAX_US, TelemetryCost,
};
use windlass_bench::{Report, callers, candidate, channel, postgres_scale, scale, telemetry, workload};

/// The command that runs this program as a candidate of a comparison.
const CANDIDATE: &str = "candidate";

/// Names of stores with their settings.
const SQLITE_NORMAL: &str = "SQLite, NORMAL";
const POSTGRES_DURABLE: &str = "PostgreSQL, fsync and synchronous_commit on";
const REDIS_DURABLE: &str = "Redis, appendfsync always";

const HELP: &str = "\
usage: windlass-bench memory [--quick] [--only WORD] [--json] [--instructions]
       windlass-bench file [--quick] [--only WORD] [--rounds N] [--json]
       windlass-bench sqlite|postgres|redis [--quick] [--only WORD] [--rounds N] [--normal] [--json]
       windlass-bench commits [--quick] [--rounds N]
       windlass-bench postgres-scale [--quick] [--only WORD] [--rounds N] [--write DIRECTORY] [--command TEXT]
       windlass-bench telemetry [--quick] [--rounds N] [--store WORD] [--unobserved PROGRAM] [--instructions]
       windlass-bench gauges [--quick] [--rounds N] [--store WORD]
       windlass-bench scale|callers sqlite|postgres|redis [--quick] [--rounds N] [--json]
       windlass-bench drain windlass|observed|bare JOBS SLOTS
       windlass-bench compare STORE [--quick] [--only WORD] [--subject WORD] [--rounds N] [--write DIRECTORY]
                      [--program NAME VERSION PATH]… [--absent NAME VERSION REASON]… [--command TEXT]
       windlass-bench candidate …

  memory    Runs all workloads on the memory store, then counts the instructions per job with valgrind.
  file      Runs all workloads on a folder, compares a drain with the same appends and syncs of a bare file, and
            measures the memory and disk space of stored jobs.
  sqlite    Runs all workloads on SQLite with synchronous = FULL, then NORMAL, and compares them with bare statements.
  postgres  Runs all workloads on a private PostgreSQL server, and compares them with bare statements.
  redis     Runs all workloads on a private Redis server that syncs each write.
            --quick         Use fewer jobs
            --only WORD     Run only the workloads whose names contain WORD
            --rounds N      Run each workload N times instead of three times
            --normal        SQLite: only synchronous = NORMAL
            --json          Print the figures as JSON
            --instructions  Count only the instructions
  commits   Commits transactions of the application that start a job, on 64 connections to a private PostgreSQL server,
            with hints and without. Fails if less than 90 % of the commits per second are left.
  postgres-scale
            Measures the cost of commands on PostgreSQL by what is stored, many workers on one type, the latency after a
            backlog, and jobs during an open snapshot. Takes half an hour. Fails if one of them is above its goal.
            --write DIR     Also write a page, a chart and the figures as JSON
  telemetry Measures the processor time per job of metrics and 1 % of traces in memory, on PostgreSQL and on Redis, in
            alternating rounds. Fails if it is above 2 µs on PostgreSQL or Redis.
            --store WORD          Only this store
            --unobserved PROGRAM  First compare the instructions per job without an observer with those of this program,
                                  which was built with `--cfg windlass_unobserved`. Fails at 2 % or more.
  gauges    Stores 1,000,000 jobs on SQLite, PostgreSQL and Redis, and measures a query of the state gauges.
  scale     Starts and drains jobs on a store with 10,000, 100,000 and 1,000,000 other jobs. Fails if the processor time per
            job grows by more than 30 %.
  callers   Measures the answers per second of a queue with 1, 10, 100 and 1,000 callers that wait for them. On Redis, with
            a server that syncs each write, and then with one that keeps no log.
  drain     Starts and drains jobs once, on one thread. This is the work whose instructions are counted.
  compare   Compares Windlass with the bare store and with the libraries of these programs, on PostgreSQL, Redis or
            SQLite (`synchronous = normal`).
            --subject WORD  Run only libraries whose names contain WORD
            --write DIR     Also write a page, a chart and the figures as JSON
            --program …     The program of a library
            --absent …      A library that has no program, and why
            --command TEXT  The command to name in the page
  candidate Runs one measurement of a comparison, as the programs of the libraries do.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [first, rest @ ..] = arguments.as_slice()
        && first == CANDIDATE
    {
        return windlass_bench_harness::main_with(rest, &candidate::subjects());
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), BoxError> {
    match words {
        ["memory", flags @ ..] => measure_memory(&Options::parse(flags)?),
        ["file", flags @ ..] => measure_file(&Options::parse(flags)?),
        ["sqlite", flags @ ..] => measure_sqlite(&Options::parse(flags)?),
        ["postgres", flags @ ..] => measure_postgres(&Options::parse(flags)?),
        ["redis", flags @ ..] => measure_redis(&Options::parse(flags)?),
        ["postgres-scale", flags @ ..] => measure_postgres_scale(flags),
        ["commits", flags @ ..] => measure_commits(&Options::parse(flags)?),
        ["telemetry", flags @ ..] => measure_telemetry(&Options::parse(flags)?),
        ["gauges", flags @ ..] => measure_gauges(&Options::parse(flags)?),
        ["scale", store, flags @ ..] => measure_scale(store, &Options::parse(flags)?),
        ["callers", store, flags @ ..] => measure_callers(store, &Options::parse(flags)?),
        ["compare", store, flags @ ..] => compare(store, flags),
        ["drain", what @ ("windlass" | "observed" | "bare"), jobs, slots] => {
            let runtime = Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(start_and_drain(what, jobs.parse()?, slots.parse()?))?;
            // Exit without freeing the store, which is not part of the measured work.
            process::exit(0);
        }
        _ => Err(HELP.into()),
    }
}

struct Options {
    plan: Plan,
    is_quick: bool,
    /// The number of rounds, unless it is the default.
    rounds: Option<u32>,
    json: bool,
    instructions: bool,
    only_normal: bool,
    store: Option<String>,
    unobserved: Option<PathBuf>,
}

impl Options {
    fn parse(flags: &[&str]) -> Result<Self, BoxError> {
        let quick = flags.contains(&"--quick");
        let plan = if quick { Plan::quick() } else { Plan::default() };
        let mut options = Self {
            plan,
            is_quick: quick,
            rounds: None,
            json: false,
            instructions: false,
            only_normal: false,
            store: None,
            unobserved: None,
        };
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            match *flag {
                "--quick" => {}
                "--json" => options.json = true,
                "--instructions" => options.instructions = true,
                "--normal" => options.only_normal = true,
                "--rounds" => {
                    let number = flags.next().ok_or("`--rounds` needs a number")?;
                    options.plan.rounds = number.parse()?;
                    options.rounds = Some(options.plan.rounds);
                }
                "--only" => options.plan.only = flags.next().map(|word| (*word).to_owned()),
                "--store" => options.store = flags.next().map(|word| (*word).to_owned()),
                "--unobserved" => options.unobserved = flags.next().map(PathBuf::from),
                unknown => return Err(format!("unknown option `{unknown}`\n\n{HELP}").into()),
            }
        }
        Ok(options)
    }

    fn has_store(&self, store: &str) -> bool {
        self.store.as_deref().is_none_or(|only| only == store)
    }

    fn print_one<T: Display + Serialize>(&self, measured: &T) {
        if self.json {
            println!("{:#}", json!(measured));
        } else {
            println!("{measured}");
        }
    }

    fn print(&self, reports: &[(&str, Report)]) {
        if self.json {
            let reports: Value =
                reports.iter().map(|(name, report)| ((*name).to_owned(), json!(report))).collect();
            println!("{reports:#}");
            return;
        }
        for (name, report) in reports {
            println!("{name}\n\n{report}");
        }
    }
}

fn compare(store: &str, flags: &[&str]) -> Result<(), BoxError> {
    let mut plan =
        if flags.contains(&"--quick") { comparison::Plan::quick() } else { comparison::Plan::default() };
    let own = Program {
        name: "windlass".to_owned(),
        version: String::new(),
        path: env::current_exe()?,
        prefix: vec![CANDIDATE.to_owned()],
    };
    let (mut programs, mut absent) = (vec![own], Vec::new());
    let (mut write, mut command) = (None, format!("windlass-bench compare {store}"));
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        let mut value =
            || flags.next().map(|value| (*value).to_owned()).ok_or(format!("`{flag}` needs more"));
        match *flag {
            "--quick" => {}
            "--only" => plan.only = Some(value()?),
            "--subject" => plan.subject = Some(value()?),
            "--rounds" => plan.rounds = value()?.parse()?,
            "--write" => write = Some(PathBuf::from(value()?)),
            "--command" => command = value()?,
            "--program" => {
                let (name, version, path) = (value()?, value()?, value()?.into());
                programs.push(Program { name, version, path, prefix: Vec::new() });
            }
            "--absent" => {
                let (name, version, reason) = (value()?, value()?, value()?);
                absent.push(Absent { name: format!("{name} {version}"), workload: None, reason });
            }
            unknown => return Err(format!("unknown option `{unknown}`\n\n{HELP}").into()),
        }
    }
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let compared = runtime.block_on(comparison::run(store, &plan, &programs, absent, command))?;
    println!("{compared}");
    write.map_or(Ok(()), |directory| compared.write(&directory))
}

fn measure_postgres(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let mut postgres = Postgres::start(true).await?;
        suite::run(&mut postgres, &options.plan).await
    })?;
    options.print(&[(POSTGRES_DURABLE, report)]);
    Ok(())
}

fn measure_postgres_scale(flags: &[&str]) -> Result<(), BoxError> {
    let quick = flags.contains(&"--quick");
    let mut plan = if quick { postgres_scale::Plan::quick() } else { postgres_scale::Plan::default() };
    let (mut write, mut command) = (None, "windlass-bench postgres-scale".to_owned());
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        let mut value =
            || flags.next().map(|value| (*value).to_owned()).ok_or(format!("`{flag}` needs more"));
        match *flag {
            "--quick" => {}
            "--only" => plan.only = Some(value()?),
            "--rounds" => plan.rounds = value()?.parse()?,
            "--write" => write = Some(PathBuf::from(value()?)),
            "--command" => command = value()?,
            unknown => return Err(format!("unknown option `{unknown}`\n\n{HELP}").into()),
        }
    }
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let scale = runtime.block_on(postgres_scale::run(&plan, true))?;
    println!("{scale}");
    if let Some(directory) = write {
        scale.write(&directory, &command)?;
    }
    let missed = scale.missed();
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ").into()) }
}

fn measure_commits(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let commits = options.plan.starts.0;
    let measured = runtime.block_on(Commits::measure(true, options.plan.rounds, commits))?;
    print!("{measured}");
    if measured.ratio() >= GOAL { Ok(()) } else { Err("hints cost more than they may".into()) }
}

fn measure_telemetry(options: &Options) -> Result<(), BoxError> {
    if let Some(unobserved) = &options.unobserved {
        let cost = ObserverCost::count(&env::current_exe()?, unobserved, &(2_000..12_000))?;
        println!("{cost}");
        if cost.share() >= OBSERVER_MAX {
            return Err("a job without an observer costs too many instructions".into());
        }
    }
    if options.instructions {
        return Ok(());
    }
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    // Many: the difference is small, and rounds differ by more than that.
    let (rounds, jobs) = (options.plan.rounds.max(21), options.plan.drained);
    println!("{}", telemetry::header());
    let mut above = Vec::new();
    if options.has_store("memory") {
        let cost = runtime.block_on(TelemetryCost::measure(&mut Memory, "memory", rounds, jobs))?;
        println!("{cost}");
    }
    if options.has_store("postgres") {
        let cost = runtime.block_on(async {
            TelemetryCost::measure(&mut Postgres::start(true).await?, "PostgreSQL", rounds, jobs).await
        })?;
        println!("{cost}   at most {TELEMETRY_MAX_US:.0}");
        above.push(cost);
    }
    if options.has_store("redis") {
        let cost = runtime.block_on(async {
            TelemetryCost::measure(&mut Redis::start().await, "Redis", rounds, jobs).await
        })?;
        println!("{cost}   at most {TELEMETRY_MAX_US:.0}");
        above.push(cost);
    }
    above.retain(|cost| cost.cost() > TELEMETRY_MAX_US);
    if above.is_empty() { Ok(()) } else { Err("telemetry costs more than it may".into()) }
}

fn measure_gauges(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (queries, jobs) = (options.plan.rounds, 10 * options.plan.batched.0);
    if options.has_store("sqlite") {
        let mut sqlite = Sqlite::new(Synchronous::Normal)?;
        println!("{}", runtime.block_on(GaugeCost::measure(&mut sqlite, "SQLite", queries, jobs))?);
    }
    if options.has_store("postgres") {
        let cost = runtime.block_on(async {
            GaugeCost::measure(&mut Postgres::start(true).await?, "PostgreSQL", queries, jobs).await
        })?;
        println!("{cost}");
    }
    if options.has_store("redis") {
        let cost = runtime.block_on(async {
            GaugeCost::measure(&mut Redis::start().await, "Redis", queries, jobs).await
        })?;
        println!("{cost}");
    }
    Ok(())
}

fn measure_scale(store: &str, options: &Options) -> Result<(), BoxError> {
    let plan = if options.is_quick { scale::Plan::quick() } else { scale::Plan::default() };
    let plan = scale::Plan { rounds: options.rounds.unwrap_or(plan.rounds), ..plan };
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        match store {
            "sqlite" => scale::run(&mut Sqlite::new(Synchronous::Normal)?, SQLITE_NORMAL, &plan).await,
            "postgres" => scale::run(&mut Postgres::start(true).await?, POSTGRES_DURABLE, &plan).await,
            "redis" => scale::run(&mut Redis::start().await, REDIS_DURABLE, &plan).await,
            unknown => Err(format!("unknown store `{unknown}`\n\n{HELP}").into()),
        }
    })?;
    options.print_one(&measured);
    if measured.is_flat() {
        Ok(())
    } else {
        Err("the cost of a job grows with the number of stored jobs".into())
    }
}

fn measure_callers(store: &str, options: &Options) -> Result<(), BoxError> {
    let plan = if options.is_quick { callers::Plan::quick() } else { callers::Plan::default() };
    let plan = callers::Plan { rounds: options.rounds.unwrap_or(plan.rounds), ..plan };
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match store {
            "sqlite" => {
                let mut sqlite = Sqlite::new(Synchronous::Normal)?;
                options.print_one(&callers::run(&mut sqlite, SQLITE_NORMAL, &plan).await?);
            }
            "postgres" => {
                let mut postgres = Postgres::start(true).await?;
                options.print_one(&callers::run(&mut postgres, POSTGRES_DURABLE, &plan).await?);
            }
            "redis" => {
                options.print_one(&callers::run(&mut Redis::start().await, REDIS_DURABLE, &plan).await?);
                let measured =
                    callers::run(&mut Redis::start_volatile().await, "Redis, without a log", &plan).await?;
                options.print_one(&measured);
                if let Some(ratio) = measured.ratio().filter(|_| !options.json) {
                    println!(
                        "with 100 callers {ratio:.2} times @platformatic/job-queue (goal: {:.2})",
                        callers::GOAL
                    );
                }
            }
            unknown => return Err(format!("unknown store `{unknown}`\n\n{HELP}").into()),
        }
        Ok(())
    })
}

fn measure_redis(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async { suite::run(&mut Redis::start().await, &options.plan).await })?;
    options.print(&[(REDIS_DURABLE, report)]);
    Ok(())
}

fn measure_file(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    // Skip the depths of a million jobs: they would only measure the memory.
    let depths = options.plan.depths.iter().filter(|depth| depth.others + depth.later < 1_000_000).copied();
    let plan = Plan { slots: vec![10, 64, 100], depths: depths.collect(), ..options.plan.clone() };
    let (report, footprint, sync_rate) = runtime.block_on(async {
        // First, while the memory of the process is small.
        let footprint = match plan.only {
            None => Some(File::new()?.footprint(10 * plan.drained).await?),
            Some(_) => None,
        };
        let mut subject = File::new()?;
        let report = suite::run(&mut subject, &plan).await?;
        Ok::<_, BoxError>((report, footprint, subject.sync_rate()?))
    })?;
    options.print(&[("File, each batch synced", report)]);
    if !options.json {
        println!("the disk did {sync_rate:.0} appends with a sync per second, right after the workloads");
    }
    if let Some(footprint) = footprint.filter(|_| !options.json) {
        print_footprint(&footprint);
    }
    Ok(())
}

fn print_footprint(footprint: &Footprint) {
    let Footprint { jobs, memory, folder, opening, compaction, commits, idle } = footprint;
    println!(
        "{jobs} stored jobs: {} bytes of memory and {} bytes in the folder per job; opening takes {opening:.1?}; the \
         longest pause of writers in {} compactions was {:.1?}",
        memory / jobs,
        folder / jobs,
        compaction.completed,
        compaction.longest_pause
    );
    println!("one writer during a compaction: {commits}; without one: {idle}");
}

fn measure_sqlite(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let mut reports = Vec::new();
    let settings = [("SQLite, FULL", Synchronous::Full), (SQLITE_NORMAL, Synchronous::Normal)];
    for (name, synchronous) in settings.into_iter().skip(usize::from(options.only_normal)) {
        let mut sqlite = Sqlite::new(synchronous)?;
        reports.push((name, runtime.block_on(suite::run(&mut sqlite, &options.plan))?));
    }
    options.print(&reports);
    Ok(())
}

fn measure_memory(options: &Options) -> Result<(), BoxError> {
    let runtime = Builder::new_multi_thread().enable_time().build()?;
    let mut report = Report::default();
    if !options.instructions {
        // Skip the depths: a million jobs in memory would only measure the memory.
        let plan = Plan { slots: vec![10, 64, 100], depths: depths(&[]), ..options.plan.clone() };
        report = runtime.block_on(suite::run(&mut Memory, &plan))?;
    }
    if !options.json && !options.instructions {
        println!("{report}");
    }
    let count = Instructions::count(&env::current_exe()?, &(2_000..12_000))?;
    if options.json {
        let instructions = json!({ "per_job": count, "ratio": count.ratio(), "budget": BUDGET });
        println!("{:#}", json!({ "memory": report, "instructions": instructions }));
    } else {
        print!("{}", count.table());
    }
    if count.ratio() <= BUDGET {
        return Ok(());
    }
    let ratio = count.ratio();
    Err(format!(
        "a job takes {ratio:.1} times the instructions of the bare version, the budget is {BUDGET}: profile \
         `windlass-bench drain windlass 12000 64` with `valgrind --tool=callgrind`"
    )
    .into())
}

async fn start_and_drain(what: &str, jobs: u64, slots: u32) -> Result<(), BoxError> {
    if what == "bare" {
        return channel::start_and_drain(jobs, slots).await;
    }
    let providers = if what == "observed" { Some(Providers::new()?) } else { None };
    let mut client = Client::builder(MemoryStore::new());
    if let Some(providers) = &providers {
        client = client.observer(providers.telemetry());
    }
    let client = client.build();
    workload::start_all(&client, jobs, 1_000).await?;
    workload::drain_all(&client, jobs, slots).await
}
