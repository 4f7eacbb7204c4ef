//! Expressions of the views in `migrations/003_views.sql`. They are expanded here because SQLite has no SQL functions.

/// The placeholders, and the expressions that replace them. `$` is the column.
const EXPRESSIONS: [(&str, &str); 3] = [
    (
        "{uuid ",
        "case when $ is not null then lower(\
           substr(hex($), 1, 8) || '-' || substr(hex($), 9, 4) || '-' || substr(hex($), 13, 4) || '-' || \
           substr(hex($), 17, 4) || '-' || substr(hex($), 21)) end",
    ),
    ("{time ", "strftime('%Y-%m-%dT%H:%M:%fZ', $ / 1000.0, 'unixepoch')"),
    // `json_valid` accepts bytes that are not UTF-8. SQLite cannot check this, and shows them as they are.
    ("{json ", "case when $_codec = 'json' and json_valid(cast($ as text)) then json(cast($ as text)) end"),
];

/// Replaces placeholders such as `{time j.due_at}` with expressions. Leaves other text as it is.
pub(crate) fn expand(text: &str) -> String {
    EXPRESSIONS.iter().fold(text.to_owned(), |text, (placeholder, expression)| {
        let mut parts = text.split(placeholder);
        let mut expanded = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (column, rest) = part.split_once('}').expect("a placeholder ends with a brace");
            expanded.push_str(&expression.replace('$', column));
            expanded.push_str(rest);
        }
        expanded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let text = "select {time a} as x, {time b.c}, {prefix}d, '{}'";
        let expected = "select strftime('%Y-%m-%dT%H:%M:%fZ', a / 1000.0, 'unixepoch') as x, \
                        strftime('%Y-%m-%dT%H:%M:%fZ', b.c / 1000.0, 'unixepoch'), {prefix}d, '{}'";
        assert_eq!(expand(text), expected);
    }
}
