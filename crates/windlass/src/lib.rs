#![cfg_attr(feature = "sqlite", doc = include_str!("../../../README.md"))]
#![cfg_attr(
    not(feature = "sqlite"),
    doc = "Durable background work for Rust: typed job chains that commit with your own transaction."
)]

#[doc(inline)]
pub use windlass_core::*;
#[doc(inline)]
pub use windlass_macros::Job;

/// Notifier over NATS.
#[cfg(feature = "nats")]
pub mod nats {
    #[doc(inline)]
    pub use windlass_nats::*;
}

/// PostgreSQL store, with the transactions of your own driver.
#[cfg(feature = "postgres")]
pub mod postgres {
    #[doc(inline)]
    pub use windlass_postgres::*;
}

/// Store and notifier for Redis or Valkey.
#[cfg(feature = "redis")]
pub mod redis {
    #[doc(inline)]
    pub use windlass_redis::*;
}

/// SQLite store: the embedded default.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    #[doc(inline)]
    pub use windlass_sqlite::*;
}

/// Documentation pages with code, which the doctests compile and run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/guide.md")]
    struct Guide;

    #[doc = include_str!("../../../docs/changing-types.md")]
    struct ChangingTypes;
}
