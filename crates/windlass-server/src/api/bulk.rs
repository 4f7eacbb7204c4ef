//! Bulk operations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_core::RequestId;

use super::filter::BulkFilter;
use super::problem::Problem;
use super::route::{Accepted, Call, Given, Json, NoBody, NoQuery, chosen_id};
use crate::audit;
use crate::auth::Role;
use crate::bulk::{Action, Operation, Preparation, Progress};

/// An operation on all chains that match a filter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartBulk {
    /// The id of the operation: a new UUID, version 7. If the request is repeated with the same id, the operation is started
    /// once. The server remembers the latest 100 operations, as long as it runs. Default: a generated id.
    id: Option<String>,
    action: Action,
    /// At least one field is required. Without `statuses`, a retry selects failed chains, a cancel open ones, and a delete
    /// closed ones.
    filter: BulkFilter,
    /// Whether a cancel also asks running jobs to stop.
    #[serde(default)]
    running: bool,
    /// Only counts the chains that match.
    #[serde(default)]
    dry_run: bool,
}

/// The latest 100 bulk operations since the server was started, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Operations {
    pub(crate) operations: Vec<Operation>,
}

pub(crate) async fn start(
    call: Call,
    given: Given<NoQuery, Json<StartBulk>>,
) -> Result<Accepted<Operation>, Problem> {
    let Json(StartBulk { id, action, filter, running, dry_run }) = given.body;
    if action == Action::Delete {
        call.require(Role::Admin)?;
    }
    let plan = crate::bulk::Plan::new(action, filter, running, dry_run)?;
    let id = id.as_deref().map(chosen_id).transpose()?;
    let id = id.map_or_else(RequestId::new, |id| RequestId::from_uuid(*id.as_uuid()));
    let word = if dry_run {
        format!("bulk-{}-dry-run", action.as_str())
    } else {
        format!("bulk-{}", action.as_str())
    };
    let (bulk, by) = (&call.app.bulk, call.caller()?.identity.name.clone());
    let prepared = match bulk.prepare(call.client(), plan, id, by).await? {
        Preparation::New(prepared) => prepared,
        Preparation::Repeated(operation) => return Ok(Accepted(*operation)),
    };
    let Operation { id, cutoff, filter, .. } = prepared.operation();
    let target = audit::Target { operation: Some(id), ..audit::Target::default() };
    let (filter, cutoff) = (Some(json!(filter)), Some(cutoff));
    let subject = audit::Subject { filter, cutoff, running, ..target.into() };
    match call.audit(&word, subject).await {
        Ok(entry) => Ok(Accepted(prepared.begin(entry))),
        Err(problem) => {
            bulk.discard(&prepared);
            Err(problem)
        }
    }
}

pub(crate) async fn list(call: Call, _: Given<NoQuery, NoBody>) -> Result<Json<Operations>, Problem> {
    Ok(Json(Operations { operations: call.app.bulk.list() }))
}

pub(crate) async fn get(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Operation>, Problem> {
    call.app.bulk.get(given.path.text("id")).map(Json).ok_or_else(not_found)
}

pub(crate) async fn abort(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Operation>, Problem> {
    let id = given.path.text("id");
    let known = call.app.bulk.get(id).ok_or_else(not_found)?;
    if known.state != Progress::Running {
        return Ok(Json(known));
    }
    let target = audit::Target { operation: Some(known.id), ..audit::Target::default() };
    let entry = call.audit_anyway("abort-bulk", target).await?;
    let aborted = call.app.bulk.abort(id).await.ok_or_else(not_found);
    let aborted = entry.end_with(aborted, |ended| match ended.state {
        Progress::Aborted => audit::Outcome::word("aborted"),
        // It ended by itself before the abort.
        _ => audit::Outcome::word("unchanged"),
    });
    aborted.await.map(Json)
}

fn not_found() -> Problem {
    Problem::not_found("the bulk operation was not found: the server may have been restarted")
}
