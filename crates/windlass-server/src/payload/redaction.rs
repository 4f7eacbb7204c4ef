//! Replaces values in JSON by path, and removes the same values from texts.
//!
//! Redaction works on the text of JSON, not on a tree of values: numbers keep their digits, and objects their order and
//! their duplicates. It reads each byte once, so a payload costs time in proportion to its size, however it is nested.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

/// The replacement of a redacted value.
const REDACTED: &str = "[redacted]";

/// JSON that is nested deeper than this is not shown where values are redacted.
const DEPTH_MAX: usize = 100;

/// Redacted texts that are shorter than this are not searched in errors: they would match everywhere.
const SEARCHED_MIN_BYTES: usize = 3;

/// The maximum number of redacted values that are searched in a text. With more, the text is hidden: each value costs a
/// search.
const VALUES_MAX: usize = 1_000;

/// How a shortened error ends.
const SHORTENED: &str = " … (shortened)";

/// A path to values in payloads that are not shown: names of fields with dots between them, such as `card.number`. `*`
/// stands for any field or element, and `**` for any number of them. Elements of lists do not count: `items.price`
/// matches in each element of a list `items`. A path that ends with `*` or `**` also hides the values of a list, and a
/// value that has no fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionPath(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Field(String),
    Any,
    AnyNumber,
}

impl RedactionPath {
    /// Parses a path.
    ///
    /// # Errors
    ///
    /// If the path is empty, or if one of its names is.
    pub fn new(text: &str) -> Result<Self, String> {
        let segment = |name: &str| match name {
            "" => Err(format!("invalid path `{text}`: use names with dots between them, like `card.number`")),
            "*" => Ok(Segment::Any),
            "**" => Ok(Segment::AnyNumber),
            name => Ok(Segment::Field(name.to_owned())),
        };
        let mut segments = text.split('.').map(segment).collect::<Result<Vec<_>, _>>()?;
        // `**.**` means the same as `**`.
        segments.dedup_by(|a, b| *a == Segment::AnyNumber && *b == Segment::AnyNumber);
        Ok(Self(segments))
    }
}

/// The rest of each path that applies to a value.
type Rest<'a> = Vec<&'a [Segment]>;

/// The redacted values.
#[derive(Default)]
pub(super) struct Redaction {
    pub(super) is_redacted: bool,
    /// The values and names that were redacted, as they may appear in a text.
    values: BTreeSet<String>,
}

impl Redaction {
    /// Returns a JSON value with the values at these paths replaced. Returns `None` if it is nested too deeply.
    pub(super) fn apply(&mut self, json: &RawValue, paths: &[RedactionPath]) -> Option<String> {
        let rest: Rest<'_> = paths.iter().map(|path| path.0.as_slice()).collect();
        let mut shown = String::with_capacity(json.get().len());
        self.value(&mut Reader { rest: json.get() }, &rest, 0, &mut shown)?;
        Some(shown)
    }

    /// Removes the redacted values from a text. Returns `None` if there are too many of them.
    pub(super) fn remove_from(&self, text: &str) -> Option<String> {
        if self.values.len() > VALUES_MAX {
            return None;
        }
        let mut values: Vec<_> =
            self.values.iter().filter(|value| value.len() >= SEARCHED_MIN_BYTES).collect();
        // A value may contain another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let removed =
            values.iter().fold(text.to_owned(), |text, value| text.replace(value.as_str(), REDACTED));
        // The text may have been cut within a value.
        let (body, mark) = match removed.strip_suffix(SHORTENED) {
            Some(body) => (body, SHORTENED),
            None => (removed.as_str(), ""),
        };
        let cut = values.iter().filter_map(|value| cut_value(body, value)).max();
        let body = &body[..body.len() - cut.unwrap_or(0)];
        Some(format!("{body}{}{mark}", if cut.is_some() { REDACTED } else { "" }))
    }

    fn value(
        &mut self,
        reader: &mut Reader<'_>,
        paths: &Rest<'_>,
        depth: usize,
        shown: &mut String,
    ) -> Option<()> {
        if paths.is_empty() {
            shown.push_str(reader.value()?);
            return Some(());
        }
        if paths.iter().any(|path| path.is_empty()) {
            return self.redact(reader, depth, shown);
        }
        if depth > DEPTH_MAX {
            return None;
        }
        match reader.peek()? {
            b'{' => reader.items(b'}', shown, |reader, shown| {
                let name = reader.name()?;
                shown.push_str(&serde_json::to_string(&name).ok()?);
                shown.push(':');
                self.value(reader, &below(paths, &name), depth + 1, shown)
            }),
            b'[' => reader.items(b']', shown, |reader, shown| self.value(reader, paths, depth + 1, shown)),
            // A path that goes on with any name must not show a value because it has no name.
            _ if paths.iter().any(|path| !path.iter().any(|part| matches!(part, Segment::Field(_)))) => {
                self.redact(reader, depth, shown)
            }
            _ => {
                shown.push_str(reader.value()?);
                Some(())
            }
        }
    }

    /// Replaces a value, and remembers all names and scalars in it.
    fn redact(&mut self, reader: &mut Reader<'_>, depth: usize, shown: &mut String) -> Option<()> {
        self.is_redacted = true;
        shown.push_str(&serde_json::to_string(REDACTED).ok()?);
        self.remember(reader, depth)
    }

    fn remember(&mut self, reader: &mut Reader<'_>, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut unused = String::new();
        match reader.peek()? {
            b'{' => reader.items(b'}', &mut unused, |reader, _| {
                let name = reader.name()?;
                self.insert(name);
                self.remember(reader, depth + 1)
            }),
            b'[' => reader.items(b']', &mut unused, |reader, _| self.remember(reader, depth + 1)),
            b'"' => {
                // In a text, the value may appear as it is or in quotes, with escapes.
                let text = reader.value()?;
                if let Ok(value) = serde_json::from_str::<String>(text) {
                    self.insert(value);
                }
                self.insert(text.get(1..text.len() - 1)?.to_owned());
                Some(())
            }
            b't' | b'f' | b'n' => reader.value().map(drop),
            _ => {
                let number = reader.value()?.to_owned();
                self.insert(number);
                Some(())
            }
        }
    }

    fn insert(&mut self, value: String) {
        // One more than the maximum says that there are too many.
        if self.values.len() <= VALUES_MAX {
            self.values.insert(value);
        }
    }
}

/// Returns the length of the end of a text that is the beginning of a value.
fn cut_value(text: &str, value: &str) -> Option<usize> {
    let longest = value.len().min(text.len());
    let is_cut = |length: &usize| value.get(..*length).is_some_and(|beginning| text.ends_with(beginning));
    (SEARCHED_MIN_BYTES..=longest).rev().find(is_cut)
}

/// Returns the rest of the paths below a field. An empty rest means that the field itself is redacted.
fn below<'a>(paths: &Rest<'a>, name: &str) -> Rest<'a> {
    let mut rest = Rest::new();
    let mut add = |path: &'a [Segment]| {
        if !rest.contains(&path) {
            rest.push(path);
        }
    };
    for path in paths {
        match path.split_first() {
            Some((Segment::Field(field), after)) if field == name => add(after),
            Some((Segment::Any, after)) => add(after),
            Some((Segment::AnyNumber, after)) => {
                add(path);
                // `**` may also stand for no field at all.
                match after.split_first() {
                    None => add(after),
                    Some((Segment::Field(field), after)) if field == name => add(after),
                    Some((Segment::Any, after)) => add(after),
                    Some(_) => {}
                }
            }
            Some((Segment::Field(_), _)) | None => {}
        }
    }
    rest
}

/// Reads JSON that was checked before. Returns `None` where it is not JSON after all.
struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Returns the first byte of the next token.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.rest.bytes().next()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.rest = &self.rest[1..])
    }

    /// Reads the items of an object or a list, and copies what is around them.
    fn items(
        &mut self,
        close: u8,
        shown: &mut String,
        mut item: impl FnMut(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        let open = self.peek()?;
        self.take(open)?;
        shown.push(char::from(open));
        if self.peek()? != close {
            item(self, shown)?;
            while self.peek()? == b',' {
                self.take(b',')?;
                shown.push(',');
                item(self, shown)?;
            }
        }
        shown.push(char::from(close));
        self.take(close)
    }

    /// Reads the name of a field and the colon after it.
    fn name(&mut self) -> Option<String> {
        let name = serde_json::from_str(self.value()?).ok()?;
        self.take(b':')?;
        Some(name)
    }

    /// Reads a whole value without looking at its parts.
    fn value(&mut self) -> Option<&'t str> {
        let end = match self.peek()? {
            b'"' => string_end(self.rest)?,
            b'{' | b'[' => nested_end(self.rest)?,
            _ => {
                let is_end = |c: char| matches!(c, ',' | '}' | ']' | ' ' | '\t' | '\r' | '\n');
                self.rest.find(is_end).unwrap_or(self.rest.len())
            }
        };
        let (value, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some(value)
    }
}

/// Returns the position after the string at the beginning of a text.
fn string_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the position after the object or list at the beginning of a text.
fn nested_end(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        let rest = text.get(at..)?;
        match rest.bytes().next()? {
            b'"' => at += string_end(rest)?,
            byte => {
                at += rest.chars().next()?.len_utf8();
                match byte {
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.checked_sub(1)?,
                    _ => {}
                }
                if depth == 0 {
                    return Some(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(paths: &[&str], json: &str) -> (Redaction, Option<String>) {
        let paths: Vec<_> = paths.iter().map(|path| RedactionPath::new(path).unwrap()).collect();
        let mut redaction = Redaction::default();
        let shown = redaction.apply(&RawValue::from_string(json.to_owned()).unwrap(), &paths);
        (redaction, shown)
    }

    fn check(paths: &[&str], json: &str, expected: &str) {
        assert_eq!(redact(paths, json).1.as_deref(), Some(expected), "{paths:?}");
    }

    #[test]
    fn values_are_redacted_by_path() {
        let json = r#"{"card":{"number":"4111","year":27},"items":[{"price":1},{"price":2}],"number":9}"#;
        check(&["none"], json, json);
        check(&["number"], json, &json.replace("\"number\":9", "\"number\":\"[redacted]\""));
        check(&["card.number"], json, &json.replace("\"4111\"", "\"[redacted]\""));
        check(&["card"], json, &json.replace(r#"{"number":"4111","year":27}"#, "\"[redacted]\""));
        check(
            &["items.price"],
            json,
            &json
                .replace("\"price\":1", "\"price\":\"[redacted]\"")
                .replace("\"price\":2", "\"price\":\"[redacted]\""),
        );
        check(&["*.number"], json, &json.replace("\"4111\"", "\"[redacted]\""));
        let all =
            json.replace("\"4111\"", "\"[redacted]\"").replace("\"number\":9", "\"number\":\"[redacted]\"");
        check(&["**.number"], json, &all);
        check(&["**.**.number"], json, &all);
    }

    #[test]
    fn wildcards_also_hide_values_without_a_name() {
        let hidden = "\"[redacted]\"";
        for path in ["*", "**", "**.*", "**.**"] {
            check(&[path], "\"secret\"", hidden);
            check(&[path], "[1,\"a\",[2]]", &format!("[{hidden},{hidden},[{hidden}]]"));
            check(&[path], "{\"a\":{\"b\":1}}", &format!("{{\"a\":{hidden}}}"));
        }
        check(
            &["items.*"],
            "{\"items\":[1,2],\"n\":3}",
            &format!("{{\"items\":[{hidden},{hidden}],\"n\":3}}"),
        );
        check(&["items.*"], "{\"items\":5}", &format!("{{\"items\":{hidden}}}"));
    }

    #[test]
    fn redaction_keeps_digits_order_and_duplicates() {
        let json = r#"{"b":12345678901234567890123,"a":1.0,"a":"x","b":1}"#;
        check(&["a"], json, r#"{"b":12345678901234567890123,"a":"[redacted]","a":"[redacted]","b":1}"#);
        check(&["\u{61}"], r#"{"\u0061":1}"#, r#"{"a":"[redacted]"}"#);
        check(
            &["a"],
            " { \"a\" : [ 1 , \"]}\\\"\" ] , \"ü\" : { \"b\" : \"}\" } } ",
            "{\"a\":\"[redacted]\",\"ü\":{ \"b\" : \"}\" }}",
        );
        check(&["x.y"], "{\"x\":[],\"z\":{}}", "{\"x\":[],\"z\":{}}");
    }

    #[test]
    fn deeply_nested_values_are_hidden_in_linear_time() {
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        for path in ["**.a", "**", "a"] {
            assert_eq!(redact(&[path], &deep(1_000_000)).1, None, "{path}");
        }
        // Also below a value that is redacted, and with a long text at each level.
        assert_eq!(redact(&["a"], &format!("{{\"a\":{}}}", deep(1_000_000))).1, None);
        let pairs = format!("{}1{}", "{\"a\":[\"x\",".repeat(200_000), "]}".repeat(200_000));
        assert_eq!(redact(&["a"], &pairs).1, None);
        // A value that no path concerns is copied, however deep.
        let copied = format!("{{\"b\":{}}}", deep(1_000_000));
        check(&["a"], &copied, &copied);
    }

    #[test]
    fn redacted_values_are_removed_from_texts() {
        let json =
            r#"{"secret":{"card":"4111","name":"a\"b\\c","pin":123456,"ok":true,"x":"4","password":0}}"#;
        let (redaction, _) = redact(&["secret"], json);
        let check = |text: &str, expected: &str| {
            assert_eq!(redaction.remove_from(text).as_deref(), Some(expected), "{text}");
        };
        check(
            r#"4111 of "a\"b\\c" (a"b\c) with pin 123456 is true, 4"#,
            r#"[redacted] of "[redacted]" ([redacted]) with [redacted] [redacted] is true, 4"#,
        );
        // Names inside of a redacted value are a part of it.
        check("the password is wrong", "the [redacted] is wrong");
        // A text that was cut within a value.
        check("number 12345", "number [redacted]");
        check("number 1234 … (shortened)", "number [redacted] … (shortened)");
        check("number 12", "number 12");
    }

    #[test]
    fn a_text_is_hidden_if_too_many_values_would_have_to_be_removed() {
        let numbers: Vec<_> = (0..100_000).map(|number| number.to_string()).collect();
        let (redaction, shown) = redact(&["a"], &format!("{{\"a\":[{}]}}", numbers.join(",")));
        assert_eq!((shown.as_deref(), redaction.remove_from("x")), (Some("{\"a\":\"[redacted]\"}"), None));
    }

    #[test]
    fn invalid_paths_are_refused() {
        for path in ["", ".", "a..b", "a."] {
            assert!(RedactionPath::new(path).is_err(), "{path}");
        }
    }
}
