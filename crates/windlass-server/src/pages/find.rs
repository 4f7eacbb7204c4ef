//! The search field: finds a job or chain by its id, or chains by their key.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use tokio::time::timeout;
use windlass_core::{JobId, Target};

use super::filter::encoded;
use super::layout::Shell;
use super::{Visit, admitted, failed, redirect};
use crate::REQUEST_TIMEOUT;
use crate::api::Problem;
use crate::server::App;

pub(super) async fn find(State(app): State<Arc<App>>, request: Request) -> Response {
    let visit = match admitted(app, request).await {
        Ok(visit) => visit,
        Err(refusal) => return refusal,
    };
    let found = timeout(REQUEST_TIMEOUT, target(&visit)).await;
    match found.unwrap_or_else(|_| Err(Problem::timed_out("the store did not answer in time: try again"))) {
        Ok(path) => redirect(&format!("{}{path}", visit.base())),
        Err(problem) => failed(problem, visit.base(), Some(&Shell::of(&visit))),
    }
}

async fn target(visit: &Visit) -> Result<String, Problem> {
    let text = visit.pairs.get("q").unwrap_or_default();
    if text.is_empty() {
        return Ok("/chains".to_owned());
    }
    if let Ok(id) = text.parse::<JobId>()
        && let Some(chain) = visit.call.client().chain(Target::Job(id)).await?
    {
        // The first job of a chain has the id of the chain.
        let kind = if chain.id.first_job() == id { "chains" } else { "jobs" };
        return Ok(format!("/{kind}/{id}"));
    }
    Ok(format!("/chains?key={}", encoded(text)))
}
