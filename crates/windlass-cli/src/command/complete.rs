//! `windlass complete`: completes, continues or fails a chain's current job from outside.

use serde::Serialize;
use windlass::command::{NewJob, NextJob, Step};
use windlass::name::ErrorText;
use windlass::{ChainId, JobId, JobOptions, Status};

use super::{Context, target};
use crate::arguments::Complete;
use crate::exit::{Failure, Result};
use crate::input;
use crate::store::OpenMode;

pub(crate) async fn run(context: &Context, complete: Complete) -> Result {
    let Complete { name, value, key_type, then, fail } = complete;
    let step = match (then, fail) {
        (Some(job_type), _) => {
            let max_attempts = JobOptions::default().max_attempts;
            let input = input::payload(value.as_deref(), "input").await?;
            let job = NewJob { max_attempts, ..NewJob::new(job_type, input) };
            Step::Continue { next: NextJob { id: JobId::new(), job }, create: Vec::new() }
        }
        (None, Some(error)) => Step::Fail { error: ErrorText::new(error), retention: None },
        (None, None) => {
            let output = input::payload(value.as_deref(), "output").await?;
            Step::Complete { output, retention: None, create: Vec::new() }
        }
    };
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let found = target::one(&client, &name, key_type.as_ref()).await?;
    let chain = found.chain.id;
    if !found.chain.status().is_open() {
        let text =
            format!("chain {chain} is already {}: only open chains can be completed", found.chain.status());
        return Err(Failure::failed(text));
    }
    let status = client.step(chain).await?.steps(vec![step]).await?;
    context.output.print(&Completed { chain, status: status.to_string() }, || line(chain, status))
}

#[derive(Serialize)]
struct Completed {
    chain: ChainId,
    status: String,
}

fn line(chain: ChainId, status: Status) -> String {
    format!("chain {chain} is {status}")
}
