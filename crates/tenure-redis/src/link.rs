//! One connection to a server: how it is made, used once it stands, and given up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, Value,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use socket2::{SockRef, TcpKeepalive};
use tenure_core::{Moment, ProcessId};
use tenure_engine::{Fault, FaultKind, boottime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Mutex, Notify};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_rustls::TlsConnector;

use crate::classify::classify;
use crate::post::Post;
use crate::together::UnderWay;
use crate::url::{Address, Target, Tls};
use crate::wire::{self, SCRIPTS};

/// How long making a connection may take in all.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// A peer that is silent for so long is asked by the kernel whether it is there, and so often.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// What was sent and not confirmed by the peer's kernel for so long ends the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that may wait to be written; more wait their turn.
const QUEUE: usize = 4096;

/// How to reach a server and who calls.
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) process: ProcessId,
    /// The process number of who connected. Only a test changes it.
    pub(crate) pid: AtomicU32,
    /// Nothing but plain commands is sent: no channel and no script is needed.
    pub(crate) plain: bool,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Plan {
    pub(crate) fn new(target: Target, process: ProcessId, plain: bool) -> Result<Self, Fault> {
        let tls = match &target.address {
            Address::Tcp { tls: Some(tls), .. } => Some(tls_config(tls)?),
            _ => None,
        };
        Ok(Self { target, process, pid: AtomicU32::new(std::process::id()), plain, tls })
    }

    /// Is this process a copy, made by fork without exec, of the one that connected? It shares the socket, and what
    /// it reads or writes there, the other one misses.
    pub(crate) fn is_copied(&self) -> bool {
        std::process::id() != self.pid.load(Ordering::Relaxed)
    }

    /// The channel on which messages for this process arrive.
    pub(crate) fn channel(&self) -> String {
        format!("tenure:m:{}", self.process)
    }
}

fn tls_config(tls: &Tls) -> Result<Arc<rustls::ClientConfig>, Fault> {
    let mut roots = rustls::RootCertStore::empty();
    // Some certificates of a system may be unreadable; what is left decides.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = &tls.ca {
        let bad = |error: &dyn std::fmt::Display| {
            Fault::refused(format!("cannot read certificates from {} ({error})", path.display()))
                .hint("ca= names a file with certificates in PEM")
        };
        let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<_, _>>)
            .map_err(|error| bad(&error))?;
        if certificates.is_empty() {
            return Err(bad(&"there is none in it"));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| bad(&error))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Fault::refused(format!("TLS cannot be set up ({error})")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A connection that stands. Whoever finds something wrong with it, or gets no answer in time, closes it; it is never
/// used again then, so that what is late can't be taken for the answer to something else, or run after its clean-up.
pub(crate) struct Link {
    plan: Arc<Plan>,
    conn: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    /// How many exchanges are, for [`Gather`].
    under_way: Arc<AtomicUsize>,
    abort: AbortHandle,
    driver: Mutex<JoinHandle<()>>,
    /// Messages arrive on it.
    pub(crate) hears: bool,
    /// The server's clock and ours, read at the same time but for the way back.
    pub(crate) clocks: Option<(Moment, Moment)>,
}

impl Link {
    /// Makes a connection, logs in, loads the scripts and subscribes to the channel of this process unless the plan is a
    /// plain one: when this returns, a message that answers any later ask will be heard. `gone` is notified when the connection ends.
    pub(crate) async fn dial(plan: &Arc<Plan>, post: &Arc<Post>, gone: &Arc<Notify>) -> Result<Self, Fault> {
        let target = &plan.target;
        match tokio::time::timeout(DIAL_LIMIT, Self::dial_unbounded(plan, post, gone)).await {
            Ok(link) => link,
            Err(_) => Err(Fault::not_run(format!(
                "cannot reach {target} (no answer within {} s)",
                DIAL_LIMIT.as_secs()
            ))
            .hint("check the address, the network and the server")),
        }
    }

    async fn dial_unbounded(plan: &Arc<Plan>, post: &Arc<Post>, gone: &Arc<Notify>) -> Result<Self, Fault> {
        let target = &plan.target;
        let stream = open(plan).await.map_err(|error| unreachable(target, &error))?;
        let under_way = Arc::new(AtomicUsize::new(0));
        let stream = Gather {
            stream: Some(stream),
            plan: plan.clone(),
            under_way: under_way.clone(),
            turn_over: false,
        };
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(target.db))
            .set_skip_set_lib_name();
        if let Some(user) = &target.user {
            info = info.set_username(user);
        }
        if let Some(password) = &target.password {
            info = info.set_password(password);
        }
        let listener = post.clone();
        let config = AsyncConnectionConfig::new()
            // Every request has a limit of its own.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_push_sender(move |push: redis::PushInfo| {
                listener.deliver(&push);
                Ok::<(), ()>(())
            });
        let (conn, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
            .await
            .map_err(|error| refusal(target, &error))?;
        let alive = Arc::new(AtomicBool::new(true));
        let driver = tokio::spawn({
            let (alive, gone) = (alive.clone(), gone.clone());
            async move {
                driver.await;
                alive.store(false, Ordering::Release);
                gone.notify_one();
            }
        });
        let abort = driver.abort_handle();
        let mut link = Self {
            plan: plan.clone(),
            conn,
            alive,
            under_way,
            abort,
            driver: Mutex::new(driver),
            hears: false,
            clocks: None,
        };
        link.set_up(plan).await?;
        Ok(link)
    }

    async fn set_up(&mut self, plan: &Plan) -> Result<(), Fault> {
        let target = &plan.target;
        let mut setup = Pipeline::new();
        setup.cmd("ROLE").cmd("TIME");
        if !plan.plain {
            self.hears = self.subscribe(plan).await?;
            for script in SCRIPTS.all() {
                setup.cmd("SCRIPT").arg("LOAD").arg(&script.text);
            }
        }
        let answers = self
            .conn
            .send_packed_commands(&setup, 0, setup.len())
            .await
            .map_err(|error| refusal(target, &error))?;
        let heard = boottime();
        for answer in &answers {
            // Rights may lack to ask for the role, or to load scripts: both can be done without. What says that
            // no request can run now is an error.
            if let Value::ServerError(error) = answer {
                let fault = classify(&words(error));
                if fault.kind == FaultKind::NotRun {
                    return Err(Fault {
                        what: format!("{target} cannot be used now: {}", fault.what),
                        ..fault
                    });
                }
            }
        }
        if let [Value::Array(role), ..] = &answers[..]
            && matches!(role.first().and_then(wire::text), Some("slave" | "replica"))
        {
            return Err(Fault::not_run(format!("{target} is a replica: a lock there could vanish"))
                .hint("connect to the primary"));
        }
        if let Some(Value::Array(time)) = answers.get(1)
            && let [seconds, micros] = &time[..]
            && let (Some(seconds), Some(micros)) = (decimal(seconds), decimal(micros))
        {
            self.clocks = Some((Moment(seconds * 1000 + micros / 1000), heard));
        }
        Ok(())
    }

    /// Subscribes to the channel of this process. False: the user has no right to it. It still gets locks; it has to
    /// look instead of being told.
    async fn subscribe(&mut self, plan: &Plan) -> Result<bool, Fault> {
        match self.conn.subscribe(plan.channel()).await {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some("NOPERM") => {
                tracing::warn!(
                    server = %plan.target,
                    "the user may not subscribe to {}; waiting locks are polled",
                    plan.channel()
                );
                Ok(false)
            }
            Err(error) => Err(refusal(&plan.target, &error)),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Gives the connection up. Whatever is under way on it gets no answer any more.
    pub(crate) fn close(&self) {
        self.alive.store(false, Ordering::Release);
        if !self.plan.is_copied() {
            self.abort.abort();
        }
    }

    /// Comes back when nothing can be written to a closed connection any more.
    pub(crate) async fn ended(&self) {
        let mut driver = self.driver.lock().await;
        if !driver.is_finished() {
            let _ = (&mut *driver).await;
        }
    }

    /// Sends one command. What is sent is in the order in which these futures are first polled.
    pub(crate) async fn one(&self, command: &Cmd) -> Result<Value, RedisError> {
        let _count = UnderWay::count(&self.under_way);
        self.conn.clone().send_packed_command(command).await
    }

    /// Sends commands together; one answer each.
    pub(crate) async fn many(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let _count = UnderWay::count(&self.under_way);
        self.conn.clone().send_packed_commands(commands, 0, commands.len()).await
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

fn decimal(value: &Value) -> Option<u64> {
    wire::text(value)?.parse().ok()
}

/// Lets a write wait for one turn of the scheduler if more than one exchange is under way: what several tasks send at
/// the same time leaves in one system call then, which saved a fifth of the processor time of client and server
/// together with 64 tasks. A request that is alone leaves at once; nothing waits for company that is not there yet.
///
/// In a forked copy of the process it is dead: nothing is read, written or shut down, and the socket is not even taken
/// from the event queue when it is dropped, because both belong to the original as well.
struct Gather {
    /// There until it is dropped.
    stream: Option<Box<dyn Stream>>,
    plan: Arc<Plan>,
    under_way: Arc<AtomicUsize>,
    turn_over: bool,
}

impl Gather {
    /// `None`: nothing may happen here any more.
    fn stream(&mut self) -> Option<Pin<&mut Box<dyn Stream>>> {
        if self.plan.is_copied() {
            return None;
        }
        self.stream.as_mut().map(Pin::new)
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        if self.plan.is_copied() {
            std::mem::forget(self.stream.take());
        }
    }
}

impl AsyncRead for Gather {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().map_or(Poll::Pending, |stream| stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Gather {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.turn_over && self.under_way.load(Ordering::Relaxed) > 1 {
            self.turn_over = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.stream().map_or(Poll::Pending, |stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.turn_over = false;
        self.stream().map_or(Poll::Pending, |stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().map_or(Poll::Ready(Ok(())), |stream| stream.poll_shutdown(cx))
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn open(plan: &Plan) -> io::Result<Box<dyn Stream>> {
    match &plan.target.address {
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Address::Tcp { host, port, .. } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            let socket = SockRef::from(&stream);
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
            let Some(config) = &plan.tls else { return Ok(Box::new(stream)) };
            let name = ServerName::try_from(host.clone())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            Ok(Box::new(TlsConnector::from(config.clone()).connect(name, stream).await?))
        }
    }
}

/// The connection could not be made.
fn unreachable(target: &Target, error: &io::Error) -> Fault {
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::NotFound => "there is no such socket".to_owned(),
        _ => error.to_string(),
    };
    let what = format!("cannot reach {target} ({why})");
    // A certificate that is not trusted is not trusted the next time either.
    if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>) {
        return Fault::refused(what)
            .hint("check the server's certificate; ca=/file.pem trusts another authority");
    }
    Fault::not_run(what).hint("check the address and that the server runs")
}

/// The connection was made, but the server, or what answers there, didn't let us in.
fn refusal(target: &Target, error: &RedisError) -> Fault {
    match (error.kind(), error.code()) {
        (ErrorKind::RESP3NotSupported, _) => {
            Fault::refused(format!("{target} does not speak RESP3")).hint("Tenure needs Redis 6 or later")
        }
        (ErrorKind::Io, _) | (_, None) => Fault::not_run(format!("cannot reach {target} ({error})"))
            .hint("check that a Redis server listens there, and whether it wants TLS (rediss://)"),
        (_, Some(code)) => {
            let fault = classify(&format!("{code} {}", error.detail().unwrap_or_default()));
            // While logging in, nothing of ours has run.
            let kind = match fault.kind {
                FaultKind::Unknown => FaultKind::NotRun,
                kind => kind,
            };
            Fault { kind, what: format!("cannot log in at {target}; {}", fault.what), ..fault }
        }
    }
}

/// An error reply as it came.
pub(crate) fn words(error: &redis::ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}
