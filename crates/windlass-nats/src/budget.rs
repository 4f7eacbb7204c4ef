//! Wake budgets in JetStream's key-value store.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::kv::{Operation, Store, UpdateErrorKind};
use async_nats::jetstream::stream::{self, DiscardPolicy, StorageType};
use windlass_core::{Error, ErrorKind, Result, TypeName};

use crate::hint::token;

/// How long a budget counts after it last changed.
const TTL: Duration = Duration::from_secs(60);

/// How often a change is tried that somebody else's was faster than. Each failure is somebody's success.
const TRIES: u32 = 100;

/// The budgets of one namespace.
#[derive(Debug)]
pub(crate) struct Budgets {
    bucket: Store,
    namespace: String,
}

impl Budgets {
    /// Takes the bucket of this name, which is made if there is none.
    pub(crate) async fn open(client: Client, bucket: &str, namespace: String) -> Result<Self> {
        let no_bucket = |error: &dyn std::error::Error| {
            let cure = "turn JetStream on, mend the bucket's name, or go without a bucket";
            Error::new(ErrorKind::Unavailable, format!("no bucket for wake budgets ({error}): {cure}"))
        };
        let jetstream = async_nats::jetstream::new(client);
        if let Ok(bucket) = jetstream.get_key_value(bucket).await {
            return Ok(Self { bucket, namespace });
        }
        jetstream.get_or_create_stream(stream_of(bucket)).await.map_err(|error| no_bucket(&error))?;
        let bucket = jetstream.get_key_value(bucket).await.map_err(|error| no_bucket(&error))?;
        Ok(Self { bucket, namespace })
    }

    /// Lets so many more wake.
    pub(crate) async fn grow(&self, job_type: &TypeName, by: u32) -> Result<()> {
        for _ in 0..TRIES {
            let (left, revision) = self.look(job_type).await?.unwrap_or((0, 0));
            if self.change(job_type, left + u64::from(by), revision).await? {
                return Ok(());
            }
        }
        // Nobody may stay asleep because of that: without a budget all wake.
        self.bucket.delete(self.key(job_type)).await.map_err(unavailable)
    }

    /// Whether one more may wake.
    pub(crate) async fn claim(&self, job_type: &TypeName) -> Result<bool> {
        for _ in 0..TRIES {
            let Some((left, revision)) = self.look(job_type).await? else { return Ok(true) };
            if left == 0 {
                return Ok(false);
            }
            if self.change(job_type, left - 1, revision).await? {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// How many may wake, and the revision that says so; none where there is no budget.
    async fn look(&self, job_type: &TypeName) -> Result<Option<(u64, u64)>> {
        let entry = self.bucket.entry(self.key(job_type)).await.map_err(unavailable)?;
        let entry = entry.filter(|entry| entry.operation == Operation::Put);
        let left = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        Ok(entry.and_then(|entry| Some((left(&entry.value)?, entry.revision))))
    }

    /// Changes a budget, unless somebody else has. A budget that there was none of has revision 0.
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

/// The stream that a bucket is. The client's own way to make a bucket asks for facts that servers before 2.10 do not tell.
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
    Error::new(ErrorKind::Unavailable, format!("the wake budget on NATS: {error}: try again"))
        .with_source(error)
}
