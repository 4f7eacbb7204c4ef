//! Removes the passwords of URLs from everything that is printed.

use std::ffi::OsString;

/// Texts that must not be printed: the passwords in the given URLs, both as written and percent-decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(Vec<String>);

/// Replaces a secret in the output.
const HIDDEN: &str = "***";

impl Secrets {
    /// Collects the secrets from all arguments and environment variables that may contain URLs.
    pub(crate) fn of_process() -> Self {
        let variables = ["WINDLASS_STORE", "WINDLASS_NOTIFIER"].into_iter().filter_map(std::env::var_os);
        let given: Vec<_> = std::env::args_os()
            .chain(variables)
            .filter_map(|word| OsString::into_string(word).ok())
            .collect();
        Self::of(given.iter().map(String::as_str))
    }

    /// Collects the secrets in these URLs.
    pub(crate) fn of<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        // NATS accepts several URLs, separated by commas.
        let each = |url: &'a str| std::iter::once(url).chain(url.split(','));
        let mut secrets: Vec<String> = urls.into_iter().flat_map(each).flat_map(secrets_of).collect();
        secrets.retain(|secret| !secret.is_empty());
        // Replace longer secrets first. Otherwise a shorter one inside them would leave the rest visible.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// Returns the text with all secrets replaced.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), HIDDEN))
    }
}

fn secrets_of(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return Vec::new() };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    // A password may contain an unencoded slash or `@`, so it ends at the last `@`.
    let login = place.rsplit_once('@').map(|(login, _)| login);
    let password = login.and_then(|login| match login.split_once(':') {
        Some((_, password)) => Some(password),
        // NATS accepts a token instead of a user name and password.
        None => (scheme.ends_with("nats") || scheme.ends_with("tls")).then_some(login),
    });
    let parameters = query.split('&').filter_map(|pair| pair.split_once('='));
    let parameters = parameters.filter(|(name, _)| name.contains("password")).map(|(_, value)| value);
    password.into_iter().chain(parameters).flat_map(|secret| [secret.to_owned(), decoded(secret)]).collect()
}

/// Decodes percent-encoded characters.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = (first == b'%').then(|| tail.get(..2)).flatten();
        let code = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, text: &str, hidden: &str) {
        assert_eq!(Secrets::of([url]).hide(text), hidden, "{url}");
    }

    #[test]
    fn passwords_are_hidden_in_every_position() {
        check(
            "postgres://ada:s3cret@host/db",
            "no login to postgres://ada:s3cret@host",
            "no login to postgres://ada:***@host",
        );
        check("postgres://ada:p%40ss@host/db", "`p@ss` and `p%40ss`", "`***` and `***`");
        check("redis://:word@host", "word!", "***!");
        check("postgres://host/db?user=ada&password=abc", "ada abc", "ada ***");
        check("postgres://ada:a/b@c@host/db", "a/b@c", "***");
        check("nats://t0ken@host", "t0ken", "***");
        check("--notifier=nats://t0ken@host", "t0ken", "***");
        check("nats://ada:one@a,nats://ada:two@b", "one, two", "***, ***");
    }

    #[test]
    fn a_url_without_a_password_hides_nothing() {
        check("sqlite:jobs.db", "jobs.db", "jobs.db");
        check("postgres://ada@host:5432/db", "ada host 5432", "ada host 5432");
        check("postgres://ada:@host/db", "ada: host", "ada: host");
    }
}
