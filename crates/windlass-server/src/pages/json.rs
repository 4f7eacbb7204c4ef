//! Pretty-printed JSON, with markup for its tokens.
//!
//! The text is not parsed into values: numbers keep all their digits, and members their order.

use maud::{Markup, html};

/// Longer texts are cut, in bytes.
const SHOWN_BYTES: usize = 64 * 1024;

/// Pages do not grow beyond about this size by line breaks, indentation and markup, in bytes.
const PRETTY_MAX_BYTES: usize = 256 * 1024;

/// The size of the markup of a string, in bytes.
const MARKUP_BYTES: usize = 32;

/// Deeper levels are not indented further.
const INDENT_MAX: usize = 24;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Key,
    Text,
    Plain,
}

/// Returns JSON with line breaks and indentation, and whether it was cut.
pub(super) fn pretty(text: &str) -> (Markup, bool) {
    let shown = &text[..text.floor_char_boundary(SHOWN_BYTES)];
    let (tokens, is_complete) = tokens(shown);
    let is_cut = shown.len() < text.len() || !is_complete;
    let markup = html! {
        @for (kind, text) in &tokens {
            @match kind {
                Kind::Key => span class="k" { (text) },
                Kind::Text => span class="s" { (text) },
                Kind::Plain => (text),
            }
        }
    };
    (markup, is_cut)
}

/// Returns the tokens of a text, and whether they are all.
fn tokens(text: &str) -> (Vec<(Kind, String)>, bool) {
    let mut tokens = Vec::new();
    let mut plain = String::new();
    let (mut depth, mut size): (usize, usize) = (0, 0);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if size + plain.len() > PRETTY_MAX_BYTES {
            break;
        }
        if next == '"' {
            let end = string_end(rest);
            let (string, after) = rest.split_at(end);
            let is_key = after.trim_start().starts_with(':');
            size += plain.len() + string.len() + MARKUP_BYTES;
            if !plain.is_empty() {
                tokens.push((Kind::Plain, std::mem::take(&mut plain)));
            }
            tokens.push((if is_key { Kind::Key } else { Kind::Text }, string.to_owned()));
            rest = after;
            continue;
        }
        rest = rest.get(next.len_utf8()..).unwrap_or_default();
        match next {
            '{' | '[' if closes_at_once(rest) => plain.push(next),
            '{' | '[' => {
                depth += 1;
                plain.push(next);
                line_break(&mut plain, depth);
            }
            '}' | ']' if plain.ends_with(['{', '[']) => plain.push(next),
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line_break(&mut plain, depth);
                plain.push(next);
            }
            ',' => {
                plain.push(next);
                line_break(&mut plain, depth);
            }
            ':' => plain.push_str(": "),
            next if next.is_ascii_whitespace() => {}
            next => plain.push(next),
        }
    }
    tokens.push((Kind::Plain, plain));
    (tokens, rest.is_empty())
}

/// Returns where a string ends that begins the text.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (index, next) in text.char_indices().skip(1) {
        match next {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

fn closes_at_once(rest: &str) -> bool {
    rest.trim_start().starts_with(['}', ']'])
}

fn line_break(text: &mut String, depth: usize) {
    text.push('\n');
    for _ in 0..depth.min(INDENT_MAX) {
        text.push_str("  ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        tokens(text).0.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn json_is_indented_and_unchanged() {
        let text = r#"{"a":[1,{"b":"x, {\"y\"}"}],"n":12345678901234567890.10,"e":{},"f":[ ]}"#;
        let shown = plain(text);
        assert_eq!(
            shown,
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x, {\\\"y\\\"}\"\n    }\n  ],\n  \"n\": \
             12345678901234567890.10,\n  \"e\": {},\n  \"f\": []\n}"
        );
    }

    #[test]
    fn markup_in_strings_is_escaped_and_broken_text_does_no_harm() {
        let (markup, is_cut) = pretty(r#"{"<b>":"</span><script>"}"#);
        assert_eq!(
            markup.0,
            "{\n  <span class=\"k\">&quot;&lt;b&gt;&quot;</span>: \
             <span class=\"s\">&quot;&lt;/span&gt;&lt;script&gt;&quot;</span>\n}"
        );
        assert!(!is_cut);
        for text in ["", "\"", "\"\\", "]]]", "{{{", "é\"é"] {
            let _ = pretty(text);
        }
        let (_, is_cut) = pretty(&format!("\"{}\"", "é".repeat(SHOWN_BYTES)));
        assert!(is_cut);
    }

    #[test]
    fn deep_and_short_values_make_no_large_pages() {
        for text in ["[".repeat(SHOWN_BYTES), "\"\",".repeat(SHOWN_BYTES / 3), "[[0,".repeat(SHOWN_BYTES / 4)]
        {
            let (markup, is_cut) = pretty(&text);
            assert!(is_cut && markup.0.len() < 2 * PRETTY_MAX_BYTES, "{} bytes", markup.0.len());
        }
    }
}
