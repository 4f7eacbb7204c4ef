//! Folders that older versions wrote can be read.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use windlass_core::command::{
    Beat, Cancel, CancelMode, ChangeSchedules, Delete, DueTime, GetChains, LeaderLock, ListAttempts,
    ListChains, ListJobs, ListSchedules, ListWorkers, LockAction, LockState, NewKey, NextJob, Order, Outcome,
    Page, Pause, PutSchedule, Renew, RenewLease, Retire, ScheduleAction, ScheduleChange, Settle, Settlement,
    Target,
};
use windlass_core::{
    ChainId, Codec, ErrorText, JobId, Key, KeyHold, LockName, Millis, OnBlockerFailure, Payload, RequestId,
    ScheduleId, ScheduleName, Store, Timestamp, TraceContext, TypeName, WorkerId, WorkerName,
};
use windlass_file::FileStore;

use crate::{Folder, new_chain, start, take};

/// The folders of each version, each with the text of what it contains.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Every version that was ever released, and the current one. Of each version, there are two folders: one with a snapshot,
/// and one of a program that was stopped after it sealed a journal and before it wrote the snapshot. A folder is never
/// changed after the release of its version. `WINDLASS_UPDATE=1` creates those of the current version if they are missing.
#[tokio::test]
async fn folders_of_all_versions_can_be_read() {
    let current = [fixtures().join("version-1"), fixtures().join("version-1-sealed")];
    if std::env::var_os("WINDLASS_UPDATE").is_some() && !current[0].exists() {
        write_fixture(&current[0]).await;
        write_sealed_fixture(&current[1]).await;
    }
    for (name, room) in
        ["version-1", "version-1-sealed"].into_iter().flat_map(|name| [(name, 0), (name, 10_000)])
    {
        let path = fixtures().join(name);
        let folder = Folder::new();
        copy_files(&path, &folder.path());
        // The last journal may end with reserved room.
        let journal = folder.path().join("journal-0000000002");
        let mut bytes = std::fs::read(&journal).unwrap();
        bytes.resize(bytes.len() + room, 0);
        std::fs::write(&journal, bytes).unwrap();
        let store = folder.open().await;
        let expected = std::fs::read_to_string(path.join("content.txt")).unwrap();
        assert_eq!(describe(&store).await, expected, "{name}");
        assert_eq!(store.health().await.unwrap(), []);
        // They cannot be listed.
        assert_eq!((lock(&store, "held").await, lock(&store, "released").await), (false, true), "{name}");
        // The store goes on in this version's format.
        start(&store, vec![new_chain()]).await;
        store.compact().await.unwrap();
        assert!(describe(&folder.open().await).await.len() > expected.len());
    }
}

async fn write_fixture(path: &Path) {
    let folder = Folder::new();
    let store = folder.open().await;
    fill(&store).await;
    store.compact().await.unwrap();
    fill(&store).await;
    save(path, &folder, store).await;
}

/// Writes a folder with a sealed journal, which contains the removal of everything, and the next journal.
async fn write_sealed_fixture(path: &Path) {
    let folder = Folder::new();
    let store = folder.open().await;
    start(&store, vec![new_chain()]).await;
    store.erase().await.unwrap();
    fill(&store).await;
    // A compaction only removes its name.
    let [journal, kept] = ["journal-0000000001", "kept"].map(|name| folder.path().join(name));
    std::fs::hard_link(&journal, &kept).unwrap();
    store.compact().await.unwrap();
    fill(&store).await;
    std::fs::rename(&kept, &journal).unwrap();
    std::fs::remove_file(folder.path().join("snapshot-0000000002")).unwrap();
    save(path, &folder, store).await;
}

async fn save(path: &Path, folder: &Folder, store: FileStore) {
    let content = describe(&store).await;
    store.close().await.unwrap();
    copy_files(&folder.path(), path);
    std::fs::write(path.join("content.txt"), content).unwrap();
}

/// Copies a folder, without the files that are only locks.
fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in crate::names(from).iter().filter(|name| name.contains('-') || *name == "head") {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// Whether another process can acquire a leader lock.
async fn lock(store: &FileStore, name: &str) -> bool {
    let (name, token) = (LockName::new(name).unwrap(), RequestId::new());
    let action = LockAction::Hold(Millis::from_secs(1));
    matches!(store.leader_lock(LeaderLock { name, token, action }).await.unwrap().state, LockState::Held(_))
}

/// Stores rows of every kind, with every optional part.
async fn fill(store: &FileStore) {
    let mut plain = new_chain();
    plain.trace = Some(TraceContext::new("00-trace-01").unwrap());
    plain.job.trace = plain.trace.clone();
    plain.job.max_attempts = Some(3);
    plain.job.priority = -7;
    let mut keyed = new_chain();
    keyed.job.input = Payload::new(Codec::new("cbor").unwrap(), vec![0, 159, 146, 150]).unwrap();
    keyed.key = Some(NewKey {
        hold: KeyHold::Any,
        window: Some(Millis::from_secs(90)),
        ..NewKey::new(Key::new(format!("key {}", ChainId::new())).unwrap())
    });
    let mut blocked = new_chain();
    blocked.job.blockers = vec![plain.id.into(), keyed.id.into()];
    blocked.job.on_blocker_failure = OnBlockerFailure::Receive;
    let holds = [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed].map(|hold| {
        let mut held = new_chain();
        let key = Key::new(format!("{hold:?} {}", ChainId::new())).unwrap();
        held.key = Some(NewKey { hold, ..NewKey::new(key) });
        held.job.schedule = DueTime::After(Millis::from_secs(9));
        held
    });
    let policies = [OnBlockerFailure::Wait, OnBlockerFailure::Fail].map(|policy| {
        let mut waiting = new_chain();
        waiting.job.blockers = vec![holds[0].id.into()];
        waiting.job.on_blocker_failure = policy;
        waiting
    });
    start(store, holds.into_iter().chain(policies).collect()).await;
    let mut later = new_chain();
    later.job.schedule = DueTime::After(Millis::from_days(1));
    let cancelled = later.id;
    start(store, vec![plain, keyed, blocked, later, new_chain(), new_chain()]).await;
    let held = take(store, 4).await;
    let error = ErrorText::new("it failed");
    let next = NextJob { id: JobId::new(), job: new_chain().job };
    let output = Payload::json("{\"answer\":42}").unwrap();
    let outcomes = [
        Outcome::Retry { schedule: DueTime::Now, error: error.clone() },
        Outcome::Continue { next, create: vec![new_chain()] },
        Outcome::Fail { error, retention: Some(Millis::from_days(3)) },
    ];
    let settlements = held.iter().zip(outcomes).map(|(held, outcome)| Settlement {
        job: held.job.id,
        fence: held.job.fence,
        outcome,
    });
    store.settle(Settle { settlements: settlements.collect() }).await.unwrap();
    let running = &held[3].job;
    let lease = RenewLease { job: running.id, fence: running.fence, lease: Millis::from_secs(100) };
    store.renew(Renew { leases: vec![lease] }).await.unwrap();
    let chains = vec![Target::Chain(running.chain), Target::Chain(cancelled)];
    store.cancel(Cancel { chains, mode: CancelMode::Ask }).await.unwrap();
    for outcome in [Outcome::Release, Outcome::Reschedule { schedule: DueTime::Now, error: None }] {
        let job = take(store, 1).await.remove(0).job;
        let settlement = Settlement { job: job.id, fence: job.fence, outcome };
        store.settle(Settle { settlements: vec![settlement] }).await.unwrap();
    }
    let completed = take(store, 1).await.remove(0).job;
    let outcome = Outcome::Complete { output, retention: None, create: Vec::new() };
    let settlement = Settlement { job: completed.id, fence: completed.fence, outcome };
    store.settle(Settle { settlements: vec![settlement] }).await.unwrap();
    fill_former(store).await;
    fill_registry(store).await;
}

/// Deletes a cancelled chain, so that its outcome is only in the totals of its type.
async fn fill_former(store: &FileStore) {
    let chain = new_chain();
    let chains = vec![Target::Chain(chain.id)];
    start(store, vec![chain]).await;
    store.cancel(Cancel { chains: chains.clone(), mode: CancelMode::Ask }).await.unwrap();
    store.delete(Delete { chains, cascade: false, seen: None }).await.unwrap();
}

/// Stores workers, leader locks, paused types and schedules. One of each is deleted again.
async fn fill_registry(store: &FileStore) {
    let types = vec![TypeName::new("t").unwrap(), TypeName::new("paused").unwrap()];
    let name = Some(WorkerName::new("ada").unwrap());
    let (worker, ttl) = (WorkerId::new(), Millis::from_days(100));
    store.beat(Beat { worker, name, types: types.clone(), concurrency: 9, running: 2, ttl }).await.unwrap();
    let (retired, name) = (WorkerId::new(), None);
    let beat = Beat { worker: retired, name, types: types.clone(), concurrency: 1, running: 0, ttl };
    store.beat(beat).await.unwrap();
    store.retire(Retire { worker: retired }).await.unwrap();
    let resumed = vec![TypeName::new("resumed").unwrap()];
    store.pause(Pause { types: [&types[1..], &resumed].concat(), paused: true }).await.unwrap();
    store.pause(Pause { types: resumed, paused: false }).await.unwrap();
    let token = RequestId::new();
    let hold = async |name: String, action| {
        let name = LockName::new(name).unwrap();
        store.leader_lock(LeaderLock { name, token, action }).await.unwrap();
    };
    for name in ["held".to_owned(), "released".to_owned(), format!("lock {token}")] {
        hold(name, LockAction::Hold(ttl)).await;
    }
    hold("released".to_owned(), LockAction::Release).await;
    fill_schedules(store).await;
}

async fn fill_schedules(store: &FileStore) {
    let time = |ms| Some(Timestamp::from_millis(ms).unwrap());
    let change = |name: &str, due_at, handled| ScheduleChange {
        name: ScheduleName::new(format!("{name} {}", RequestId::new())).unwrap(),
        id: ScheduleId::new(),
        expected: None,
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(PutSchedule {
            due_at,
            handled,
            definition: Some("{\"spec\":\"\u{e4}\"}".into()),
            state: format!("state of {name}").into(),
            chain: None,
            state_if_not_created: "".into(),
        }),
    };
    let mut changes = vec![
        change("due", time(1_900_000_000_000), time(1_800_000_000_001)),
        change("new", time(1_900_000_000_000), None),
        change("idle", None, None),
    ];
    if let ScheduleAction::Put(put) = &mut changes[2].action {
        put.chain = Some(new_chain());
    }
    let deleted = change("deleted", None, None);
    let deletion = ScheduleChange {
        expected: Some(deleted.revision),
        revision: RequestId::new(),
        action: ScheduleAction::Delete,
        ..deleted.clone()
    };
    changes.extend([deleted, deletion]);
    store.change_schedules(ChangeSchedules { changes }).await.unwrap();
}

/// Describes everything that a store contains.
async fn describe(store: &FileStore) -> String {
    let page = || Page { max: 1_000, order: Order::Oldest, ..Page::default() };
    let mut text = String::new();
    for job in store.list_jobs(ListJobs { page: page(), ..ListJobs::default() }).await.unwrap().jobs {
        writeln!(text, "job {} {} of {} {}", job.id, job.index, job.chain, job.chain_type).unwrap();
        writeln!(text, "  {} {} priority {}", job.job_type, job.status, job.priority).unwrap();
        writeln!(text, "  input {:?} output {:?} error {:?}", job.input, job.output, job.error).unwrap();
        writeln!(text, "  attempt {} of {:?}", job.attempt, job.max_attempts).unwrap();
        writeln!(text, "  fence {} version {}", job.fence.0, job.version.0).unwrap();
        writeln!(text, "  due {} created {}", job.due_at, job.created_at).unwrap();
        writeln!(text, "  started {:?} closed {:?} by {:?}", job.started_at, job.closed_at, job.closed_by)
            .unwrap();
        let lease = job.lease.map(|lease| (lease.worker, lease.worker_name, lease.request, lease.until));
        writeln!(text, "  lease {lease:?} cancel {} trace {:?}", job.cancel_requested, job.trace).unwrap();
        for blocker in job.blockers.iter() {
            writeln!(text, "  blocker {} {} {:?}", blocker.chain, blocker.resolved, blocker.trace).unwrap();
        }
        writeln!(text, "  on failure {:?}", job.on_blocker_failure).unwrap();
        let attempts = store.list_attempts(ListAttempts { job: job.id }).await.unwrap().attempts;
        for attempt in attempts {
            let times = (attempt.started_at, attempt.ended_at);
            writeln!(text, "  attempt {} {} {:?}", attempt.attempt, attempt.fence.0, attempt.end).unwrap();
            let worker = (attempt.worker, attempt.worker_name);
            writeln!(text, "    {worker:?} {times:?} {:?}", attempt.error).unwrap();
        }
    }
    for chain in store.list_chains(ListChains { page: page(), ..ListChains::default() }).await.unwrap().chains
    {
        writeln!(text, "chain {} {} latest {}", chain.id, chain.chain_type, chain.latest.id).unwrap();
        let closed = chain.closed.map(|closed| (closed.at, closed.closed_as, closed.retain_until));
        writeln!(text, "  created {} closed {closed:?} trace {:?}", chain.created_at, chain.trace).unwrap();
        let kept = chain.retention;
        writeln!(text, "  kept {:?} {:?} {:?}", kept.completed, kept.failed, kept.cancelled).unwrap();
        if let Some(key) = chain.key {
            writeln!(text, "  key {:?} {:?} {:?} {}", key.key, key.hold, key.window, key.held).unwrap();
            let target = Target::Key(chain.chain_type, key.key);
            let found = store.get_chains(GetChains { chains: vec![target] }).await.unwrap().chains.remove(0);
            writeln!(text, "  found {:?}", found.map(|found| found.id)).unwrap();
        }
    }
    for worker in store.list_workers(ListWorkers {}).await.unwrap().workers {
        writeln!(text, "worker {} {:?} {:?}", worker.worker, worker.name, worker.types).unwrap();
        let (slots, running) = (worker.concurrency, worker.running);
        writeln!(text, "  {slots} {running} {} {} {}", worker.started_at, worker.seen_at, worker.expires_at)
            .unwrap();
    }
    for schedule in store.list_schedules(ListSchedules { after: None, max: 100 }).await.unwrap().schedules {
        writeln!(text, "schedule {} {} {}", schedule.name, schedule.id, schedule.revision).unwrap();
        writeln!(text, "  due {:?} handled {:?}", schedule.due_at, schedule.handled).unwrap();
        writeln!(text, "  {:?} {:?}", schedule.definition, schedule.state).unwrap();
    }
    let types = windlass_core::command::Types::All;
    for count in store.count(windlass_core::command::Count { types }).await.unwrap().types {
        writeln!(text, "type {} paused {}", count.job_type, count.paused).unwrap();
        let ended = count.ended;
        writeln!(text, "  ended {} {} {}", ended.completed, ended.failed, ended.cancelled).unwrap();
    }
    text
}
