use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a caller may do. Each role includes the permissions of all weaker roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Query jobs, chains, workers and schedules, and follow events.
    Read,
    /// Start chains and enqueue jobs.
    Produce,
    /// Complete, cancel, retry and trigger chains; pause and resume types and schedules; run bulk operations.
    Operate,
    /// Delete chains; create, change and delete schedules.
    Admin,
}

impl Role {
    /// All roles, the weakest first.
    pub const ALL: [Self; 4] = [Self::Read, Self::Produce, Self::Operate, Self::Admin];

    /// Returns the name of the role.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Produce => "produce",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| format!("unknown role `{text}`: use `read`, `produce`, `operate` or `admin`"))
    }
}
