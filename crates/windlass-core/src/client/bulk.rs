//! Commands for all chains that match a filter.

use std::fmt;

use super::{Client, commands};
use crate::command::{CancelMode, Cancelled, ChainFilter, ListChains, NextDue, Order, Page, Retried, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::record::{ChainRecord, Status};
use crate::store::Store;

/// The number of chains per page. Each has up to four payloads of 4 MiB, and a page is in memory as a whole.
const PAGE_CHAINS: u32 = 25;

/// The result of [`Client::retry_all`] or [`Client::cancel_all`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedChains {
    /// The number of chains that were changed.
    pub changed: u64,
    /// The number of chains that matched the filter but could not be changed.
    pub skipped: u64,
}

/// All chains that match a filter, page by page. See [`Client::chain_pages`].
#[must_use = "nothing is queried before `next`"]
pub struct ChainPages<S: ?Sized> {
    client: Client<S>,
    /// The next page, or `None` after the last one.
    list: Option<ListChains>,
}

impl<S: Store + ?Sized> Client<S> {
    /// Retries all chains that match the filter, oldest first. Without statuses in the filter: all failed chains.
    ///
    /// Chains that are created during the call are left alone. If the call fails or its future is dropped, some chains
    /// have been retried. Call it again to continue: a chain that has been retried no longer matches.
    ///
    /// ```
    /// # use windlass::{Client, Entry, Job, MemoryStore};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
    /// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Mail {}
    /// use windlass::name::TypeName;
    /// use windlass::command::ChainFilter;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// # let client = Client::new(MemoryStore::new());
    /// # let chain = client.start(Mail).await?;
    /// # client.step(chain).await?.of::<Mail>()?.fail("the server is away").await?;
    /// let mails = ChainFilter { types: vec![TypeName::of::<Mail>()?], ..ChainFilter::default() };
    /// let retried = client.retry_all(mails).await?;
    /// println!("retried {} chains, skipped {}", retried.changed, retried.skipped);
    /// # assert_eq!((retried.changed, retried.skipped), (1, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the filter has a status other than failed and cancelled.
    pub async fn retry_all(&self, filter: ChainFilter) -> Result<ChangedChains> {
        let possible = [Status::Failed, Status::Cancelled];
        let filter = with_statuses(filter, &possible, &possible[..1], "retried")?;
        let mut all = ChangedChains::default();
        // A blocker is usually older than the chains that wait for it, and must be retried before them.
        let mut pages = self.chain_pages(filter, Order::Oldest).await?;
        while let Some(chains) = pages.next().await? {
            for chain in chains {
                let retried = self.retry(chain.id).await?;
                all.count(matches!(retried, Retried::Retried { .. } | Retried::AlreadyRetried));
            }
        }
        Ok(all)
    }

    /// Cancels all chains that match the filter, newest first. Without statuses in the filter: all open chains.
    /// `mode` decides whether a chain whose job is running is skipped or asked to stop. See
    /// [`retry_all`](Self::retry_all).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the filter has the status of a closed chain.
    pub async fn cancel_all(&self, filter: ChainFilter, mode: CancelMode) -> Result<ChangedChains> {
        let open = [Status::Blocked, Status::Pending, Status::Running];
        let filter = with_statuses(filter, &open, &open, "cancelled")?;
        let mut all = ChangedChains::default();
        let mut pages = self.chain_pages(filter, Order::Newest).await?;
        while let Some(chains) = pages.next().await? {
            for chain in chains {
                let cancelled = self.cancel(chain.id, mode).await?;
                all.count(matches!(cancelled, Cancelled::Cancelled { .. } | Cancelled::Asked { .. }));
            }
        }
        Ok(all)
    }

    /// Returns all chains that match the filter, page by page. Leaves out chains that are created after this call, so
    /// that a loop which changes the chains of each page ends.
    pub async fn chain_pages(&self, mut filter: ChainFilter, order: Order) -> Result<ChainPages<S>> {
        let now = commands::run(self, NextDue { types: Types::Only(Vec::new()) }).await?.now;
        filter.created_to = Some(filter.created_to.map_or(now, |to| to.min(now)));
        let page = Page { order, after: None, max: PAGE_CHAINS };
        Ok(ChainPages { client: self.clone(), list: Some(ListChains { filter, page }) })
    }
}

impl<S: Store + ?Sized> ChainPages<S> {
    /// Returns the chains of the next page, or `None` after the last page. A page may be empty.
    ///
    /// The position is a place in the order of creation, which a change does not affect. So each chain is returned at
    /// most once, even if it matches again later.
    pub async fn next(&mut self) -> Result<Option<Vec<ChainRecord>>> {
        let Some(list) = &mut self.list else { return Ok(None) };
        let reply = self.client.list_chains(list.clone()).await?;
        match reply.next {
            Some(next) => list.page.after = Some(next),
            None => self.list = None,
        }
        Ok(Some(reply.chains))
    }
}

impl ChangedChains {
    fn count(&mut self, is_changed: bool) {
        if is_changed {
            self.changed += 1;
        } else {
            self.skipped += 1;
        }
    }
}

/// Returns the filter with the default statuses if it has none. Refuses statuses that are not possible.
fn with_statuses(
    mut filter: ChainFilter,
    possible: &[Status],
    default: &[Status],
    participle: &str,
) -> Result<ChainFilter> {
    if let Some(status) = filter.statuses.iter().find(|status| !possible.contains(status)) {
        let possible: Vec<_> = possible.iter().map(ToString::to_string).collect();
        let text = format!("{status} chains cannot be {participle}: filter by {}", possible.join(", "));
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if filter.statuses.is_empty() {
        filter.statuses = default.to_vec();
    }
    Ok(filter)
}

impl<S: ?Sized> fmt::Debug for ChainPages<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainPages").field("list", &self.list).finish_non_exhaustive()
    }
}
