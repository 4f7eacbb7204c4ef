//! Detail pages of a single job or chain.

use serde::Serialize;
use windlass::record::{AttemptRecord, ChainRecord, JobRecord, Payload};
use windlass::{Client, Store};

use super::list::{ago, attempts, chain_row, job_row, named, worker_text};
use super::{schedule, why};
use crate::arguments::JobState;
use crate::exit::Result;
use crate::output::Output;
use crate::view::{AttemptView, ChainView, Content, JobView, end_name};

/// Prints a job with its attempts, its blockers and the jobs of its chain.
pub(crate) async fn job(output: Output, client: &Client<dyn Store>, job: &JobRecord) -> Result {
    let history = client.attempts(job.id).await?;
    let blockers: Vec<_> = client.blockers(job.id).await?.into_iter().flatten().collect();
    let chain = client.chain_jobs(job.chain).await?;
    let why = why::reasons(client, job).await?;
    if output.is_json() {
        return output.object(&JobPage {
            job: job.into(),
            why,
            attempts: history.iter().map(AttemptView::from).collect(),
            blockers: blockers.iter().map(ChainView::from).collect(),
            chain_jobs: chain.iter().map(JobView::from).collect(),
        });
    }
    print_job(output, job, &why)?;
    print_attempts(output, &history)?;
    if !blockers.is_empty() {
        print_chains(output, "blockers", &blockers)?;
    }
    if chain.len() > 1 {
        print_jobs(output, "jobs of the chain", &chain)?;
    }
    Ok(())
}

/// Prints a chain with its jobs, its blockers and its dependents.
pub(crate) async fn chain(output: Output, client: &Client<dyn Store>, chain: &ChainRecord) -> Result {
    let jobs = client.chain_jobs(chain.id).await?;
    let dependents = client.dependents(chain.id).await?;
    let blockers: Vec<_> = client.blockers(chain.latest.id).await?.into_iter().flatten().collect();
    let why = why::reasons(client, &chain.latest).await?;
    if output.is_json() {
        return output.object(&ChainPage {
            chain: chain.into(),
            why,
            chain_jobs: jobs.iter().map(JobView::from).collect(),
            blockers: blockers.iter().map(ChainView::from).collect(),
            dependents: dependents.iter().map(JobView::from).collect(),
        });
    }
    output.line(&format!("chain {} of type {}", chain.id, chain.chain_type))?;
    let key = chain.key.as_ref().map(|key| key.key.to_string());
    print_fields(
        output,
        &[
            ("status", Some(JobState::of(&chain.latest).as_str().to_owned())),
            ("why", joined(&why)),
            ("key", key),
            ("schedule", schedule::origin(client, chain.id).await?),
            ("created", Some(format!("{} ({})", chain.created_at, ago(chain.created_at)))),
            ("closed", chain.closed.map(|closed| closed.at.to_string())),
            ("kept until", chain.closed.map(|closed| closed.retain_until.to_string())),
            ("error", chain.latest.error.as_ref().map(ToString::to_string)),
            ("output", chain.output().map(shown)),
        ],
    )?;
    print_jobs(output, "jobs", &jobs)?;
    if !blockers.is_empty() {
        print_chains(output, "blockers", &blockers)?;
    }
    if !dependents.is_empty() {
        print_jobs(output, "dependents", &dependents)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct JobPage<'a> {
    #[serde(flatten)]
    job: JobView<'a>,
    why: Vec<String>,
    attempts: Vec<AttemptView<'a>>,
    blockers: Vec<ChainView<'a>>,
    chain_jobs: Vec<JobView<'a>>,
}

#[derive(Serialize)]
struct ChainPage<'a> {
    #[serde(flatten)]
    chain: ChainView<'a>,
    why: Vec<String>,
    chain_jobs: Vec<JobView<'a>>,
    blockers: Vec<ChainView<'a>>,
    dependents: Vec<JobView<'a>>,
}

fn print_job(output: Output, job: &JobRecord, why: &[String]) -> Result {
    output.line(&format!("job {} of type {}", job.id, job.job_type))?;
    let lease = job.lease.as_ref();
    let worker = lease
        .map(|lease| format!("{} until {}", named(lease.worker, lease.worker_name.as_ref()), lease.until));
    print_fields(
        output,
        &[
            ("status", Some(JobState::of(job).as_str().to_owned())),
            ("why", joined(why)),
            (
                "chain",
                Some(format!(
                    "{} of type {} (job {} of the chain)",
                    job.chain,
                    job.chain_type,
                    job.index + 1
                )),
            ),
            ("attempt", Some(attempts(job))),
            ("priority", Some(job.priority.to_string())),
            ("created", Some(format!("{} ({})", job.created_at, ago(job.created_at)))),
            ("due", Some(job.due_at.to_string())),
            ("leased by", worker),
            ("closed", job.closed_at.map(|at| at.to_string())),
            ("closed by", Some(worker_text(job.closed_by)).filter(|text| !text.is_empty())),
            ("error", job.error.as_ref().map(ToString::to_string)),
            ("input", Some(shown(&job.input))),
            ("output", job.output.as_ref().map(shown)),
        ],
    )
}

fn print_attempts(output: Output, history: &[AttemptRecord]) -> Result {
    if history.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = history
        .iter()
        .map(|attempt| {
            let error = attempt.error.as_ref().map(ToString::to_string).unwrap_or_default();
            let took = attempt.ended_at.map(|end| end.since(attempt.started_at));
            [
                attempt.attempt.to_string(),
                attempt.started_at.to_string(),
                took.map(|took| humantime::format_duration(took).to_string()).unwrap_or_default(),
                end_name(attempt.end).to_owned(),
                named(attempt.worker, attempt.worker_name.as_ref()),
                crate::output::truncated(&error, 80),
            ]
        })
        .collect();
    output.line("\nattempts")?;
    output.table(["#", "STARTED", "TOOK", "END", "WORKER", "ERROR"], &rows)
}

fn print_jobs(output: Output, title: &str, jobs: &[JobRecord]) -> Result {
    let rows: Vec<_> = jobs.iter().map(job_row).collect();
    output.line(&format!("\n{title}"))?;
    output.table(["ID", "TYPE", "STATUS", "ATTEMPT", "CREATED", "DUE", "ERROR"], &rows)
}

fn print_chains(output: Output, title: &str, chains: &[ChainRecord]) -> Result {
    let rows: Vec<_> = chains.iter().map(chain_row).collect();
    output.line(&format!("\n{title}"))?;
    output.table(["ID", "TYPE", "KEY", "STATUS", "JOBS", "CURRENT", "CREATED", "ERROR"], &rows)
}

fn joined(why: &[String]) -> Option<String> {
    (!why.is_empty()).then(|| why.join("; "))
}

fn print_fields(output: Output, print_fields: &[(&str, Option<String>)]) -> Result {
    let known = print_fields.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    known.into_iter().try_for_each(|(name, value)| output.line(&format!("  {name:<12}{value}")))
}

fn shown(payload: &Payload) -> String {
    serde_json::to_string(&Content::of(payload)).unwrap_or_default()
}
