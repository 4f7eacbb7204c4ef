//! The definition of a schedule: what to start and when.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::spec::ScheduleSpec;
use super::state::time;
use crate::command::{NewChain, NewJob, NewKey};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::{Codec, Key, TypeName};
use crate::payload::Payload;
use crate::record::{KeyHold, Retention};
use crate::time::{Millis, Timestamp};

/// The definition of a schedule, stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub(crate) spec: ScheduleSpec,
    pub(crate) job: EncodedChain,
    /// The declaration in a program's code, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) declaration: Option<Declaration>,
}

/// The declaration of a schedule in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declaration {
    /// The program.
    pub(crate) program: String,
    /// A hash of the declared content.
    pub(crate) content: String,
    pub(crate) version: Option<u64>,
    /// Hashes of earlier contents, newest last. They do not return by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) superseded: Vec<String>,
    /// A declaration with superseded content or a lower version, which was not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<Box<Refused>>,
}

/// A declaration that was not applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) program: String,
    pub(crate) spec: ScheduleSpec,
    pub(crate) job: EncodedChain,
    /// When the program declared it last. Accurate to an hour.
    #[serde(default)]
    pub(crate) at: i64,
}

/// How old the time of a refused declaration may be before it is written again.
const REFUSED_EVERY: Millis = Millis::from_secs(60 * 60);
/// How long a refused declaration is kept after its program declared it last, if another program declares the current one.
const REFUSED_KEPT: Millis = Millis::from_secs(3 * 60 * 60);
/// How many superseded contents a declaration remembers.
const SUPERSEDED_MAX: usize = 50;

/// A chain to start, without its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EncodedChain {
    #[serde(rename = "type")]
    pub(crate) job_type: String,
    codec: String,
    /// The input, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<String>,
    /// The input in hexadecimal, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input_hex: Option<String>,
    priority: i8,
    max_attempts: Option<u32>,
    /// How long completed, failed and cancelled chains are kept.
    retention: [u64; 3],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<EncodedKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EncodedKey {
    key: String,
    hold: u8,
    window: Option<u64>,
}

const HOLDS: [KeyHold; 4] = [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed, KeyHold::Any];

impl Definition {
    /// Decodes a stored definition.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if this program cannot read it.
    pub(crate) fn decode(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| {
            let text =
                format!("the definition of the schedule cannot be read by this version of Windlass: {error}");
            Error::new(ErrorKind::Incompatible, text)
        })
    }

    pub(crate) fn encode(&self) -> String {
        // Serializing plain data into a string does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Applies a declaration: returns the new definition, or `None` if the declaration changes nothing.
    pub(crate) fn declare(
        &self,
        program: &str,
        spec: &ScheduleSpec,
        job: &EncodedChain,
        now: Timestamp,
    ) -> Option<Self> {
        let content = content_of(spec, job);
        let Some(known) = &self.declaration else {
            // Created by other means, and now declared.
            return Some(Self::declared(program, spec, job));
        };
        let mut declaration = known.clone();
        if known.content == content {
            // A higher version must be stored, even with the same content: the versions between must not apply.
            declaration.version = known.version.max(spec.version);
            declaration.refused = declaration.refused.filter(|refused| now < time(refused.at) + REFUSED_KEPT);
            return Some(Self { declaration: Some(declaration), ..self.clone() }).filter(|new| new != self);
        }
        let applies = match (spec.version, known.version) {
            (Some(new), Some(old)) if new != old => new > old,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            _ => !known.superseded.contains(&content),
        };
        if !applies {
            let mut refused = Refused {
                program: program.to_owned(),
                spec: spec.clone(),
                job: job.clone(),
                at: now.as_millis(),
            };
            if let Some(before) =
                known.refused.as_ref().filter(|refused| now < time(refused.at) + REFUSED_EVERY)
            {
                refused.at = before.at;
            }
            declaration.refused = Some(Box::new(refused));
            return Some(Self { declaration: Some(declaration), ..self.clone() }).filter(|new| new != self);
        }
        declaration.superseded.retain(|old| *old != content);
        declaration.superseded.push(known.content.clone());
        let excess = declaration.superseded.len().saturating_sub(SUPERSEDED_MAX);
        declaration.superseded.drain(..excess);
        declaration = Declaration {
            program: program.to_owned(),
            content,
            version: spec.version,
            refused: None,
            superseded: declaration.superseded,
        };
        Some(Self { spec: spec.clone(), job: job.clone(), declaration: Some(declaration) })
    }

    /// Whether this content was declared last, and applied.
    pub(crate) fn has_content(&self, spec: &ScheduleSpec, job: &EncodedChain) -> bool {
        let content = content_of(spec, job);
        self.declaration.as_ref().is_some_and(|declaration| declaration.content == content)
    }

    /// Returns the definition of a schedule that a program declares for the first time.
    pub(crate) fn declared(program: &str, spec: &ScheduleSpec, job: &EncodedChain) -> Self {
        let declaration = Declaration {
            program: program.to_owned(),
            content: content_of(spec, job),
            version: spec.version,
            ..Declaration::default()
        };
        Self { spec: spec.clone(), job: job.clone(), declaration: Some(declaration) }
    }

    /// Applies the declaration that was refused. Returns `None` if there is none.
    pub(crate) fn accept(&self) -> Option<Self> {
        let known = self.declaration.as_ref()?;
        let refused = known.refused.as_ref()?;
        let mut accepted = Self::declared(&refused.program, &refused.spec, &refused.job);
        if let Some(declaration) = &mut accepted.declaration {
            declaration.superseded.clone_from(&known.superseded);
            declaration.superseded.retain(|old| *old != declaration.content);
            declaration.superseded.push(known.content.clone());
        }
        Some(accepted)
    }
}

/// Returns a hash of what a declaration contains, except its version.
fn content_of(spec: &ScheduleSpec, job: &EncodedChain) -> String {
    let mut spec = spec.clone();
    spec.version = None;
    let text = serde_json::to_string(&(spec, job)).unwrap_or_default();
    hex(&Sha256::digest(text)).chars().take(32).collect()
}

impl EncodedChain {
    /// Encodes a planned chain.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the chain has an option that a schedule sets itself, or blockers.
    pub(crate) fn new(chain: &NewChain) -> Result<Self> {
        let refuse = |text: &str| Err(Error::new(ErrorKind::Invalid, text.to_owned()));
        if !chain.job.blockers.is_empty() {
            return refuse("a scheduled job has blockers: start it from a job without blockers");
        }
        if chain.job.schedule != crate::command::DueTime::Now {
            return refuse("a scheduled job has a due time: remove it, the schedule sets it");
        }
        if chain.key.as_ref().is_some_and(|key| key.replaces.is_some()) {
            return refuse("a scheduled job replaces another chain: use an overlap policy instead");
        }
        chain.check()?;
        let text = std::str::from_utf8(chain.job.input.bytes()).ok();
        let key = chain.key.as_ref().map(|key| EncodedKey {
            key: key.key.to_string(),
            hold: HOLDS
                .iter()
                .position(|hold| *hold == key.hold)
                .and_then(|at| at.try_into().ok())
                .unwrap_or(0),
            window: key.window.map(Millis::get),
        });
        let Retention { completed, failed, cancelled } = chain.retention;
        Ok(Self {
            job_type: chain.job.job_type.to_string(),
            codec: chain.job.input.codec().to_string(),
            input: text.map(str::to_owned),
            input_hex: if text.is_none() { Some(hex(chain.job.input.bytes())) } else { None },
            priority: chain.job.priority,
            max_attempts: chain.job.max_attempts,
            retention: [completed.get(), failed.get(), cancelled.get()],
            key,
        })
    }

    /// Decodes the chain.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if a value is invalid.
    pub(crate) fn decode(&self, id: ChainId) -> Result<NewChain> {
        self.try_decode(id).map_err(|error| {
            Error::new(ErrorKind::Incompatible, format!("the job of the schedule cannot be read: {error}"))
        })
    }

    fn try_decode(&self, id: ChainId) -> Result<NewChain> {
        let bytes = match (&self.input, &self.input_hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, hex) => unhex(hex.as_deref().unwrap_or_default()),
        };
        let input = Payload::new(Codec::new(&self.codec)?, bytes)?;
        let [completed, failed, cancelled] = self.retention;
        let mut chain = NewChain::new(id, NewJob::new(TypeName::new(&self.job_type)?, input));
        chain.job.priority = self.priority;
        chain.job.max_attempts = self.max_attempts;
        chain.retention = Retention {
            completed: Millis::new(completed)?,
            failed: Millis::new(failed)?,
            cancelled: Millis::new(cancelled)?,
        };
        if let Some(key) = &self.key {
            chain.key = Some(NewKey {
                key: Key::new(&key.key)?,
                hold: HOLDS.get(usize::from(key.hold)).copied().unwrap_or_default(),
                window: key.window.map(Millis::new).transpose()?,
                replaces: None,
            });
        }
        Ok(chain)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)?.try_into().ok()).collect();
    digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}
