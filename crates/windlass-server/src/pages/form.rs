//! The filter of a list. It is a form, so filters are in the address.

use maud::{Markup, html};

use super::Visit;
use super::filter::{PERIODS, Pairs};
use super::part::time;
use crate::api::Problem;
use crate::api::wire::Time;

/// States to filter by.
const STATES: [&str; 9] =
    ["pending", "scheduled", "failing", "running", "stopping", "blocked", "completed", "failed", "cancelled"];

/// A list: the path of its page, and what its rows are called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) path: &'static str,
    pub(super) noun: &'static str,
    /// Filters without a field in the form, and their labels.
    unusual: &'static [(&'static str, &'static str)],
}

pub(super) const JOBS: Kind = Kind {
    path: "/jobs",
    noun: "jobs",
    unusual: &[
        ("chain", "chain"),
        ("chain_type", "type of the chain"),
        ("closed_from", "closed from"),
        ("closed_to", "closed to"),
    ],
};

pub(super) const CHAINS: Kind = Kind {
    path: "/chains",
    noun: "chains",
    unusual: &[
        ("top_level", "no job waits for it"),
        ("closed_from", "closed from"),
        ("closed_to", "closed to"),
    ],
};

pub(super) async fn form(visit: &Visit, kind: Kind) -> Result<Markup, Problem> {
    let (base, pairs) = (visit.base(), &visit.pairs);
    let value = |name: &str| pairs.get(name).unwrap_or_default().to_owned();
    // The names of the types come from the latest sample, which costs nothing.
    let sample = visit.call.app.sampler.latest().await?;
    let has_times = ["created_from", "created_to"].iter().any(|name| pairs.get(name).is_some());
    let is_chains = kind == CHAINS;
    // Several values are shown as chips. The field then adds another one.
    let (states, types) = (pairs.all("status"), pairs.all("type"));
    let (state_none, type_none) = (
        if states.len() > 1 { "add a state" } else { "any" },
        if types.len() > 1 { "add a type" } else { "any" },
    );
    Ok(html! {
        form class="filter card" id="filter" method="get" action={ (base) (kind.path) } autocomplete="off" {
            (choice("State", "status", state_none, single(&states), &STATES.map(|state| (state, state))))
            div {
                label for="type" { @if is_chains { "Type of the first job" } @else { "Type" } }
                input id="type" name="type" list="types" value=(single(&types)) placeholder=(type_none)
                    autocomplete="off";
                datalist id="types" { @for known in &sample.types { option value=(known.count.job_type) {} } }
            }
            @if is_chains {
                div {
                    label for="key" { "Key (exact)" }
                    input id="key" name="key" value=(value("key")) placeholder="any" autocomplete="off"
                        spellcheck="false";
                }
            }
            (choice("Created", "within", "at any time", &value("within"), &PERIODS.map(|(key, name, _)| (key, name))))
            (choice("Order", "order", "newest first", &value("order"), &[("oldest", "oldest first")]))
            details open[has_times] {
                summary { "Exact times" }
                @for (name, text) in [("created_from", "Created from"), ("created_to", "Created to")] {
                    div {
                        label for=(name) { (text) " (" span data-zone="" { "UTC" } ")" }
                        input id=(name) name=(name) type="datetime-local" step="1" value=(picked(pairs, name))
                            autocomplete="off";
                    }
                }
            }
            (chips(base, pairs, kind))
            @if let Some(limit) = pairs.get("limit") { input type="hidden" name="limit" value=(limit); }
            div class="buttons" {
                button type="submit" class="primary" { "Apply" }
                @if !pairs.is_empty() { a class="button" href={ (base) (kind.path) } { "Clear" } }
            }
        }
    })
}

/// Returns the only value of a field.
fn single<'a>(values: &[&'a str]) -> &'a str {
    match values {
        [value] => value,
        _ => "",
    }
}

/// Returns the filters that the fields cannot show. The form sends them again, and a link removes each of them.
fn chips(base: &str, pairs: &Pairs, kind: Kind) -> Markup {
    let mut chips = Vec::new();
    for (name, text) in [("status", "state"), ("type", "type")] {
        let values = pairs.all(name);
        if values.len() > 1 {
            chips.extend(values.into_iter().map(|value| (name, text, value)));
        }
    }
    for (name, text) in kind.unusual {
        chips.extend(pairs.all(name).into_iter().map(|value| (*name, *text, value)));
    }
    html! {
        @if !chips.is_empty() {
            ul class="chips" aria-label="Further filters" {
                @for (name, text, value) in chips {
                    li {
                        input type="hidden" name=(name) value=(value);
                        a class="chip" title="Remove this filter"
                            href={ (base) (kind.path) (pairs.without(name, value).with("after", None).query()) } {
                            (chip_text(name, text, value))
                            span aria-hidden="true" { "×" }
                            span class="hidden" { ": remove this filter" }
                        }
                    }
                }
            }
        }
    }
}

fn chip_text(name: &str, text: &str, value: &str) -> Markup {
    html! {
        (text)
        @if name == "top_level" {
            @if value != "true" { ": " (value) }
        } @else if name.starts_with("closed_") {
            " " (time(&Time(value.to_owned())))
        } @else {
            ": " (value)
        }
    }
}

fn choice(text: &str, name: &str, none: &str, chosen: &str, options: &[(&str, &str)]) -> Markup {
    html! {
        div {
            label for=(name) { (text) }
            select id=(name) name=(name) autocomplete="off" {
                option value="" { (none) }
                @for (value, text) in options { option value=(value) selected[*value == chosen] { (text) } }
            }
        }
    }
}

/// Returns a time for a date picker, which takes no zone.
fn picked(pairs: &Pairs, name: &str) -> String {
    let time = pairs.get(name).unwrap_or_default();
    time.get(..19).unwrap_or(time).trim_end_matches('Z').to_owned()
}
