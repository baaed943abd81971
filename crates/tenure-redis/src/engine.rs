//! The engine: one connection, replaced when anything is wrong with it, and the honest word for every request.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, ServerError, Value};
use tenure_core::{HolderId, Moment, Name, ProcessId, RESERVED_PREFIX, Reply, Request, lease};
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Fault, FaultKind, Look, boottime, random_process};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard, Notify, oneshot};
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::{Instant, timeout_at};

use crate::classify::classify;
use crate::keys::Keys;
use crate::link::{Link, Plan, words};
use crate::post::Post;
use crate::together::{Fellow, Together};
use crate::url::Target;
use crate::wire::{self, By, Decoded, Undecodable};

/// Waits between tries to connect: they double from the first to the last.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_LAST: Duration = Duration::from_secs(1);

/// A connection on which somebody waits for a message is asked for a sign of life so often. A dead one is noticed
/// after this and [`PING_LIMIT`], and whoever waits looks again then.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// How long a look, a list or a card may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// How long a card lives unless it is refreshed, and how often that is.
const CARD_MS: u64 = 60_000;
const CARD_REFRESH_MS: u64 = 20_000;

/// The index of cards is spread over so many keys, and so many processes are read from each.
const INDEXES: u64 = 16;
const INDEX_READ_MAX: usize = 1000;

/// Locks in one Redis or Valkey server.
pub struct RedisEngine {
    me: Weak<Self>,
    /// Where it was connected. Whatever outlives one request runs there: a caller's runtime may end before others
    /// that depend on it.
    runtime: Handle,
    together: Together,
    plan: Arc<Plan>,
    post: Arc<Post>,
    /// Notified when a connection ends, and when somebody begins to wait.
    stir: Arc<Notify>,
    slot: Mutex<Slot>,
    /// The last failure to connect, for whom it keeps from trying.
    last_failure: StdMutex<String>,
    /// Milliseconds from our clock to the server's, seen too small by the way of the answer: a stamp that is made
    /// with it is early rather than late.
    offset_ms: AtomicI64,
    posted: StdMutex<Option<(String, Moment)>>,
}

/// The connection, or the try to make one.
#[derive(Default)]
struct Slot {
    link: Option<Arc<Link>>,
    /// A task of its own: a caller whose time is over leaves, and the next one finds the try further on.
    dial: Option<JoinHandle<Result<Link, Fault>>>,
    failures: u32,
}

impl RedisEngine {
    /// Connects to `redis://[user:password@]host[:port][/db]`, `rediss://` (TLS) or `unix:/path?db=0`. Options:
    /// `prefix=TEXT` is put before every lock name; `ca=/file.pem` trusts these certificates, too.
    ///
    /// Must be called on a tokio runtime, which has to outlive the engine. Others may use the engine, too, and end.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Arc<Self>, Fault> {
        Self::connect_as(url, false).await
    }

    /// Connects as [`RedisEngine::connect`] does, for plain commands only ([`Engine::plain`]): no channel is subscribed
    /// to and no script is loaded.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect_plain(url: &str) -> Result<Arc<Self>, Fault> {
        Self::connect_as(url, true).await
    }

    async fn connect_as(url: &str, plain: bool) -> Result<Arc<Self>, Fault> {
        let target = Target::parse(url)?;
        let post = Arc::new(Post::new(&target.prefix));
        let plan = Arc::new(Plan::new(target, random_process(), plain)?);
        let engine = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            runtime: Handle::current(),
            together: Together::default(),
            plan,
            post,
            stir: Arc::new(Notify::new()),
            slot: Mutex::default(),
            last_failure: StdMutex::default(),
            offset_ms: AtomicI64::new(0),
            posted: StdMutex::default(),
        });
        let mut slot = engine.slot.lock().await;
        engine.link(&mut slot).await?;
        drop(slot);
        engine.runtime.spawn(keep_listening(Arc::downgrade(&engine), engine.stir.clone()));
        Ok(engine)
    }

    /// The connection; makes a new one if there is none or it is dead. One try at a time.
    async fn link(&self, slot: &mut Slot) -> Result<Arc<Link>, Fault> {
        if let Some(link) = &slot.link
            && link.is_alive()
        {
            return Ok(link.clone());
        }
        let dead = slot.link.take();
        let failures = slot.failures;
        let dial = slot.dial.get_or_insert_with(|| {
            let (plan, post, stir) = (self.plan.clone(), self.post.clone(), self.stir.clone());
            self.runtime.spawn(async move {
                if let Some(dead) = dead {
                    // Nothing old may arrive after something new.
                    dead.ended().await;
                }
                if failures > 0 {
                    tokio::time::sleep((BACKOFF_FIRST * (1 << failures.min(6))).min(BACKOFF_LAST)).await;
                }
                Link::dial(&plan, &post, &stir).await
            })
        });
        let dialled = dial.await.unwrap_or_else(|_| Err(Fault::not_run("the runtime is shutting down")));
        slot.dial = None;
        match dialled {
            // A try that nobody waited for may have succeeded long ago.
            Ok(link) if !link.is_alive() => Err(Fault::not_run(format!("{} hung up", self.plan.target))),
            Ok(link) => {
                slot.failures = 0;
                if let Some((server, ours)) = link.clocks {
                    self.learn(server, ours);
                }
                let link = slot.link.insert(Arc::new(link)).clone();
                self.post.wake_all();
                Ok(link)
            }
            Err(fault) => {
                slot.failures += 1;
                lock(&self.last_failure).clone_from(&fault.what);
                tracing::debug!(server = %self.plan.target, %fault, "not connected");
                Err(fault)
            }
        }
    }

    /// There is a connection, or somebody is just making one.
    fn has_link(&self) -> bool {
        self.slot.try_lock().map_or(true, |slot| slot.link.as_ref().is_some_and(|link| link.is_alive()))
    }

    /// Takes the connection and hands a request to it before anybody else can. `send`'s first poll does that.
    async fn exchange<T, F>(
        &self,
        deadline: Instant,
        send: impl FnOnce(Arc<Link>) -> F,
    ) -> Result<(Arc<Link>, T), Fault>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        self.refuse_copy()?;
        let ready = async {
            let mut slot = self.slot.lock().await;
            let link = self.link(&mut slot).await?;
            Ok::<(MutexGuard<'_, Slot>, Arc<Link>), Fault>((slot, link))
        };
        let (slot, link) = match timeout_at(deadline, ready).await {
            Ok(ready) => ready?,
            Err(_) => return Err(self.no_connection()),
        };
        // Unconstrained: a first poll that is put off by the scheduler would hand over nothing, and a later request of
        // the same owner could come first.
        let mut answer = pin!(unconstrained(send(link.clone())));
        let early = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
        drop(slot);
        let answer = match early {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let Ok(answer) = timeout_at(deadline, answer).await else {
                    link.close();
                    return Err(self.too_late().hint("the connection was given up; a new one is made"));
                };
                answer
            }
        };
        match answer {
            Ok(answer) => Ok((link, answer)),
            Err(error) => {
                link.close();
                Err(Fault::unknown(format!("the connection to {} broke ({error})", self.plan.target))
                    .hint("a new one is made"))
            }
        }
    }

    /// Fails in a forked copy of the process that connected.
    fn refuse_copy(&self) -> Result<(), Fault> {
        if self.plan.is_copied() {
            return Err(Fault::refused(
                "this process is a forked copy of the one that connected; connect anew after a fork",
            ));
        }
        Ok(())
    }

    fn no_connection(&self) -> Fault {
        let last = lock(&self.last_failure).clone();
        let why = if last.is_empty() { format!("no connection to {} yet", self.plan.target) } else { last };
        Fault::not_run(why).hint("check the address and that the server runs")
    }

    fn too_late(&self) -> Fault {
        Fault::unknown(format!("no answer from {} in time", self.plan.target))
    }

    fn learn(&self, server: Moment, ours: Moment) {
        self.offset_ms.store(server.0.wrapping_sub(ours.0).cast_signed(), Ordering::Relaxed);
    }

    /// The server's clock at a moment of ours.
    fn server_time(&self, ours: Moment) -> Moment {
        Moment(ours.0.saturating_add_signed(self.offset_ms.load(Ordering::Relaxed)))
    }

    /// Reads the answer to a request and keeps what else it tells.
    fn read(&self, name: &Name, request: &Request, link: &Link, value: &Value) -> Result<Reply, Trouble> {
        if let Value::ServerError(error) = value {
            if error.code() == "NOSCRIPT" {
                return Err(Trouble::Forgotten);
            }
            return Err(Trouble::Fault(refused(link, error)));
        }
        match wire::decode(request, value, !link.hears) {
            Ok(Decoded { reply, now }) => {
                if let Some(now) = now {
                    self.learn(now, boottime());
                }
                self.note(name, request, &reply);
                Ok(reply)
            }
            Err(undecodable) => Err(Trouble::Fault(self.undecodable(name, undecodable, link))),
        }
    }

    pub(crate) fn undecodable(&self, name: &Name, undecodable: Undecodable, link: &Link) -> Fault {
        match undecodable {
            Undecodable::Format(format) => Fault::refused(format!(
                "the lock {name:?} was written by another format ({format}); this version of Tenure knows format 1"
            ))
            .hint("use the same version of Tenure everywhere"),
            Undecodable::Nonsense => {
                link.close();
                Fault::unknown(format!("{} answered what no script of Tenure answers", self.plan.target))
                    .hint("the connection was given up; check what listens at that address")
            }
        }
    }

    /// Remembers who waits for a message.
    fn note(&self, name: &Name, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Ask { owner, place_ms, .. }, Reply::Queued { .. }) => {
                self.post.remember(boottime(), *owner, name, *place_ms);
                self.stir.notify_one();
            }
            (Request::Ask { owner, place_ms, .. }, _) if *place_ms > 0 => self.post.forget(owner),
            (Request::Release { owner }, _) => self.post.forget(owner),
            _ => {}
        }
    }

    /// `asked`: the caller's lease counts from before it, and the ask is not carried out long after it.
    async fn call(&self, name: &Name, request: &Request, limit: Duration, asked: Moment) -> Answer {
        self.refuse_copy()?;
        let deadline = Instant::now() + limit;
        let _under_way = self.together.set_out();
        if self.together.suits(request)
            && let Some(answer) = self.call_with_others(name, request, limit, deadline, asked).await
        {
            return answer;
        }
        // Boxed, so that a request that travels with others is a small future.
        Box::pin(self.call_alone(name, request, deadline, asked)).await
    }

    async fn call_alone(&self, name: &Name, request: &Request, deadline: Instant, asked: Moment) -> Answer {
        let mut by = By::Hash;
        let mut stale = 0;
        // At most three sends: the server may have forgotten the script, and the clocks may have moved.
        loop {
            let not_after = self.server_time(asked).plus(lease::ASK_WINDOW_MS);
            let command = wire::encode(&self.plan.target.prefix, name, request, not_after, by)?;
            let (link, value) =
                self.exchange(deadline, |link| async move { link.one(&command).await }).await?;
            match self.read(name, request, &link, &value) {
                Ok(Reply::Stale) if stale == 0 && stamped_here(request) => stale += 1,
                Ok(reply) => return Ok(reply),
                Err(Trouble::Forgotten) if by == By::Hash => by = By::Text,
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    /// Carries a request in one call with whatever else is ready in this turn of the scheduler. `None`: it was not
    /// carried out, and has to travel alone.
    async fn call_with_others(
        &self,
        name: &Name,
        request: &Request,
        limit: Duration,
        deadline: Instant,
        asked: Moment,
    ) -> Option<Answer> {
        let (answer, told) = oneshot::channel();
        let fellow = Fellow { name: name.clone(), request: request.clone(), limit, deadline, asked, answer };
        if self.together.join(fellow) {
            let mut departure = Departure(Some(self.me.upgrade()?));
            self.runtime.spawn(async move {
                tokio::task::yield_now().await;
                let Some(me) = departure.0.take() else { return };
                for group in me.together.depart() {
                    // A task of its own: callers may go away while the others' requests are under way. And a call
                    // of its own, so that the first are served while the server works for the next.
                    me.runtime.spawn(me.clone().carry_together(group));
                }
            });
        }
        match timeout_at(deadline, told).await {
            Ok(Ok(answer)) => answer,
            // Whoever carried it is gone, and may have sent it.
            Ok(Err(_)) => Some(Err(Fault::unknown("the runtime of the engine is shutting down"))),
            Err(_) => Some(Err(self.too_late())),
        }
    }

    async fn carry_together(self: Arc<Self>, mut group: Vec<Fellow>) {
        let Some(deadline) = group.iter().map(|fellow| fellow.deadline).max() else { return };
        // The second round carries what the server had forgotten how to.
        for by in [By::Hash, By::Text] {
            let send = |link: Arc<Link>| {
                // A caller that went away must not be heard after its release. Nothing can be sent between here and
                // the first poll of what follows, so that the release, if there is one, is yet to come.
                group.retain(|fellow| !fellow.answer.is_closed());
                let requests = group.iter().map(|fellow| {
                    let not_after = self.server_time(fellow.asked).plus(lease::ASK_WINDOW_MS);
                    (&fellow.name, &fellow.request, not_after)
                });
                let command = wire::encode_together(&self.plan.target.prefix, requests, by);
                async move {
                    match command {
                        Some(command) => link.one(&command).await.map(Some),
                        None => Ok(None),
                    }
                }
            };
            match self.exchange(deadline, send).await {
                // Each finds out alone what is wrong with it.
                Ok((_, None)) => return group.into_iter().for_each(Fellow::travel_alone),
                Ok((_, Some(Value::ServerError(error)))) if error.code() == "NOSCRIPT" => {}
                Ok((link, Some(value))) => return self.tell_group(group, &link, &value),
                Err(fault) => {
                    for fellow in group {
                        let _ = fellow.answer.send(Some(Err(copy(&fault))));
                    }
                    return;
                }
            }
        }
        // Not even the text is known: each hears so alone.
        group.into_iter().for_each(Fellow::travel_alone);
    }

    /// Tells each of a group what became of its request.
    fn tell_group(&self, group: Vec<Fellow>, link: &Link, value: &Value) {
        let answers = match value {
            Value::Array(answers) if answers.len() == group.len() => answers,
            Value::ServerError(error) => {
                let fault = classify(&words(error));
                for fellow in group {
                    // What did not run travels alone, so that each gets the answer that is its own.
                    let unknown = fault.kind == FaultKind::Unknown;
                    let _ = fellow.answer.send(unknown.then(|| Err(copy(&fault))));
                }
                return;
            }
            _ => {
                link.close();
                for fellow in group {
                    let fault = Fault::unknown(format!("{} answered nonsense", self.plan.target));
                    let _ = fellow.answer.send(Some(Err(fault)));
                }
                return;
            }
        };
        for (fellow, value) in group.into_iter().zip(answers) {
            let answer = match value {
                Value::Int(0) => None,
                value => match self.read(&fellow.name, &fellow.request, link, value) {
                    Ok(reply) => Some(Ok(reply)),
                    Err(trouble) => Some(Err(trouble.into())),
                },
            };
            let _ = fellow.answer.send(answer);
        }
    }

    async fn call_many(&self, calls: &[(Name, Request)], limit: Duration, asked: Moment) -> Vec<Answer> {
        let deadline = Instant::now() + limit;
        let mut answers: Vec<Option<Answer>> = calls.iter().map(|_| None).collect();
        for by in [By::Hash, By::Text] {
            // The second round carries what the first could not: forgotten scripts and stale stamps.
            let not_after = self.server_time(asked).plus(lease::ASK_WINDOW_MS);
            let mut pipeline = Pipeline::with_capacity(calls.len());
            let mut sent = Vec::with_capacity(calls.len());
            for (at, (name, request)) in calls.iter().enumerate() {
                if answers[at].is_some() {
                    continue;
                }
                match wire::encode(&self.plan.target.prefix, name, request, not_after, by) {
                    Ok(command) => {
                        pipeline.add_command(command);
                        sent.push(at);
                    }
                    Err(fault) => answers[at] = Some(Err(fault)),
                }
            }
            if sent.is_empty() {
                break;
            }
            let pipeline = &pipeline;
            match self.exchange(deadline, |link| async move { link.many(pipeline).await }).await {
                Ok((link, values)) => {
                    for (at, value) in sent.into_iter().zip(&values) {
                        let (name, request) = &calls[at];
                        answers[at] = match self.read(name, request, &link, value) {
                            Ok(Reply::Stale) if by == By::Hash && stamped_here(request) => None,
                            Err(Trouble::Forgotten) if by == By::Hash => None,
                            Ok(reply) => Some(Ok(reply)),
                            Err(trouble) => Some(Err(trouble.into())),
                        };
                    }
                }
                Err(fault) => {
                    for at in sent {
                        answers[at] = Some(Err(copy(&fault)));
                    }
                }
            }
        }
        let lost = || Err(Fault::unknown(format!("{} left a request unanswered", self.plan.target)));
        answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    /// Carries one plain command about a lock's key.
    async fn plain(
        &self,
        name: &Name,
        command: &tenure_forms::Command,
        limit: Duration,
    ) -> Result<tenure_forms::Reply, Fault> {
        let mut words = Cmd::new();
        words.arg(command.words(&self.key(name)?));
        let deadline = Instant::now() + limit;
        let words = &words;
        let (link, value) = self.exchange(deadline, |link| async move { link.one(words).await }).await?;
        match &value {
            Value::ServerError(error) if error.code() != "WRONGTYPE" => Err(refused(&link, error)),
            value => wire::decode_plain(command, value)
                .ok_or_else(|| self.undecodable(name, Undecodable::Nonsense, &link)),
        }
    }

    /// Carries plain commands together; one answer each. Without any nothing is sent.
    pub(crate) async fn send(
        &self,
        commands: &Pipeline,
        limit: Duration,
    ) -> Result<(Arc<Link>, Vec<Value>), Fault> {
        let deadline = Instant::now() + limit;
        self.exchange(deadline, |link| async move {
            if commands.is_empty() { Ok(Vec::new()) } else { link.many(commands).await }
        })
        .await
    }

    /// A key that no lock can have.
    pub(crate) fn own_key(&self, name: &str) -> String {
        format!("{}{RESERVED_PREFIX}{name}", self.plan.target.prefix)
    }

    /// The key of a lock.
    pub(crate) fn key(&self, name: &Name) -> Result<String, Fault> {
        Ok(Keys::of(&self.plan.target.prefix, name)?.lock)
    }

    /// Carries a plain read.
    async fn read_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Fault> {
        let (_, values) = self.send(commands, READ_LIMIT).await?;
        for value in &values {
            if let Value::ServerError(error) = value {
                return Err(classify(&words(error)));
            }
        }
        Ok(values)
    }

    async fn look(&self, name: &Name) -> Result<Look, Fault> {
        if self.plan.plain {
            return self.look_plainly(name).await;
        }
        let deadline = Instant::now() + READ_LIMIT;
        for by in [By::Hash, By::Text] {
            let command = wire::encode_look(&self.plan.target.prefix, name, by)?;
            let (link, value) =
                self.exchange(deadline, |link| async move { link.one(&command).await }).await?;
            match &value {
                Value::ServerError(error) if error.code() == "NOSCRIPT" => {}
                Value::ServerError(error) => return Err(classify(&words(error))),
                _ => {
                    return wire::decode_look(&value, !link.hears)
                        .map_err(|undecodable| self.undecodable(name, undecodable, &link));
                }
            }
        }
        Err(classify("NOSCRIPT"))
    }

    async fn look_plainly(&self, name: &Name) -> Result<Look, Fault> {
        let (link, values) = self.send(&wire::encode_plain_look(&self.key(name)?), READ_LIMIT).await?;
        for value in &values {
            match value {
                Value::ServerError(error) if error.code() != "WRONGTYPE" => {
                    return Err(refused(&link, error));
                }
                _ => {}
            }
        }
        wire::decode_plain_look(&values).map_err(|undecodable| self.undecodable(name, undecodable, &link))
    }

    /// Cards of other prefixes name other locks: each prefix has an index of its own.
    fn index_key(&self, index: u64) -> String {
        match self.plan.target.prefix.as_str() {
            "" => format!("tenure:i:{index}"),
            prefix => format!("tenure:i:{index}:{prefix}"),
        }
    }

    async fn names(&self) -> Result<Vec<Name>, Fault> {
        let now_ms = self.server_time(boottime()).0;
        let mut indexes = Pipeline::new();
        for index in 0..INDEXES {
            indexes.cmd("ZRANGEBYSCORE").arg(self.index_key(index)).arg(now_ms).arg("+inf");
            indexes.arg("LIMIT").arg(0).arg(INDEX_READ_MAX);
        }
        let mut cards = Pipeline::new();
        for index in self.read_all(&indexes).await? {
            let Value::Array(processes) = index else { continue };
            for process in processes.iter().filter_map(wire::text).filter_map(|text| text.parse().ok()) {
                cards.cmd("GET").arg(card_key(process));
            }
        }
        if cards.is_empty() {
            return Ok(Vec::new());
        }
        let mut names = BTreeSet::new();
        for card in self.read_all(&cards).await? {
            // A card may have run out since, or be of a newer format: then it tells nothing.
            let Some(Ok(card)) = wire::bytes(&card).map(read_card) else { continue };
            let held = card.holds.iter().map(|hold| &hold.name);
            names.extend(
                held.chain(card.waits.iter().map(|wait| &wait.name)).filter_map(|name| Name::new(name).ok()),
            );
        }
        Ok(names.into_iter().collect())
    }

    async fn card(&self, process: ProcessId) -> Result<Option<Card>, Fault> {
        let mut get = Pipeline::new();
        get.cmd("GET").arg(card_key(process));
        let values = self.read_all(&get).await?;
        values.first().and_then(wire::bytes).map(read_card).transpose()
    }

    async fn post_card(&self, card: &Card) -> Result<(), Fault> {
        self.refuse_copy()?;
        let text = serde_json::to_string(card).map_err(|error| {
            Fault::refused(format!("the card of this process cannot be written ({error})"))
        })?;
        let now = boottime();
        let fresh = lock(&self.posted)
            .as_ref()
            .is_some_and(|(last, at)| *last == text && now.since(*at) < CARD_REFRESH_MS);
        if fresh {
            return Ok(());
        }
        let process = self.plan.process;
        let index = self.index_key(process.0 % INDEXES);
        let now_ms = self.server_time(now).0;
        let mut put = Pipeline::new();
        put.cmd("SET").arg(card_key(process)).arg(&text).arg("PX").arg(CARD_MS);
        put.cmd("ZADD").arg(&index).arg(now_ms + CARD_MS).arg(process.to_string());
        put.cmd("ZREMRANGEBYSCORE").arg(&index).arg("-inf").arg(now_ms);
        put.cmd("PEXPIRE").arg(&index).arg(2 * CARD_MS);
        self.read_all(&put).await?;
        *lock(&self.posted) = Some((text, now));
        Ok(())
    }
}

/// The way of those who wait to travel together. If it ends before they left, each has to travel alone: a list that
/// nobody sees to would grow for ever.
struct Departure(Option<Arc<RedisEngine>>);

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some(me) = self.0.take() {
            me.together.depart().into_iter().flatten().for_each(Fellow::travel_alone);
        }
    }
}

/// What keeps a request from its reply.
enum Trouble {
    /// The server does not know the script by its hash: it did not run.
    Forgotten,
    Fault(Fault),
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Forgotten => classify("NOSCRIPT No matching script."),
            Trouble::Fault(fault) => fault,
        }
    }
}

/// What an error reply means; a connection that is of no use any more is given up.
pub(crate) fn refused(link: &Link, error: &ServerError) -> Fault {
    if error.code() == "READONLY" {
        // The server was demoted. The address may lead to its successor by now.
        link.close();
    }
    classify(&words(error))
}

/// The engine, not the caller, said how late this ask may run.
fn stamped_here(request: &Request) -> bool {
    matches!(request, Request::Ask { not_after: None, .. })
}

/// The same fault for every request of a batch.
pub(crate) fn copy(fault: &Fault) -> Fault {
    Fault { kind: fault.kind, what: fault.what.clone(), hint: fault.hint, source: None }
}

fn card_key(process: ProcessId) -> String {
    format!("tenure:p:{{{process}}}")
}

fn read_card(text: &[u8]) -> Result<Card, Fault> {
    let card: Card = serde_json::from_slice(text)
        .map_err(|error| Fault::refused(format!("the card of that process cannot be read ({error})")))?;
    if card.v != 1 {
        return Err(Fault::refused(format!(
            "the card of that process was written by another format ({}); this version of Tenure knows format 1",
            card.v
        )));
    }
    Ok(card)
}

fn lock<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As long as somebody waits for a message: keeps a connection up and looks whether it still carries anything.
async fn keep_listening(engine: Weak<RedisEngine>, stir: Arc<Notify>) {
    let mut ping = Cmd::new();
    ping.arg("PING");
    let ping = &ping;
    loop {
        if engine.upgrade().is_none_or(|engine| engine.plan.is_copied()) {
            return;
        }
        // With nobody waiting there is nothing to do before the next stir.
        let idle = engine.upgrade().is_none_or(|engine| !engine.post.somebody_waits(boottime()));
        let silent = if idle {
            stir.notified().await;
            false
        } else {
            tokio::time::timeout(PING_EVERY, stir.notified()).await.is_err()
        };
        let Some(engine) = engine.upgrade().filter(|engine| !engine.plan.is_copied()) else { return };
        if !engine.post.somebody_waits(boottime()) || (!silent && engine.has_link()) {
            continue;
        }
        // A failure closes the connection; the next round makes a new one, after a pause that grows.
        let deadline = Instant::now() + PING_LIMIT;
        if engine.exchange(deadline, |link| async move { link.one(ping).await }).await.is_err() {
            stir.notify_one();
        }
    }
}

impl Engine for RedisEngine {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(self.call(name, request, limit, boottime()))
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        Box::pin(self.call_many(calls, limit, boottime()))
    }

    fn listen(&self, ear: Ear) {
        self.post.listen(ear);
    }

    fn process(&self) -> ProcessId {
        self.plan.process
    }

    fn guard_ms(&self, ttl_ms: u64) -> u64 {
        lease::guard_ms(ttl_ms)
    }

    fn scope(&self) -> String {
        self.plan.target.to_string()
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        Box::pin(self.look(name))
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        Box::pin(self.names())
    }

    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        Box::pin(self.card(process))
    }

    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.post_card(card))
    }

    fn job_file(&self, _holder: HolderId) -> Result<Option<OwnedFd>, Fault> {
        Ok(None)
    }

    fn plain<'a>(
        &'a self,
        name: &'a Name,
        command: &'a tenure_forms::Command,
        limit: Duration,
    ) -> BoxFuture<'a, Result<tenure_forms::Reply, Fault>> {
        Box::pin(self.plain(name, command, limit))
    }
}

impl fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisEngine")
            .field("at", &self.plan.target)
            .field("process", &self.plan.process)
            .finish_non_exhaustive()
    }
}

impl Drop for RedisEngine {
    fn drop(&mut self) {
        // The task that keeps listening sees that there is nothing left to listen for.
        self.stir.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::task::{Context, Waker};

    use tenure_core::Attempt;
    use tenure_engine::random_owner;

    use super::*;

    /// A server with a socket in a directory of its own.
    struct Server {
        child: Child,
        dir: PathBuf,
    }

    impl Server {
        fn start() -> Self {
            let dir = std::env::temp_dir().join(format!("tenure-engine-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let socket = dir.join("sock");
            let program = std::env::var_os("TENURE_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
            let child = Command::new(program)
                .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
                .args([&dir, Path::new("--unixsocket"), &socket])
                .stdout(Stdio::null())
                .spawn()
                .expect("this test needs a redis-server");
            for _ in 0..1000 {
                if UnixStream::connect(&socket).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Self { child, dir }
        }

        fn says(&self, command: &str) -> String {
            let mut stream = UnixStream::connect(self.dir.join("sock")).unwrap();
            stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        }

        fn subscribers(&self) -> usize {
            self.says("CLIENT LIST").lines().filter(|client| client.contains(" sub=1 ")).count()
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it touches the connection"),
        }
    }

    /// The fork itself needs unsafe code; here the process is made to look like a copy.
    #[tokio::test]
    async fn a_forked_copy_leaves_the_connection_alone() {
        let server = Server::start();
        let engine =
            RedisEngine::connect(&format!("unix:{}", server.dir.join("sock").display())).await.unwrap();
        let name = Name::new("x").unwrap();
        let owner = random_owner(HolderId { process: engine.process(), serial: 1 });
        let (ttl_ms, guard_ms, place_ms) = (10_000, 1000, 10_000);
        let ask = Request::Ask { owner, ttl_ms, guard_ms, place_ms, attempt: Attempt(1), not_after: None };
        server.says("SET x theirs");
        let limit = Duration::from_secs(2);
        assert!(matches!(engine.call(&name, &ask, limit, boottime()).await, Ok(Reply::Queued { .. })));
        let stop = Request::Stop { holder: owner.holder, by: String::new() };
        let card = Card { v: 1, ..Card::default() };
        engine.post_card(&card).await.unwrap();
        server.says("CONFIG RESETSTAT");

        engine.plan.pid.store(0, Ordering::Relaxed);
        let both = [(name.clone(), ask.clone()), (name.clone(), stop)];
        let mut faults: Vec<_> = at_once(engine.call_many(&both, limit, boottime()))
            .into_iter()
            .map(|answer| answer.expect_err("a copy"))
            .collect();
        let alone = [&both[0].1, &both[1].1, &Request::Release { owner }];
        faults.extend(
            alone.map(|request| at_once(engine.call(&name, request, limit, boottime())).expect_err("a copy")),
        );
        let company: Vec<_> = (0..5).map(|_| engine.together.set_out()).collect();
        faults.push(at_once(engine.call(&name, &ask, limit, boottime())).expect_err("a copy"));
        drop(company);
        faults.push(at_once(engine.look(&name)).expect_err("a copy"));
        faults.push(at_once(engine.names()).expect_err("a copy"));
        faults.push(at_once(engine.post_card(&card)).expect_err("a copy"));
        for fault in faults {
            assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
            assert!(fault.what.starts_with("this process is a forked copy"), "{fault}");
        }
        // Somebody waits, and nobody keeps listening.
        engine.stir.notify_one();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&engine), 1);
        assert_eq!(Arc::weak_count(&engine), 1, "the task that keeps listening is over");

        drop(engine);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let sent = server.says("INFO commandstats");
        assert!(!sent.contains("evalsha") && !sent.contains("ping"), "{sent}");
        assert_eq!(server.subscribers(), 1, "the original's connection stands");
    }
}
