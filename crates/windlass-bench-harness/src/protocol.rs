//! The arguments and the output of a program.
//!
//! `PROGRAM --list STORE` prints the subjects of the program for that store, as JSON.
//!
//! `PROGRAM --store STORE --subject NAME --url URL --workload WORKLOAD --jobs N --slots N` runs a workload. The program
//! prints `ready` when it has prepared the store, and waits for a line on its standard input. Then it runs the workload
//! and prints its [`Reply`] as JSON, in one line. It waits for another line before it ends. So the runner can read the
//! resource usage of the program and of the server immediately before and after the workload. Without an input, as in
//! `PROGRAM … < /dev/null`, the program does not wait.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Line that a program prints when it has prepared the store.
pub const READY: &str = "ready";

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Name of the store, such as `postgres`.
    pub store: String,
    /// Name of the subject.
    pub subject: String,
    /// The database: a URL, or the path of an SQLite file.
    pub url: String,
    /// The workload.
    pub workload: Workload,
    /// Number of jobs.
    pub jobs: u64,
    /// Number of jobs that a worker may run at the same time.
    pub slots: u32,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Starts jobs with one call each, from 16 concurrent producers.
    Start,
    /// Starts jobs in batches of 1,000.
    StartBatched,
    /// Runs a worker until it has completed a backlog.
    Drain,
    /// Like [`Drain`](Self::Drain), but completes each job in a transaction of its handler.
    DrainInTransactions,
    /// Starts jobs with one call each, from 16 concurrent producers, while a worker completes them.
    Sustained,
    /// The time from the call that starts a job to its handler, one job at a time.
    Latency,
    /// The time from the call that starts a job to its result, one job at a time.
    RoundTrip,
}

const WORKLOADS: [(Workload, &str); 7] = [
    (Workload::Start, "start"),
    (Workload::StartBatched, "start-batched"),
    (Workload::Drain, "drain"),
    (Workload::DrainInTransactions, "drain-in-transactions"),
    (Workload::Sustained, "sustained"),
    (Workload::Latency, "latency"),
    (Workload::RoundTrip, "round-trip"),
];

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = WORKLOADS.iter().find(|(workload, _)| workload == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = WORKLOADS.iter().find(|(_, name)| *name == text).map(|(workload, _)| *workload);
        found.ok_or_else(|| format!("unknown workload `{text}`").into())
    }
}

impl Arguments {
    /// Parses a command line without the name of the program.
    ///
    /// # Errors
    /// If an option is missing, unknown or invalid.
    pub fn parse(words: &[String]) -> Result<Self> {
        let mut options = HashMap::new();
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` needs a value", pair.concat()).into()) };
            options.insert(name.as_str(), value.as_str());
        }
        let mut take =
            |name: &str| options.remove(name).ok_or_else(|| Error::from(format!("`{name}` is missing")));
        let arguments = Self {
            store: take("--store")?.to_owned(),
            subject: take("--subject")?.to_owned(),
            url: take("--url")?.to_owned(),
            workload: take("--workload")?.parse()?,
            jobs: take("--jobs")?.parse()?,
            slots: take("--slots")?.parse()?,
        };
        match options.keys().next() {
            None => Ok(arguments),
            Some(unknown) => Err(format!("unknown option `{unknown}`").into()),
        }
    }

    /// Returns the command line that [`parse`](Self::parse) reads.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let Self { store, subject, url, workload, jobs, slots } = self;
        let pairs = [
            ("--store", store.clone()),
            ("--subject", subject.clone()),
            ("--url", url.clone()),
            ("--workload", workload.to_string()),
            ("--jobs", jobs.to_string()),
            ("--slots", slots.to_string()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

/// The result of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// How many jobs were started or completed, and how long that took.
    Rate {
        /// Number of jobs.
        jobs: u64,
        /// Duration in seconds.
        seconds: f64,
        /// Jobs per second.
        jobs_per_second: f64,
        /// The 99th percentile of the times from a start to its handler in microseconds, if jobs were started meanwhile.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        p99_us: Option<f64>,
    },
    /// The times of single jobs.
    Times {
        /// Number of jobs.
        jobs: u64,
        /// Median in microseconds.
        p50_us: f64,
        /// 99th percentile in microseconds.
        p99_us: f64,
    },
    /// The library cannot run this workload, and why.
    Unsupported(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments {
            store: "postgres".to_owned(),
            subject: "a library, tuned".to_owned(),
            url: "postgres://127.0.0.1/".to_owned(),
            workload: Workload::DrainInTransactions,
            jobs: 5,
            slots: 7,
        }
    }

    #[test]
    fn a_command_line_is_parsed_to_what_it_was_made_of() {
        assert_eq!(Arguments::parse(&arguments().words()).unwrap(), arguments());
        for (workload, name) in WORKLOADS {
            assert_eq!(name.parse::<Workload>().unwrap(), workload);
            assert_eq!(serde_json::to_string(&workload).unwrap(), format!("{name:?}"));
        }
    }

    #[test]
    fn invalid_command_lines_are_refused() {
        let refusal = |change: fn(&mut Vec<String>)| {
            let mut words = arguments().words();
            change(&mut words);
            Arguments::parse(&words).unwrap_err().to_string()
        };
        assert_eq!(refusal(|words| words.truncate(10)), "`--slots` is missing");
        assert_eq!(refusal(|words| words.truncate(11)), "`--slots` needs a value");
        assert_eq!(refusal(|words| words[7] = "sleep".to_owned()), "unknown workload `sleep`");
        assert_eq!(
            refusal(|words| words.extend(["--fast".to_owned(), "1".to_owned()])),
            "unknown option `--fast`"
        );
    }

    #[test]
    fn a_reply_is_one_object_per_kind() {
        let rate = Reply::Rate { jobs: 2, seconds: 0.5, jobs_per_second: 4.0, p99_us: None };
        let text = serde_json::to_string(&rate).unwrap();
        assert_eq!(text, r#"{"rate":{"jobs":2,"seconds":0.5,"jobs_per_second":4.0}}"#);
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), rate);
    }
}
