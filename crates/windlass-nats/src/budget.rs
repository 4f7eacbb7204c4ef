//! Wake budgets in JetStream's key-value store.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::kv::{Operation, Store, UpdateErrorKind};
use async_nats::jetstream::stream::{self, DiscardPolicy, StorageType};
use windlass_core::{Error, ErrorKind, Result, TypeName};

use crate::hint::token;

/// How long a budget is valid after its last change.
const TTL: Duration = Duration::from_secs(60);

/// How many times a compare-and-swap is tried. Each failure means that another process has succeeded.
const SWAP_TRIES: u32 = 100;

/// How often, and after how long, opening the bucket is tried again.
const OPEN_TRIES: u32 = 5;
const OPEN_DELAY: Duration = Duration::from_millis(100);

/// The budgets of one namespace.
#[derive(Debug)]
pub(crate) struct Budgets {
    bucket: Store,
    namespace: String,
}

impl Budgets {
    /// Opens the bucket with this name, and creates it if it is missing.
    pub(crate) async fn open(client: Client, bucket: &str, namespace: String) -> Result<Self> {
        let no_bucket = |error: &dyn std::error::Error| {
            let remedy = "enable JetStream, check the name of the bucket, or open the notifier without one";
            Error::new(
                ErrorKind::Unavailable,
                format!("the bucket for wake budgets cannot be opened ({error}): {remedy}"),
            )
        };
        let jetstream = async_nats::jetstream::new(client);
        let mut tries = 1;
        loop {
            if let Ok(bucket) = jetstream.get_key_value(bucket).await {
                return Ok(Self { bucket, namespace });
            }
            // While another client creates the same stream, the server answers that their subjects overlap.
            match jetstream.get_or_create_stream(stream_of(bucket)).await {
                Err(error) if tries == OPEN_TRIES => return Err(no_bucket(&error)),
                Err(_) => tokio::time::sleep(OPEN_DELAY).await,
                Ok(_) if tries == OPEN_TRIES => {
                    let bucket = jetstream.get_key_value(bucket).await.map_err(|error| no_bucket(&error))?;
                    return Ok(Self { bucket, namespace });
                }
                Ok(_) => {}
            }
            tries += 1;
        }
    }

    /// Adds to the budget of a type.
    pub(crate) async fn grow(&self, job_type: &TypeName, by: u32) -> Result<()> {
        for _ in 0..SWAP_TRIES {
            let (left, revision) = self.read(job_type).await?.unwrap_or((0, 0));
            if self.change(job_type, left + u64::from(by), revision).await? {
                return Ok(());
            }
        }
        // Too much contention. Delete the budget, so that all workers wake: a missing budget costs needless wakes, a
        // budget that is too small leaves jobs waiting.
        self.bucket.delete(self.key(job_type)).await.map_err(unavailable)
    }

    /// Takes one from the budget of a type. Returns whether the caller may wake.
    pub(crate) async fn claim(&self, job_type: &TypeName) -> Result<bool> {
        for _ in 0..SWAP_TRIES {
            let Some((left, revision)) = self.read(job_type).await? else { return Ok(true) };
            if left == 0 {
                return Ok(false);
            }
            if self.change(job_type, left - 1, revision).await? {
                return Ok(true);
            }
        }
        // Too much contention. Wake anyway: a needless wake is cheaper than a delayed job.
        Ok(true)
    }

    /// Returns what is left of the budget and its revision, or `None` if there is no budget.
    async fn read(&self, job_type: &TypeName) -> Result<Option<(u64, u64)>> {
        let entry = self.bucket.entry(self.key(job_type)).await.map_err(unavailable)?;
        let entry = entry.filter(|entry| entry.operation == Operation::Put);
        let left = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        Ok(entry.and_then(|entry| Some((left(&entry.value)?, entry.revision))))
    }

    /// Writes a budget if its revision is unchanged; returns whether it did. Revision 0 stands for a budget that does
    /// not exist.
    async fn change(&self, job_type: &TypeName, left: u64, revision: u64) -> Result<bool> {
        let value = left.to_string().into();
        if revision == 0 {
            return Ok(self.bucket.create(self.key(job_type), value).await.is_ok());
        }
        match self.bucket.update(self.key(job_type), value, revision).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(false),
            Err(error) => Err(unavailable(error)),
        }
    }

    fn key(&self, job_type: &TypeName) -> String {
        format!("{}.{}", self.namespace, token(job_type))
    }
}

/// The stream behind a bucket. The client's own function to create a bucket expects information that servers before
/// 2.10 do not report.
fn stream_of(bucket: &str) -> stream::Config {
    stream::Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        max_age: TTL,
        storage: StorageType::Memory,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        num_replicas: 1,
        ..stream::Config::default()
    }
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("NATS: the wake budget cannot be read or changed: {error}: try again"),
    )
    .with_inner(error)
}
