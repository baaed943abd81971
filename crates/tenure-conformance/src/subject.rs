//! What the suite has to know of an engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure::{Client, Inspection};
use tenure_core::Name;
use tenure_embedded::{EmbeddedEngine, Location, MemoryEngine};
use tenure_engine::{BoxFuture, Engine};
use tenure_redis::RedisEngine;
use tokio::time::sleep;

use crate::faulty::Faulty;
use crate::server::RedisServer;
use crate::taker::Taker;

/// Leases and guards of the cases, and what it takes to clear away after them.
const EMPTY_WITHIN: Duration = Duration::from_secs(6);

/// Which engines a case is meaningful for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concerns {
    /// Every engine.
    All,
    /// Those that several processes share.
    Processes,
    /// Those behind a connection that can be cut.
    Wire,
    /// Redis and its kin: the server itself is looked at and tampered with.
    Redis,
}

/// An engine over an empty store of its own, for one case.
pub trait Subject: Send + Sync {
    /// What other processes connect to.
    fn url(&self) -> String;

    /// An engine, connected to the store.
    fn engine(&self) -> BoxFuture<'_, Arc<dyn Engine>>;

    /// The store sees processes: what a dead one held is free at once, and not at its lease's end.
    fn sees_processes(&self) -> bool;

    /// What is left in the store although nobody holds or waits.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>>;

    /// The server, if there is one, to tamper with.
    fn server(&mut self) -> Option<&mut RedisServer> {
        None
    }
}

/// An engine, as a test program hands it to [`crate::suite::run`].
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// What the engine is called.
    pub name: &'static str,
    /// The cases that are meaningful for it.
    pub concerned: &'static [Concerns],
    /// Makes an empty store.
    pub make: fn() -> Box<dyn Subject>,
}

/// The engine of one process.
pub const MEMORY: Maker = Maker {
    name: "memory",
    concerned: &[Concerns::All],
    make: || {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("case-{}", NEXT.fetch_add(1, Relaxed));
        // A store in memory lasts as long as somebody uses it.
        let keeper = MemoryEngine::named(&name);
        Box::new(Memory { name, keeper })
    },
};

/// The engine of one host.
pub const EMBEDDED: Maker = Maker {
    name: "embedded",
    concerned: &[Concerns::All, Concerns::Processes],
    make: || Box::new(Embedded { dir: tempfile::tempdir().expect("a temporary directory") }),
};

/// The Redis engine, over a server of its own.
pub const REDIS: Maker = Maker {
    name: "redis",
    concerned: &[Concerns::All, Concerns::Processes, Concerns::Wire, Concerns::Redis],
    make: || Box::new(Redis { server: RedisServer::start() }),
};

struct Memory {
    name: String,
    keeper: Arc<MemoryEngine>,
}

impl Subject for Memory {
    fn url(&self) -> String {
        format!("memory:{}", self.name)
    }

    fn engine(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        Box::pin(async { MemoryEngine::named(&self.name) as Arc<dyn Engine> })
    }

    fn sees_processes(&self) -> bool {
        true
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(names(&*self.keeper))
    }
}

struct Embedded {
    dir: TempDir,
}

impl Embedded {
    fn open(&self) -> Arc<EmbeddedEngine> {
        EmbeddedEngine::open(&Location::Directory(self.dir.path().to_owned())).expect("the store opens")
    }
}

impl Subject for Embedded {
    fn url(&self) -> String {
        format!("file:{}", self.dir.path().display())
    }

    fn engine(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        Box::pin(async { self.open() as Arc<dyn Engine> })
    }

    fn sees_processes(&self) -> bool {
        true
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { names(&*self.open()).await })
    }
}

async fn names(engine: &dyn Engine) -> Vec<String> {
    let names = engine.names().await.expect("the store answers");
    names.iter().map(|name| format!("lock {name}")).collect()
}

struct Redis {
    server: RedisServer,
}

impl Subject for Redis {
    fn url(&self) -> String {
        self.server.url()
    }

    fn engine(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        Box::pin(async {
            RedisEngine::connect(&self.server.url()).await.expect("the server answers") as Arc<dyn Engine>
        })
    }

    fn sees_processes(&self) -> bool {
        false
    }

    /// All keys but token counters, cards and their index.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        let kept = ["tenure:f:", "tenure:p:", "tenure:i:"];
        let keys = self.server.command(&["KEYS", "*"]);
        let keys = keys.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['*', '$']));
        let keys = keys.filter(|key| !kept.iter().any(|prefix| key.starts_with(prefix)));
        let keys = keys.map(str::to_owned).collect();
        Box::pin(std::future::ready(keys))
    }

    fn server(&mut self) -> Option<&mut RedisServer> {
        Some(&mut self.server)
    }
}

/// What a case works with: an empty store, and everybody who may come to it.
pub struct Store {
    subject: Box<dyn Subject>,
    taker: PathBuf,
    forgiven: Option<&'static str>,
}

impl Store {
    pub(crate) fn new(subject: Box<dyn Subject>, taker: PathBuf) -> Self {
        Self { subject, taker, forgiven: None }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        self.subject.url()
    }

    /// A client of this process.
    pub async fn client(&self) -> Client {
        Client::over(self.engine().await).expect("there is a runtime")
    }

    /// A client, and a hand on what passes between it and the store.
    pub async fn faulty_client(&self) -> (Client, Arc<Faulty>) {
        let faulty = Faulty::new(self.engine().await);
        (Client::over(faulty.clone()).expect("there is a runtime"), faulty)
    }

    /// The bare engine.
    pub async fn engine(&self) -> Arc<dyn Engine> {
        self.subject.engine().await
    }

    /// Another process.
    pub async fn taker(&self) -> Taker {
        Taker::start(&self.taker, &self.url()).await
    }

    /// See [`Subject::sees_processes`].
    pub fn sees_processes(&self) -> bool {
        self.subject.sees_processes()
    }

    /// The server, in cases that concern Redis.
    pub fn server(&mut self) -> &mut RedisServer {
        self.subject.server().expect("a case that concerns Redis runs over Redis")
    }

    /// How much longer than `ttl` the store keeps a hold.
    pub async fn guard(&self, ttl: Duration) -> Duration {
        Duration::from_millis(self.engine().await.guard_ms(ttl.as_millis() as u64))
    }

    /// Waits until so many wait for a lock.
    pub async fn until_waiting(&self, client: &Client, name: &str, waiting: usize) {
        until(format!("{waiting} wait for {name}"), Duration::from_secs(10), async || {
            look(client, name).await.waiting == waiting
        })
        .await;
    }

    /// Something stays in the store for longer than the suite waits, and why.
    pub fn forgive_leftovers(&mut self, why: &'static str) {
        self.forgiven = Some(why);
    }

    /// Nothing is left at the end of a case, soon.
    pub(crate) async fn check_empty(&self) {
        if self.forgiven.is_none() {
            let empty = async || self.subject.leftovers().await.is_empty();
            let gone = holds_within(EMPTY_WITHIN, empty).await;
            assert!(gone, "left in the store after {EMPTY_WITHIN:?}: {:?}", self.subject.leftovers().await);
        }
    }
}

/// One lock, seen from outside.
pub async fn look(client: &Client, name: &str) -> Inspection {
    client.inspect(name).await.expect("the store answers")
}

/// Waits for what has to become true, for `limit` at most. How long it took.
pub async fn until(what: String, limit: Duration, is_so: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    assert!(holds_within(limit, is_so).await, "not within {limit:?}: {what}");
    begun.elapsed()
}

async fn holds_within(limit: Duration, mut is_so: impl AsyncFnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if is_so().await {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// The name of a lock, as engines take it.
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}
