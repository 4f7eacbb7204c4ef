//! Columns that a statement returns as one JSON array.
//!
//! A driver copies every value of a row from one thread to another, which costs several times as much as SQLite needs
//! to find it. So a row's columns are packed into one value, just as whole sets are passed as one parameter.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use crate::provider::Value;

/// The column names of such an array.
type Columns = LazyLock<Arc<[String]>>;

/// The columns of `sql/part/job.sql`.
pub(crate) static JOB: Columns = LazyLock::new(|| {
    columns(
        "seq id chain position type chain_type status due_at attempt max_attempts fence version worker lease_until \
         cancel_requested waits blockers on_blocker_failure started_at error",
    )
});

/// The columns of `sql/part/record.sql`.
pub(crate) static RECORD: Columns = LazyLock::new(|| {
    columns(
        "id chain position type chain_type status input_codec output_codec error priority due_at attempt max_attempts \
         fence version worker request lease_until cancel_requested on_blocker_failure created_at started_at closed_at \
         closed_by trace",
    )
});

/// The columns of `sql/part/chain.sql`.
pub(crate) static CHAIN: Columns = LazyLock::new(|| {
    columns(
        "seq id type latest latest_position key key_hold key_window key_held retain_completed retain_failed \
         retain_cancelled created_at chain_closed_at chain_closed_as retain_until trim_at rippling chain_trace",
    )
});

fn columns(names: &str) -> Arc<[String]> {
    names.split(' ').map(str::to_owned).collect()
}

/// One value of such an array.
pub(crate) struct Element(pub(crate) Value);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(element: D) -> Result<Self, D::Error> {
        element.deserialize_any(Scalar)
    }
}

struct Scalar;

impl Visitor<'_> for Scalar {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("null, a whole number or a text")
    }

    fn visit_unit<E: Error>(self) -> Result<Element, E> {
        Ok(Element(Value::Null))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Element, E> {
        Ok(Element(Value::Integer(number)))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Element, E> {
        i64::try_from(number).map(|number| Element(Value::Integer(number))).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element(Value::Text(text.to_owned())))
    }
}
