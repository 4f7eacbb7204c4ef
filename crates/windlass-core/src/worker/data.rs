//! Application values that handlers take as arguments.

use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;

use crate::error::{Error, ErrorKind, Result};

/// An application value that a handler takes as an argument: a pool, an HTTP client, the configuration.
///
/// The worker looks the value up by type among those that were passed to [`Worker::data`](crate::Worker::data) or
/// [`Handlers::data`](crate::Handlers::data), and clones it for each attempt. Wrap values that are expensive to clone
/// in an [`Arc`]. To pass two values of the same type, wrap each in a newtype.
///
/// ```
/// # use windlass::{Client, Ctx, Data, Entry, Job, MemoryStore, Result, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
/// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
/// # impl Entry for Mail {}
/// # #[derive(Clone)] struct Smtp;
/// # #[derive(Clone)] struct Sender(&'static str);
/// async fn send(job: Ctx<Mail>, Data(smtp): Data<Smtp>, Data(sender): Data<Sender>) -> Result<()> {
/// #   let _ = (smtp, sender.0, &job.input().to);
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # let client = Client::new(MemoryStore::new());
/// let worker = Worker::new(&client).data(Smtp).data(Sender("ada@example.com")).handle(send).start().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Data<T>(pub T);

/// An argument of a handler after the first one. Implemented by [`Data`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot take `{Self}` as an argument",
    label = "not an argument of a handler",
    note = "wrap values of the application in `Data<T>` and pass them to the worker with `.data(value)`"
)]
pub trait Argument: Sized + Send + 'static {
    /// Returns the argument, or `None` if the worker does not have it.
    #[doc(hidden)]
    fn find(values: &Values) -> Option<Self>;

    /// Returns the type of the value that is missing among these, if any.
    #[doc(hidden)]
    fn missing(values: &Values) -> Option<&'static str>;
}

impl<T: Clone + Send + Sync + 'static> Argument for Data<T> {
    fn find(values: &Values) -> Option<Self> {
        values.get::<T>().cloned().map(Self)
    }

    fn missing(values: &Values) -> Option<&'static str> {
        values.get::<T>().is_none().then(type_name::<T>)
    }
}

/// The values of a worker or of a set of handlers, at most one of each type.
#[doc(hidden)]
#[derive(Clone, Default)]
pub struct Values(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Values {
    /// Adds a value. Replaces an earlier value of the same type.
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Adds the values of `outer` whose types are missing here.
    pub(crate) fn inherit(&mut self, outer: &Self) {
        for (id, value) in &outer.0 {
            self.0.entry(*id).or_insert_with(|| Arc::clone(value));
        }
    }

    fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("count", &self.0.len()).finish()
    }
}

/// Returns an argument of a handler. `Worker::start` has checked that it exists.
pub(crate) fn argument<A: Argument>(values: &Values) -> Result<A> {
    A::find(values).ok_or_else(|| {
        let missing = A::missing(values).unwrap_or_default();
        Error::new(ErrorKind::Invalid, format!("the worker has no value of type `{missing}`"))
    })
}

/// Implements the method `missing` of a handler.
macro_rules! missing {
    ($($argument:ident)*) => {
        fn missing(_values: &$crate::worker::Values) -> Option<&'static str> {
            $(if let Some(missing) = $argument::missing(_values) {
                return Some(missing);
            })*
            None
        }
    };
}
pub(crate) use missing;
