//! Backups of a folder that is in use.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use windlass_core::command::ListChains;
use windlass_core::{ChainId, ErrorKind, Store};
use windlass_file::{FileStore, Options};

use crate::compaction::complete;
use crate::{Folder, names, new_chain, start, take};

/// The journals come to have reserved room before they are compacted.
const COMPACT_AT_BYTES: u64 = 150_000;

const BACKUPS: usize = 6;

/// Two stores write and compact the folder. Meanwhile they, and one that only reads, make backups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_contains_everything_acknowledged_before_it() {
    let folder = Folder::new();
    let options = || folder.options().compact_at_bytes(COMPACT_AT_BYTES);
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Arc::new(FileStore::open(options()).await.unwrap()));
    }
    let (acknowledged, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let write = |store: &Arc<FileStore>| {
        let (store, acknowledged, stop) = (Arc::clone(store), Arc::clone(&acknowledged), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let chains: Vec<_> = (0..10).map(|_| new_chain()).collect();
                let ids: Vec<ChainId> = chains.iter().map(|chain| chain.id).collect();
                start(&*store, chains).await;
                acknowledged.lock().unwrap().extend(ids);
                complete(&store, 5).await;
            }
        })
    };
    let writers: Vec<_> = stores[..2].iter().map(write).collect();
    let compactions = || -> u64 { stores.iter().map(|store| store.compaction().completed).sum() };
    for made in 0..BACKUPS {
        let before = acknowledged.lock().unwrap().clone();
        let destination = folder.directory.path().join(format!("backup-{made}"));
        stores[made % 3].backup(&destination).await.unwrap();
        let copy = FileStore::open(Options::new(&destination).clock(folder.clock.clone())).await.unwrap();
        let stored = chains(&copy).await;
        let missing = before.iter().filter(|id| !stored.contains(id)).count();
        assert_eq!(missing, 0, "of {} chains in backup {made}", before.len());
        assert!(writers.iter().all(|writer| !writer.is_finished()), "they go on");
        assert_eq!(copy.health().await.unwrap(), []);
        // The copy is a store of its own.
        start(&copy, vec![new_chain()]).await;
        copy.close().await.unwrap();
        fs::remove_dir_all(destination).unwrap();
        // Between the backups at the latest. The stores also compact the folder during them, by themselves.
        stores[made % 2].compact().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(compactions() >= BACKUPS as u64, "{} compactions", compactions());
    println!(
        "{BACKUPS} backups, {} compactions, {} chains",
        compactions(),
        acknowledged.lock().unwrap().len()
    );
    assert_eq!(names(folder.directory.path()), ["queue"], "nothing is left behind");
    assert_eq!(stores[2].health().await.unwrap(), []);
}

async fn chains(store: &FileStore) -> HashSet<ChainId> {
    let (mut found, mut request) = (HashSet::new(), ListChains::default());
    request.page.max = 1_000;
    loop {
        let reply = store.list_chains(request.clone()).await.unwrap();
        found.extend(reply.chains.iter().map(|chain| chain.id));
        let Some(next) = reply.next else { return found };
        request.page.after = Some(next);
    }
}

/// A backup replaces the folder that was lost.
#[tokio::test]
async fn a_backup_is_restored_by_moving_it() {
    let folder = Folder::new();
    let store = FileStore::open(folder.options().namespace("shop")).await.unwrap();
    start(&store, vec![new_chain(), new_chain()]).await;
    let backup = folder.directory.path().join("backup");
    assert_eq!(store.backup(&backup).await.unwrap().jobs, 2);
    assert_eq!(names(&backup), ["head", "journal-0000000001"]);
    take(&store, 2).await;
    store.close().await.unwrap();
    let lost = folder.options().namespace("shop").folder();
    fs::remove_dir_all(&lost).unwrap();
    fs::rename(&backup, &lost).unwrap();
    let store = FileStore::open(folder.options().namespace("shop")).await.unwrap();
    assert_eq!(take(&store, 10).await.len(), 2, "as before they were taken");
}

/// Payloads may be secret, so the copy is as readable as the folder and its files.
#[cfg(unix)]
#[tokio::test]
async fn a_backup_has_the_modes_of_the_folder_and_its_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let store = folder.open().await;
    let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let files = |folder: &Path| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for (mode, mode_of_files) in [(0o700, 0o644), (0o750, 0o640), (0o777, 0o600)] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        for file in files(&folder.path()) {
            fs::set_permissions(file, fs::Permissions::from_mode(mode_of_files)).unwrap();
        }
        let backup = folder.directory.path().join(format!("backup-{mode:o}"));
        store.backup(&backup).await.unwrap();
        assert_eq!(mode_of(&backup), mode);
        assert!(files(&backup).count() >= 2);
        files(&backup).for_each(|file| assert_eq!(mode_of(&file), mode_of_files, "{}", file.display()));
    }
}

#[tokio::test]
async fn a_destination_that_is_not_new_is_refused() {
    let folder = Folder::new();
    let store = folder.open().await;
    let inside = folder.directory.path();
    fs::create_dir(inside.join("folder")).unwrap();
    fs::write(inside.join("file"), "mine").unwrap();
    let cases = [
        (inside.join("folder"), "exists: choose a name that does not exist"),
        (inside.join("file"), "exists: choose a name that does not exist"),
        (inside.join("queue"), "exists: choose a name that does not exist"),
        (inside.join("queue/backup"), "is inside the folder of the store"),
        (inside.join("missing/backup"), "create the folder that is to contain it"),
        (inside.join("file/backup"), "choose a place in a folder"),
        (inside.join(".."), "exists: choose a name that does not exist"),
    ];
    for (destination, part) in cases {
        let error = store.backup(&destination).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(names(inside), ["file", "folder", "queue"], "nothing is left behind");
    store.close().await.unwrap();
    assert_eq!(store.backup(inside.join("backup")).await.unwrap_err().kind(), ErrorKind::Closed);
}

/// The folder of a store also contains those of its namespaces.
#[tokio::test]
async fn a_destination_in_the_folder_of_the_namespaces_is_refused() {
    let folder = Folder::new();
    let store = FileStore::open(folder.options().namespace("shop")).await.unwrap();
    for name in ["backup", "namespace-x", "namespace-shop/backup"] {
        let error = store.backup(folder.path().join(name)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("is inside the folder of the store"), "{error}");
    }
    assert_eq!(names(&folder.path()), ["namespace-shop"]);
}
