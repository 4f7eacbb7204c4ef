//! Removes chains and jobs whose retention is over.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;

use windlass_core::command::{Expire, ExpireReply, Expired};
use windlass_core::limit::{BLOCKERS_MAX, TIMESTAMP_MAX_MS};
use windlass_core::{ChainId, Result, Timestamp};

use crate::provider::{Row, Value};
use crate::ripple::repeat_window;
use crate::row::{corrupt, hex};
use crate::session::{Execute, Session};
use crate::statement::set;

impl Execute for Expire {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ExpireReply> {
        self.check()?;
        let now = session.now();
        expire(session, now, self.max).await
    }
}

async fn expire(session: &mut Session<'_>, now: Timestamp, max: u32) -> Result<ExpireReply> {
    let mut left = max as usize;
    let (chains, cut) = choose(leaving(session, now, left + 1).await?, &mut left);
    remove_chains(session, chains.iter().map(|expired| expired.chain)).await?;
    if let Some(chain) = cut {
        left -= cut_down(session, chain, left).await?;
    }
    left -= trim(session, now, left).await?;
    let more = session.rows(&session.statements.more_to_expire, vec![now.as_millis().into()]).await?;
    Ok(ExpireReply {
        chains,
        jobs: max - u32::try_from(left).unwrap_or(0),
        more: more.first().map_or(Ok(false), |row| row.flag("more"))?,
    })
}

/// A closed chain whose retention is over.
struct Leaving {
    place: (Timestamp, i64),
    expired: Expired,
    needed_by: i64,
    jobs: usize,
    /// The chains that its failed job needs; a chain is listed once for each blocker.
    needs: Vec<ChainId>,
}

async fn leaving(session: &mut Session<'_>, now: Timestamp, max: usize) -> Result<HashMap<ChainId, Leaving>> {
    // Besides the chains that are free to leave, load those that become free with them, up to this many in all.
    let all = 4 * max + BLOCKERS_MAX;
    let values = vec![now.as_millis().into(), max.into(), all.into()];
    let rows = session.rows(&session.statements.leaving_chains, values).await?;
    rows.iter().map(|row| read_leaving(row).map(|leaving| (leaving.expired.chain, leaving))).collect()
}

fn read_leaving(row: &Row) -> Result<Leaving> {
    let needs: Vec<String> = row.json("needs")?;
    let needs: Result<_, _> = needs.iter().map(|id| ChainId::from_str(id)).collect();
    Ok(Leaving {
        place: (row.time("leaves_at")?, row.number("seq")?),
        expired: Expired {
            chain: ChainId::from_uuid(row.uuid("id")?),
            chain_type: row.type_name("type")?,
            closed_as: row.enum_value("chain_closed_as")?,
        },
        needed_by: row.number("needed_by")?,
        jobs: row.number("jobs")?,
        needs: needs.map_err(|_| corrupt("a blocker has no id"))?,
    })
}

/// Returns the chains to remove, and the next one if it has too many jobs to be removed in one call. A chain that is
/// removed may free others.
fn choose(mut leaving: HashMap<ChainId, Leaving>, left: &mut usize) -> (Vec<Expired>, Option<ChainId>) {
    let free = leaving.values().filter(|chain| chain.needed_by == 0);
    let mut free: BTreeSet<_> = free.map(|chain| (chain.place, chain.expired.chain)).collect();
    let mut chosen = Vec::new();
    while let Some((_, id)) = free.pop_first() {
        let Some(chain) = leaving.remove(&id) else { continue };
        if chain.jobs > *left {
            return (chosen, Some(id));
        }
        *left -= chain.jobs;
        chosen.push(chain.expired);
        for needed in chain.needs {
            let Some(needed) = leaving.get_mut(&needed) else { continue };
            needed.needed_by -= 1;
            if needed.needed_by == 0 {
                free.insert((needed.place, needed.expired.chain));
            }
        }
    }
    (chosen, None)
}

/// Removes chains with all their jobs.
pub(crate) async fn remove_chains(
    session: &mut Session<'_>,
    chains: impl Iterator<Item = ChainId>,
) -> Result<()> {
    let ids: Vec<_> = chains.map(|chain| hex(chain.as_uuid())).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids = set(&ids)?;
    session.run(&session.statements.release_latest, vec![ids.clone()]).await?;
    session.run(&session.statements.delete_chains, vec![ids]).await
}

/// Removes inner jobs of a closed chain that is too long to be removed in one call. Returns their number.
async fn cut_down(session: &mut Session<'_>, chain: ChainId, max: usize) -> Result<usize> {
    let values = vec![chain.as_uuid().into(), max.into()];
    let rows = session.rows(&session.statements.inner_jobs, values).await?;
    delete_jobs(session, seqs(&rows)?).await
}

/// Removes inner jobs of open chains. Returns their number.
async fn trim(session: &mut Session<'_>, now: Timestamp, max: usize) -> Result<usize> {
    let values = vec![now.as_millis().into(), max.into(), stays(), TIMESTAMP_MAX_MS.into()];
    let rows = session.rows(&session.statements.trimmed_jobs, values).await?;
    let chains: Result<BTreeSet<_>> = rows.iter().map(|row| row.uuid("id").map(ChainId::from_uuid)).collect();
    let removed = delete_jobs(session, seqs(&rows)?).await?;
    set_trim_at(session, chains?).await?;
    Ok(removed)
}

/// Updates when the oldest inner job of each of these open chains may be removed.
pub(crate) async fn set_trim_at(
    session: &mut Session<'_>,
    chains: impl IntoIterator<Item = ChainId>,
) -> Result<()> {
    let chains: Vec<_> = chains.into_iter().map(|chain| hex(chain.as_uuid())).collect();
    if chains.is_empty() {
        return Ok(());
    }
    session.run(&session.statements.set_trim_at, vec![set(&chains)?, stays(), TIMESTAMP_MAX_MS.into()]).await
}

/// Returns how long a closed chain or job is kept at least.
fn stays() -> Value {
    Value::Integer(i64::try_from(repeat_window().get()).unwrap_or(0))
}

fn seqs(rows: &[Row]) -> Result<Vec<i64>> {
    rows.iter().map(|row| row.number("seq")).collect()
}

async fn delete_jobs(session: &mut Session<'_>, jobs: Vec<i64>) -> Result<usize> {
    if !jobs.is_empty() {
        session.run(&session.statements.delete_jobs, vec![set(&jobs)?]).await?;
    }
    Ok(jobs.len())
}
