//! Bearer tokens in a file, as hashes.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use windlass_core::Timestamp;

use super::role::Role;
use super::secret::{Hash, LockedFile, random};

/// How often the file is checked for changes, at most.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum length of the name of a token, in bytes.
const NAME_MAX_BYTES: usize = 100;

/// The beginning of every token, so that scanners for leaked secrets can recognize one.
const PREFIX: &str = "windlass_";

/// The comment at the beginning of the file.
const HEADER: &str =
    "# Tokens of `windlass serve`, as hashes. Change this file with `windlass serve token`.\n\n";

/// A file of tokens. The server notices changes within a second, so that revoking a token needs no restart.
///
/// The file can also be edited by hand. It has one table per token:
///
/// ```toml
/// [[tokens]]
/// name = "deploy"
/// id = "5d41402abc4b2a76"
/// role = "operate"
/// hash = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
/// created_at = "2026-11-15T06:00:00.000Z"
/// expires_at = "2027-11-15T06:00:00.000Z" # optional
/// ```
#[derive(Clone)]
pub struct TokenFile {
    path: Arc<Path>,
    loaded: Arc<Mutex<LoadedTokens>>,
}

struct LoadedTokens {
    checked_at: Instant,
    /// The modification time and the length of the file that was read.
    stamp: Option<Stamp>,
    /// The tokens. Empty if the file cannot be read: then no caller is admitted.
    tokens: Vec<Token>,
}

/// The modification time and the length of a file.
pub(super) type Stamp = (SystemTime, u64);

/// A token as it is stored: without its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Token {
    /// The name, which appears in the audit log. Unique in its file.
    pub name: String,
    /// Identifies the token. Another token that gets the same name later has another id.
    pub id: String,
    /// What the token permits.
    pub role: Role,
    hash: String,
    /// When the token was created.
    pub created_at: String,
    /// When the token stops working. `None` means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default)]
    tokens: Vec<Token>,
}

/// Why a file of tokens could not be read or changed.
#[derive(Debug)]
pub struct TokenError(String);

impl TokenFile {
    /// Opens a file of tokens.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or contains no token, because then no caller could use the server.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TokenError> {
        let path = path.as_ref();
        let stamp = stamp(path);
        let tokens = read(path)?;
        if tokens.is_empty() {
            let path = path.display();
            return Err(TokenError(format!(
                "`{path}` contains no token: create one with `windlass serve token create`"
            )));
        }
        let loaded = LoadedTokens { checked_at: Instant::now(), stamp, tokens };
        Ok(Self { path: path.into(), loaded: Arc::new(Mutex::new(loaded)) })
    }

    /// Creates a token, and the file if it does not exist. Returns the secret, which is not stored.
    ///
    /// # Errors
    ///
    /// If the name is empty, too long or taken, or if the file cannot be read or written.
    pub fn create(
        path: impl AsRef<Path>,
        name: &str,
        role: Role,
        expires_at: Option<Timestamp>,
    ) -> Result<String, TokenError> {
        check_name(name)?;
        let file = lock(path.as_ref())?;
        let mut tokens = if file.path().exists() { read(file.path())? } else { Vec::new() };
        if tokens.iter().any(|token| token.name == name) {
            return Err(TokenError(format!(
                "a token named `{name}` exists: choose another name, or revoke it"
            )));
        }
        let failed = |error: io::Error| TokenError(format!("cannot create a token: {error}"));
        let secret = format!("{PREFIX}{}", random::<32>().map_err(failed)?);
        tokens.push(Token {
            name: name.to_owned(),
            id: random::<8>().map_err(failed)?,
            role,
            hash: Hash::of(&secret).to_hex(),
            created_at: Timestamp::now().to_string(),
            expires_at: expires_at.map(|at| at.to_string()),
        });
        write(&file, tokens)?;
        Ok(secret)
    }

    /// Removes a token. Sessions that were started with it end. Returns whether the token existed.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written.
    pub fn revoke(path: impl AsRef<Path>, name: &str) -> Result<bool, TokenError> {
        let file = lock(path.as_ref())?;
        let mut tokens = read(file.path())?;
        let before = tokens.len();
        tokens.retain(|token| token.name != name);
        let was_known = tokens.len() < before;
        if was_known {
            write(&file, tokens)?;
        }
        Ok(was_known)
    }

    /// Returns the tokens of a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn list(path: impl AsRef<Path>) -> Result<Vec<Token>, TokenError> {
        read(path.as_ref())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the token with this secret, unless it has expired.
    pub(crate) fn find(&self, secret: &str) -> Option<Token> {
        let hash = Hash::of(secret);
        // Compares with every token, so that the time does not depend on which one matches.
        let found = self.with_tokens(|tokens| {
            let matches = |token: &&Token| {
                Hash::from_hex(&token.hash).is_some_and(|stored| stored.equals(&hash).into())
            };
            let mut found = None;
            for token in tokens.iter().filter(matches) {
                found = Some(token.clone());
            }
            found
        });
        found.filter(Token::is_valid)
    }

    /// Returns the token with this id, unless it has expired.
    pub(super) fn by_id(&self, id: &str) -> Option<Token> {
        let found = self.with_tokens(|tokens| tokens.iter().find(|token| token.id == id).cloned());
        found.filter(Token::is_valid)
    }

    fn with_tokens<T>(&self, read: impl FnOnce(&[Token]) -> T) -> T {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.refresh(&self.path);
        read(&loaded.tokens)
    }
}

impl LoadedTokens {
    /// Reads the file again if it has changed.
    fn refresh(&mut self, path: &Path) {
        if self.checked_at.elapsed() < CHECK_INTERVAL {
            return;
        }
        self.checked_at = Instant::now();
        let stamp = stamp(path);
        if stamp.is_some() && stamp == self.stamp {
            return;
        }
        match read(path) {
            Ok(tokens) => (self.tokens, self.stamp) = (tokens, stamp),
            Err(error) => {
                tracing::error!("nobody is admitted until the tokens can be read: {error}");
                (self.tokens, self.stamp) = (Vec::new(), None);
            }
        }
    }
}

impl Token {
    /// Whether the token works now.
    fn is_valid(&self) -> bool {
        let Some(expires_at) = &self.expires_at else { return true };
        // A time that cannot be parsed was refused when the file was read.
        parse_time(expires_at).is_some_and(|at| Timestamp::now() < at)
    }
}

fn check_name(name: &str) -> Result<(), TokenError> {
    if name.is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
        let text =
            format!("the name of a token must have 1 to {NAME_MAX_BYTES} bytes without control characters");
        return Err(TokenError(text));
    }
    Ok(())
}

pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read(path: &Path) -> Result<Vec<Token>, TokenError> {
    let shown = path.display();
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| TokenError(format!("cannot read the tokens in `{shown}`: {error}")))?;
    let content: Content = toml::from_str(&text)
        .map_err(|error| TokenError(format!("`{shown}` is not a file of tokens: {}", error.message())))?;
    for token in &content.tokens {
        let is_complete = Hash::from_hex(&token.hash).is_some()
            && token.expires_at.as_deref().is_none_or(|at| parse_time(at).is_some());
        if !is_complete || token.id.is_empty() {
            let text = format!("the token `{}` in `{shown}` has an invalid id, hash or time", token.name);
            return Err(TokenError(text));
        }
    }
    check_unique(&content.tokens)
        .map_err(|what| TokenError(format!("{what} in `{shown}`: remove one of them")))?;
    Ok(content.tokens)
}

/// Refuses two tokens with one name, id or secret: it would not be clear which role applies, or which one a session or a
/// line of the audit log means.
fn check_unique(tokens: &[Token]) -> Result<(), String> {
    let (mut names, mut ids, mut hashes) = (HashSet::new(), HashSet::new(), HashSet::new());
    for token in tokens {
        let name = &token.name;
        if !names.insert(name) {
            return Err(format!("two tokens have the name `{name}`"));
        }
        if !ids.insert(&token.id) {
            return Err(format!("the token `{name}` has the id of another token"));
        }
        if !hashes.insert(token.hash.to_ascii_lowercase()) {
            return Err(format!("the token `{name}` has the hash of another token"));
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<LockedFile, TokenError> {
    let shown = path.display();
    LockedFile::lock(path)
        .map_err(|error| TokenError(format!("cannot lock the tokens in `{shown}`: {error}")))
}

fn write(file: &LockedFile, tokens: Vec<Token>) -> Result<(), TokenError> {
    let shown = file.path().display();
    let failed = |why: String| TokenError(format!("cannot write the tokens to `{shown}`: {why}"));
    let text = toml::to_string(&Content { tokens }).map_err(|error| failed(error.to_string()))?;
    file.replace(&format!("{HEADER}{text}")).map_err(|error| failed(error.to_string()))
}

fn parse_time(text: &str) -> Option<Timestamp> {
    humantime::parse_rfc3339(text).ok().map(Timestamp::from)
}

/// The path of the sessions that were started with the tokens of a file.
pub(super) fn sessions_path(tokens: &Path) -> PathBuf {
    let mut name = tokens.file_name().unwrap_or_default().to_owned();
    name.push(".sessions");
    tokens.with_file_name(name)
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TokenError {}
