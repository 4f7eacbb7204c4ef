//! The JSON API, version 1.

pub(crate) mod bulk;
pub(crate) mod chains;
mod chains_change;
mod events;
pub(crate) mod excerpt;
pub(crate) mod filter;
pub(crate) mod jobs;
mod listing;
mod openapi;
pub(crate) mod overview;
pub(crate) mod problem;
mod queues;
pub(crate) mod route;
pub(crate) mod schedules;
pub(crate) mod session;
mod types;
mod why;
pub(crate) mod wire;

use std::sync::Arc;

use axum::Router;
use axum::http::Method;

use Need::{Anyone, AtLeast};
use Role::{Admin, Operate, Produce, Read};
pub(crate) use filter::{BulkFilter, States};
pub(crate) use problem::Problem;
pub(crate) use route::{Need, Route};

use crate::auth::Role;
use crate::server::App;

/// The steps of bulk operations.
pub(crate) mod bulk_steps {
    pub(crate) use super::chains_change::{cancel_mode, cancel_result, retry_result};
}

/// The path of the API below the path where the router is mounted.
pub(crate) const PREFIX: &str = "/api/v1";

/// Returns all routes of the API.
pub(crate) fn routes() -> Vec<Route> {
    [general(), chains_and_jobs(), schedules_and_bulk()].into_iter().flatten().collect()
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const DELETE: Method = Method::DELETE;

fn general() -> Vec<Route> {
    vec![
        Route::new(GET, "/openapi.json", Anyone, "Returns this document", openapi::get),
        Route::new(GET, "/session", AtLeast(Read), "Returns who the caller is", session::get),
        Route::new(POST, "/session", Anyone, "Logs in: starts a session with a token", session::start),
        Route::new(DELETE, "/session", AtLeast(Read), "Logs out: ends the session", session::end),
        Route::new(
            GET,
            "/overview",
            AtLeast(Read),
            "Returns the latest samples of the whole store",
            overview::get,
        ),
        Route::new(GET, "/events", AtLeast(Read), "Streams events", events::get),
        Route::new(GET, "/workers", AtLeast(Read), "Lists live workers", overview::workers),
        Route::new(GET, "/types", AtLeast(Read), "Counts jobs by type and status", types::list),
        Route::new(GET, "/types/{type}", AtLeast(Read), "Counts the jobs of a type", types::get),
        Route::new(POST, "/types/{type}/pause", AtLeast(Operate), "Pauses a type", types::pause),
        Route::new(POST, "/types/{type}/resume", AtLeast(Operate), "Resumes a type", types::resume),
        Route::new(
            GET,
            "/types/{type}/keys/{key}",
            AtLeast(Read),
            "Returns the chain of a key",
            chains::by_key,
        ),
    ]
}

fn chains_and_jobs() -> Vec<Route> {
    vec![
        Route::new(GET, "/jobs", AtLeast(Read), "Lists jobs", jobs::list),
        Route::new(GET, "/jobs/{id}", AtLeast(Read), "Returns a job with its attempts", jobs::get),
        Route::new(
            POST,
            "/jobs/{id}/trigger",
            AtLeast(Operate),
            "Makes a pending job due now",
            jobs::trigger,
        ),
        Route::new(GET, "/chains", AtLeast(Read), "Lists chains", chains::list),
        Route::new(POST, "/chains", AtLeast(Produce), "Starts a chain", chains_change::start),
        Route::new(POST, "/chains/batch", AtLeast(Produce), "Starts many chains", chains_change::start_many),
        Route::new(GET, "/chains/{id}", AtLeast(Read), "Returns a chain with its jobs", chains::get),
        Route::new(DELETE, "/chains/{id}", AtLeast(Admin), "Deletes a chain", chains_change::delete),
        Route::new(
            GET,
            "/chains/{id}/graph",
            AtLeast(Read),
            "Returns a chain with its neighbors",
            chains::graph,
        ),
        Route::new(GET, "/chains/{id}/wait", AtLeast(Read), "Waits for a chain to close", chains::wait),
        Route::new(
            POST,
            "/chains/{id}/complete",
            AtLeast(Operate),
            "Ends the current job",
            chains_change::complete,
        ),
        Route::new(POST, "/chains/{id}/cancel", AtLeast(Operate), "Cancels a chain", chains_change::cancel),
        Route::new(POST, "/chains/{id}/retry", AtLeast(Operate), "Retries a chain", chains_change::retry),
        Route::new(
            POST,
            "/chains/{id}/trigger",
            AtLeast(Operate),
            "Makes its job due now",
            chains_change::trigger,
        ),
        Route::new(POST, "/queues/{queue}/jobs", AtLeast(Produce), "Enqueues a job", queues::enqueue),
        Route::new(GET, "/queues/{queue}/jobs/{id}", AtLeast(Read), "Returns a job of a queue", queues::get),
    ]
}

fn schedules_and_bulk() -> Vec<Route> {
    vec![
        Route::new(GET, "/schedules", AtLeast(Read), "Lists schedules", schedules::list),
        Route::new(GET, "/schedules/{name}", AtLeast(Read), "Returns a schedule", schedules::get),
        Route::new(PUT, "/schedules/{name}", AtLeast(Admin), "Creates or changes a schedule", schedules::put),
        Route::new(DELETE, "/schedules/{name}", AtLeast(Admin), "Deletes a schedule", schedules::delete),
        Route::new(POST, "/schedules/{name}/pause", AtLeast(Operate), "Pauses a schedule", schedules::pause),
        Route::new(
            POST,
            "/schedules/{name}/resume",
            AtLeast(Operate),
            "Resumes a schedule",
            schedules::resume,
        ),
        Route::new(POST, "/schedules/{name}/run", AtLeast(Operate), "Starts its job now", schedules::run),
        Route::new(
            POST,
            "/schedules/{name}/accept",
            AtLeast(Operate),
            "Accepts a rollback",
            schedules::accept,
        ),
        Route::new(GET, "/bulk", AtLeast(Read), "Lists bulk operations", bulk::list),
        Route::new(POST, "/bulk", AtLeast(Operate), "Starts a bulk operation", bulk::start),
        Route::new(GET, "/bulk/{id}", AtLeast(Read), "Returns a bulk operation", bulk::get),
        Route::new(POST, "/bulk/{id}/abort", AtLeast(Operate), "Aborts a bulk operation", bulk::abort),
    ]
}

/// Returns the router of the API.
pub(crate) fn router() -> Router<Arc<App>> {
    routes().into_iter().fold(Router::new(), |router, route| {
        let path = format!("{PREFIX}{}", route.path);
        router.route(&path, route.into_handler())
    })
}

pub(crate) async fn wrong_method(method: Method) -> Problem {
    Problem::wrong_method(format!("{method} is not supported here: see the header `allow`"))
}
