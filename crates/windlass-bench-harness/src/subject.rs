use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use crate::protocol::READY;
use crate::{Arguments, Candidate, Reply, Result, Unsupported, workload};

/// A library on a store with certain settings.
#[derive(Clone, Debug)]
pub struct Subject {
    description: Description,
    run: Run,
}

type Run = fn(Arguments) -> Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// What a program says about a subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Name of the store.
    pub store: String,
    /// Name of the subject.
    pub name: String,
    /// The settings that differ from the library's defaults.
    pub settings: String,
    /// The share of the jobs that it runs, so that a slow library does not take most of the time.
    pub share: f64,
    /// Whether a worker acquires jobs before it has free slots for them.
    pub reads_ahead: bool,
}

impl Subject {
    /// Creates a subject that runs all jobs of a workload.
    #[must_use]
    pub fn new<C: Candidate>(store: &str, name: &str, settings: &str) -> Self {
        let (store, name, settings) = (store.to_owned(), name.to_owned(), settings.to_owned());
        let description = Description { store, name, settings, share: 1.0, reads_ahead: false };
        Self { description, run: |arguments| Box::pin(run::<C>(arguments)) }
    }

    /// Sets the share of the jobs that it runs.
    #[must_use]
    pub fn share(mut self, share: f64) -> Self {
        self.description.share = share;
        self
    }

    /// Declares that a worker acquires jobs before it has free slots for them.
    #[must_use]
    pub fn reads_ahead(mut self) -> Self {
        self.description.reads_ahead = true;
        self
    }
}

/// Runs a program with the arguments of this process. See [`protocol`](crate::protocol).
#[must_use]
pub fn main(subjects: &[Subject]) -> ExitCode {
    main_with(&std::env::args().skip(1).collect::<Vec<_>>(), subjects)
}

/// Runs a program with the given arguments.
#[must_use]
pub fn main_with(words: &[String], subjects: &[Subject]) -> ExitCode {
    match answer(words, subjects) {
        Ok(text) => {
            say(&text);
            // The runner reads the resource usage before this process ends.
            await_line();
            // Workers are not stopped: how a library stops is not measured.
            std::process::exit(0);
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer(words: &[String], subjects: &[Subject]) -> Result<String> {
    if let [list, store] = words
        && list == "--list"
    {
        let found = subjects.iter().map(|subject| &subject.description);
        let found: Vec<&Description> = found.filter(|description| description.store == *store).collect();
        return Ok(serde_json::to_string(&found)?);
    }
    let arguments = Arguments::parse(words)?;
    let wanted = |subject: &&Subject| {
        subject.description.name == arguments.subject && subject.description.store == arguments.store
    };
    let subject = subjects.iter().find(wanted);
    let subject = subject.ok_or_else(|| format!("unknown subject `{}`", arguments.subject))?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let reply = runtime.block_on((subject.run)(arguments))?;
    // Dropping the runtime would wait for its blocking tasks.
    runtime.shutdown_background();
    Ok(serde_json::to_string(&reply)?)
}

async fn run<C: Candidate>(arguments: Arguments) -> Result<Reply> {
    let mut begin = || {
        say(READY);
        await_line();
    };
    match workload::run::<C>(&arguments, &mut begin).await {
        Err(error) if error.is::<Unsupported>() => Ok(Reply::Unsupported(error.to_string())),
        outcome => outcome,
    }
}

fn say(line: &str) {
    let mut output = io::stdout().lock();
    // If the reader is gone, the output is not needed.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// Waits for a line, or for the end of the input.
fn await_line() {
    let _ = io::stdin().read_line(&mut String::new());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Guard, Work};

    struct Nothing;

    impl Candidate for Nothing {
        async fn open(_: &Arguments) -> Result<Self> {
            Ok(Self)
        }

        async fn start(&self, _producer: u64, _number: u64) -> Result {
            Ok(())
        }

        async fn work(&self, _work: Work) -> Result<Guard> {
            Ok(Box::new(()))
        }

        async fn unfinished(&self) -> Result<u64> {
            Ok(0)
        }
    }

    #[test]
    fn the_subjects_of_a_store_are_listed() {
        let subjects = [
            Subject::new::<Nothing>("redis", "a", "default"),
            Subject::new::<Nothing>("postgres", "b", "tuned").share(0.5).reads_ahead(),
        ];
        let words = ["--list", "postgres"].map(str::to_owned);
        let listed: Vec<Description> = serde_json::from_str(&answer(&words, &subjects).unwrap()).unwrap();
        let [only] = listed.as_slice() else { panic!("{listed:?}") };
        assert_eq!((only.name.as_str(), only.share, only.reads_ahead), ("b", 0.5, true));
    }

    #[test]
    fn an_unknown_subject_is_refused() {
        let words = Arguments {
            store: "redis".to_owned(),
            subject: "b".to_owned(),
            url: String::new(),
            workload: crate::Workload::Start,
            jobs: 1,
            slots: 1,
        };
        let subjects = [Subject::new::<Nothing>("redis", "a", "default")];
        assert_eq!(answer(&words.words(), &subjects).unwrap_err().to_string(), "unknown subject `b`");
    }
}
