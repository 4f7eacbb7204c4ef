//! The statements, with the names of one namespace in them.

use crate::provider::Statement;

/// Where a statement hands its time to the function, checked: see `functions/isolation.sql`.
const OWN: &str = "windlass.own_v1($1)";

macro_rules! text {
    ($name:ident) => {
        include_str!(concat!("../sql/", stringify!($name), ".sql"))
    };
}

macro_rules! statements {
    ($($name:ident,)*) => {
        /// Every statement that a command runs: one for each, and one more where most items are of a plain kind.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $(pub(crate) $name: Statement,)*
        }

        impl Statements {
            /// The statements of commands that the store runs by itself.
            pub(crate) fn new(names: &Names, cached: bool) -> Self {
                Self { $($name: Statement::new(names.render(text!($name)), cached),)* }
            }

            /// The same in a transaction of the application, whose level and settings are the application's choice:
            /// without the check of [`OWN`].
            pub(crate) fn in_transaction(names: &Names, cached: bool) -> Self {
                Self { $($name: Statement::new(names.render(&text!($name).replace(OWN, "$1")), cached),)* }
            }

            /// Each with its name, so that a test can prepare them all.
            pub(crate) fn all(&self) -> Vec<(&'static str, &Statement)> {
                vec![$((stringify!($name), &self.$name),)*]
            }
        }
    };
}

statements! {
    acquire,
    beat,
    cancel,
    count,
    create,
    create_keyed,
    create_plain,
    delete,
    exchange,
    exchange_plain,
    expire,
    get_chains,
    get_jobs,
    health,
    leader_lock,
    list_attempts,
    list_chains,
    list_dependents,
    list_jobs,
    list_workers,
    next_due,
    outside,
    pause,
    reap,
    renew,
    retire,
    retry,
    set_retention,
    settle,
    settle_plain,
    trigger,
}

/// The schema and the prefix that the names of all tables, types and functions have.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) prefix: String,
}

impl Names {
    /// For messages, and for the number of a lock.
    pub(crate) fn shown(&self) -> String {
        format!("{}.{}", self.schema, self.prefix)
    }

    /// The text with the names of this namespace: in the files `windlass.` stands in front of them, and `windlass_` in
    /// front of the names of indexes, which PostgreSQL puts into the schema of their table.
    pub(crate) fn render(&self, text: &str) -> String {
        let qualified = format!("\"{}\".{}", self.schema, self.prefix);
        text.replace("windlass_", &self.prefix).replace("windlass.", &qualified)
    }
}
