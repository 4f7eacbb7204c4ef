//! Sets of handlers, with their values, middleware and hooks.

use std::any::{TypeId, type_name};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::data::Values;
use super::handler::{AnyHandler, Call, Handler, Run, any};
use super::hooks::{AnyHooks, Hooks};
use super::middleware::Middleware;
use super::options::{HandlerOptions, Resolved};
use crate::command::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobGraph};
use crate::name::TypeName;
use crate::store::{Store, Transactional};

/// A set of handlers with common values, middleware and hooks. Each module of an application can provide one for the
/// [`Worker`](crate::Worker).
///
/// ```
/// use windlass::{Ctx, Entry, Handlers, Job, MemoryStore};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendMail;
/// # impl Job for SendMail {
/// #     const NAME: &'static str = "send-mail"; type Output = (); type Next = (); type Blockers = ();
/// # }
/// # impl Entry for SendMail {}
///
/// mod mail {
/// #   use super::*;
///     async fn send(_: Ctx<SendMail>) -> windlass::Result<()> {
///         Ok(())
///     }
///
///     pub fn handlers() -> Handlers<MemoryStore> {
///         Handlers::new().handle(send)
///     }
/// }
///
/// # fn main() {
/// assert_eq!(mail::handlers().jobs().unwrap().to_string(), "send-mail\n");
/// # }
/// ```
#[must_use = "handlers do nothing until they are added to a worker"]
pub struct Handlers<S: ?Sized> {
    members: Vec<Member<S>>,
    values: Values,
    layers: Vec<Layer>,
    hooks: Vec<AnyHooks>,
    jobs: Result<JobGraph>,
}

/// A handler that has not received its values, with the middleware and hooks of the sets that it was merged
/// from.
struct Member<S: ?Sized> {
    make: Box<dyn FnOnce(Values) -> Result<Call<S>, &'static str> + Send + Sync>,
    names: Vec<Cow<'static, str>>,
    /// Options of the handler, then of its job type.
    options: [HandlerOptions; 2],
    values: Values,
    layers: Vec<Layer>,
    hooks: Vec<AnyHooks>,
}

/// A middleware with its type.
#[derive(Clone)]
pub(super) struct Layer {
    kind: Kind,
    pub(super) middleware: Arc<dyn Middleware>,
}

/// The type of a middleware.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    id: TypeId,
    name: &'static str,
}

impl Kind {
    pub(super) fn of<M: Middleware>() -> Self {
        Self { id: TypeId::of::<M>(), name: type_name::<M>() }
    }
}

impl<S: Store + ?Sized> Handlers<S> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            values: Values::default(),
            layers: Vec::new(),
            hooks: Vec::new(),
            jobs: Ok(JobGraph::new()),
        }
    }

    /// Runs jobs of one type with this handler.
    pub fn handle<J: Job, M>(self, handler: impl Handler<J, S, M>) -> Self {
        self.handle_with(HandlerOptions::new(), handler)
    }

    /// Runs jobs of one type with this handler. Its options take precedence over those of the job type and the worker.
    pub fn handle_with<J, M, H>(mut self, options: HandlerOptions, handler: H) -> Self
    where
        J: Job,
        H: Handler<J, S, M>,
    {
        self.jobs = self.jobs.and_then(|mut jobs| jobs.add::<J>().map(|()| jobs));
        let names = J::ALIASES.iter().chain([&J::NAME]).map(|name| Cow::Borrowed(*name)).collect();
        self.add(J::NAME, names, [options, J::options().into()], move |values| match H::missing(&values) {
            Some(missing) => Err(missing),
            None => Ok(Box::new(move |run: Run<S>| handler.call(run, &values))),
        })
    }

    /// Runs jobs of a type that is named at run time. The handler receives encoded bytes and returns an
    /// outcome.
    ///
    /// The encoded input is in [`AnyAttempt::job`]. Retention, priority and maximum attempts are set where the job is
    /// started. If the handler returns an error, the job is retried after the backoff.
    ///
    /// ```
    /// use windlass::command::Outcome;
    /// use windlass::name::TypeName;
    /// use windlass::record::Payload;
    /// use windlass::worker::AnyAttempt;
    /// use windlass::{BoxError, HandlerOptions, Handlers, MemoryStore};
    ///
    /// async fn shout(attempt: AnyAttempt) -> Result<Outcome, BoxError> {
    ///     let text: String = attempt.job().input.decode()?;
    ///     Ok(Outcome::complete(Payload::encode(&text.to_uppercase())?))
    /// }
    ///
    /// # fn main() -> windlass::Result<()> {
    /// let name = TypeName::new("shout")?;                  // for example, from the command line
    /// let handlers: Handlers<MemoryStore> = Handlers::new().handle_any(&name, HandlerOptions::new(), shout);
    /// # let _ = handlers;
    /// # Ok(()) }
    /// ```
    pub fn handle_any<F, Fut, E>(self, job_type: &TypeName, options: HandlerOptions, handler: F) -> Self
    where
        F: Fn(AnyAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.handle_named(job_type, options, move |_| Ok(Box::new(move |run| any(handler(run.attempt)))))
    }

    /// Runs jobs of a type that is named at run time, with a function that makes the handler from the values of the
    /// worker, or returns the type of a value that is missing.
    pub(crate) fn handle_named(
        self,
        job_type: &TypeName,
        options: HandlerOptions,
        make: impl FnOnce(Values) -> Result<Call<S>, &'static str> + Send + Sync + 'static,
    ) -> Self {
        let names = vec![Cow::Owned(job_type.as_str().to_owned())];
        self.add(job_type.as_str(), names, [options, HandlerOptions::new()], make)
    }

    /// Passes a value to the handlers of this set that take a [`Data`](crate::Data) of this type. It takes precedence
    /// over a value of the same type that is passed to the worker.
    pub fn data<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.insert(value);
        self
    }

    /// Wraps every attempt of the set's handlers in this middleware. The first one added is the outermost.
    pub fn middleware<M: Middleware>(mut self, middleware: M) -> Self {
        self.layers.push(Layer { kind: Kind::of::<M>(), middleware: Arc::new(middleware) });
        self
    }

    /// Adds hooks to the transactions of attempts of the set's handlers.
    pub fn hooks(mut self, hooks: impl Hooks<S::Tx>) -> Self
    where
        S: Transactional,
    {
        self.hooks.push(AnyHooks::new(hooks));
        self
    }

    /// Adds the handlers of another set. They keep the values, middleware and hooks of that set. The middleware and
    /// hooks of this set wrap those of the other.
    pub fn merge(mut self, other: Self) -> Self {
        let Self { members, values, layers, hooks, jobs } = other;
        let twice = members.iter().flat_map(|member| &member.names).find(|name| self.has(name)).cloned();
        for mut member in members {
            member.layers.splice(..0, layers.iter().cloned());
            member.hooks.splice(..0, hooks.iter().cloned());
            member.values.inherit(&values);
            self.members.push(member);
        }
        self.jobs =
            self.jobs.and_then(|mut own| own.merge(jobs?).map(|()| own)).and_then(refuse_second(twice));
        self
    }

    /// Returns the declared job types of the set.
    ///
    /// # Errors
    ///
    /// An error if two job types share a name, or if a job type has two handlers.
    pub fn jobs(&self) -> Result<&JobGraph> {
        self.jobs.as_ref().map_err(Clone::clone)
    }

    /// Passes the values to the handlers and returns the handlers. Fails if a value is missing, or unless each handler
    /// is wrapped in all required kinds of middleware, in this order.
    pub(super) fn build(
        self,
        defaults: HandlerOptions,
        required: &[Kind],
    ) -> Result<Vec<Arc<AnyHandler<S>>>> {
        self.jobs?;
        let mut handlers = Vec::new();
        let mut missing = Vec::new();
        for Member { make, names, options: [own, declared], mut values, layers, hooks } in self.members {
            values.inherit(&self.values);
            let call = make(values).map_err(|missing| {
                let text = format!(
                    "the handler of `{}` takes a `Data<{missing}>`: pass the value with `.data(value)`",
                    names.last().map_or("", AsRef::as_ref)
                );
                Error::new(ErrorKind::Invalid, text)
            })?;
            let layers: Arc<[Layer]> = self.layers.iter().cloned().chain(layers).collect();
            let mut kinds = layers.iter().map(|layer| layer.kind);
            if let Some(absent) = required.iter().find(|kind| !kinds.any(|known| known == **kind)) {
                missing.push(format!("`{}` lacks `{}`", names.join("`, `"), absent.name));
            }
            let types = names.iter().map(TypeName::new).collect::<Result<Vec<_>, _>>()?;
            let options = Resolved::new(names.last().map_or("", AsRef::as_ref), [own, declared, defaults])?;
            let hooks = self.hooks.iter().cloned().chain(hooks).collect();
            handlers.push(Arc::new(AnyHandler { types, options, layers, hooks, call }));
        }
        if missing.is_empty() {
            return Ok(handlers);
        }
        let text = format!(
            "required middleware is missing or in the wrong order: {}: add it to these handlers",
            missing.join("; ")
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    fn add(
        mut self,
        name: &str,
        names: Vec<Cow<'static, str>>,
        options: [HandlerOptions; 2],
        make: impl FnOnce(Values) -> Result<Call<S>, &'static str> + Send + Sync + 'static,
    ) -> Self {
        let twice = self.has(name).then(|| name.to_owned().into());
        self.jobs = self.jobs.and_then(refuse_second(twice));
        self.members.push(Member {
            make: Box::new(make),
            names,
            options,
            values: Values::default(),
            layers: Vec::new(),
            hooks: Vec::new(),
        });
        self
    }

    fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.names.iter().any(|known| known == name))
    }
}

/// Refuses a type that already has a handler. [`JobGraph`] refuses two different types with one name.
fn refuse_second(name: Option<Cow<'static, str>>) -> impl FnOnce(JobGraph) -> Result<JobGraph> {
    move |jobs| match name {
        Some(name) => {
            Err(Error::new(ErrorKind::Invalid, format!("job type `{name}` has two handlers: keep one")))
        }
        None => Ok(jobs),
    }
}

impl<S: Store + ?Sized> Default for Handlers<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: ?Sized> fmt::Debug for Handlers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.members.iter().flat_map(|member| &member.names);
        f.debug_struct("Handlers").field("names", &names.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}
