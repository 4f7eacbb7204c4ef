use std::collections::HashSet;

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::{Error, LitStr, Result};

/// Returns the default stored name of a type: the type's name in kebab-case.
pub(crate) fn default_name(job: &Ident) -> Result<String> {
    let name = kebab_case(&job.unraw().to_string());
    check(&name, job.span())?;
    Ok(name)
}

/// Returns a name from the attribute, after checking it.
pub(crate) fn given_name(name: &LitStr) -> Result<String> {
    check(&name.value(), name.span())?;
    Ok(name.value())
}

/// Rejects a redundant alias: one that equals the name or repeats another alias.
pub(crate) fn check_aliases(name: &str, aliases: &[LitStr]) -> Result<()> {
    let mut known = HashSet::new();
    for alias in aliases {
        let text = given_name(alias)?;
        if text == name {
            let message = format!("the alias `{text}` is already the name of this type: remove the alias");
            return Err(Error::new(alias.span(), message));
        }
        if !known.insert(text.clone()) {
            return Err(Error::new(alias.span(), format!("the alias `{text}` is listed twice: remove one")));
        }
    }
    Ok(())
}

/// Checks at compile time the rules that the store contract sets for type names.
fn check(name: &str, span: Span) -> Result<()> {
    if name.is_empty() || name.len() > 200 || name.contains(char::is_control) {
        return Err(Error::new(span, "a name must be 1 to 200 bytes without control characters"));
    }
    Ok(())
}

/// Converts `SendWelcome` to `send-welcome` and `HTTPFetch` to `http-fetch`.
///
/// A word starts at an uppercase letter that does not follow another one, at the last uppercase letter before a
/// lowercase one, and after `_`. Digits belong to the word before them.
fn kebab_case(name: &str) -> String {
    let mut kebab = String::new();
    let mut before = '_';
    let mut chars = name.chars().peekable();
    while let Some(char) = chars.next() {
        let ends_acronym = before.is_uppercase() && chars.peek().is_some_and(|after| after.is_lowercase());
        let starts_word = before == '_' || char.is_uppercase() && (!before.is_uppercase() || ends_acronym);
        if char != '_' {
            if starts_word && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.extend(char.to_lowercase());
        }
        before = char;
    }
    kebab
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_words() {
        for (name, kebab) in [
            ("Send", "send"),
            ("SendWelcome", "send-welcome"),
            ("HTTPFetch", "http-fetch"),
            ("FetchHTTP", "fetch-http"),
            ("FetchHTTPPage", "fetch-http-page"),
            ("SendEMail", "send-e-mail"),
            ("Provision2FA", "provision2-fa"),
            ("Sha256Sum", "sha256-sum"),
            ("S3Upload", "s3-upload"),
            ("Version2", "version2"),
            ("ÉtatÜber", "état-über"),
            ("send_welcome", "send-welcome"),
            ("_Send__Welcome_", "send-welcome"),
            ("A", "a"),
        ] {
            assert_eq!(kebab_case(name), kebab, "{name}");
        }
    }

    #[test]
    fn a_raw_identifier_loses_its_prefix() {
        let name = |text| default_name(&Ident::new_raw(text, Span::call_site())).unwrap();
        assert_eq!(name("type"), "type");
        assert_eq!(name("Match"), "match");
    }

    #[test]
    fn a_type_name_that_cannot_be_stored_is_rejected() {
        assert!(default_name(&Ident::new("__", Span::call_site())).is_err(), "the name contains no word");
        assert!(default_name(&Ident::new(&"a".repeat(200), Span::call_site())).is_ok());
        assert!(default_name(&Ident::new(&"a".repeat(201), Span::call_site())).is_err());
    }
}
