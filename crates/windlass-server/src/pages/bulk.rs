//! Bulk operations and their progress.

use maud::{Markup, html};
use serde_json::Value;

use super::Visit;
use super::format::{counted, number};
use super::layout::{Page, Refresh, Section};
use super::part::{Action, ago, empty, label, time, word};
use crate::api::Problem;
use crate::api::bulk;
use crate::api::route::Json;
use crate::auth::Role;
use crate::bulk::{Operation, Progress};

pub(super) async fn show(visit: Visit) -> Result<Page, Problem> {
    let Json(list) = bulk::list(visit.call.clone(), visit.given()?).await?;
    let (base, role) = (visit.base(), visit.role());
    // A count before a change is of no interest afterwards.
    let shown: Vec<_> = list.operations.iter().filter(|operation| !operation.dry_run).collect();
    let body = html! {
        h1 { "Bulk operations" }
        p class="lead" { "Changes to all chains that match a filter. They stop when the server stops." }
        div id="content" data-part="" {
            @if shown.is_empty() {
                (empty("No bulk operations since the server started", &html! {
                    @if role >= Role::Operate {
                        p { "Filter the " a href={ (base) "/chains?status=failed" } { "failed chains" } ", then choose an action." }
                    } @else {
                        p { "Starting one needs the role " code { "operate" } "." }
                    }
                }))
            } @else {
                ul class="operations" { @for operation in shown { (item(operation, role)) } }
            }
        }
    };
    Ok(Page::new("Bulk operations", Section::Bulk, Refresh::Bulk, body))
}

fn item(operation: &Operation, role: Role) -> Markup {
    let is_running = operation.state == Progress::Running;
    html! {
        li class="card" {
            div class="heading" {
                h2 { (verb(operation.action.as_str())) " " (label(&word(&operation.state))) }
                @if is_running && role >= Role::Operate {
                    @let question = format!("Stop the operation \"{}\" of {}?", operation.action.as_str(), operation.started_by);
                    div class="actions js" {
                        (Action::post("Stop", format!("/bulk/{}/abort", operation.id), &question,
                            "Chains that it has changed stay changed.").dangerous().button())
                    }
                }
            }
            @if is_running { progress aria-label="Progress" {} }
            p class="counts" {
                strong { (number(operation.changed)) } " changed, "
                (number(operation.skipped)) " skipped of " (counted(operation.visited, "chain")) " visited"
            }
            @if let Some(reason) = &operation.reason { p class="note" { "Latest reason: " (reason) } }
            p class="note" {
                "Started by " (operation.started_by) " " (ago(&operation.started_at))
                @if let Some(at) = &operation.ended_at { ", ended " (ago(at)) }
            }
            p class="note filter-text" { (filter(operation)) }
        }
    }
}

fn verb(action: &str) -> String {
    let mut letters = action.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// Returns the filter of an operation in words.
fn filter(operation: &Operation) -> Markup {
    let filter = serde_json::to_value(&operation.filter).unwrap_or_default();
    html! { (filter_text(&filter)) "; created until " (time(&operation.cutoff)) }
}

/// Returns a filter in words.
pub(super) fn filter_text(filter: &Value) -> String {
    let Some(fields) = filter.as_object() else { return String::new() };
    let text = |value: &Value| match value {
        Value::Array(values) => values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_used = |value: &Value| !matches!(value, Value::Bool(false) | Value::Null);
    let used = fields.iter().filter(|(_, value)| is_used(value));
    let parts: Vec<_> =
        used.map(|(name, value)| format!("{}: {}", name.replace('_', " "), text(value))).collect();
    parts.join("; ")
}
