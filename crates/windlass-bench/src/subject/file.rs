use std::fmt;
use std::fs::{self, File as DiskFile};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use windlass::client::ClientBuilder;
use windlass::command::Pause;
use windlass::file::{CompactionStats, FileStore, Options};
use windlass::name::TypeName;
use windlass::{BoxError, Client, Store};

use super::{Bare, Goal, ResourceUsage, Subject};
use crate::{meter, workload};

/// Slots of the drain that is compared with bare appends.
const SLOTS: u32 = 64;

/// How many single appends are measured. More would take minutes on a slow disk.
const SINGLE_APPENDS: u32 = 500;

/// The size of all single appends, in bytes.
const SINGLE_APPENDS_BYTES: u64 = 200 * SINGLE_APPENDS as u64;

/// How long a writer is measured while nothing else happens.
const COMMITS_MEASURED: Duration = Duration::from_millis(500);

/// Folders in a temporary directory.
#[derive(Debug)]
pub struct File {
    directory: TempDir,
    folders: u32,
}

impl File {
    /// Creates the directory.
    pub fn new() -> Result<Self, BoxError> {
        Ok(Self { directory: TempDir::with_prefix("windlass-bench-")?, folders: 0 })
    }

    fn next_path(&mut self) -> PathBuf {
        self.folders += 1;
        self.directory.path().join(self.folders.to_string())
    }

    /// Returns how many appends with a sync the disk does per second.
    pub fn sync_rate(&mut self) -> Result<f64, BoxError> {
        let took = append(&self.next_path(), SINGLE_APPENDS.into(), SINGLE_APPENDS_BYTES)?;
        Ok(f64::from(SINGLE_APPENDS) / took.as_secs_f64())
    }

    /// Stores `jobs` jobs and opens the folder again, to measure what they take.
    pub async fn footprint(&mut self, jobs: u64) -> Result<Footprint, BoxError> {
        let path = self.next_path();
        let before = meter::memory();
        let client = Client::new(FileStore::open(Options::new(&path)).await?);
        workload::start_all(&client, jobs, 1_000).await?;
        let memory = meter::memory().saturating_sub(before);
        let idle = Commits::count(&client, tokio::time::sleep(COMMITS_MEASURED)).await?.0;
        let (commits, compacted) = Commits::count(&client, client.store().compact()).await?;
        compacted?;
        let compaction = client.store().compaction();
        // Without the records of these commits.
        client.store().compact().await?;
        let folder = folder_bytes(&path);
        client.store().close().await?;
        let began = Instant::now();
        FileStore::open(Options::new(&path)).await?.close().await?;
        Ok(Footprint { jobs, memory, folder, opening: began.elapsed(), compaction, commits, idle })
    }
}

/// What stored jobs take.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// The number of jobs, each with a small input.
    pub jobs: u64,
    /// The memory that they take, in bytes.
    pub memory: u64,
    /// The size of the folder after a compaction, in bytes.
    pub folder: u64,
    /// How long opening the folder takes.
    pub opening: Duration,
    /// The compactions, with the longest pause of writers.
    pub compaction: CompactionStats,
    /// The commits of a writer during a compaction of all jobs.
    pub commits: Commits,
    /// The commits of the same writer while nothing else happened.
    pub idle: Commits,
}

/// Commits that a single writer made one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commits {
    /// Their number.
    pub count: u64,
    /// How long all of them took.
    pub took: Duration,
    /// How long the slowest one took.
    pub longest: Duration,
}

impl Commits {
    /// Commits again and again until the work is done. Returns the result of the work too.
    async fn count<T>(
        client: &Client<FileStore>,
        work: impl Future<Output = T>,
    ) -> Result<(Self, T), BoxError> {
        let types = vec![TypeName::new("unused")?];
        let (mut commits, mut work) = (Self::default(), pin!(work));
        loop {
            let began = Instant::now();
            // Each of them changes the state, so that it is written.
            let pause = Pause { types: types.clone(), paused: commits.count % 2 == 0 };
            let mut commit = client.store().pause(pause);
            // The work goes on while the commit waits for the disk.
            let done = tokio::select! {
                done = &mut work => { commit.await?; Some(done) }
                committed = &mut commit => { committed?; None }
            };
            let took = began.elapsed();
            commits.count += 1;
            commits.took += took;
            commits.longest = commits.longest.max(took);
            if let Some(done) = done {
                return Ok((commits, done));
            }
        }
    }
}

impl fmt::Display for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, took, longest } = self;
        write!(f, "{count} commits in {took:.1?}, the longest took {longest:.1?}")
    }
}

impl Subject for File {
    type Store = FileStore;

    async fn builder(&mut self) -> Result<ClientBuilder<FileStore>, BoxError> {
        let path = self.next_path();
        Ok(Client::builder(FileStore::open(Options::new(path)).await?))
    }

    async fn drain_in_transactions(
        &self,
        client: &Client<FileStore>,
        jobs: u64,
        slots: u32,
    ) -> Result<(), BoxError> {
        workload::drain_in_transactions(client, jobs, slots).await
    }

    fn bare(&self) -> Vec<(Bare, &'static str)> {
        vec![
            (Bare::ClaimMany, "bare: appends and syncs of a drain, 64 slots"),
            (Bare::InsertOne, "bare: one append per sync"),
        ]
    }

    async fn run_bare(&mut self, bare: Bare, jobs: u64) -> Result<Duration, BoxError> {
        let path = self.next_path();
        if bare == Bare::InsertOne {
            let took = append(&path, SINGLE_APPENDS.into(), SINGLE_APPENDS_BYTES)?;
            return Ok(took.mul_f64(to_float(jobs) / f64::from(SINGLE_APPENDS)));
        }
        // How many batches does a drain write, and how many bytes of records? A compaction would begin a new journal.
        let folder = self.next_path();
        let options = Options::new(&folder).compact_at_bytes(u64::MAX);
        let client = Client::new(FileStore::open(options).await?);
        workload::start_all(&client, jobs, 1_000).await?;
        let (commits, end) = (client.store().counters().commits, journal_end(&folder)?);
        workload::drain_all(&client, jobs, SLOTS).await?;
        let (commits, appended) = (client.store().counters().commits - commits, journal_end(&folder)? - end);
        client.store().close().await?;
        append(&path, commits, appended)
    }

    fn goals(&self) -> Vec<Goal> {
        vec![
            Goal { workload: "drain, 64 slots", bare: Bare::ClaimMany, at_least: Some(0.5) },
            Goal { workload: "start, 16 producers", bare: Bare::InsertOne, at_least: None },
        ]
    }

    async fn usage(&self) -> Result<ResourceUsage, BoxError> {
        // This process writes hardly anything but the journal, and snapshots.
        Ok(ResourceUsage { log_bytes: meter::written_bytes(), server_cpu: None })
    }
}

/// Writes `bytes` bytes to a new file in `count` appends of about the same size. Waits for the disk after each append.
fn append(path: &Path, count: u64, bytes: u64) -> Result<Duration, BoxError> {
    let mut file = DiskFile::create(path)?;
    let data = vec![b'x'; usize::try_from(bytes.div_ceil(count.max(1)))?];
    let (began, mut written) = (Instant::now(), 0);
    for number in 1..=count {
        let end = bytes * number / count;
        let part = data.get(..usize::try_from(end - written)?).unwrap_or(&data);
        file.write_all(part)?;
        file.sync_data()?;
        written = end;
    }
    Ok(began.elapsed())
}

/// Returns the offset after the last record of the first journal. `docs/file-format.md` describes the file.
fn journal_end(folder: &Path) -> Result<u64, BoxError> {
    let head = fs::read(folder.join("head"))?;
    let number =
        |at: usize| head.get(at..at + 8).and_then(|part| part.try_into().ok()).map(u64::from_le_bytes);
    match (number(28), number(36)) {
        (Some(1), Some(end)) => Ok(end),
        _ => Err("the file `head` is not at the first journal".into()),
    }
}

fn folder_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
const fn to_float(count: u64) -> f64 {
    count as f64
}
