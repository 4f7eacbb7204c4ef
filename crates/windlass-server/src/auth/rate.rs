//! Limits failed logins.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Failed logins per address within [`WINDOW`].
const PER_ADDRESS: u32 = 10;

/// The maximum number of addresses that are counted within [`WINDOW`].
const ADDRESSES_MAX: usize = 10_000;

const WINDOW: Duration = Duration::from_secs(60);

/// Counts failed logins by address, within fixed windows.
///
/// There is no limit for all addresses together, nor for callers without a known address: anyone could use it to keep all
/// other users from logging in. A token has 256 random bits, so the limit protects the server's time and its log, not the tokens.
#[derive(Debug)]
pub(crate) struct LoginLimit {
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    began_at: Instant,
    by_address: HashMap<IpAddr, u32>,
}

impl LoginLimit {
    pub(crate) fn new() -> Self {
        Self { window: Mutex::new(Window::new()) }
    }

    /// Returns how long to wait before the next login, or `None` if one is allowed now.
    pub(crate) fn wait(&self, from: Option<IpAddr>) -> Option<Duration> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = window.began_at.elapsed();
        if elapsed >= WINDOW {
            *window = Window::new();
            return None;
        }
        let of_address = window.by_address.get(&network(from?)).copied().unwrap_or_default();
        (of_address >= PER_ADDRESS).then(|| WINDOW - elapsed)
    }

    /// Counts a failed login.
    pub(crate) fn failed(&self, from: Option<IpAddr>) {
        let Some(network) = from.map(network) else { return };
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.by_address.len() < ADDRESSES_MAX || window.by_address.contains_key(&network) {
            *window.by_address.entry(network).or_default() += 1;
        }
    }
}

impl Window {
    fn new() -> Self {
        Self { began_at: Instant::now(), by_address: HashMap::new() }
    }
}

/// Returns the network of an IPv6 address: one host usually has 2^64 addresses.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6([a, b, c, d, 0, 0, 0, 0].into())
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_limited_before_the_others() {
        let limit = LoginLimit::new();
        let address = |text: &str| Some(text.parse().unwrap());
        for last in 0..PER_ADDRESS {
            assert_eq!(limit.wait(address("2001:db8::1")), None);
            limit.failed(address(&format!("2001:db8::{last:x}")));
        }
        assert!(limit.wait(address("2001:db8::ffff")).is_some(), "the same network");
        assert_eq!(limit.wait(address("192.0.2.1")), None);
        for number in 0..100_000_u32 {
            limit.failed(Some(IpAddr::V4(number.into())));
        }
        assert_eq!(
            limit.wait(address("198.51.100.1")),
            None,
            "failures of one address do not lock out another"
        );
        assert_eq!(limit.window.lock().unwrap().by_address.len(), ADDRESSES_MAX);
        for _ in 0..100 {
            limit.failed(None);
        }
        assert_eq!(limit.wait(None), None, "callers without an address are not one caller");
    }
}
