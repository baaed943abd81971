//! A TCP proxy on the loopback that does to Redis connections what networks do.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::resp::{FRAME_BYTES_MAX, frame_bytes, is_answered_by_a_push, is_push, words};

/// The most connections at a time; more wait their turn.
const CONNECTIONS_MAX: usize = 256;

/// The most frames under way in one direction of a connection; more wait their turn.
const FRAMES_MAX: usize = 1024;

/// What happens to everything that goes one way, until another is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// It arrives.
    #[default]
    Open,
    /// It arrives later by so much, in its order.
    Slow(Duration),
    /// It vanishes, and nobody is told: a cable that was pulled.
    Blackhole,
}

/// What happens once, to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Once {
    /// The connection ends, and the request does not reach the server.
    CutBefore,
    /// The server carries the request out; the connection ends instead of bringing the reply.
    CutAfter,
    /// The server gets the request twice; one reply comes back.
    DoubleRequest,
    /// The reply comes back twice.
    DoubleReply,
}

/// What has passed so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Requests that were passed on to the server.
    pub requests: u64,
    /// Replies that were passed on to the client.
    pub replies: u64,
    /// Pushes that were passed on to the client.
    pub pushes: u64,
    /// Frames that vanished, whichever way they went.
    pub swallowed: u64,
    /// Faults of [`FaultProxy::next`] that have struck.
    pub struck: u64,
}

/// Stands between clients and one server on 127.0.0.1. Faults are set while it runs and concern connections that
/// stand as well as new ones. Ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: AbortHandle,
}

#[derive(Debug, Default)]
struct Shared {
    faults: Mutex<Faults>,
    /// Counts the calls of [`FaultProxy::cut`]: a connection that sees it change ends.
    cuts: watch::Sender<u64>,
    counts: Counts,
}

#[derive(Clone, Debug, Default)]
struct Faults {
    up: Way,
    down: Way,
    drop_pushes: bool,
    refuse: bool,
    /// Strikes at the next request of so many words.
    next: Option<(usize, Once)>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    refused: AtomicU64,
    requests: AtomicU64,
    replies: AtomicU64,
    pushes: AtomicU64,
    swallowed: AtomicU64,
    struck: AtomicU64,
}

impl FaultProxy {
    /// Listens on a free port and passes everything on to `127.0.0.1:upstream`.
    pub async fn start(upstream: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let listener = tokio::spawn(listen(listener, upstream, shared.clone())).abort_handle();
        Ok(Self { address, shared, listener })
    }

    /// Where clients connect to.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// What happens to requests on their way to the server.
    pub fn up(&self, way: Way) {
        self.shared.faults().up = way;
    }

    /// What happens to replies and pushes on their way to the client.
    pub fn down(&self, way: Way) {
        self.shared.faults().down = way;
    }

    /// Pushes vanish; replies do not.
    pub fn drop_pushes(&self, drop: bool) {
        self.shared.faults().drop_pushes = drop;
    }

    /// New connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.shared.faults().refuse = refuse;
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// What happens to the next request of exactly so many words, on whatever connection. [`Counters::struck`] tells
    /// when it has.
    pub fn next(&self, words: usize, once: Once) {
        self.shared.faults().next = Some((words, once));
    }

    /// What has passed so far.
    pub fn counters(&self) -> Counters {
        let counts = &self.shared.counts;
        Counters {
            connections: counts.connections.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            requests: counts.requests.load(Relaxed),
            replies: counts.replies.load(Relaxed),
            pushes: counts.pushes.load(Relaxed),
            swallowed: counts.swallowed.load(Relaxed),
            struck: counts.struck.load(Relaxed),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.cut();
    }
}

impl Shared {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault that strikes this request, which uses it up.
    fn strike(&self, request: &[u8]) -> Option<Once> {
        let (_, once) = self.faults().next.take_if(|(count, _)| *count == words(request))?;
        self.counts.struck.fetch_add(1, Relaxed);
        Some(once)
    }
}

async fn listen(listener: TcpListener, upstream: u16, shared: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let (Ok((client, _)), Ok(place)) = (listener.accept().await, room.clone().acquire_owned().await) {
        if shared.faults().refuse {
            shared.counts.refused.fetch_add(1, Relaxed);
            continue;
        }
        shared.counts.connections.fetch_add(1, Relaxed);
        let shared = shared.clone();
        tokio::spawn(async move {
            // However a connection ends, both of its sides are closed then.
            let _ = connect(client, upstream, &shared).await;
            drop(place);
        });
    }
}

async fn connect(mut client: TcpStream, upstream: u16, shared: &Shared) -> io::Result<()> {
    let mut cuts = shared.cuts.subscribe();
    let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let line = Mutex::new(Line::default());
    tokio::select! {
        done = requests(&mut from_client, &mut to_server, &line, shared) => done,
        done = replies(&mut from_server, &mut to_client, &line, shared) => done,
        _ = cuts.changed() => Ok(()),
    }
}

/// What both directions of a connection know: which reply a fault is meant for.
#[derive(Default)]
struct Line {
    sent: u64,
    answered: u64,
    /// Faults of replies, by the number of the request.
    marked: VecDeque<(u64, Mark)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Cut,
    Double,
    Swallow,
}

impl Line {
    fn expect_reply(&mut self, mark: Option<Mark>) {
        self.sent += 1;
        if let Some(mark) = mark {
            self.marked.push_back((self.sent, mark));
        }
    }

    fn replied(&mut self) -> Option<Mark> {
        self.answered += 1;
        let (_, mark) = *self.marked.front().filter(|(number, _)| *number == self.answered)?;
        self.marked.pop_front();
        Some(mark)
    }
}

/// A frame, and when it goes on.
type Due = (Instant, Vec<u8>);

async fn requests(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    line: &Mutex<Line>,
    shared: &Shared,
) -> io::Result<()> {
    let (queue, due) = mpsc::channel(FRAMES_MAX);
    tokio::try_join!(take_requests(from, queue, line, shared), deliver(due, to))?;
    Ok(())
}

async fn replies(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    line: &Mutex<Line>,
    shared: &Shared,
) -> io::Result<()> {
    let (queue, due) = mpsc::channel(FRAMES_MAX);
    tokio::try_join!(take_replies(from, queue, line, shared), deliver(due, to))?;
    Ok(())
}

/// Passes each frame on when it is due: a slow way is slow, not narrow.
async fn deliver(mut due: mpsc::Receiver<Due>, to: &mut WriteHalf<'_>) -> io::Result<()> {
    while let Some((at, frame)) = due.recv().await {
        sleep_until(at).await;
        to.write_all(&frame).await?;
    }
    Ok(())
}

/// When a frame goes on that came just now; `None`: never.
fn due(way: Way) -> Option<Instant> {
    match way {
        Way::Open => Some(Instant::now()),
        Way::Slow(late) => Some(Instant::now() + late),
        Way::Blackhole => None,
    }
}

/// Returns when the connection is to end.
async fn take_requests(
    from: &mut ReadHalf<'_>,
    queue: mpsc::Sender<Due>,
    line: &Mutex<Line>,
    shared: &Shared,
) -> io::Result<()> {
    let mut frames = Frames::default();
    while let Some(request) = frames.next(from).await? {
        let way = shared.faults().up;
        let Some(at) = due(way) else {
            shared.counts.swallowed.fetch_add(1, Relaxed);
            continue;
        };
        let (copies, marks) = match shared.strike(&request) {
            None => (1, [None, None]),
            Some(Once::CutBefore) => return Ok(()),
            Some(Once::CutAfter) => (1, [Some(Mark::Cut), None]),
            Some(Once::DoubleReply) => (1, [Some(Mark::Double), None]),
            Some(Once::DoubleRequest) => (2, [None, Some(Mark::Swallow)]),
        };
        for mark in marks.into_iter().take(copies) {
            if !is_answered_by_a_push(&request) {
                line.lock().unwrap_or_else(PoisonError::into_inner).expect_reply(mark);
            }
            shared.counts.requests.fetch_add(1, Relaxed);
            let _ = queue.send((at, request.clone())).await;
        }
    }
    Ok(())
}

/// Returns when the connection is to end.
async fn take_replies(
    from: &mut ReadHalf<'_>,
    queue: mpsc::Sender<Due>,
    line: &Mutex<Line>,
    shared: &Shared,
) -> io::Result<()> {
    let counts = &shared.counts;
    let mut frames = Frames::default();
    while let Some(frame) = frames.next(from).await? {
        let push = is_push(&frame);
        let mark = if push { None } else { line.lock().unwrap_or_else(PoisonError::into_inner).replied() };
        if mark == Some(Mark::Cut) {
            return Ok(());
        }
        let Faults { down, drop_pushes, .. } = shared.faults().clone();
        let dropped = mark == Some(Mark::Swallow) || push && drop_pushes;
        let Some(at) = due(down).filter(|_| !dropped) else {
            counts.swallowed.fetch_add(1, Relaxed);
            continue;
        };
        let copies = if mark == Some(Mark::Double) { 2 } else { 1 };
        for _ in 0..copies {
            if push { &counts.pushes } else { &counts.replies }.fetch_add(1, Relaxed);
            let _ = queue.send((at, frame.clone())).await;
        }
    }
    Ok(())
}

/// Cuts a stream of bytes into frames.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// `None`: the stream has ended.
    async fn next(&mut self, from: &mut ReadHalf<'_>) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = frame_bytes(&self.bytes) {
                let rest = self.bytes.split_off(end);
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
            if self.bytes.len() > FRAME_BYTES_MAX {
                return Err(io::Error::other("a frame is too large"));
            }
            if from.read_buf(&mut self.bytes).await? == 0 {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const SUBSCRIBE: &[u8] = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n";

    /// A server that answers each request with its number on that connection; subscriptions with a push.
    async fn counter() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let (mut frames, mut number) = (Frames::default(), 0);
                    while let Ok(Some(request)) = frames.next(&mut from).await {
                        number += 1;
                        let answer = if is_answered_by_a_push(&request) {
                            ">1\r\n+push\r\n".to_owned()
                        } else {
                            format!(":{number}\r\n")
                        };
                        to.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        port
    }

    async fn dial(proxy: &FaultProxy) -> TcpStream {
        TcpStream::connect(proxy.address).await.unwrap()
    }

    /// What comes back within a tenth of a second; `None`: the connection has ended.
    async fn hears(stream: &mut TcpStream) -> Option<String> {
        let mut heard = Vec::new();
        let end = Instant::now() + SHORT;
        while let Ok(read) =
            timeout(end.saturating_duration_since(Instant::now()), stream.read_buf(&mut heard)).await
        {
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
        Some(String::from_utf8(heard).unwrap())
    }

    async fn says(stream: &mut TcpStream, request: &[u8]) -> Option<String> {
        stream.write_all(request).await.unwrap();
        hears(stream).await
    }

    async fn set_up() -> (FaultProxy, TcpStream) {
        let proxy = FaultProxy::start(counter().await).await.unwrap();
        let stream = dial(&proxy).await;
        (proxy, stream)
    }

    #[tokio::test]
    async fn without_a_fault_everything_passes() {
        let (proxy, mut stream) = set_up().await;
        assert_eq!(says(&mut stream, &[PING, PING].concat()).await.unwrap(), ":1\r\n:2\r\n");
        assert_eq!(says(&mut stream, SUBSCRIBE).await.unwrap(), ">1\r\n+push\r\n");
        let counters = proxy.counters();
        assert_eq!(
            (counters.connections, counters.requests, counters.replies, counters.pushes),
            (1, 3, 2, 1)
        );
    }

    #[tokio::test]
    async fn a_slow_way_is_slow() {
        let (proxy, mut stream) = set_up().await;
        proxy.down(Way::Slow(2 * SHORT));
        assert_eq!(says(&mut stream, &PING.repeat(5)).await.unwrap(), "");
        sleep(2 * SHORT).await;
        let all = ":1\r\n:2\r\n:3\r\n:4\r\n:5\r\n";
        assert_eq!(hears(&mut stream).await.unwrap(), all, "many are not slower than one");
        proxy.down(Way::Open);
        proxy.up(Way::Slow(2 * SHORT));
        assert_eq!(says(&mut stream, PING).await.unwrap(), "");
    }

    #[tokio::test]
    async fn a_blackhole_swallows_and_says_nothing() {
        let (proxy, mut stream) = set_up().await;
        proxy.up(Way::Blackhole);
        assert_eq!(says(&mut stream, PING).await.unwrap(), "");
        proxy.up(Way::Open);
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":1\r\n", "the first never reached the server");
        proxy.down(Way::Blackhole);
        assert_eq!(says(&mut stream, PING).await.unwrap(), "");
        proxy.down(Way::Open);
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":3\r\n", "the second did");
        assert_eq!(proxy.counters().swallowed, 2);
    }

    #[tokio::test]
    async fn a_cut_falls_before_or_after_the_server_has_acted() {
        let (proxy, mut stream) = set_up().await;
        proxy.next(1, Once::CutBefore);
        assert_eq!(says(&mut stream, PING).await, None);
        assert_eq!(proxy.counters().requests, 0);
        let mut stream = dial(&proxy).await;
        proxy.next(1, Once::CutAfter);
        assert_eq!(says(&mut stream, &[SUBSCRIBE, PING].concat()).await, None);
        let counters = proxy.counters();
        assert_eq!((counters.requests, counters.replies, counters.struck), (2, 0, 2));
    }

    #[tokio::test]
    async fn only_a_request_of_so_many_words_is_struck() {
        let (proxy, mut stream) = set_up().await;
        proxy.next(2, Once::CutBefore);
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":1\r\n");
        assert_eq!(says(&mut stream, SUBSCRIBE).await, None);
    }

    #[tokio::test]
    async fn requests_and_replies_can_be_doubled() {
        let (proxy, mut stream) = set_up().await;
        proxy.next(1, Once::DoubleRequest);
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":1\r\n");
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":3\r\n", "the server saw two before");
        proxy.next(1, Once::DoubleReply);
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":4\r\n:4\r\n");
    }

    #[tokio::test]
    async fn pushes_can_be_lost_alone() {
        let (proxy, mut stream) = set_up().await;
        proxy.drop_pushes(true);
        assert_eq!(says(&mut stream, &[SUBSCRIBE, PING].concat()).await.unwrap(), ":2\r\n");
        assert_eq!(proxy.counters().swallowed, 1);
    }

    #[tokio::test]
    async fn connections_can_be_cut_and_refused() {
        let (proxy, mut stream) = set_up().await;
        assert_eq!(says(&mut stream, PING).await.unwrap(), ":1\r\n");
        proxy.refuse(true);
        proxy.cut();
        assert_eq!(hears(&mut stream).await, None);
        assert_eq!(hears(&mut dial(&proxy).await).await, None);
        proxy.refuse(false);
        assert_eq!(says(&mut dial(&proxy).await, PING).await.unwrap(), ":1\r\n");
        assert_eq!(proxy.counters().refused, 1);
    }
}
