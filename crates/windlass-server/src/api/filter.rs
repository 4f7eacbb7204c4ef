//! Filters and pages of lists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::command::{ChainFilter, Cursor, JobFilter, Order, Page};
use windlass_core::limit::PAGE_MAX;
use windlass_core::{JobRecord, Key, Status, TypeName};

use super::problem::Problem;
use super::route::invalid_id;
use super::wire::{State, Time, time};

/// The number of rows on a page, unless the caller asks for another one.
const PAGE_ROWS: u32 = 50;

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sorting {
    /// Newest first.
    #[default]
    Newest,
    /// Oldest first.
    Oldest,
}

/// The filter and the page of a list of jobs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobQuery {
    /// Jobs of this type. Can be repeated.
    #[serde(default, rename = "type")]
    types: Vec<String>,
    /// Jobs with this state. Can be repeated.
    #[serde(default, rename = "status")]
    states: Vec<State>,
    /// Jobs in chains of this type. Can be repeated.
    #[serde(default, rename = "chain_type")]
    chain_types: Vec<String>,
    /// Jobs of this chain.
    chain: Option<String>,
    /// Jobs created at this time or later.
    created_from: Option<Time>,
    /// Jobs created at this time or earlier.
    created_to: Option<Time>,
    /// Jobs closed at this time or later.
    closed_from: Option<Time>,
    /// Jobs closed at this time or earlier.
    closed_to: Option<Time>,
    /// The order.
    #[serde(default)]
    order: Sorting,
    /// The cursor of the page, from `next` of the page before.
    after: Option<String>,
    /// The maximum number of jobs on the page: 1 to 1000. Default: 50.
    limit: Option<u32>,
}

/// The filter and the page of a list of chains.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChainQuery {
    /// Chains of this type. Can be repeated.
    #[serde(default, rename = "type")]
    types: Vec<String>,
    /// Chains with this state. Can be repeated.
    #[serde(default, rename = "status")]
    states: Vec<State>,
    /// Chains that were created with exactly this key.
    key: Option<String>,
    /// Whether to list only chains that no job waits or waited for.
    #[serde(default)]
    top_level: bool,
    /// Chains created at this time or later.
    created_from: Option<Time>,
    /// Chains created at this time or earlier.
    created_to: Option<Time>,
    /// Chains closed at this time or later.
    closed_from: Option<Time>,
    /// Chains closed at this time or earlier.
    closed_to: Option<Time>,
    /// The order.
    #[serde(default)]
    order: Sorting,
    /// The cursor of the page, from `next` of the page before.
    after: Option<String>,
    /// The maximum number of chains on the page: 1 to 1000. Default: 50.
    limit: Option<u32>,
}

/// Selects the chains of a bulk operation.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkFilter {
    /// Chains of one of these types: at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) types: Vec<String>,
    /// Chains with one of these states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) statuses: Vec<State>,
    /// Chains that were created with exactly this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Whether to select only chains that no job waits or waited for.
    #[serde(default)]
    pub(crate) top_level: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_from: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_to: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) closed_from: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) closed_to: Option<Time>,
}

/// The states that a list is filtered by. They can be more specific than what a store filters by.
#[derive(Clone, Debug)]
pub(crate) struct States(pub(crate) Vec<State>);

impl States {
    pub(crate) fn matches(&self, job: &JobRecord) -> bool {
        self.0.is_empty() || self.0.iter().any(|state| state.matches(job))
    }

    fn statuses(&self) -> Vec<Status> {
        let mut statuses: Vec<_> = self.0.iter().map(|state| state.status()).collect();
        statuses.sort_unstable();
        statuses.dedup();
        statuses
    }
}

impl JobQuery {
    pub(crate) fn read(self) -> Result<(JobFilter, Page, States), Problem> {
        let states = States(self.states);
        let chain = match &self.chain {
            Some(chain) => Some(chain.parse().map_err(|_| invalid_id(chain))?),
            None => None,
        };
        let filter = JobFilter {
            types: type_names(&self.types)?,
            statuses: states.statuses(),
            chain_types: type_names(&self.chain_types)?,
            chain,
            created_from: time(self.created_from.as_ref())?,
            created_to: time(self.created_to.as_ref())?,
            closed_from: time(self.closed_from.as_ref())?,
            closed_to: time(self.closed_to.as_ref())?,
        };
        Ok((filter, page(self.order, self.after, self.limit)?, states))
    }
}

impl ChainQuery {
    pub(crate) fn read(self) -> Result<(ChainFilter, Page, States), Problem> {
        let states = States(self.states);
        let filter = ChainFilter {
            types: type_names(&self.types)?,
            statuses: states.statuses(),
            top_level: self.top_level,
            created_from: time(self.created_from.as_ref())?,
            created_to: time(self.created_to.as_ref())?,
            closed_from: time(self.closed_from.as_ref())?,
            closed_to: time(self.closed_to.as_ref())?,
            key: self.key.map(Key::new).transpose()?,
        };
        Ok((filter, page(self.order, self.after, self.limit)?, states))
    }
}

impl ChainQuery {
    /// Returns the same filter for a bulk operation.
    pub(crate) fn bulk_filter(self) -> BulkFilter {
        let Self { types, states, key, top_level, created_from, created_to, closed_from, closed_to, .. } =
            self;
        BulkFilter {
            types,
            statuses: states,
            key,
            top_level,
            created_from,
            created_to,
            closed_from,
            closed_to,
        }
    }
}

impl BulkFilter {
    /// Whether the filter selects anything in particular.
    pub(crate) const fn has_field(&self) -> bool {
        !self.types.is_empty()
            || !self.statuses.is_empty()
            || self.key.is_some()
            || self.top_level
            || self.created_from.is_some()
            || self.created_to.is_some()
            || self.closed_from.is_some()
            || self.closed_to.is_some()
    }

    pub(crate) fn read(&self) -> Result<(ChainFilter, States), Problem> {
        let states = States(self.statuses.clone());
        let filter = ChainFilter {
            types: type_names(&self.types)?,
            statuses: states.statuses(),
            top_level: self.top_level,
            created_from: time(self.created_from.as_ref())?,
            created_to: time(self.created_to.as_ref())?,
            closed_from: time(self.closed_from.as_ref())?,
            closed_to: time(self.closed_to.as_ref())?,
            key: self.key.as_deref().map(Key::new).transpose()?,
        };
        Ok((filter, states))
    }
}

pub(crate) fn type_names(names: &[String]) -> Result<Vec<TypeName>, Problem> {
    Ok(names.iter().map(TypeName::new).collect::<Result<_, _>>()?)
}

fn page(order: Sorting, after: Option<String>, limit: Option<u32>) -> Result<Page, Problem> {
    let max = limit.unwrap_or(PAGE_ROWS);
    if max == 0 || max as usize > PAGE_MAX {
        return Err(Problem::invalid(format!("`limit` must be 1 to {PAGE_MAX}, got {max}")));
    }
    let order = match order {
        Sorting::Newest => Order::Newest,
        Sorting::Oldest => Order::Oldest,
    };
    Ok(Page { order, after: after.map(Cursor), max })
}
