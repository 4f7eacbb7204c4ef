//! Limits of one connection: how long it may be idle, and how long its client may not read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The requests of a connection.
#[derive(Clone)]
pub(super) struct Requests(Arc<State>);

struct State {
    /// The number of open requests. A request is open until its answer has been sent.
    open: watch::Sender<usize>,
    /// Whether a part of the head of the next request has arrived.
    has_part: AtomicBool,
}

/// An open request.
pub(super) struct Open(Requests);

impl Requests {
    pub(super) fn new() -> Self {
        Self(Arc::new(State { open: watch::Sender::new(0), has_part: AtomicBool::new(false) }))
    }

    pub(super) fn open(&self) -> Open {
        self.0.has_part.store(false, Ordering::Relaxed);
        self.0.open.send_modify(|open| *open += 1);
        Open(self.clone())
    }

    /// Whether the client has sent a part of the head of a request, and not the rest.
    pub(super) fn has_part(&self) -> bool {
        self.0.has_part.load(Ordering::Relaxed)
    }

    /// Notes that bytes have arrived. While a request is open, they belong to its body.
    fn received(&self) {
        if *self.0.open.borrow() == 0 {
            self.0.has_part.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until there was no request for this time.
    pub(super) async fn idle(&self, time: Duration) {
        let mut open = self.0.open.subscribe();
        loop {
            // The sender lives as long as this future.
            let _ = open.wait_for(|open| *open == 0).await;
            if timeout(time, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.open.send_modify(|open| *open = open.saturating_sub(1));
    }
}

/// The body of an answer, whose request is open until the body has ended.
pub(super) struct Counted {
    pub(super) body: Body,
    pub(super) _open: Open,
}

impl HttpBody for Counted {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose writes fail if the other end has read nothing for some time. It notes when bytes arrive.
pub(super) struct WriteTimeout<S> {
    stream: S,
    requests: Requests,
    time: Duration,
    /// Runs while a write waits for the other end.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) const fn new(stream: S, requests: Requests, time: Duration) -> Self {
        Self { stream, requests, time, waiting: None }
    }

    fn limit<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(self.time)));
        ready!(waiting.as_mut().poll(context));
        waiting.as_mut().reset(Instant::now() + self.time);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.requests.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.limit(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.limit(context, closed)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limit(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_when_the_other_end_does_not_read() {
        let (near, _far) = tokio::io::duplex(16);
        let mut near = WriteTimeout::new(near, Requests::new(), Duration::from_secs(30));
        let began_at = Instant::now();
        let error = near.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((error.kind(), began_at.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_after_its_last_request() {
        let requests = Requests::new();
        let (began_at, open) = (Instant::now(), requests.open());
        tokio::spawn(async move {
            sleep(Duration::from_secs(100)).await;
            drop(open);
        });
        requests.idle(Duration::from_secs(60)).await;
        assert_eq!(began_at.elapsed().as_secs(), 160);
    }
}
