//! Access: roles, tokens, sessions, and callers that the embedding application identifies.

mod access;
mod rate;
mod role;
mod secret;
mod session;
mod token;

pub use access::{Access, Identity};
pub(crate) use access::{Caller, Kind, Via, authenticate, has_credentials};
pub(crate) use rate::{LoginLimit, network};
pub use role::Role;
pub(crate) use session::CookieName;
pub use token::{Token, TokenError, TokenFile};
