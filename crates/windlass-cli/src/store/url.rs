//! Parses the URLs of stores and notifiers.

use std::path::PathBuf;

use crate::exit::{Failure, Result};

/// A parsed store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    Sqlite(PathBuf),
    /// A folder.
    File(PathBuf),
    Postgres(String),
    Redis(String),
}

/// A parsed notifier URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotifierUrl {
    /// The store's own notifier.
    Own,
    /// No notifications between processes. Other processes poll.
    None,
    Postgres(String),
    Redis(String),
    Nats {
        url: String,
        /// JetStream bucket for wake budgets. Without one, every worker that receives a hint queries the store.
        bucket: Option<String>,
    },
}

impl StoreUrl {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        // If there is a scheme, errors show only that: the rest may contain a password.
        let Some((scheme, rest)) = url.split_once(':') else {
            let text = format!("`{url}` is not a store URL: did you mean `sqlite:{url}`?");
            return Err(Failure::usage(text));
        };
        match scheme {
            "memory" => Ok(Self::Memory),
            "sqlite" => match rest.strip_prefix("//").unwrap_or(rest) {
                "" => Err(Failure::usage("`sqlite:` has no path: use a form like `sqlite:windlass.db`")),
                path => Ok(Self::Sqlite(path.into())),
            },
            "file" => match rest.strip_prefix("//").unwrap_or(rest) {
                "" => Err(Failure::usage("`file:` has no path: use a form like `file:./queue`")),
                path => Ok(Self::File(path.into())),
            },
            "postgres" | "postgresql" => Ok(Self::Postgres(url.to_owned())),
            "redis" | "rediss" | "valkey" => Ok(Self::Redis(url.to_owned())),
            _ => {
                let text = format!(
                    "unknown store scheme `{scheme}:`: use `sqlite:PATH`, `file:FOLDER`, `postgres://…`, `redis://…` or `memory:`"
                );
                Err(Failure::usage(text))
            }
        }
    }

    /// Returns the URL in a form that is valid in any directory.
    pub(crate) fn absolute(&self) -> String {
        match self {
            Self::Memory => "memory:".to_owned(),
            Self::Sqlite(path) => {
                let absolute = std::path::absolute(path);
                format!("sqlite:{}", absolute.as_ref().unwrap_or(path).display())
            }
            Self::File(path) => {
                let absolute = std::path::absolute(path);
                format!("file:{}", absolute.as_ref().unwrap_or(path).display())
            }
            Self::Postgres(url) | Self::Redis(url) => url.clone(),
        }
    }
}

impl NotifierUrl {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
            "none" => Ok(Self::None),
            "postgres" | "postgresql" => Ok(Self::Postgres(url.to_owned())),
            "redis" | "rediss" | "valkey" => Ok(Self::Redis(url.to_owned())),
            "nats" | "tls" => Self::nats(url),
            scheme => {
                let text = format!(
                    "--notifier: unknown scheme `{scheme}`: use `postgres://…`, `redis://…`, `nats://…` or `none`"
                );
                Err(Failure::usage(text))
            }
        }
    }

    fn nats(url: &str) -> Result<Self> {
        let (url, query) = url.split_once('?').unwrap_or((url, ""));
        let bucket = match query.split_once('=') {
            None if query.is_empty() => None,
            Some(("bucket", name)) if !name.is_empty() && !name.contains('&') => Some(name.to_owned()),
            _ => {
                let text = "--notifier: invalid query in the NATS URL: only `?bucket=NAME` is allowed";
                return Err(Failure::usage(text));
            }
        };
        Ok(Self::Nats { url: url.to_owned(), bucket })
    }

    /// Returns the URL as it was given, or an empty text for the store's own notifier.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Own => String::new(),
            Self::None => "none".to_owned(),
            Self::Postgres(url) | Self::Redis(url) | Self::Nats { url, bucket: None } => url.clone(),
            Self::Nats { url, bucket: Some(bucket) } => format!("{url}?bucket={bucket}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls_are_parsed_by_scheme() {
        assert_eq!(StoreUrl::parse("sqlite:a/b.db").unwrap(), StoreUrl::Sqlite("a/b.db".into()));
        assert_eq!(StoreUrl::parse("sqlite:///b.db").unwrap(), StoreUrl::Sqlite("/b.db".into()));
        assert_eq!(StoreUrl::parse("file:./queue").unwrap(), StoreUrl::File("./queue".into()));
        assert_eq!(StoreUrl::parse("file:///queue").unwrap(), StoreUrl::File("/queue".into()));
        assert_eq!(StoreUrl::parse("memory:").unwrap(), StoreUrl::Memory);
        assert!(matches!(StoreUrl::parse("postgresql://h/d").unwrap(), StoreUrl::Postgres(_)));
        let line = |url| StoreUrl::parse(url).unwrap_err().line().unwrap();
        assert!(line("jobs.db").contains("did you mean `sqlite:jobs.db`?"));
        assert!(line("sqlite:").contains("has no path"));
        assert!(line("file:").contains("has no path"));
        assert!(!line("mysql://ada:secret@h/d").contains("secret"));
    }

    #[test]
    fn absolute_urls_are_valid_in_any_directory() {
        let directory = std::env::current_dir().unwrap();
        let absolute = StoreUrl::parse("sqlite:a/b.db").unwrap().absolute();
        assert_eq!(absolute, format!("sqlite:{}", directory.join("a/b.db").display()));
        let absolute = StoreUrl::parse("file:a/b").unwrap().absolute();
        assert_eq!(absolute, format!("file:{}", directory.join("a/b").display()));
        assert_eq!(StoreUrl::parse("redis://h").unwrap().absolute(), "redis://h");
    }

    #[test]
    fn notifier_urls_are_parsed_by_scheme() {
        for url in ["none", "redis://h", "nats://ada:pw@h:4222", "tls://h?bucket=b"] {
            assert_eq!(NotifierUrl::parse(url).unwrap().text(), url);
        }
        let bucket = NotifierUrl::parse("nats://h?bucket=b").unwrap();
        assert_eq!(bucket, NotifierUrl::Nats { url: "nats://h".to_owned(), bucket: Some("b".to_owned()) });
        for url in ["carrier-pigeon", "nats://h?bukket=b", "nats://h?bucket=", "nats://h?bucket=a&x=1"] {
            let line = NotifierUrl::parse(url).unwrap_err().line().unwrap();
            assert!(line.starts_with("--notifier: "), "{line}");
        }
    }
}
