//! Job types and queues.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::command::Types;

use super::filter::type_names;
use super::problem::Problem;
use super::route::{Call, Given, Json, NoBody, NoQuery};
use super::wire::{Count, Counts};
use crate::audit;

/// The types to count.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TypeQuery {
    /// A type. Can be repeated. Default: all types.
    #[serde(default, rename = "type")]
    types: Vec<String>,
}

pub(crate) async fn list(call: Call, given: Given<TypeQuery, NoBody>) -> Result<Json<Counts>, Problem> {
    let types = type_names(&given.query.types)?;
    let types = if types.is_empty() { Types::All } else { Types::Only(types) };
    Ok(Json(Counts::from(&call.client().count(types).await?)))
}

pub(crate) async fn get(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Count>, Problem> {
    let name = given.path.type_name("type")?;
    let reply = call.client().count(Types::Only(vec![name.clone()])).await?;
    let found = reply.types.iter().find(|count| count.job_type == name).map(Count::from);
    found.map(Json).ok_or_else(|| Problem::not_found(format!("no job of type {:?} is stored", name.as_str())))
}

/// The result of a pause or resume.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Paused {
    #[serde(rename = "type")]
    job_type: String,
    paused: bool,
    /// Whether the type was in this state before.
    unchanged: bool,
}

pub(crate) async fn pause(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Paused>, Problem> {
    set_paused(&call, &given, true).await
}

pub(crate) async fn resume(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Paused>, Problem> {
    set_paused(&call, &given, false).await
}

async fn set_paused(
    call: &Call,
    given: &Given<NoQuery, NoBody>,
    paused: bool,
) -> Result<Json<Paused>, Problem> {
    let name = given.path.type_name("type")?;
    let counts = call.client().count(Types::Only(vec![name.clone()])).await?;
    let was_paused = counts.types.iter().any(|count| count.job_type == name && count.paused);
    let job_type = Some(name.to_string());
    let target = audit::Target { job_type, paused: Some(was_paused), ..audit::Target::default() };
    let entry = call.audit(if paused { "pause" } else { "resume" }, target).await?;
    let before = call.client().set_paused(name.clone(), paused).await;
    let word = if paused { "paused" } else { "resumed" };
    let before = entry.end_with(before.map_err(Problem::from), |_| audit::Outcome::word(word)).await?;
    Ok(Json(Paused { job_type: name.to_string(), paused, unchanged: before == paused }))
}
