//! Something between a client and its server that can be cut.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::JoinHandle,
};

use crate::server::free_ports;

/// The most bytes that are on their way in one direction of a connection.
const BUFFER_BYTES: usize = 64 * 1024;

/// Passes connections on to a server, until it is told to cut, stall or refuse them.
///
/// It works in the runtime in which it was made, and ends with it or with its owner.
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
/// proxy.stall_replies(); // the server gets it, and the client does not hear of it
/// proxy.cut().await;
/// proxy.resume().await;
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    target: SocketAddr,
    shared: Arc<Shared>,
    /// None while it refuses.
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    flow: watch::Sender<Flow>,
    /// Each connection has one receiver.
    connections: watch::Sender<()>,
    trap: Mutex<Option<Trap>>,
}

/// Cuts the connection over which a client says something.
#[derive(Debug)]
struct Trap {
    text: Vec<u8>,
    /// Whether the server hears it, and only its answer is lost.
    is_heard: bool,
    sprung: oneshot::Sender<()>,
}

/// What happens to the bytes of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Passes,
    /// What the server says is kept.
    RepliesStall,
    /// What either says is kept.
    Stalls,
    /// There are no connections.
    Cut,
}

impl Proxy {
    /// A proxy to this port of 127.0.0.1, on a free port there.
    ///
    /// # Panics
    ///
    /// Panics when no port can be listened on.
    pub async fn to(port: u16) -> Self {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (flow, connections) = (watch::Sender::new(Flow::Passes), watch::Sender::new(()));
        let shared = Arc::new(Shared { flow, connections, trap: Mutex::default() });
        // Not one that the system chooses: it could give that to somebody else while this proxy refuses.
        for port in free_ports() {
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                let acceptor = Some(tokio::spawn(accept(listener, target, Arc::clone(&shared))));
                return Self { port, target, shared, acceptor };
            }
        }
        unreachable!("free ports are looked for without end")
    }

    /// The port on 127.0.0.1 where clients connect. It stays the same.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.receiver_count()
    }

    /// Ends all connections, and returns when there are none. What was on its way is lost. Clients may connect again at
    /// once, unless they are [refused](Self::refuse); a stall goes on.
    pub async fn cut(&mut self) {
        let flow = self.shared.flow.send_replace(Flow::Cut);
        self.shared.connections.closed().await;
        self.shared.flow.send_replace(flow);
    }

    /// Cuts the connection over which a client says this next, so that the server does not hear it; others stay. The text
    /// is short, so that it comes in one piece. Gives something to wait for until it has happened.
    pub fn cut_before(&mut self, text: &str) -> oneshot::Receiver<()> {
        self.shared.set_trap(text, false)
    }

    /// The same, but the server hears it, and the connection is cut when it has answered: the answer is lost.
    pub fn cut_after(&mut self, text: &str) -> oneshot::Receiver<()> {
        self.shared.set_trap(text, true)
    }

    /// Refuses new connections. Those that there are go on.
    pub async fn refuse(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.abort();
            // Its listener is closed when it has ended. That it was aborted is no news.
            let _ = acceptor.await;
        }
    }

    /// Passes nothing on, in either direction, and closes nothing: new connections are accepted, and hear nothing.
    pub fn stall(&mut self) {
        self.shared.flow.send_replace(Flow::Stalls);
    }

    /// Passes on what clients say, and not what the server says.
    pub fn stall_replies(&mut self) {
        self.shared.flow.send_replace(Flow::RepliesStall);
    }

    /// Takes connections and passes everything on, beginning with what was kept.
    ///
    /// # Panics
    ///
    /// Panics when somebody else took the port while it refused.
    pub async fn resume(&mut self) {
        self.shared.flow.send_replace(Flow::Passes);
        if self.acceptor.is_none() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
            let listener = listener.expect("nobody else takes the port of a proxy");
            self.acceptor = Some(tokio::spawn(accept(listener, self.target, Arc::clone(&self.shared))));
        }
    }
}

impl Trap {
    /// Tells that the connection is cut; perhaps nobody waits for that.
    fn cut(self) {
        let _ = self.sprung.send(());
    }
}

impl Shared {
    fn set_trap(&self, text: &str, is_heard: bool) -> oneshot::Receiver<()> {
        let (sprung, springs) = oneshot::channel();
        let trap = Trap { text: text.as_bytes().to_vec(), is_heard, sprung };
        *self.trap.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
        springs
    }

    /// The trap, if these bytes are what it waits for.
    fn spring(&self, bytes: &[u8]) -> Option<Trap> {
        let mut trap = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
        trap.take_if(|trap| bytes.windows(trap.text.len()).any(|part| part == trap.text))
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
    // An error concerns the connection that was to be accepted; its client sees it, too.
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

/// One connection, until one side has failed, both have said all, or it is cut.
async fn connection(client: TcpStream, target: SocketAddr, shared: &Shared) {
    let mut flow = shared.flow.subscribe();
    let (said, heard) = (flow.clone(), flow.clone());
    // The trap that this connection is in: it is cut at the next answer.
    let caught: Mutex<Option<Trap>> = Mutex::default();
    let says = |bytes: &[u8]| match shared.spring(bytes) {
        Some(trap) if trap.is_heard => {
            *caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
            true
        }
        trap => trap.map(Trap::cut).is_none(),
    };
    let answers =
        |_: &[u8]| caught.lock().unwrap_or_else(PoisonError::into_inner).take().map(Trap::cut).is_none();
    let passing = async {
        let server = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            pass(from_client, to_server, said, |flow| flow != Flow::Stalls, says),
            pass(from_server, to_client, heard, |flow| flow == Flow::Passes, answers),
        )
    };
    tokio::select! {
        // To the client an error looks the same as an end.
        _ = passing => {}
        _ = flow.wait_for(|flow| *flow == Flow::Cut) => {}
    }
}

/// Passes bytes on, and at last their end, whenever `may` says so, and as long as `goes_on` does.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut flow: watch::Receiver<Flow>,
    may: impl Fn(Flow) -> bool,
    goes_on: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(BUFFER_BYTES);
    loop {
        bytes.clear();
        let count = from.read_buf(&mut bytes).await?;
        // The sender goes with the acceptor at the latest, and then the connection is cut.
        flow.wait_for(|flow| may(*flow)).await.map_err(io::Error::other)?;
        if count == 0 {
            return to.shutdown().await;
        }
        if !goes_on(&bytes) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all(&bytes).await?;
    }
}
