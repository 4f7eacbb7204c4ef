//! Quotes arguments in the commands that messages suggest.

use std::fmt::Display;

/// Returns an argument as a POSIX shell reads it back: in single quotes, unless none of its characters is special.
pub(crate) fn quoted(argument: impl Display) -> String {
    let text = argument.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    // A single quote cannot occur inside single quotes: end them, escape it, and begin them again.
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_special_characters_are_quoted() {
        let check = |argument: &str, expected: &str| assert_eq!(quoted(argument), expected);
        check("mail", "mail");
        check("shop/send-mail.v2:x@y", "shop/send-mail.v2:x@y");
        check("a b", "'a b'");
        check("$HOME; rm", "'$HOME; rm'");
        check("it's", r"'it'\''s'");
        check("größe", "'größe'");
        check("", "''");
    }
}
