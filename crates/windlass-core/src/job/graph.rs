use std::any::{TypeId, type_name};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};

use super::{Blockers, Continuations, Job};
use crate::error::{Error, ErrorKind, Result};

/// What is declared of one job type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// Its name.
    pub name: &'static str,
    /// Its former names.
    pub aliases: &'static [&'static str],
    /// The names of its continuations.
    pub next: Vec<&'static str>,
    /// The names of its blockers' types; a trailing `…` marks any number.
    pub blockers: Vec<String>,
    /// The Rust type, to tell two types of one name apart.
    type_id: TypeId,
    /// What it is called, for messages. Two types may have the same.
    type_name: &'static str,
}

impl JobInfo {
    /// What is declared of this type.
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

    /// Its name and its former names.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied())
    }
}

/// A set of job types and how they follow each other. Sets of several modules merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobGraph {
    jobs: BTreeMap<&'static str, JobInfo>,
}

impl JobGraph {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a type. Adding the same type again changes nothing; another one that shares a name or
    /// alias with it is refused, and so is one whose alias is its own name or given twice.
    pub fn add<J: Job>(&mut self) -> Result<()> {
        self.insert(JobInfo::of::<J>())
    }

    /// Adds all types of another set.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        other.jobs.into_values().try_for_each(|job| self.insert(job))
    }

    /// The types, by name.
    pub fn jobs(&self) -> impl Iterator<Item = &JobInfo> {
        self.jobs.values()
    }

    /// The graph in the DOT language, for Graphviz: continuations as arrows, blockers as dashed ones.
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
                    "two job types share the name or alias `{name}`: `{}` and `{}`; rename one",
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
