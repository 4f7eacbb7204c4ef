//! Sessions of browsers: a cookie that stands for a token.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::COOKIE as COOKIE_HEADER;
use serde::{Deserialize, Serialize};
use windlass_core::Timestamp;

use super::secret::{Hash, LockedFile, random};
use super::token::{CHECK_INTERVAL, Stamp, stamp};

/// The beginning of the name of the cookie.
pub(crate) const COOKIE: &str = "windlass_session";

/// The name of the cookie, for one server. Browsers send a cookie to all ports of a host, so the name contains the port and
/// the path of the server: two servers on one host do not end each other's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CookieName(String);

impl CookieName {
    /// Over HTTPS, the prefix makes browsers refuse a cookie of this name from anyone without HTTPS.
    pub(crate) fn new(authority: &str, base: &str, is_https: bool) -> Self {
        let prefix = match (is_https, base.is_empty()) {
            (false, _) => "",
            // Only for a cookie of the whole host.
            (true, true) => "__Host-",
            (true, false) => "__Secure-",
        };
        let mut name = format!("{prefix}{COOKIE}");
        let port = authority.rsplit_once(':').map(|(_, port)| port);
        if let Some(port) = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
            let _ = write!(name, "_{port}");
        }
        for byte in base.bytes() {
            // Different paths have different names.
            let _ = match byte {
                b'/' => write!(name, "_"),
                byte if byte.is_ascii_alphanumeric() => write!(name, "{}", char::from(byte)),
                byte => write!(name, "-{byte:02x}"),
            };
        }
        Self(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// The maximum number of sessions. The oldest ends when a new one starts.
const SESSIONS_MAX: usize = 1_000;

/// The maximum number of sessions of one token. The oldest ends when a new one starts.
const PER_TOKEN_MAX: usize = 100;

/// The sessions of a server. Their file contains hashes, so reading it does not help to forge a cookie.
///
/// Several servers can share a file: each change begins with the file's content, and a server notices the changes of the
/// others within a second.
#[derive(Debug)]
pub(crate) struct Sessions {
    path: PathBuf,
    loaded: Mutex<LoadedSessions>,
}

#[derive(Debug)]
struct LoadedSessions {
    checked_at: Instant,
    stamp: Option<Stamp>,
    sessions: HashMap<String, Session>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Session {
    /// The id of the token that the session was started with.
    token: String,
    /// When the session ends, in milliseconds since the Unix epoch.
    expires_at: i64,
}

impl Sessions {
    /// Reads the sessions of an earlier run. Without a readable file, there are none, and users log in again.
    pub(crate) fn open(path: PathBuf) -> Self {
        let (checked_at, stamp, sessions) = (Instant::now(), stamp(&path), read(&path));
        Self { path, loaded: Mutex::new(LoadedSessions { checked_at, stamp, sessions }) }
    }

    /// Starts a session and returns the value of its cookie, with its lifetime. Waits for the disk.
    pub(crate) fn start(&self, token: &str) -> io::Result<(String, Duration)> {
        let id = random::<32>()?;
        let expires_at = (Timestamp::now() + LIFETIME).as_millis();
        let session = Session { token: token.to_owned(), expires_at };
        self.change(|sessions| {
            make_room(sessions, PER_TOKEN_MAX, |session| session.token == token);
            make_room(sessions, SESSIONS_MAX, |_| true);
            sessions.insert(Hash::of(&id).to_hex(), session);
        })?;
        Ok((id, LIFETIME))
    }

    /// Ends a session. Waits for the disk.
    pub(crate) fn end(&self, id: &str) -> io::Result<()> {
        self.change(|sessions| _ = sessions.remove(&Hash::of(id).to_hex()))
    }

    /// Returns the id of the token that a session was started with, unless the session has ended.
    pub(crate) fn token(&self, id: &str) -> Option<String> {
        let mut loaded = self.loaded();
        loaded.refresh(&self.path);
        // The key is a hash, so the time of the lookup says nothing about the ids that exist.
        let session = loaded.sessions.get(&Hash::of(id).to_hex())?;
        (Timestamp::now().as_millis() < session.expires_at).then(|| session.token.clone())
    }

    /// Changes the sessions in the file. If that fails, nothing has changed.
    fn change(&self, change: impl FnOnce(&mut HashMap<String, Session>)) -> io::Result<()> {
        // Requests do not wait for the disk: the loaded sessions are locked only after the write.
        let file = LockedFile::lock(&self.path)?;
        let mut sessions = read(file.path());
        let now = Timestamp::now().as_millis();
        sessions.retain(|_, session| now < session.expires_at);
        change(&mut sessions);
        file.replace(&serde_json::to_string(&sessions).map_err(io::Error::other)?)?;
        *self.loaded() = LoadedSessions { checked_at: Instant::now(), stamp: stamp(file.path()), sessions };
        Ok(())
    }

    fn loaded(&self) -> MutexGuard<'_, LoadedSessions> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoadedSessions {
    /// Reads the file again if another server has changed it.
    fn refresh(&mut self, path: &Path) {
        if self.checked_at.elapsed() < CHECK_INTERVAL {
            return;
        }
        self.checked_at = Instant::now();
        let stamp = stamp(path);
        if stamp != self.stamp {
            (self.sessions, self.stamp) = (read(path), stamp);
        }
    }
}

fn read(path: &Path) -> HashMap<String, Session> {
    let known = fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    known.unwrap_or_default()
}

/// Ends the oldest of some sessions, until there is room for a new one.
fn make_room(sessions: &mut HashMap<String, Session>, max: usize, is_counted: impl Fn(&Session) -> bool) {
    let mut counted: Vec<_> = sessions.iter().filter(|(_, session)| is_counted(session)).collect();
    counted.sort_by_key(|(_, session)| session.expires_at);
    let surplus = (counted.len() + 1).saturating_sub(max);
    let ended: Vec<_> = counted.into_iter().take(surplus).map(|(hash, _)| hash.clone()).collect();
    for hash in ended {
        sessions.remove(&hash);
    }
}

/// Returns the id of the session in the request's cookies. Of two, a page of a neighboring host may have set one, so
/// neither is accepted.
pub(crate) fn session_of<'a>(headers: &'a HeaderMap, name: &CookieName) -> Option<&'a str> {
    let mut values = cookies(headers, name);
    let (value, None) = (values.next()?, values.next()) else { return None };
    Some(value)
}

/// Whether the request's cookies have a session, valid or not.
pub(crate) fn has_session(headers: &HeaderMap, name: &CookieName) -> bool {
    cookies(headers, name).next().is_some()
}

fn cookies<'a>(headers: &'a HeaderMap, name: &CookieName) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(COOKIE_HEADER).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter_map(move |(known, value)| (known == name.as_str()).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_share_their_sessions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions");
        let (one, two) = (Sessions::open(path.clone()), Sessions::open(path));
        let (first, _) = one.start("a").unwrap();
        let (second, _) = two.start("a").unwrap();
        one.end(&first).unwrap();
        two.start("a").unwrap();
        let again = Sessions::open(one.path.clone());
        assert_eq!((again.token(&first), again.token(&second)), (None, Some("a".to_owned())));
    }

    #[test]
    fn one_token_does_not_end_the_sessions_of_others() {
        let session = |token: &str, at| Session { token: token.to_owned(), expires_at: at };
        let mut sessions: HashMap<_, _> =
            (0..200).map(|number| (number.to_string(), session("a", i64::from(number)))).collect();
        sessions.insert("b".to_owned(), session("b", 0));
        make_room(&mut sessions, PER_TOKEN_MAX, |session| session.token == "a");
        assert_eq!((sessions.len(), sessions.contains_key("b")), (PER_TOKEN_MAX, true));
        assert!(sessions.contains_key("199") && !sessions.contains_key("100"));
    }

    #[test]
    fn two_cookies_are_ambiguous() {
        let headers = |text: &str| HeaderMap::from_iter([(COOKIE_HEADER, text.parse().unwrap())]);
        let name = CookieName::new("localhost", "", false);
        assert_eq!(session_of(&headers("a=b; windlass_session=x; c=d"), &name), Some("x"));
        assert_eq!(session_of(&headers("windlass_session=x; windlass_session=y"), &name), None);
        assert_eq!(session_of(&headers("windlass_session=x; windlass_session=x"), &name), None);
    }

    #[test]
    fn servers_on_one_host_have_different_cookies() {
        let name = |authority, base, is_https| CookieName::new(authority, base, is_https).0;
        assert_eq!(name("[::1]:8080", "", false), "windlass_session_8080");
        assert_eq!(name("[::1]", "", false), "windlass_session");
        assert_eq!(name("jobs.example.com", "", true), "__Host-windlass_session");
        assert_eq!(
            name("jobs.example.com:8443", "/ops/a_b", true),
            "__Secure-windlass_session_8443_ops_a-5fb"
        );
        assert_ne!(name("localhost", "/a/b", false), name("localhost", "/a_b", false));
    }
}
