//! The scripts of the Redis engine agree with [`Ledger::apply`], request by request: the same replies, the same
//! messages to the same owners, and the same state in the store, under a clock that the test sets.
//!
//! `TENURE_AGREE_REQUESTS` sets how many requests are made, `TENURE_AGREE_SEED` which ones.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure_conformance::frozen_clock::FrozenClock;
use tenure_conformance::server::{Options, RedisServer};
use tenure_core::{
    Attempt, HolderId, Ledger, Message, Moment, Name, Now, Occupant, Owner, Place, Places, ProcessId, Reply,
    Request, Sight, Witness,
};
use tenure_engine::{Engine, Letter};
use tenure_redis::RedisEngine;

const REQUESTS: u64 = 50_000;
const SEED: u64 = 1;
/// So many requests under way, and the next ones look for company.
const COMPANY: usize = 3;
const LIMIT: Duration = Duration::from_secs(10);

/// How long a queue outlives its last place, as the scripts have it.
const SLACK_MS: u64 = 10_000;

/// One lock of each form of name, and two in one slot. With its queue, its places and its token counter.
const LOCKS: [[&str; 4]; 4] = [
    ["plain", "tenure:b:q:{plain}", "tenure:b:w:{plain}", "tenure:f:{49i}"],
    ["{x}one", "tenure:a:q:{x}one", "tenure:a:w:{x}one", "tenure:f:{x}"],
    ["{x}two", "tenure:a:q:{x}two", "tenure:a:w:{x}two", "tenure:f:{x}"],
    ["a}b{}", "tenure:c:q:{7ok}:a}b{}", "tenure:c:w:{7ok}:a}b{}", "tenure:f:{7ok}"],
];

#[tokio::test]
async fn the_scripts_agree_with_the_ledger() {
    let number = |variable: &str, default| {
        std::env::var(variable)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
    };
    let (requests, seed) = (number("TENURE_AGREE_REQUESTS", REQUESTS), number("TENURE_AGREE_SEED", SEED));
    println!("seed {seed}, {requests} requests");
    let mut twins = Twins::new(seed).await;
    for at in 1..=requests {
        twins.step(at).await;
        if at % 25 == 0 {
            twins.compare_state().await;
        }
    }
    twins.compare_state().await;
    println!("{:?}", twins.seen);
    // A run in which something never happened has tested less than it says.
    for kind in ["Granted", "Queued", "Busy", "Stale", "Renewed", "Stopping", "Released", "Told", "NotHeld"] {
        assert!(twins.seen.contains_key(kind), "no {kind} in {requests} requests");
    }
    let together = twins.seen.get("together").copied().unwrap_or_default();
    assert!(together >= requests / 50, "only {together} of {requests} requests travelled together");
    for kind in ["message Granted", "message Head", "message Stop", "not reached"] {
        assert!(twins.seen.contains_key(kind), "no {kind} in {requests} requests");
    }
}

/// Type and PTTL of a lock, its queue, its places, and the counter.
type State = (String, i64, Vec<(String, u64)>, HashMap<String, String>, Option<u64>);

/// A ledger and a server that are told the same.
struct Twins {
    clock: FrozenClock,
    now_us: u64,
    ledgers: Vec<Ledger<Queue>>,
    /// The largest token of each counter.
    last: HashMap<&'static str, tenure_core::Token>,

    raw: MultiplexedConnection,
    /// Two processes that listen. Others don't.
    engines: [Arc<RedisEngine>; 2],
    inboxes: [Arc<Mutex<Vec<Letter>>>; 2],
    owners: Vec<Owner>,
    attempts: u32,

    random: Random,
    seed: u64,
    /// What happened to each lock lately.
    histories: Vec<VecDeque<String>>,
    seen: BTreeMap<String, u64>,
    _server: RedisServer,
}

impl Twins {
    async fn new(seed: u64) -> Self {
        let now_us = 1_800_000_000_000_000;
        let clock = FrozenClock::new(now_us);
        let server = RedisServer::with(clock.over(Options::default()));
        let client = redis::Client::open(server.url()).unwrap();
        let raw = client.get_multiplexed_async_connection().await.unwrap();
        let engines = [
            RedisEngine::connect(&server.url()).await.unwrap(),
            RedisEngine::connect(&server.url()).await.unwrap(),
        ];
        let inboxes: [Arc<Mutex<Vec<Letter>>>; 2] = Default::default();
        for (engine, inbox) in engines.iter().zip(&inboxes) {
            let inbox = inbox.clone();
            engine.listen(Arc::new(move |letter| inbox.lock().unwrap().push(letter)));
        }
        let mut random = Random(seed);
        let processes =
            [engines[0].process(), engines[1].process(), ProcessId(random.next()), ProcessId(random.next())];
        let owners = (0..12)
            .map(|i| Owner {
                holder: HolderId { process: processes[i % 4], serial: i as u32 },
                secret: u128::from(random.next()),
            })
            .collect();
        Self {
            clock,
            now_us,
            ledgers: vec![Ledger::default(); LOCKS.len()],
            last: HashMap::new(),
            raw,
            engines,
            inboxes,
            owners,
            attempts: 0,
            random,
            seed,
            histories: vec![VecDeque::new(); LOCKS.len()],
            seen: BTreeMap::new(),
            _server: server,
        }
    }

    fn now(&self) -> Now {
        Now { lease: Moment(self.now_us / 1000), wall_us: self.now_us }
    }

    async fn step(&mut self, at: u64) {
        self.pass_time();
        let lock = self.random.below(LOCKS.len() as u64) as usize;
        if self.random.chance(4) {
            return self.interfere(at, lock).await;
        }
        if self.random.chance(1) {
            // An acquisition is over, another one begins: a fresh secret, as in life.
            let which = self.random.below(self.owners.len() as u64) as usize;
            self.owners[which].secret = u128::from(self.random.next()) << 64 | u128::from(self.random.next());
        }
        if self.random.chance(12) {
            return self.step_together(at).await;
        }
        let request = self.request(lock);
        self.remember(lock, at, &format!("{request:?}"));

        let (expected, letters) = self.ask_ledger(lock, &request);
        let name = Name::new(LOCKS[lock][0]).unwrap();
        let through = self.random.below(2) as usize;
        let reply = Engine::call(&*self.engines[through], &name, &request, LIMIT).await;
        let reply = reply.unwrap_or_else(|fault| self.fail(lock, &format!("no reply: {fault}")));
        // The other process hears what was sent to it before it hears this answer.
        let other = &self.engines[1 - through];
        Engine::card(&**other, other.process()).await.unwrap();

        self.count(&reply);
        self.same(lock, "the reply", &expected, &reply);
        self.remember(lock, at, &format!("  {reply:?}"));
        for (engine, inbox) in self.engines.iter().zip(&self.inboxes) {
            let expected: Vec<_> = letters
                .iter()
                .filter(|letter| letter.owner.holder.process == engine.process())
                .cloned()
                .collect();
            let heard = std::mem::take(&mut *inbox.lock().unwrap());
            self.same(lock, "the messages", &expected, &heard);
        }
        self.ledgers[lock].check();
    }

    /// Asks and releases of one moment, one for each lock, that travel in one call as far as they can.
    async fn step_together(&mut self, at: u64) {
        let first = self.random.below(LOCKS.len() as u64) as usize;
        let mut requests = Vec::new();
        for lock in (first..first + LOCKS.len()).map(|lock| lock % LOCKS.len()) {
            let request = loop {
                match self.request(lock) {
                    Request::Ask { owner, ttl_ms, guard_ms, place_ms, attempt, .. } => {
                        let not_after = None;
                        break Request::Ask { owner, ttl_ms, guard_ms, place_ms, attempt, not_after };
                    }
                    request @ Request::Release { .. } => break request,
                    _ => {}
                }
            };
            self.remember(lock, at, &format!("together: {request:?}"));
            requests.push((lock, request));
        }
        // Company, without which nobody would look for more of it: it has nothing to release.
        let owner = Owner { holder: HolderId { process: ProcessId(0), serial: 0 }, secret: 0 };
        let company =
            (0..COMPANY).map(|i| (Name::new(&format!("company-{i}")).unwrap(), Request::Release { owner }));
        let own =
            requests.iter().map(|(lock, request)| (Name::new(LOCKS[*lock][0]).unwrap(), request.clone()));

        let calls_before = self.script_calls().await;
        let through = self.random.below(2) as usize;
        let mut tasks = tokio::task::JoinSet::new();
        for (i, (name, request)) in company.chain(own).enumerate() {
            let engine = self.engines[through].clone();
            tasks.spawn(async move { (i, Engine::call(&*engine, &name, &request, LIMIT).await) });
        }
        let mut answers = tasks.join_all().await;
        answers.sort_by_key(|(i, _)| *i);
        let replies: Vec<Reply> = answers
            .into_iter()
            .skip(COMPANY)
            .zip(&requests)
            .map(|((_, answer), (lock, _))| {
                answer.unwrap_or_else(|fault| self.fail(*lock, &format!("no reply: {fault}")))
            })
            .collect();
        // One call for all of them, and one for each that was not simple enough.
        let calls = self.script_calls().await - calls_before;
        let rode = ((COMPANY + 1 + requests.len()) as u64).saturating_sub(calls);
        *self.seen.entry("together".to_owned()).or_default() += rode;

        let mut heard = Vec::new();
        for (engine, inbox) in self.engines.iter().zip(&self.inboxes) {
            Engine::card(&**engine, engine.process()).await.unwrap();
            heard.push(std::mem::take(&mut *inbox.lock().unwrap()));
        }
        // Two locks share a counter. Who was not simple enough came after the other one.
        let before = (self.ledgers.clone(), self.last.clone(), self.seen.clone());
        let mut expected = self.ask_ledgers(&requests, false);
        if expected.iter().zip(&replies).any(|((expected, _), reply)| expected != reply)
            || !self.same_letters(&requests, &expected, &heard)
        {
            (self.ledgers, self.last, self.seen) = before;
            expected = self.ask_ledgers(&requests, true);
        }
        for ((lock, _), ((expected, _), reply)) in requests.iter().zip(expected.iter().zip(&replies)) {
            self.count(reply);
            self.same(*lock, "the reply", expected, reply);
            self.remember(*lock, at, &format!("  {reply:?}"));
            self.ledgers[*lock].check();
        }
        if !self.same_letters(&requests, &expected, &heard) {
            let letters: Vec<_> = expected.iter().map(|(_, letters)| letters).collect();
            self.fail(first, &format!("the messages differ\n  ledger: {letters:?}\n  script: {heard:?}"));
        }
    }

    /// What the ledgers say to requests for different locks: in their order, or the other way round.
    fn ask_ledgers(&mut self, requests: &[(usize, Request)], reverse: bool) -> Vec<(Reply, Vec<Letter>)> {
        if !reverse {
            return requests.iter().map(|(lock, request)| self.ask_ledger(*lock, request)).collect();
        }
        let mut expected: Vec<_> =
            requests.iter().rev().map(|(lock, request)| self.ask_ledger(*lock, request)).collect();
        expected.reverse();
        expected
    }

    /// Each process has heard of each lock what the ledger says, in its order, and nothing else.
    fn same_letters(
        &self,
        requests: &[(usize, Request)],
        expected: &[(Reply, Vec<Letter>)],
        heard: &[Vec<Letter>],
    ) -> bool {
        self.engines.iter().zip(heard).all(|(engine, heard)| {
            requests.iter().zip(expected).all(|((lock, _), (_, letters))| {
                let expected =
                    letters.iter().filter(|letter| letter.owner.holder.process == engine.process());
                expected.eq(heard.iter().filter(|letter| letter.name.as_str() == LOCKS[*lock][0]))
            })
        })
    }

    async fn script_calls(&mut self) -> u64 {
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut self.raw).await.unwrap();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }

    /// Time stands still, creeps, jumps, or goes to the very last moment of something.
    fn pass_time(&mut self) {
        let random = &mut self.random;
        self.now_us += match random.below(100) {
            0..40 => 0,
            40..70 => random.below(1000),
            70..88 => random.below(50_000),
            88..95 => random.below(2_000_000),
            95 => random.below(60_000_000),
            _ => {
                let mut ends = Vec::new();
                for ledger in &self.ledgers {
                    ends.extend(ledger.places.places.iter().map(|place| place.until));
                    ends.extend(ledger.places.ends);
                    ends.extend(match &ledger.occupant {
                        Some(Occupant::Ours(hold)) => Some(hold.ends),
                        Some(Occupant::Foreign { ends }) => *ends,
                        None => None,
                    });
                }
                ends.retain(|end| *end >= Moment(self.now_us / 1000));
                match ends.get(random.below(ends.len().max(1) as u64) as usize) {
                    // The last moment, the first one after it, or somewhere in the last.
                    Some(end) => {
                        let us = (end.0 + random.below(2)) * 1000 + random.below(2) * 999;
                        us.saturating_sub(self.now_us)
                    }
                    None => 0,
                }
            }
        };
        self.clock.set(self.now_us);
        let now = self.now().lease;
        for ledger in &mut self.ledgers {
            if ledger.places.ends.is_some_and(|ends| now > ends) {
                ledger.places = Queue::default();
            }
        }
    }

    fn request(&mut self, lock: usize) -> Request {
        let random = &mut self.random;
        let ledger = &self.ledgers[lock];
        // Whoever holds or waits has more to say than others.
        let anybody = self.owners[random.below(self.owners.len() as u64) as usize];
        let waiter =
            ledger.places.after(random.below(ledger.places.len() as u64 + 1)).map(|place| place.owner);
        let owner = match (random.below(4), &ledger.occupant) {
            (0 | 1, Some(Occupant::Ours(hold))) => hold.owner,
            (2, _) => waiter.unwrap_or(anybody),
            _ => anybody,
        };
        let ttl_ms = [100, 1000, 5000, 30_000][random.below(4) as usize] + random.below(3);
        let guard_ms = match random.below(4) {
            // The same sum in other parts: the end of the hold stays, what it is made of would not.
            0 => 31_003 - ttl_ms,
            1 => random.below(3000),
            _ => 0,
        } + 1;
        match random.below(100) {
            0..60 => {
                let owner = if random.chance(70) { anybody } else { owner };
                self.attempts += 1;
                let now = Moment(self.now_us / 1000);
                Request::Ask {
                    owner,
                    ttl_ms,
                    guard_ms,
                    place_ms: [0, 50, 1000, 30_000, 30_000][random.below(5) as usize],
                    attempt: Attempt(self.attempts),
                    not_after: match random.below(20) {
                        0 => Some(now.minus(1)),
                        1 => Some(now),
                        2..6 => Some(Moment::NEVER),
                        6..10 => Some(now.plus(5000)),
                        // The engine says it: whatever the clock did meanwhile, the ask is carried out.
                        _ => None,
                    },
                }
            }
            60..75 => Request::Renew { owner, ttl_ms, guard_ms },
            75..95 => Request::Release { owner },
            _ => Request::Stop {
                holder: owner.holder,
                by: ["", "ann", "b:o:b", "%d+ \u{fc} \"x\""][random.below(4) as usize].to_owned(),
            },
        }
    }

    fn ask_ledger(&mut self, lock: usize, request: &Request) -> (Reply, Vec<Letter>) {
        let now = self.now();
        let [name, .., counter] = LOCKS[lock];
        let mut witness = Ears {
            name: Name::new(name).unwrap(),
            listening: self.engines.each_ref().map(|engine| engine.process()),
            letters: Vec::new(),
            missed: 0,
        };
        let ledger = &mut self.ledgers[lock];
        ledger.last = self.last.get(counter).copied().unwrap_or_default();
        let reply = ledger.apply(now, request, &mut witness);
        self.last.insert(counter, ledger.last);
        if let (Request::Ask { place_ms, .. }, Reply::Queued { .. }) = (request, &reply) {
            let queue = &mut ledger.places;
            queue.ends = queue.ends.max(Some(now.lease.plus(place_ms + SLACK_MS)));
        }
        for letter in &witness.letters {
            let kind = format!("{:?}", letter.message);
            let kind = kind.split([' ', '(']).next().unwrap_or_default();
            *self.seen.entry(format!("message {kind}")).or_default() += 1;
        }
        *self.seen.entry("not reached".to_owned()).or_default() += witness.missed;
        (reply, witness.letters)
    }

    /// Somebody who does not speak Tenure works on the same key.
    async fn interfere(&mut self, at: u64, lock: usize) {
        let key = LOCKS[lock][0];
        let ms = 1 + self.random.below(20_000);
        let ends = Some(self.now().lease.plus(ms));
        let mut commands = redis::pipe();
        let occupant = match self.random.below(8) {
            0 | 1 => {
                commands.cmd("SET").arg(key).arg("theirs").arg("PX").arg(ms);
                Some(Occupant::Foreign { ends })
            }
            2 => {
                commands.cmd("SET").arg(key).arg("9999999999999-looks-like-ours:1:2:3:4").arg("PX").arg(ms);
                Some(Occupant::Foreign { ends })
            }
            3 => {
                commands.cmd("SET").arg(key).arg("9".repeat(1000)).arg("PX").arg(ms);
                Some(Occupant::Foreign { ends })
            }
            4 => {
                commands.cmd("DEL").arg(key).cmd("HSET").arg(key).arg("field").arg(1);
                commands.cmd("PEXPIRE").arg(key).arg(ms);
                Some(Occupant::Foreign { ends })
            }
            5 => {
                // No end: somebody else has to take it away, with a chance of one in eight each time.
                commands.cmd("DEL").arg(key).cmd("RPUSH").arg(key).arg(1);
                Some(Occupant::Foreign { ends: None })
            }
            6 => {
                commands.cmd("DEL").arg(key);
                None
            }
            _ => {
                for lock in 0..LOCKS.len() {
                    self.ledgers[lock] = Ledger::default();
                }
                self.last.clear();
                (0..LOCKS.len()).for_each(|lock| self.remember(lock, at, "everything is gone"));
                commands.cmd("FLUSHALL");
                None
            }
        };
        self.remember(lock, at, &format!("a stranger: {occupant:?}"));
        self.ledgers[lock].occupant = occupant;
        let _: Vec<redis::Value> = commands.query_async(&mut self.raw).await.unwrap();
    }

    async fn compare_state(&mut self) {
        let now = self.now();
        for (lock, [key, queue, places, counter]) in LOCKS.into_iter().enumerate() {
            let ledger = self.ledgers[lock].clone();
            let (kind, pttl, queued, places, last): State = redis::pipe()
                .cmd("TYPE")
                .arg(key)
                .cmd("PTTL")
                .arg(key)
                .cmd("ZRANGE")
                .arg(queue)
                .arg(0)
                .arg(-1)
                .arg("WITHSCORES")
                .cmd("HGETALL")
                .arg(places)
                .cmd("GET")
                .arg(counter)
                .query_async(&mut self.raw)
                .await
                .unwrap();
            let living = |ends: Moment| (now.lease <= ends).then(|| ends.since(now.lease).cast_signed());
            let (expected, expected_pttl) = match &ledger.occupant {
                Some(Occupant::Ours(hold)) => (
                    living(hold.ends).map(|_| {
                        let stop = hold.stop.as_ref().map(|by| format!(":{by}")).unwrap_or_default();
                        format!("{}:1:{}:{}:{}{stop}", hold.owner, hold.token, hold.ttl_ms, hold.guard_ms)
                    }),
                    living(hold.ends).unwrap_or(-2),
                ),
                Some(Occupant::Foreign { ends: Some(ends) }) => (None, living(*ends).unwrap_or(-2)),
                Some(Occupant::Foreign { ends: None }) => (None, -1),
                None => (None, -2),
            };
            self.same(lock, "the rest of the lock's life", &expected_pttl, &pttl);
            if let Some(expected) = expected {
                let value: String = redis::cmd("GET").arg(key).query_async(&mut self.raw).await.unwrap();
                self.same(lock, "the lock's value", &expected, &value);
            }
            if pttl == -2 {
                self.same(lock, "the lock's type", &"none".to_owned(), &kind);
            }
            let expected: Vec<_> =
                ledger.places.places.iter().map(|place| (place.owner.to_string(), place.seq)).collect();
            self.same(lock, "the queue", &expected, &queued);
            let expected: HashMap<_, _> = ledger
                .places
                .places
                .iter()
                .map(|place| {
                    let Place { until, attempt, guard_ms, .. } = place;
                    (place.owner.to_string(), format!("1:{}:{}:{guard_ms}", until.0, attempt.0))
                })
                .collect();
            self.same(lock, "the places", &expected, &places);
            let expected = self.last.get(counter).map(|last| last.0).filter(|last| *last > 0);
            self.same(lock, "the counter", &expected, &last);

            let mut fresh = ledger.clone();
            if expected_pttl == -2 {
                fresh.occupant = None;
            }
            let mut witness = Ears::deaf(key);
            let expected = fresh.snapshot(now, 100, &mut witness);
            let name = Name::new(key).unwrap();
            let look = Engine::look(&*self.engines[0], &name).await.unwrap();
            self.same(lock, "the look", &expected, &look.snapshot);
        }
    }

    fn remember(&mut self, lock: usize, at: u64, what: &str) {
        let history = &mut self.histories[lock];
        if history.len() == 60 {
            history.pop_front();
        }
        history.push_back(format!("{at}: at {} us: {what}", self.now_us));
    }

    fn count(&mut self, reply: &Reply) {
        let kind = format!("{reply:?}");
        let kind = kind.split([' ', '(']).next().unwrap_or_default();
        *self.seen.entry(kind.to_owned()).or_default() += 1;
    }

    fn same<T: PartialEq + Debug>(&self, lock: usize, what: &str, ledger: &T, script: &T) {
        if ledger != script {
            self.fail(lock, &format!("{what} differs\n  ledger: {ledger:?}\n  script: {script:?}"));
        }
    }

    fn fail(&self, lock: usize, what: &str) -> ! {
        let history: Vec<_> = self.histories[lock].iter().map(String::as_str).collect();
        panic!(
            "{what}\nthe last of lock {}:\n{}\nreplay: TENURE_AGREE_SEED={} cargo test -p tenure-conformance --test \
             agrees",
            LOCKS[lock][0],
            history.join("\n"),
            self.seed
        );
    }
}

/// A queue that goes away by itself some time after its last place, as its keys in the store do.
#[derive(Clone, Default)]
struct Queue {
    places: Vec<Place>,
    ends: Option<Moment>,
}

impl Places for Queue {
    fn after(&self, seq: u64) -> Option<Place> {
        self.places.after(seq)
    }

    fn last(&self) -> Option<Place> {
        Places::last(&self.places)
    }

    fn find(&self, owner: &Owner) -> Option<Place> {
        self.places.find(owner)
    }

    fn put(&mut self, place: Place) {
        self.places.put(place);
    }

    fn remove(&mut self, place: &Place) {
        Places::remove(&mut self.places, place);
        if self.places.is_empty() {
            self.ends = None;
        }
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

/// Who hears what the ledger says.
struct Ears {
    name: Name,
    listening: [ProcessId; 2],
    letters: Vec<Letter>,
    missed: u64,
}

impl Ears {
    fn deaf(name: &str) -> Self {
        Self { name: Name::new(name).unwrap(), listening: [ProcessId(0); 2], letters: Vec::new(), missed: 0 }
    }
}

impl Witness for Ears {
    fn sees(&mut self, _: &Owner) -> Sight {
        Sight::Unknown
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let hears = self.listening.contains(&owner.holder.process);
        if hears {
            self.letters.push(Letter { name: self.name.clone(), owner: *owner, message });
        } else {
            self.missed += 1;
        }
        hears
    }
}

/// splitmix64, Steele, Lea, Flood 2014: the same requests for the same seed, everywhere and always.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
