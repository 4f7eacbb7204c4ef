use std::any::{TypeId, type_name};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::handler::{AnyHandler, Handler, Run, any};
use super::hooks::{AnyHooks, Hooks};
use super::middleware::Middleware;
use crate::command::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobGraph, JobOptions};
use crate::name::TypeName;
use crate::store::{Store, Transactional};

/// A set of handlers with common middleware and hooks. A module of an application can provide one to the
/// [`Worker`](crate::Worker).
///
/// ```
/// use windlass_core::{Ctx, Entry, Handlers, Job, MemoryStore};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendMail;
/// # impl Job for SendMail { const NAME: &'static str = "send-mail"; type Output = (); type Next = (); type Blockers = (); }
/// # impl Entry for SendMail {}
///
/// mod mail {
/// #   use super::*;
///     async fn send(_: Ctx<SendMail>) -> windlass_core::Result<()> {
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
pub struct Handlers<S: ?Sized, A = ()> {
    members: Vec<Member<S, A>>,
    layers: Vec<Layer>,
    hooks: Vec<AnyHooks>,
    jobs: Result<JobGraph>,
}

/// A handler that has not received its state, with the middleware and hooks of the sets that it was merged
/// from.
struct Member<S: ?Sized, A> {
    make: Box<dyn FnOnce(A) -> AnyHandler<S> + Send + Sync>,
    names: Vec<Cow<'static, str>>,
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

impl<S: Store + ?Sized, A: Clone + Send + Sync + 'static> Handlers<S, A> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self { members: Vec::new(), layers: Vec::new(), hooks: Vec::new(), jobs: Ok(JobGraph::new()) }
    }

    /// Runs jobs of one type with this handler.
    pub fn handle<J: Job, M>(self, handler: impl Handler<J, S, A, M>) -> Self {
        self.add::<J, M>(handler, None)
    }

    /// Runs jobs of one type with this handler, with at most `slots` attempts of the type at the same time in
    /// a worker.
    ///
    /// An acquire applies the limit to each name of the type separately. If jobs are stored under a former
    /// name as well, more than `slots` attempts may run.
    pub fn handle_at_most<J: Job, M>(self, slots: u32, handler: impl Handler<J, S, A, M>) -> Self {
        self.add::<J, M>(handler, Some(slots))
    }

    /// Runs jobs of a type that is named at run time. The handler receives encoded bytes and returns an
    /// outcome.
    ///
    /// The encoded input is in [`AnyAttempt::job`]. Of the options, only those for running attempts are used:
    /// lease, renewal, timeout and backoff. Retention, priority and maximum attempts are set where the job is
    /// started. If the handler returns an error, the job is retried after the backoff.
    ///
    /// ```
    /// use windlass_core::command::Outcome;
    /// use windlass_core::{AnyAttempt, BoxError, Handlers, JobOptions, MemoryStore, Payload, TypeName};
    ///
    /// async fn shout(attempt: AnyAttempt) -> Result<Outcome, BoxError> {
    ///     let text: String = attempt.job().input.decode()?;
    ///     Ok(Outcome::complete(Payload::encode(&text.to_uppercase())?))
    /// }
    ///
    /// # fn main() -> windlass_core::Result<()> {
    /// let name = TypeName::new("shout")?;                  // from the command line, say
    /// let handlers: Handlers<MemoryStore> = Handlers::new().handle_any(&name, JobOptions::default(), shout);
    /// # let _ = handlers;
    /// # Ok(()) }
    /// ```
    pub fn handle_any<F, Fut, E>(self, job_type: &TypeName, options: JobOptions, handler: F) -> Self
    where
        F: Fn(AnyAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.add_any(job_type, options, handler, None)
    }

    /// Runs jobs of a type that is named at run time, with at most `slots` attempts of the type at the same
    /// time in a worker. See [`handle_any`](Self::handle_any).
    pub fn handle_any_at_most<F, Fut, E>(
        self,
        slots: u32,
        job_type: &TypeName,
        options: JobOptions,
        handler: F,
    ) -> Self
    where
        F: Fn(AnyAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.add_any(job_type, options, handler, Some(slots))
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

    /// Adds the handlers of another set. They keep the other set's middleware and hooks, which go inside
    /// those of this set.
    pub fn merge(mut self, other: Self) -> Self {
        let Self { members, layers, hooks, jobs } = other;
        let twice = members.iter().flat_map(|member| &member.names).find(|name| self.has(name)).cloned();
        for mut member in members {
            member.layers.splice(..0, layers.iter().cloned());
            member.hooks.splice(..0, hooks.iter().cloned());
            self.members.push(member);
        }
        self.jobs = self.jobs.and_then(|mut own| own.merge(jobs?).map(|()| own)).and_then(not_twice(twice));
        self
    }

    /// Sets the state that is passed to the handlers of this set. The set can then be merged into one with
    /// any state type.
    pub fn with_state<B: Clone + Send + Sync + 'static>(self, app: A) -> Handlers<S, B> {
        let Self { members, layers, hooks, jobs } = self;
        let members = members.into_iter().map(|Member { make, names, layers, hooks }| {
            let app = app.clone();
            Member { make: Box::new(move |_: B| make(app)), names, layers, hooks }
        });
        Handlers { members: members.collect(), layers, hooks, jobs }
    }

    /// Returns the declared job types of the set.
    ///
    /// # Errors
    ///
    /// An error if two job types share a name, or if a job type has two handlers.
    pub fn jobs(&self) -> Result<&JobGraph> {
        self.jobs.as_ref().map_err(Clone::clone)
    }

    /// Passes the state to the handlers and returns them. Fails unless each is wrapped in all required kinds
    /// of middleware, in this order.
    pub(super) fn build(self, app: &A, required: &[Kind]) -> Result<Vec<Arc<AnyHandler<S>>>> {
        self.jobs?;
        let mut handlers = Vec::new();
        let mut missing = Vec::new();
        for member in self.members {
            let mut handler = (member.make)(app.clone());
            handler.types = member.names.iter().map(TypeName::new).collect::<Result<_, _>>()?;
            handler.layers = self.layers.iter().cloned().chain(member.layers).collect();
            handler.hooks = self.hooks.iter().cloned().chain(member.hooks).collect();
            handler.check()?;
            let mut kinds = handler.layers.iter().map(|layer| layer.kind);
            if let Some(lacks) = required.iter().find(|kind| !kinds.any(|known| known == **kind)) {
                missing.push(format!("`{}` lacks `{}`", member.names.join("`, `"), lacks.name));
            }
            handlers.push(Arc::new(handler));
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

    fn add<J: Job, M>(mut self, handler: impl Handler<J, S, A, M>, concurrency: Option<u32>) -> Self {
        self.jobs = self.jobs.and_then(|mut jobs| jobs.add::<J>().map(|()| jobs));
        let names = J::ALIASES.iter().chain([&J::NAME]).map(|name| Cow::Borrowed(*name)).collect();
        self.add_member(J::NAME, names, move |app| {
            AnyHandler::new(J::options(), concurrency, move |run: Run<S>| handler.call(run, app.clone()))
        })
    }

    fn add_any<F, Fut, E>(
        self,
        job_type: &TypeName,
        options: JobOptions,
        handler: F,
        concurrency: Option<u32>,
    ) -> Self
    where
        F: Fn(AnyAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let names = vec![Cow::Owned(job_type.as_str().to_owned())];
        self.add_member(job_type.as_str(), names, move |_| {
            AnyHandler::new(options, concurrency, move |run: Run<S>| any(handler(run.attempt)))
        })
    }

    fn add_member(
        mut self,
        name: &str,
        names: Vec<Cow<'static, str>>,
        make: impl FnOnce(A) -> AnyHandler<S> + Send + Sync + 'static,
    ) -> Self {
        let twice = self.has(name).then(|| name.to_owned().into());
        self.jobs = self.jobs.and_then(not_twice(twice));
        self.members.push(Member { make: Box::new(make), names, layers: Vec::new(), hooks: Vec::new() });
        self
    }

    fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.names.iter().any(|known| known == name))
    }
}

/// Refuses a type that already has a handler. [`JobGraph`] refuses two different types with one name.
fn not_twice(name: Option<Cow<'static, str>>) -> impl FnOnce(JobGraph) -> Result<JobGraph> {
    move |jobs| match name {
        Some(name) => {
            Err(Error::new(ErrorKind::Invalid, format!("job type `{name}` has two handlers: keep one")))
        }
        None => Ok(jobs),
    }
}

impl<S: Store + ?Sized, A: Clone + Send + Sync + 'static> Default for Handlers<S, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: ?Sized, A> fmt::Debug for Handlers<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.members.iter().flat_map(|member| &member.names);
        f.debug_struct("Handlers").field("names", &names.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}
