//! Who may call: roles, tokens, sessions and the identities of embedders.

mod access;
mod rate;
mod role;
mod secret;
mod session;
mod token;

pub use access::{Access, Identity};
pub(crate) use access::{Caller, Kind, Via, authenticate};
pub(crate) use rate::LoginLimit;
pub use role::Role;
pub(crate) use session::CookieName;
pub use token::{Token, TokenError, TokenFile};
