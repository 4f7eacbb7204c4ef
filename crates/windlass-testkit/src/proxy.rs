//! A TCP proxy that can cut, stall and refuse connections.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::JoinHandle,
};

use crate::server::{Port, free_ports};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// Maximum number of bytes in flight in one direction of a connection.
const BUFFER_BYTES: usize = 64 * 1024;

/// Forwards connections to a server, until it is asked to cut, stall or refuse them.
///
/// It runs in the runtime in which it was created, and ends with it or when it is dropped.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use windlass_testkit::{Proxy, RedisServer};
///
/// let server = RedisServer::start().await;
/// let mut proxy = Proxy::to(server.port()).await;
/// let url = format!("redis://127.0.0.1:{}/", proxy.port());
/// // … a client that connects to the url sends a command …
/// proxy.stall_replies(); // the server gets it, and the client gets no reply
/// proxy.cut().await;
/// proxy.resume().await;
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    target: SocketAddr,
    shared: Arc<Shared>,
    /// `None` while the proxy refuses connections.
    acceptor: Option<JoinHandle<()>>,
    /// Holds the port while the proxy refuses connections. Otherwise, another process could listen on it, and clients would
    /// reach that one.
    holder: Option<TcpSocket>,
}

#[derive(Debug)]
struct Shared {
    flow: watch::Sender<Flow>,
    /// Each connection holds one receiver, which counts it.
    connections: watch::Sender<()>,
    trap: Mutex<Option<Trap>>,
}

/// Cuts the connection on which a client sends a given text after a given mark.
#[derive(Debug)]
struct Trap {
    mark: Vec<u8>,
    text: Vec<u8>,
    /// Whether the server receives the text, so that only its answer is lost.
    is_delivered: bool,
    sprung: oneshot::Sender<()>,
}

/// How the bytes of all connections are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Passes,
    /// Bytes from the server are held back.
    RepliesStall,
    /// Bytes in both directions are held back.
    Stalls,
    /// All connections are closed.
    Cut,
}

impl Proxy {
    /// Creates a proxy to this port of 127.0.0.1, on a free port there.
    ///
    /// # Panics
    ///
    /// Panics if it cannot listen on any port.
    pub async fn to(port: u16) -> Self {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (flow, connections) = (watch::Sender::new(Flow::Passes), watch::Sender::new(()));
        let shared = Arc::new(Shared { flow, connections, trap: Mutex::default() });
        // Do not let the system choose the port: it could assign it to another process while this proxy refuses
        // connections.
        for port in free_ports() {
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await {
                let acceptor = Some(tokio::spawn(accept(listener, target, Arc::clone(&shared))));
                return Self { port, target, shared, acceptor, holder: None };
            }
        }
        unreachable!("the search for a free port does not end")
    }

    /// Returns the port on 127.0.0.1 for clients. It never changes.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.receiver_count()
    }

    /// Closes all connections, and returns when none is left. Bytes in flight are lost. Clients may reconnect
    /// immediately unless they are [refused](Self::refuse). A stall stays in effect.
    pub async fn cut(&mut self) {
        let flow = self.shared.flow.send_replace(Flow::Cut);
        self.shared.connections.closed().await;
        self.shared.flow.send_replace(flow);
    }

    /// Waits for a connection that sends `mark` from now on. Cuts that connection when it then sends `text`, before the
    /// server receives `text`. Other connections stay open, even if they send `text`. Both must be short enough to
    /// arrive in one read. The returned receiver resolves when the connection is cut.
    pub fn cut_before(&mut self, mark: &str, text: &str) -> oneshot::Receiver<()> {
        self.shared.set_trap(mark, text, false)
    }

    /// Like [`cut_before`](Self::cut_before), but the server receives the text, and the connection is cut when it
    /// answers: the answer is lost.
    pub fn cut_after(&mut self, mark: &str, text: &str) -> oneshot::Receiver<()> {
        self.shared.set_trap(mark, text, true)
    }

    /// Refuses new connections. Existing ones stay open.
    pub async fn refuse(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.abort();
            // The listener is closed once the task has ended. The error only says that it was aborted.
            let _ = acceptor.await;
            self.holder = Some(self.bind().expect("no other process takes the port of a proxy"));
        }
    }

    /// Takes the port without accepting connections.
    fn bind(&self) -> io::Result<TcpSocket> {
        let socket = TcpSocket::new_v4()?;
        // Connections of the former listener may still be open.
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port())))?;
        Ok(socket)
    }

    /// Forwards nothing in either direction, and closes nothing. New connections are accepted but get no answer.
    pub fn stall(&mut self) {
        self.shared.flow.send_replace(Flow::Stalls);
    }

    /// Forwards the bytes of clients, and holds back those of the server.
    pub fn stall_replies(&mut self) {
        self.shared.flow.send_replace(Flow::RepliesStall);
    }

    /// Accepts connections and forwards everything, starting with the bytes that were held back.
    ///
    /// # Panics
    ///
    /// Panics if another process took the port while the proxy refused connections.
    pub async fn resume(&mut self) {
        self.shared.flow.send_replace(Flow::Passes);
        if self.acceptor.is_none() {
            let holder = self.holder.take().expect("a proxy that refuses connections holds its port");
            let listener = holder.listen(BACKLOG).expect("a held port can be listened on");
            self.acceptor = Some(tokio::spawn(accept(listener, self.target, Arc::clone(&self.shared))));
        }
    }
}

impl Trap {
    /// Signals that the connection is cut. The caller may have dropped the receiver.
    fn cut(self) {
        let _ = self.sprung.send(());
    }
}

impl Shared {
    fn set_trap(&self, mark: &str, text: &str, is_delivered: bool) -> oneshot::Receiver<()> {
        let (sprung, springs) = oneshot::channel();
        let (mark, text) = (mark.as_bytes().to_vec(), text.as_bytes().to_vec());
        let trap = Trap { mark, text, is_delivered, sprung };
        *self.trap.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
        springs
    }

    /// Takes the trap if these bytes contain its text, and the connection has sent its mark.
    fn spring(&self, is_marked: &AtomicBool, bytes: &[u8]) -> Option<Trap> {
        let contains = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        let mut trap = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
        trap.take_if(|trap| {
            is_marked.fetch_or(contains(&trap.mark), Ordering::Relaxed);
            is_marked.load(Ordering::Relaxed) && contains(&trap.text)
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(acceptor) = &self.acceptor {
            acceptor.abort();
        }
        self.shared.flow.send_replace(Flow::Cut);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    // An error only concerns the connection to be accepted, and its client sees it too.
    loop {
        if let Ok((client, _)) = listener.accept().await {
            let (shared, counted) = (Arc::clone(&shared), shared.connections.subscribe());
            tokio::spawn(async move {
                connection(client, target, &shared).await;
                drop(counted);
            });
        }
    }
}

/// Runs one connection until one side fails, both have finished, or it is cut.
async fn connection(client: TcpStream, target: SocketAddr, shared: &Shared) {
    let mut flow = shared.flow.subscribe();
    let (to_server_flow, to_client_flow) = (flow.clone(), flow.clone());
    // The trap that this connection has sprung. The connection is cut at the next answer.
    let caught: Mutex<Option<Trap>> = Mutex::default();
    let is_marked = AtomicBool::new(false);
    let forward_request = |bytes: &[u8]| match shared.spring(&is_marked, bytes) {
        Some(trap) if trap.is_delivered => {
            *caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
            true
        }
        trap => trap.map(Trap::cut).is_none(),
    };
    let forward_reply =
        |_: &[u8]| caught.lock().unwrap_or_else(PoisonError::into_inner).take().map(Trap::cut).is_none();
    let passing = async {
        let server = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            pass(from_client, to_server, to_server_flow, |flow| flow != Flow::Stalls, forward_request),
            pass(from_server, to_client, to_client_flow, |flow| flow == Flow::Passes, forward_reply),
        )
    };
    tokio::select! {
        // To the client, an error looks like the end of the connection.
        _ = passing => {}
        _ = flow.wait_for(|flow| *flow == Flow::Cut) => {}
    }
}

/// Forwards bytes, and finally the end of the stream, while `is_open` allows it and `accepts` returns `true`.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut flow: watch::Receiver<Flow>,
    is_open: impl Fn(Flow) -> bool,
    accepts: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(BUFFER_BYTES);
    loop {
        bytes.clear();
        let count = from.read_buf(&mut bytes).await?;
        // This connection keeps the sender alive, so the wait does not fail.
        flow.wait_for(|flow| is_open(*flow)).await.map_err(io::Error::other)?;
        if count == 0 {
            return to.shutdown().await;
        }
        if !accepts(&bytes) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all(&bytes).await?;
    }
}
