//! The SQL statements of a namespace.

use crate::provider::Statement;

/// The expression in a statement that checks the session and passes the time to the function. See
/// `functions/isolation.sql`.
const OWN: &str = "windlass.own_v1($1)";

macro_rules! text {
    ($name:ident) => {
        include_str!(concat!("../sql/", stringify!($name), ".sql"))
    };
}

macro_rules! statements {
    ($($name:ident,)*) => {
        /// The statement of each command, plus faster variants for batches of plain items.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $(pub(crate) $name: Statement,)*
        }

        impl Statements {
            /// Statements for commands that the store runs outside a transaction of the application.
            pub(crate) fn new(names: &Names, cached: bool) -> Self {
                Self { $($name: Statement::new(names.render(text!($name)), cached),)* }
            }

            /// Statements for commands in a transaction of the application. They skip the check of [`OWN`], because the
            /// isolation level and settings are the application's choice.
            pub(crate) fn in_transaction(names: &Names, cached: bool) -> Self {
                Self { $($name: Statement::new(names.render(&text!($name).replace(OWN, "$1")), cached),)* }
            }

            /// Returns all statements with their names, so that a test can prepare them.
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
    change_schedules,
    count,
    create,
    create_acquire,
    create_keyed,
    create_keyed_acquire,
    create_one_acquire,
    create_plain,
    create_plain_acquire,
    delete,
    due_schedules,
    exchange,
    exchange_plain,
    expire,
    get_chains,
    get_jobs,
    get_schedules,
    health,
    leader_lock,
    list_attempts,
    list_chains,
    list_dependents,
    list_jobs,
    list_open,
    list_schedules,
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
    tidy,
    trigger,
}

/// Schema and name prefix of all tables, types and functions of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) prefix: String,
}

impl Names {
    /// Returns the namespace as text, for the notification channel and the migration lock.
    pub(crate) fn identifier(&self) -> String {
        format!("{}.{}", self.schema, self.prefix)
    }

    /// Returns the namespace as text, for messages.
    pub(crate) fn description(&self) -> String {
        match self.prefix.as_str() {
            "" => format!("the schema `{}`", self.schema),
            prefix => format!("the schema `{}` (prefix `{prefix}`)", self.schema),
        }
    }

    /// Replaces the placeholders in a text with the names of this namespace. The files use `windlass.` as a prefix for
    /// names, and `windlass_` for index names, which must not be qualified: PostgreSQL creates an index in the schema
    /// of its table.
    pub(crate) fn render(&self, text: &str) -> String {
        let qualified = format!("\"{}\".{}", self.schema, self.prefix);
        text.replace("windlass_", &self.prefix).replace("windlass.", &qualified)
    }
}
