//! Pages that equal requests share for a moment.
//!
//! Many tabs can show one page, and all of them fetch it again after the same event or sample. A page depends on the role of
//! its visitor, so only visitors with the same role share it. An event of its chain, a new sample and every change through
//! this server end the moment: a page is never older than the event, sample or change that made the browser fetch it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;
use windlass_core::ChainId;

use super::Visit;
use super::layout::Page;
use crate::api::Problem;
use crate::auth::Role;

/// How long requests share a page.
const SHARED: Duration = Duration::from_secs(1);

/// The number of pages that are kept.
const KEPT_MAX: usize = 64;

/// Larger pages are not kept.
const KEPT_MAX_BYTES: usize = 1024 * 1024;

/// The latest pages.
#[derive(Debug, Default)]
pub(crate) struct SharedPages {
    kept: Mutex<HashMap<Key, Arc<Kept>>>,
}

/// Everything that a page depends on, except for what is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    role: Role,
    base: String,
    uri: String,
    /// The number of samples so far: a list is fetched again after a sample that differs.
    samples: u64,
}

#[derive(Debug)]
struct Kept {
    /// When the first request began to query.
    began_at: Instant,
    /// A failure is shared by the requests that wait for the page, and by no later ones.
    page: OnceCell<Result<Arc<Page>, Problem>>,
}

impl Key {
    pub(super) fn of(visit: &Visit) -> Self {
        Self {
            role: visit.role(),
            base: visit.base().to_owned(),
            uri: visit.call.request.uri.to_string(),
            samples: visit.call.app.sampler.taken(),
        }
    }
}

impl SharedPages {
    /// Returns a page that an equal request has made within the last second, or makes it.
    pub(super) async fn get(
        &self,
        key: Key,
        make: impl Future<Output = Result<Page, Problem>>,
    ) -> Result<Arc<Page>, Problem> {
        let kept = self.kept(&key);
        let page = kept.page.get_or_init(|| async { make.await.map(Arc::new) }).await;
        if !page.as_ref().is_ok_and(|page| page.body.0.len() <= KEPT_MAX_BYTES) {
            let mut all = self.lock();
            // Another request may have begun to make the page again.
            if all.get(&key).is_some_and(|known| Arc::ptr_eq(known, &kept)) {
                all.remove(&key);
            }
        }
        page.clone()
    }

    /// Forgets the pages of these chains, because they have changed. Pages that are still being made are forgotten as well.
    pub(crate) fn forget(&self, chains: &HashSet<ChainId>) {
        let chains: HashSet<_> = chains.iter().map(ToString::to_string).collect();
        let is_changed = |page: &Page| page.chain.as_ref().is_some_and(|chain| chains.contains(chain));
        let is_kept = |made: &Result<_, _>| made.as_ref().is_ok_and(|page: &Arc<Page>| !is_changed(page));
        self.lock().retain(|_, kept| kept.page.get().is_some_and(is_kept));
    }

    /// Forgets all pages.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn kept(&self, key: &Key) -> Arc<Kept> {
        let mut all = self.lock();
        all.retain(|_, kept| kept.began_at.elapsed() < SHARED);
        let new = || Arc::new(Kept { began_at: Instant::now(), page: OnceCell::new() });
        if all.len() >= KEPT_MAX && !all.contains_key(key) {
            return new();
        }
        Arc::clone(all.entry(key.clone()).or_insert_with(new))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Kept>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
