//! Parts that several pages use.

use maud::{Markup, html};
use serde::Serialize;
use serde_json::{Value, json};

use super::filter::encoded;
use super::json::pretty;
use crate::api::wire::{State, Time};
use crate::payload::{Content, Hidden};

/// Returns the name of a state, as in the API.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Returns a point in time. The browser shows it in the zone of the viewer.
pub(super) fn time(at: &Time) -> Markup {
    let text = at.0.get(..19).unwrap_or(&at.0).replace('T', " ");
    html! { time datetime=(at.0) { (text) " UTC" } }
}

/// Returns a point in time that the browser shows relative to now.
pub(super) fn ago(at: &Time) -> Markup {
    let text = at.0.get(..19).unwrap_or(&at.0).replace('T', " ");
    html! { time datetime=(at.0) data-ago="" { (text) " UTC" } }
}

pub(super) fn optional_time(at: Option<&Time>) -> Markup {
    html! { @match at { Some(at) => (time(at)), None => span class="none" { "–" } } }
}

/// Returns a state as a label.
pub(super) fn state(state: State) -> Markup {
    label(&word(&state))
}

/// Returns a label whose class is its word.
pub(super) fn label(word: &str) -> Markup {
    html! { span class={ "state " (word) } { (word) } }
}

/// Returns a link to a chain or job, with the beginning and the end of its id.
pub(super) fn short_link(base: &str, path: &str, id: &str) -> Markup {
    html! { a class="id" href={ (base) "/" (path) "/" (id) } title=(id) { (short(id)) } }
}

/// The first bytes of an id are the time of its creation, and the last ones are random.
pub(super) fn short(id: &str) -> String {
    match (id.get(..8), id.len().checked_sub(6).and_then(|from| id.get(from..))) {
        (Some(first), Some(last)) if id.len() > 16 => format!("{first}…{last}"),
        _ => id.to_owned(),
    }
}

/// Returns a link to the chains or jobs of a type.
pub(super) fn type_link(base: &str, path: &str, name: &str) -> Markup {
    html! { a class="type" href={ (base) "/" (path) "?type=" (encoded(name)) } { (name) } }
}

/// A button that changes something through the API, after a confirmation.
pub(super) struct Action<'a> {
    pub(super) name: &'a str,
    pub(super) method: &'a str,
    /// The path below the prefix of the API.
    pub(super) path: String,
    pub(super) body: Value,
    pub(super) question: &'a str,
    pub(super) text: &'a str,
    pub(super) is_dangerous: bool,
    /// A box to check: its label, and the name of the member or parameter that it sets.
    pub(super) option: Option<(&'a str, &'a str)>,
    /// Where to go afterwards. Default: the page is refreshed.
    pub(super) then: Option<String>,
}

impl<'a> Action<'a> {
    pub(super) fn post(name: &'a str, path: String, question: &'a str, text: &'a str) -> Self {
        let (body, option, then) = (json!({}), None, None);
        Self { name, method: "POST", path, body, question, text, is_dangerous: false, option, then }
    }

    pub(super) fn dangerous(self) -> Self {
        Self { is_dangerous: true, ..self }
    }

    pub(super) fn button(&self) -> Markup {
        html! {
            button type="button" class={ "js action" @if self.is_dangerous { " danger" } }
                data-method=(self.method) data-path=(self.path) data-body=(self.body.to_string())
                data-title=(self.question) data-text=(self.text) data-then=[self.then.as_deref()]
                data-option=[self.option.map(|(label, _)| label)]
                data-option-name=[self.option.map(|(_, name)| name)] { (self.name) }
        }
    }
}

/// Returns a payload: pretty-printed JSON, hexadecimal digits, or why it is not shown.
pub(super) fn content(content: &Content) -> Markup {
    let size = format!("{} B, {}", super::format::number(content.size as u64), content.codec);
    html! {
        div class="payload" {
            p class="note" {
                (size)
                @if content.redacted { " · some values are redacted" }
            }
            @if let Some(hidden) = content.hidden {
                p class="hidden-payload" { (why_hidden(hidden)) }
            } @else if let Some(json) = &content.json {
                @let (markup, is_cut) = pretty(json.get());
                pre tabindex="0" { code { (markup) } }
                @if is_cut { p class="note" { "Only the beginning is shown. The API returns all of it." } }
            } @else if let Some(hex) = &content.hex {
                pre tabindex="0" class="hex" { code { (hex) } }
            }
        }
    }
}

const fn why_hidden(hidden: Hidden) -> &'static str {
    match hidden {
        Hidden::Role => "Hidden: your role may not see payloads.",
        Hidden::Undecodable => "Hidden: values must be redacted, and the payload cannot be decoded.",
        Hidden::Size => "Too large for a list.",
    }
}

/// Returns an error, or that there is one which the visitor may not see.
pub(super) fn error(text: Option<&str>, is_hidden: bool) -> Markup {
    html! {
        @if let Some(text) = text {
            pre class="error" tabindex="0" { (text) }
        } @else if is_hidden {
            p class="hidden-payload" { "The error is hidden from your role, or must be redacted." }
        }
    }
}

/// Returns what a page shows instead of an empty list.
pub(super) fn empty(title: &str, next: &Markup) -> Markup {
    html! {
        div class="empty" {
            p class="empty-title" { (title) }
            div { (next) }
        }
    }
}

/// Returns the head of a table. Columns of numbers are aligned at their right.
pub(super) fn head(names: &[&str]) -> Markup {
    const NUMBERS: [&str; 3] = ["Attempt", "Jobs", "Step"];
    html! {
        thead {
            tr {
                @for name in names { th scope="col" class=[NUMBERS.contains(name).then_some("number")] { (name) } }
            }
        }
    }
}

/// Returns pairs of a name and a value.
pub(super) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl class="facts" {
            @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
        }
    }
}
