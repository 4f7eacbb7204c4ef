//! The write lock: waiting for another holder, timing out, and dropping a waiting command.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use windlass_core::command::{Create, GetJobs, Reap, Renew, RenewLease, Renewed, Types};
use windlass_core::{ErrorKind, Millis, Store};
use windlass_sqlite::SqliteStore;
use windlass_testkit::wait_until;

use crate::{File, new_chain, start, take};

/// Long enough for operations that do not wait for a lock, since this timeout also limits them.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_too_long_is_busy_and_does_not_delay_queries() {
    let file = File::new();
    let store = SqliteStore::open(file.options().busy_timeout(BUSY_TIMEOUT)).await.unwrap();
    let (before, refused) = (new_chain(), new_chain());
    start(&store, vec![before.clone()]).await;

    let mut holder = file.connect().await;
    sqlx::query("begin immediate").execute(&mut holder).await.unwrap();
    let error = store.create(Create { chains: vec![refused.clone()] }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let jobs = vec![before.id.first_job(), refused.id.first_job()];
    let found = store.get_jobs(GetJobs { jobs: jobs.clone() }).await.unwrap().jobs;
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);

    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    start(&store, vec![refused]).await;
    assert!(store.get_jobs(GetJobs { jobs }).await.unwrap().jobs.iter().all(Option::is_some));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_commands_time_out_together() {
    let file = File::new();
    let store = Arc::new(SqliteStore::open(file.options().busy_timeout(BUSY_TIMEOUT)).await.unwrap());
    let mut holder = file.connect().await;
    sqlx::query("begin immediate").execute(&mut holder).await.unwrap();
    let began_at = Instant::now();
    let create = |_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.create(Create { chains: vec![new_chain()] }).await })
    };
    let creating: Vec<_> = (0..20).map(create).collect();
    for reply in creating {
        assert_eq!(reply.await.unwrap().unwrap_err().kind(), ErrorKind::Busy);
    }
    assert!(began_at.elapsed() < 10 * BUSY_TIMEOUT, "they took {:?}", began_at.elapsed());
    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    start(&*store, vec![new_chain()]).await;
}

/// Opens a store. Repeats that, because a short timeout also limits the opening, which a slow machine may exceed.
async fn open(file: &File, busy_timeout: Duration) -> SqliteStore {
    let mut store = None;
    wait_until("the store is open", Duration::from_secs(60), async || {
        store = SqliteStore::open(file.options().busy_timeout(busy_timeout)).await.ok();
        store.is_some()
    })
    .await;
    store.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_spent_in_the_queue_counts() {
    let file = File::new();
    let busy_timeout = Duration::from_secs(3);
    let (store, brief) = (open(&file, busy_timeout).await, open(&file, busy_timeout / 2).await);
    let mut holder = file.connect().await;
    sqlx::query("begin immediate").execute(&mut holder).await.unwrap();
    // If the time in the queue did not count, each command would wait for its full timeout, one after the other. One
    // round below that is enough, since load on the machine may delay a round.
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took >= busy_timeout * 18 / 10) {
        assert!(took.len() < 10, "both together took {took:?}");
        let began_at = Instant::now();
        let mut first = store.create(Create { chains: vec![new_chain()] });
        assert!(!is_ready(&mut first).await);
        // The second command starts when the first has waited for half of its timeout.
        let half = brief.create(Create { chains: vec![new_chain()] }).await;
        assert_eq!(half.unwrap_err().kind(), ErrorKind::Busy);
        let second = store.create(Create { chains: vec![new_chain()] }).await;
        took.push(began_at.elapsed());
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Busy);
    }

    // A later command gets the full timeout again.
    let began_at = Instant::now();
    store.create(Create { chains: vec![new_chain()] }).await.unwrap_err();
    assert!(began_at.elapsed() > busy_timeout * 9 / 10, "it waited {:?} only", began_at.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_reap_leaves_owners_a_renewal_interval() {
    let file = File::new();
    let store = file.open().await;
    start(&store, vec![new_chain()]).await;
    assert_eq!(take(&store, 1).await.len(), 1);

    let mut holder = file.connect().await;
    sqlx::query("begin immediate").execute(&mut holder).await.unwrap();
    let renewal_interval = Millis::from_secs(20);
    let reap = || Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval };
    let mut waiting = store.reap(reap());
    assert!(!is_ready(&mut waiting).await);
    // The 60 s lease has expired, but its owner had no chance to renew it.
    file.clock.advance(Millis::from_secs(70));
    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    assert_eq!(waiting.await.unwrap().reaped, []);

    // A reap that does not have to wait leaves the owner the same time.
    file.clock.advance(Millis::from_secs(19));
    assert_eq!(store.reap(reap()).await.unwrap().reaped, []);
    file.clock.advance(Millis::from_secs(1));
    assert_eq!(store.reap(reap()).await.unwrap().reaped.len(), 1);
}

/// Runs on one thread, so that the renewal cannot time out before the clock is advanced.
#[tokio::test]
async fn a_timed_out_renewal_protects_its_lease_from_the_next_reap() {
    let file = File::new();
    let store = SqliteStore::open(file.options().busy_timeout(BUSY_TIMEOUT)).await.unwrap();
    start(&store, vec![new_chain()]).await;
    let held = take(&store, 1).await.remove(0).job;

    let mut holder = file.connect().await;
    sqlx::query("begin immediate").execute(&mut holder).await.unwrap();
    let lease = RenewLease { job: held.id, fence: held.fence, lease: Millis::from_secs(60) };
    let mut renewal = store.renew(Renew { leases: vec![lease] });
    assert!(!is_ready(&mut renewal).await);
    file.clock.advance(Millis::from_secs(70));
    assert_eq!(renewal.await.unwrap_err().kind(), ErrorKind::Busy);
    sqlx::query("rollback").execute(&mut holder).await.unwrap();

    let reap =
        Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval: Millis::from_secs(20) };
    assert_eq!(store.reap(reap).await.unwrap().reaped, []);
    let renewed = store.renew(Renew { leases: vec![lease] }).await.unwrap().leases;
    assert!(matches!(renewed[0], Renewed::Held { .. }), "{renewed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_command_leaves_the_store_usable() {
    let file = File::new();
    let store = file.open().await;
    let mut holder = file.connect().await;
    for polls in 1..30 {
        let mut command = store.create(Create { chains: vec![new_chain()] });
        for _ in 0..polls {
            if is_ready(&mut command).await {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // No connection is left with the write lock.
    sqlx::query("begin immediate").execute(&mut holder).await.unwrap();
    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    let last = new_chain();
    start(&store, vec![last.clone()]).await;
    assert!(store.get_jobs(GetJobs { jobs: vec![last.id.first_job()] }).await.unwrap().jobs[0].is_some());
}

/// Polls the future once.
pub(crate) async fn is_ready<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}
