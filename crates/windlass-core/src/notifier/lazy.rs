use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::TypeName;
use crate::notifier::{Hint, Notifier, Reach, Subscription, Topic};
use crate::store::BoxFuture;

/// The delay before a notifier that could not be opened is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// A notifier that connects when it is first used. Stores return it from [`Store::notifier`], which must not
/// connect and may be called outside a runtime.
///
/// If connecting fails, the call returns the error, and further calls fail with the same error for a few seconds. After
/// that, the next call tries to connect again.
///
/// [`Store::notifier`]: crate::Store::notifier
pub struct LazyNotifier {
    shared: Arc<Shared>,
}

struct Shared {
    open: Box<Open>,
    state: watch::Sender<State>,
}

type Open = dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Notifier>>> + Send + Sync;

#[derive(Clone, Debug)]
enum State {
    /// It has not been used yet.
    Unused,
    /// A task is opening it. Has the error of the attempt before, if there was one: until this one has succeeded, the
    /// notifier still cannot connect.
    Opening(Option<Error>),
    Open(Arc<dyn Notifier>),
    Failed(Error, Instant),
    Closed,
}

impl State {
    /// Returns why the latest attempt that has ended could not open it.
    const fn failure(&self) -> Option<&Error> {
        match self {
            Self::Opening(error) => error.as_ref(),
            Self::Failed(error, _) => Some(error),
            Self::Unused | Self::Open(_) | Self::Closed => None,
        }
    }
}

impl LazyNotifier {
    /// Creates a notifier that calls `open` to connect.
    pub fn new(
        open: impl Fn() -> BoxFuture<'static, Result<Arc<dyn Notifier>>> + Send + Sync + 'static,
    ) -> Self {
        Self { shared: Arc::new(Shared { open: Box::new(open), state: watch::Sender::new(State::Unused) }) }
    }

    /// Returns the notifier, and opens it if necessary.
    async fn get(&self) -> Result<Arc<dyn Notifier>> {
        let mut states = self.shared.state.subscribe();
        let mut begins = false;
        self.shared.state.send_if_modified(|state| {
            begins = match state {
                State::Unused => true,
                State::Failed(_, at) => at.elapsed() >= RETRY_DELAY,
                _ => false,
            };
            if begins {
                *state = State::Opening(state.failure().cloned());
            }
            begins
        });
        if begins {
            // On its own task: callers give up after a while, and opening must not start over each time.
            let opening = Opening { shared: Arc::clone(&self.shared) };
            tokio::spawn(opening.run());
        }
        let state = states.wait_for(|state| !matches!(state, State::Opening(_))).await;
        match state.map(|state| state.clone()) {
            Ok(State::Open(notifier)) => Ok(notifier),
            Ok(State::Failed(error, _)) => Err(error),
            Ok(State::Unused) => {
                let text = "the notifier was not opened: the runtime that opened it has stopped; try again";
                Err(Error::new(ErrorKind::Unavailable, text))
            }
            _ => Err(Error::new(ErrorKind::Closed, "the notifier was closed: create a new one")),
        }
    }

    fn opened(&self) -> Option<Arc<dyn Notifier>> {
        match &*self.shared.state.borrow() {
            State::Open(notifier) => Some(Arc::clone(notifier)),
            _ => None,
        }
    }
}

/// Opens the notifier. If the task is dropped with its runtime, the next call starts another one, after the retry delay if
/// the attempt before had failed.
struct Opening {
    shared: Arc<Shared>,
}

impl Opening {
    async fn run(self) {
        let opened = (self.shared.open)().await;
        let mut late = None;
        self.shared.state.send_modify(|state| match (opened, &*state) {
            (Ok(notifier), State::Opening(_)) => *state = State::Open(notifier),
            (Ok(notifier), _) => late = Some(notifier),
            (Err(error), State::Opening(_)) => *state = State::Failed(error, Instant::now()),
            _ => {}
        });
        // It was closed in the meantime.
        if let Some(notifier) = late {
            let _ = notifier.close().await;
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.shared.state.send_if_modified(|state| {
            let State::Opening(before) = state else { return false };
            *state = match before.take() {
                Some(error) => State::Failed(error, Instant::now()),
                None => State::Unused,
            };
            true
        });
    }
}

impl Notifier for LazyNotifier {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.get().await?.publish(hint).await })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move { self.get().await?.subscribe(topics).await })
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { self.get().await?.claim_wake(job_type).await })
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        self.opened().is_none_or(|opened| opened.is_awaited(chain))
    }

    fn is_watched(&self) -> Option<bool> {
        self.opened().and_then(|opened| opened.is_watched())
    }

    fn reach(&self) -> Reach {
        match &*self.shared.state.borrow() {
            State::Open(opened) => opened.reach(),
            state => state.failure().map_or(Reach::Process, |error| Reach::Lost(error.clone())),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            match self.shared.state.send_replace(State::Closed) {
                State::Open(opened) => opened.close().await,
                _ => Ok(()),
            }
        })
    }
}

impl fmt::Debug for LazyNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyNotifier").field("state", &*self.shared.state.borrow()).finish()
    }
}
