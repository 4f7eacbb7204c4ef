use std::any::{TypeId, type_name};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};

use super::{Blockers, Continuations, Job};
use crate::error::{Error, ErrorKind, Result};

/// The declaration of one job type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The name of the type.
    pub name: &'static str,
    /// The former names of the type.
    pub aliases: &'static [&'static str],
    /// The names of the continuations.
    pub next: Vec<&'static str>,
    /// The names of the blockers' types. A trailing `…` marks any number of them.
    pub blockers: Vec<String>,
    /// The Rust type, to distinguish two types with the same name.
    type_id: TypeId,
    /// The name of the Rust type, for error messages. It need not be unique.
    type_name: &'static str,
}

impl JobInfo {
    /// Returns the declaration of `J`.
    #[must_use]
    pub fn of<J: Job>() -> Self {
        Self {
            name: J::NAME,
            aliases: J::ALIASES,
            next: J::Next::names(),
            blockers: J::Blockers::names(),
            type_id: TypeId::of::<J>(),
            type_name: type_name::<J>(),
        }
    }

    /// Returns the current name, then the former ones.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied())
    }
}

/// A set of job types with their continuations and blockers. Sets from several modules can be merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobGraph {
    jobs: BTreeMap<&'static str, JobInfo>,
}

impl JobGraph {
    /// Creates an empty graph.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a job type. Adding the same type again has no effect.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if another type has the same name or alias, or if an alias of the type repeats
    /// its name or another alias.
    pub fn add<J: Job>(&mut self) -> Result<()> {
        self.insert(JobInfo::of::<J>())
    }

    /// Adds all types of another graph.
    ///
    /// # Errors
    /// The same as for [`add`](Self::add).
    pub fn merge(&mut self, other: Self) -> Result<()> {
        other.jobs.into_values().try_for_each(|job| self.insert(job))
    }

    /// Returns the types, ordered by name.
    pub fn jobs(&self) -> impl Iterator<Item = &JobInfo> {
        self.jobs.values()
    }

    /// Returns the graph in the DOT language of Graphviz, with continuations as solid arrows and blockers as
    /// dashed arrows.
    #[must_use]
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph jobs {\n");
        for job in self.jobs() {
            let _ = writeln!(dot, "  {:?};", job.name);
            for next in &job.next {
                let _ = writeln!(dot, "  {:?} -> {next:?};", job.name);
            }
            for blocker in &job.blockers {
                let name = blocker.trim_end_matches('…');
                let _ = writeln!(dot, "  {name:?} -> {:?} [style=dashed];", job.name);
            }
        }
        dot.push_str("}\n");
        dot
    }

    fn insert(&mut self, job: JobInfo) -> Result<()> {
        let mut own = HashSet::new();
        if let Some(name) = job.names().find(|name| !own.insert(*name)) {
            let text = format!(
                "the job type `{}` has the name or alias `{name}` twice: remove that alias",
                job.type_name
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        for known in self.jobs().filter(|known| known.type_id != job.type_id) {
            if let Some(name) = known.names().find(|name| own.contains(name)) {
                let text = format!(
                    "the job types `{}` and `{}` share the name or alias `{name}`: rename one",
                    known.type_name, job.type_name
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        }
        self.jobs.insert(job.name, job);
        Ok(())
    }
}

impl fmt::Display for JobGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.jobs().try_for_each(|job| {
            f.write_str(job.name)?;
            if !job.next.is_empty() {
                write!(f, " -> {}", job.next.join(" | "))?;
            }
            if !job.blockers.is_empty() {
                write!(f, " (waits for {})", job.blockers.join(", "))?;
            }
            f.write_char('\n')
        })
    }
}
