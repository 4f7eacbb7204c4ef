//! The SQL statements, one file each.

use bytes::Bytes;
use serde::Serialize;
use windlass_core::{Error, ErrorKind, Result};

use crate::provider::{Statement, Value};

macro_rules! statements {
    ($($name:ident,)*) => {
        /// All statements with the table prefix filled in, each named after its file in `sql/`.
        #[derive(Clone, Debug)]
        pub(crate) struct Statements { $(pub(crate) $name: Statement,)* }

        impl Statements {
            pub(crate) fn new(prefix: &str) -> Self {
                Self { $($name: Statement::new(fill(include_str!(concat!("../sql/", stringify!($name), ".sql")), prefix)),)* }
            }

            /// Returns all statements with their names.
            #[cfg(test)]
            pub(crate) fn all(&self) -> Vec<(&'static str, Statement)> {
                vec![$((stringify!($name), self.$name.clone()),)*]
            }
        }
    };
}

statements! {
    load_jobs,
    load_leases,
    load_chains,
    load_blockers,
    load_waits,
    load_dependents,
    load_wait_traces,
    load_cascade,
    insert_jobs,
    insert_blockers,
    need_chains,
    need_again,
    release_chains,
    update_jobs,
    update_chains,
    update_both,
    update_completed,
    resolve_blockers,
    wait_again,
    end_waits,
    insert_attempts,
    forget_attempts,
    take_jobs,
    taken_jobs,
    blocker_outputs,
    renew_leases,
    expired_leases,
    get_jobs,
    get_chains,
    next_due,
    due_types,
    closed_chains,
    stopping_jobs,
    leaving_chains,
    inner_jobs,
    trimmed_jobs,
    set_trim_at,
    open_dependents,
    release_latest,
    delete_chains,
    delete_jobs,
    more_to_expire,
    paused_types,
    pause_types,
    resume_types,
    list_chains,
    list_jobs,
    list_chain_jobs,
    list_dependents,
    list_attempts,
    count_jobs,
    forget_workers,
    beat_worker,
    retire_worker,
    list_workers,
    forget_leaders,
    get_leader,
    hold_leader,
    release_leader,
    make_migration,
    latest_migration,
    insert_migration,
}

/// Fills the shared parts and the table prefix into a statement. The prefix was checked when the store was opened.
pub(crate) fn fill(text: &str, prefix: &str) -> String {
    let with_parts =
        PARTS.iter().fold(text.to_owned(), |text, (name, part)| text.replace(name, part.trim_end()));
    with_parts.replace("{prefix}", prefix)
}

macro_rules! parts {
    ($($name:literal,)*) => {
        /// Fragments shared by several statements, each named after its file in `sql/part/`.
        const PARTS: &[(&str, &str)] =
            &[$((concat!("{", $name, "}"), include_str!(concat!("../sql/part/", $name, ".sql"))),)*];
    };
}

parts! {
    "job",
    "record",
    "chain",
    "concern",
    "page",
    "items",
    "job_fields",
    "set_job",
    "chain_fields",
    "set_chain",
}

/// Encodes a set of items as one JSON parameter, which the statement unpacks with `json_each`.
pub(crate) fn set(items: &(impl Serialize + ?Sized)) -> Result<Value> {
    serde_json::to_string(items).map(Value::Text).map_err(|error| {
        Error::new(ErrorKind::Invalid, "a parameter cannot be encoded as JSON").with_source(error)
    })
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Blob(Bytes::from(value))
    }
}

impl From<&uuid::Uuid> for Value {
    fn from(value: &uuid::Uuid) -> Self {
        Self::Blob(Bytes::copy_from_slice(value.as_bytes()))
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
