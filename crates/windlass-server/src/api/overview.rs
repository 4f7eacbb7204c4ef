//! The whole store at a glance.

use schemars::JsonSchema;
use serde::Serialize;

use super::problem::Problem;
use super::route::{Call, Given, Json, NoBody, NoQuery};
use super::wire::Worker;
use crate::sampler::{Cost, Point, Sample};

/// The latest sample, and a short history.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Overview {
    pub(crate) sample: Sample,
    /// Earlier samples, oldest first. There are gaps while no client watches.
    pub(crate) history: Vec<Point>,
    pub(crate) sampler: Cost,
}

pub(crate) async fn get(call: Call, _: Given<NoQuery, NoBody>) -> Result<Json<Overview>, Problem> {
    let sampler = &call.app.sampler;
    let sample = sampler.latest().await?;
    let sample = Sample::clone(&sample);
    Ok(Json(Overview { sample, history: sampler.history(), sampler: sampler.cost() }))
}

/// The live workers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Workers {
    pub(crate) workers: Vec<Worker>,
}

pub(crate) async fn workers(call: Call, _: Given<NoQuery, NoBody>) -> Result<Json<Workers>, Problem> {
    let workers = call.client().workers().await?;
    Ok(Json(Workers { workers: workers.iter().map(Worker::from).collect() }))
}
