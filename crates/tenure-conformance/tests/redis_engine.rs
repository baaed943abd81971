//! The Redis engine against real servers, sound and broken: what the list of cases for every engine does not know.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_conformance::proxy::{FaultProxy, Once, Way};
use tenure_conformance::server::{Options, RedisServer, free_port};
use tenure_core::{Attempt, HolderId, Message, Moment, Name, Owner, Reply, Request, Standing};
use tenure_engine::{
    Answer, Card, CardHold, Engine, Fault, FaultKind, Letter, boottime, random_owner, random_process,
};
use tenure_redis::RedisEngine;

const LIMIT: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(5);

/// An engine, what it has heard, and short words for requests.
struct Client {
    engine: Arc<RedisEngine>,
    letters: Arc<Mutex<Vec<Letter>>>,
}

impl Client {
    async fn new(url: &str) -> Self {
        let engine = RedisEngine::connect(url).await.unwrap_or_else(|fault| panic!("{fault}"));
        let letters = Arc::new(Mutex::new(Vec::new()));
        let ear = letters.clone();
        engine.listen(Arc::new(move |letter| ear.lock().unwrap().push(letter)));
        Self { engine, letters }
    }

    fn owner(&self, serial: u32) -> Owner {
        random_owner(HolderId { process: self.engine.process(), serial })
    }

    async fn call(&self, name: &Name, request: Request) -> Answer {
        Engine::call(&*self.engine, name, &request, LIMIT).await
    }

    async fn ask(&self, name: &Name, owner: Owner, place_ms: u64) -> Answer {
        self.call(name, ask(owner, place_ms)).await
    }

    async fn heard(&self, wanted: impl Fn(&Message) -> bool) -> Letter {
        let begun = Instant::now();
        loop {
            let found = self.letters.lock().unwrap().iter().find(|letter| wanted(&letter.message)).cloned();
            if let Some(letter) = found {
                return letter;
            }
            assert!(begun.elapsed() < SOON, "heard only {:?}", self.letters.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn ask(owner: Owner, place_ms: u64) -> Request {
    Request::Ask { owner, ttl_ms: 10_000, guard_ms: 1000, place_ms, attempt: Attempt(1), not_after: None }
}

fn renew(owner: Owner, ttl_ms: u64) -> Request {
    Request::Renew { owner, ttl_ms, guard_ms: 1000 }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn granted(answer: &Answer) -> bool {
    matches!(answer, Ok(Reply::Granted { .. }))
}

fn fault(answer: Answer, kind: FaultKind, says: &str) -> Fault {
    let fault = answer.expect_err("no reply");
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.to_string().contains(says), "{fault}");
    fault
}

#[tokio::test]
async fn a_lock_is_a_plain_string_and_a_free_one_is_nothing() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, owner) = (name("orders:42"), client.owner(1));
    let Ok(Reply::Granted { token }) = client.ask(&lock, owner, 0).await else { panic!("it is free") };
    assert_eq!(server.command(&["TYPE", "orders:42"]), "+string\r\n");
    let value = format!("{owner}:1:{token}:10000:1000");
    assert_eq!(server.command(&["GET", "orders:42"]), format!("${}\r\n{value}\r\n", value.len()));
    assert_eq!(server.command(&["SET", "orders:42", "theirs", "NX", "PX", "1000"]), "$-1\r\n");
    assert_eq!(
        client.ask(&lock, owner, 0).await.unwrap(),
        Reply::Granted { token },
        "the same, however often"
    );
    assert_eq!(client.call(&lock, Request::Release { owner }).await.unwrap(), Reply::Released);
    assert_eq!(server.command(&["DBSIZE"]), ":1\r\n", "the counter of the slot");
}

#[tokio::test]
async fn a_prefix_keeps_locks_apart() {
    let server = RedisServer::start();
    let plain = Client::new(&server.url()).await;
    let app = Client::new(&format!("{}?prefix=app:", server.url())).await;
    let lock = name("x");
    assert!(granted(&plain.ask(&lock, plain.owner(1), 0).await));
    let holder = app.owner(1);
    assert!(granted(&app.ask(&lock, holder, 0).await));
    assert_eq!(server.command(&["EXISTS", "app:x"]), ":1\r\n");
    // Messages name the lock as its user does.
    let waiter = app.owner(2);
    app.ask(&lock, waiter, 30_000).await.unwrap();
    app.call(&lock, Request::Release { owner: holder }).await.unwrap();
    let letter = app.heard(|message| matches!(message, Message::Granted { .. })).await;
    assert_eq!((letter.name, letter.owner), (lock, waiter));
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let owner = client.owner(1);
    let lock = name("x");
    server.command(&["SCRIPT", "FLUSH"]);
    assert!(granted(&client.ask(&lock, owner, 0).await));
    server.command(&["SCRIPT", "FLUSH"]);
    let calls = [(lock.clone(), renew(owner, 5000)), (lock.clone(), Request::Release { owner })];
    let answers = Engine::call_many(&*client.engine, &calls, LIMIT).await;
    assert!(matches!(answers[..], [Ok(Reply::Renewed), Ok(Reply::Released)]), "{answers:?}");
    server.command(&["SCRIPT", "FLUSH"]);
    assert!(Engine::look(&*client.engine, &lock).await.unwrap().snapshot.standing.is_none());
}

#[tokio::test]
async fn many_requests_are_answered_in_their_order() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let owner = client.owner(1);
    let calls = [
        (name("a"), ask(owner, 0)),
        (name("a"), ask(client.owner(2), 0)),
        (name("a"), Request::Stop { holder: owner.holder, by: "x\ny".into() }),
        (name("a"), renew(owner, 5000)),
        (name("a"), Request::Release { owner }),
        (name("a"), Request::Release { owner }),
    ];
    let answers = Engine::call_many(&*client.engine, &calls, LIMIT).await;
    let [
        Ok(Reply::Granted { .. }),
        Ok(Reply::Busy { standing: Some(standing) }),
        Err(bad),
        Ok(Reply::Renewed),
        Ok(Reply::Released),
        Ok(Reply::NotHeld),
    ] = &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_eq!(standing.holder, Some(owner.holder));
    assert_eq!(bad.kind, FaultKind::Refused, "{bad}");
}

/// What many tasks ask in the same moment.
async fn all_at_once(client: &Client, requests: Vec<(Name, Request)>) -> Vec<Answer> {
    let mut tasks = tokio::task::JoinSet::new();
    for (at, (name, request)) in requests.into_iter().enumerate() {
        let engine = client.engine.clone();
        tasks.spawn(async move { (at, Engine::call(&*engine, &name, &request, LIMIT).await) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[tokio::test]
async fn requests_of_one_moment_travel_together_and_each_gets_its_own_answer() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let locks: Vec<Name> = (0..40).map(|number| name(&format!("lock-{number}"))).collect();
    let owners: Vec<Owner> = (0..40).map(|serial| client.owner(serial)).collect();
    server.command(&["SET", "lock-7", "theirs"]);
    server.command(&["HSET", "lock-8", "uuid:1", "1"]);
    let other = client.owner(99);
    assert!(granted(&client.ask(&locks[9], other, 0).await));
    for round in 0..3 {
        if round == 1 {
            server.command(&["SCRIPT", "FLUSH"]);
        }
        server.command(&["CONFIG", "RESETSTAT"]);
        let asks = locks.iter().cloned().zip(owners.iter().map(|owner| ask(*owner, 0))).collect();
        for (at, answer) in all_at_once(&client, asks).await.into_iter().enumerate() {
            match (at, answer.unwrap()) {
                (7 | 8, Reply::Busy { standing: Some(standing) }) => assert_eq!(standing.holder, None),
                (9, Reply::Busy { standing: Some(standing) }) => {
                    assert_eq!(standing.holder, Some(other.holder));
                }
                (0..7 | 10..40, Reply::Granted { token }) => {
                    let value = server.command(&["GET", locks[at].as_str()]);
                    assert!(value.contains(&format!("{}:1:{token}:10000:1000", owners[at])), "{value}");
                }
                (at, answer) => panic!("{at}: {answer:?}"),
            }
        }
        // Once more, by the same owners: nothing changes, and nobody else gets in.
        let again = locks.iter().cloned().zip(owners.iter().map(|owner| ask(*owner, 0))).collect();
        assert_eq!(all_at_once(&client, again).await.iter().filter(|answer| granted(answer)).count(), 37);
        let release = |owner: &Owner| Request::Release { owner: *owner };
        let releases = locks.iter().cloned().zip(owners.iter().map(release)).collect();
        let released = all_at_once(&client, releases).await;
        assert_eq!(released.iter().filter(|answer| matches!(answer, Ok(Reply::Released))).count(), 37);
        let stats = server.command(&["INFO", "commandstats"]);
        let calls =
            stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        assert!(round == 1 || calls.parse::<u32>().unwrap() < 80, "{calls} calls for 120 requests");
    }
    let waiter = client.owner(50);
    assert!(matches!(client.ask(&locks[9], waiter, 30_000).await, Ok(Reply::Queued { head: true, .. })));
    // A release among many hands the lock over as well.
    let mut mixed: Vec<(Name, Request)> =
        locks[10..30].iter().cloned().zip(owners[10..30].iter().map(|owner| ask(*owner, 0))).collect();
    mixed.push((locks[9].clone(), Request::Release { owner: other }));
    assert!(matches!(all_at_once(&client, mixed).await.pop(), Some(Ok(Reply::Released))));
    let letter = client.heard(|message| matches!(message, Message::Granted { .. })).await;
    assert_eq!((letter.owner, letter.name), (waiter, locks[9].clone()));
}

/// Polls futures once, as a runtime does that is about to end.
fn poll_once(futures: &mut [impl Future + Unpin]) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for future in futures {
        assert!(std::pin::Pin::new(future).poll(&mut context).is_pending());
    }
}

#[test]
fn a_runtime_that_ends_holds_up_nobody_on_another() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let server = RedisServer::start();
    let client = first.block_on(Client::new(&server.url()));
    let asks = |serials: std::ops::Range<u32>| -> Vec<(Name, Request)> {
        serials.map(|serial| (name(&format!("lock-{serial}")), ask(client.owner(serial), 0))).collect()
    };
    let some = asks(0..10);
    second.block_on(async {
        let call = |(name, request)| Engine::call(&*client.engine, name, request, LIMIT);
        poll_once(&mut some.iter().map(|(name, request)| call((name, request))).collect::<Vec<_>>());
    });
    drop(second);
    let answers =
        first.block_on(async { tokio::time::timeout(2 * LIMIT, all_at_once(&client, asks(10..30))).await });
    assert!(answers.expect("within their limit").iter().all(granted));

    // The engine's own runtime is gone: nothing works any more, but everybody hears of it.
    drop(first);
    let answers = runtime()
        .block_on(async { tokio::time::timeout(2 * LIMIT, all_at_once(&client, asks(30..50))).await });
    assert!(answers.expect("within their limit").iter().all(Result::is_err));
}

#[tokio::test]
async fn an_ask_that_was_cancelled_is_not_heard_after_its_release() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let client = Client::new(&proxy.url()).await;
    server.command(&["SCRIPT", "FLUSH"]);
    let asks: Vec<_> =
        (0..10).map(|serial| (name(&format!("lock-{serial}")), ask(client.owner(serial), 0))).collect();
    proxy.down(Way::Slow(Duration::from_millis(200)));
    let mut calls: Vec<_> =
        asks.iter().map(|(name, request)| Engine::call(&*client.engine, name, request, LIMIT)).collect();
    poll_once(&mut calls);
    // Before it is known here that the server had forgotten the scripts, they leave, and somebody brings them back.
    tokio::time::sleep(Duration::from_millis(50)).await;
    Client::new(&server.url()).await;
    drop(calls);
    let releases = asks.iter().map(|(name, request)| match request {
        Request::Ask { owner, .. } => (name.clone(), Request::Release { owner: *owner }),
        _ => unreachable!(),
    });
    let released = Engine::call_many(&*client.engine, &releases.collect::<Vec<_>>(), LIMIT).await;
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let locks: Vec<&str> = asks.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        server.command(&[&["EXISTS"], &locks[..]].concat()),
        ":0\r\n",
        "nobody is left to release them"
    );
}

#[tokio::test]
async fn how_late_an_ask_may_be_counts_from_the_call() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let asks: Vec<_> =
        (0..10).map(|serial| (name(&format!("lock-{serial}")), ask(client.owner(serial), 0))).collect();
    let limit = Duration::from_secs(10);
    let mut calls: Vec<_> =
        asks.iter().map(|(name, request)| Engine::call(&*client.engine, name, request, limit)).collect();
    let many = Engine::call_many(&*client.engine, &asks, limit);
    poll_once(&mut calls[..4]);
    // The whole process stands still, as on a machine that is suspended.
    std::thread::sleep(Duration::from_millis(5100));
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await);
    }
    answers.extend(many.await);
    // What was handed to the server at once was in time or not, as the server saw it.
    for answer in &answers[3..] {
        assert!(matches!(answer, Ok(Reply::Stale)), "{answers:?}");
    }
}

#[tokio::test]
async fn a_connection_is_never_used_again_after_a_time_out() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let client = Client::new(&proxy.url()).await;
    proxy.down(Way::Slow(Duration::from_millis(200)));
    let (busy, lock) = (name("busy"), name("x"));
    let other = {
        let (engine, busy, request) = (client.engine.clone(), busy.clone(), ask(client.owner(1), 0));
        tokio::spawn(async move { Engine::call(&*engine, &busy, &request, LIMIT).await })
    };
    tokio::time::sleep(Duration::from_millis(150)).await;
    // Something else arrives on it meanwhile, and yet: what timed out ends it.
    let owner = client.owner(50);
    let answer = Engine::call(&*client.engine, &lock, &ask(owner, 0), Duration::from_millis(60)).await;
    fault(answer, FaultKind::Unknown, "given up");
    assert!(granted(&other.await.unwrap()));
    assert_eq!(client.call(&lock, Request::Release { owner }).await.unwrap(), Reply::Released);
    assert_eq!(proxy.counters().connections, 2);
}

#[tokio::test]
async fn the_script_for_many_takes_no_other_words() {
    let server = RedisServer::start();
    let text = include_str!("../../tenure-redis/scripts/together.lua");
    let late = "9999999999999999";
    let carry = |word: &str| {
        server.command(&["EVAL", text, "3", "x", "q", "c", word, "owner", late, ":10000:1000", "11000"])
    };
    for word in ["renew", "Ask", "", "ask "] {
        assert!(carry(word).starts_with("-ERR together"), "{word}");
        assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n", "{word}");
    }
    assert!(carry("ask").starts_with("*1\r\n$16"));
}

#[tokio::test]
async fn whatever_lies_under_the_name_is_a_holder_and_stays_as_it_is() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let lock = name("x");
    let make: [(&[&str], &str); 6] = [
        (&["SET", "x", "theirs"], "string of 6 bytes"),
        (&["SET", "x", ""], "string of 0 bytes"),
        (&["HSET", "x", "uuid:1", "1"], "hash"),
        (&["ZADD", "x", "1", "token"], "zset"),
        (&["RPUSH", "x", "1"], "list"),
        (&["XADD", "x", "*", "a", "b"], "stream"),
    ];
    for (words, described) in make {
        for expires in [false, true] {
            server.command(&["DEL", "x"]);
            server.command(words);
            if expires {
                server.command(&["PEXPIRE", "x", "60000"]);
            }
            let before = server.command(&["DUMP", "x"]);
            let owner = client.owner(1);
            let Ok(Reply::Busy { standing: Some(standing) }) = client.ask(&lock, owner, 0).await else {
                panic!("{words:?}")
            };
            let Standing { holder, token, free_in_ms, quiet, .. } = standing;
            assert!(holder.is_none() && token.is_none() && quiet, "{standing:?}");
            assert_eq!(free_in_ms.is_some_and(|ms| ms > 50_000), expires, "{standing:?}");
            assert!(matches!(client.ask(&lock, owner, 30_000).await, Ok(Reply::Queued { head: true, .. })));
            assert_eq!(client.call(&lock, renew(owner, 5000)).await.unwrap(), Reply::NotHeld);
            let stop = Request::Stop { holder: owner.holder, by: "me".into() };
            assert_eq!(client.call(&lock, stop).await.unwrap(), Reply::NotHeld);
            let look = Engine::look(&*client.engine, &lock).await.unwrap();
            assert_eq!(look.foreign.as_deref(), Some(described));
            assert_eq!(look.snapshot.waiting, 1);
            assert_eq!(client.call(&lock, Request::Release { owner }).await.unwrap(), Reply::Released);
            assert_eq!(client.call(&lock, Request::Release { owner }).await.unwrap(), Reply::NotHeld);
            assert_eq!(server.command(&["DUMP", "x"]), before, "{words:?}");
        }
    }
}

#[tokio::test]
async fn another_format_is_refused_and_never_guessed_at() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, other, owner) = (name("x"), client.owner(7), client.owner(1));
    server.command(&["SET", "x", &format!("{other}:2:something:else"), "PX", "60000"]);
    let stop = Request::Stop { holder: other.holder, by: "me".into() };
    for request in [ask(owner, 0), ask(owner, 1000), renew(owner, 5000), Request::Release { owner }, stop] {
        fault(client.call(&lock, request).await, FaultKind::Refused, "another format (2)");
    }
    let look = Engine::look(&*client.engine, &lock).await.expect_err("not to be read");
    assert!(look.to_string().contains("another format (2)"), "{look}");
    // A place of another format before ours.
    server.command(&["DEL", "x"]);
    server.command(&["ZADD", "tenure:b:q:{x}", "1", &other.to_string()]);
    server.command(&["HSET", "tenure:b:w:{x}", &other.to_string(), "3:later"]);
    fault(client.ask(&lock, owner, 0).await, FaultKind::Refused, "another format (3)");
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
}

#[tokio::test]
async fn a_stop_with_wild_characters_arrives_as_it_was() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, owner) = (name("%d+.*{x}:"), client.owner(1));
    client.ask(&lock, owner, 0).await.unwrap();
    let by = "ann:\u{fc} %1 \"'\\".to_owned();
    let stop = Request::Stop { holder: owner.holder, by: by.clone() };
    assert_eq!(client.call(&lock, stop).await.unwrap(), Reply::Told { reached: true });
    let letter = client.heard(|message| matches!(message, Message::Stop { .. })).await;
    assert_eq!(letter.message, Message::Stop { by: by.clone() });
    assert_eq!(client.call(&lock, renew(owner, 5000)).await.unwrap(), Reply::Stopping { by });
}

#[tokio::test]
async fn with_full_memory_holders_still_renew_and_release() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let client = Client::new(&server.url()).await;
    let other = Client::new(&server.url()).await;
    let (lock, owner, waiter) = (name("x"), client.owner(1), other.owner(1));
    client.ask(&lock, owner, 0).await.unwrap();
    assert!(matches!(other.ask(&lock, waiter, 30_000).await, Ok(Reply::Queued { .. })));
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);

    let full = fault(client.ask(&name("y"), client.owner(2), 0).await, FaultKind::NotRun, "OOM");
    assert!(full.hint.contains("maxmemory"), "{full}");
    assert_eq!(client.call(&lock, renew(owner, 10_000)).await.unwrap(), Reply::Renewed);
    assert_eq!(
        client.call(&lock, renew(owner, 20_000)).await.unwrap(),
        Reply::Renewed,
        "longer: a new value"
    );
    assert_eq!(client.call(&lock, Request::Release { owner }).await.unwrap(), Reply::Released);
    other.heard(|message| matches!(message, Message::Granted { .. })).await;
    assert_eq!(other.call(&lock, renew(waiter, 10_000)).await.unwrap(), Reply::Renewed);
    assert_eq!(other.call(&lock, Request::Release { owner: waiter }).await.unwrap(), Reply::Released);
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
}

#[tokio::test]
async fn a_replica_is_refused_at_the_door_and_later() {
    let primary = RedisServer::start();
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let primary_port = primary.port().to_string();
    server.command(&["REPLICAOF", "127.0.0.1", &primary_port]);
    let readonly = fault(client.ask(&name("x"), client.owner(1), 0).await, FaultKind::NotRun, "");
    assert!(readonly.hint.contains("primary"), "{readonly}");
    let door = RedisEngine::connect(&server.url()).await.expect_err("a replica");
    assert_eq!(door.kind, FaultKind::NotRun);
    assert!(door.to_string().contains("replica"), "{door}");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let begun = Instant::now();
    while !granted(&client.ask(&name("x"), client.owner(2), 0).await) {
        assert!(begun.elapsed() < SOON);
    }
}

#[tokio::test]
async fn without_the_right_to_listen_locks_are_polled() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels"]);
    let url = format!("redis://deaf:pw@127.0.0.1:{}", server.port());
    let deaf = Client::new(&url).await;
    let (lock, owner) = (name("x"), deaf.owner(1));
    assert!(granted(&deaf.ask(&lock, owner, 30_000).await));
    let waiter = deaf.owner(2);
    let Ok(Reply::Queued { head: true, standing: Some(standing) }) = deaf.ask(&lock, waiter, 30_000).await
    else {
        panic!("it is taken")
    };
    assert!(standing.quiet, "nobody will say anything");
    assert_eq!(deaf.call(&lock, Request::Release { owner }).await.unwrap(), Reply::Released);
    assert!(granted(&deaf.ask(&lock, waiter, 30_000).await), "who looks, gets it");
}

#[tokio::test]
async fn the_rights_in_the_documentation_are_enough_and_needed() {
    let protocol =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md")).unwrap();
    let rule = protocol
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER locker "))
        .expect("docs/protocol.md has the rule");
    let server = RedisServer::start();
    let mut words = vec!["ACL", "SETUSER", "locker"];
    words.extend(rule.split(' ').map(|word| if word == ">PASSWORD" { ">pw" } else { word }));
    assert_eq!(server.command(&words), "+OK\r\n");
    server.command(&["ACL", "LOG", "RESET"]);
    let url = format!("redis://locker:pw@127.0.0.1:{}?prefix=lock:", server.port());
    let (one, two) = (Client::new(&url).await, Client::new(&url).await);
    let (lock, a, b, c) = (name("x"), one.owner(1), two.owner(1), two.owner(2));
    for _ in 0..2 {
        assert!(granted(&one.ask(&lock, a, 30_000).await));
        two.ask(&lock, b, 30_000).await.unwrap();
        two.ask(&lock, c, 30_000).await.unwrap();
        one.call(&lock, renew(a, 20_000)).await.unwrap();
        one.call(&lock, renew(a, 30_000)).await.unwrap();
        one.call(&lock, Request::Stop { holder: a.holder, by: "me".into() }).await.unwrap();
        one.call(&lock, Request::Release { owner: a }).await.unwrap();
        two.heard(|message| matches!(message, Message::Granted { .. })).await;
        two.heard(|message| matches!(message, Message::Head { .. })).await;
        Engine::look(&*one.engine, &lock).await.unwrap();
        two.call(&lock, Request::Release { owner: c }).await.unwrap();
        two.call(&lock, Request::Release { owner: b }).await.unwrap();
        Engine::post(&*one.engine, &Card { v: 1, ..Card::default() }).await.unwrap();
        Engine::names(&*one.engine).await.unwrap();
        // Without its hash, a script goes by its text.
        server.command(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(server.command(&["ACL", "LOG"]), "*0\r\n", "nothing was denied");
    for key in ["theirs", "other:x"] {
        assert!(server.command(&["ACL", "DRYRUN", "locker", "GET", key]).contains("no permissions"), "{key}");
    }
}

#[tokio::test]
async fn wrong_passwords_are_refused_and_never_shown() {
    const CANARY: &str = "S3CR3T_CANARY";
    let server = RedisServer::with_args(&["--requirepass", "right"]);
    for (login, says) in [
        (format!(":{CANARY}@"), "WRONGPASS"),
        (format!("ann:{CANARY}@"), "WRONGPASS"),
        (String::new(), "NOAUTH"),
    ] {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        let fault = RedisEngine::connect(&url).await.expect_err("wrong");
        assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
        let shown = format!("{fault} {fault:?}");
        assert!(shown.contains(says) && !shown.contains(CANARY), "{shown}");
    }
    let client = Client::new(&format!("redis://:right@127.0.0.1:{}", server.port())).await;
    let shown = format!("{:?} {}", client.engine, Engine::scope(&*client.engine));
    assert!(!shown.contains("right") && shown.contains("redis://127.0.0.1"), "{shown}");
}

#[tokio::test]
async fn what_cannot_be_reached_is_named() {
    let port = free_port();
    let fault =
        RedisEngine::connect(&format!("redis://:pw@127.0.0.1:{port}/0")).await.expect_err("nobody there");
    assert_eq!(fault.kind, FaultKind::NotRun);
    assert!(
        fault
            .to_string()
            .starts_with(&format!("cannot reach redis://127.0.0.1:{port}/0 (connection refused)")),
        "{fault}"
    );
    let fault = RedisEngine::connect("unix:/nowhere/redis.sock").await.expect_err("nobody there");
    assert!(fault.to_string().contains("unix:/nowhere/redis.sock"), "{fault}");
    let server = RedisServer::start();
    let fault =
        RedisEngine::connect(&format!("redis://127.0.0.1:{}/99", server.port())).await.expect_err("no db 99");
    assert!(fault.kind != FaultKind::Unknown, "{fault}");
}

#[tokio::test]
async fn a_silent_server_costs_the_limit_and_the_connection() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, owner) = (name("x"), client.owner(1));
    let limit = Duration::from_millis(300);
    server.stop();
    let begun = Instant::now();
    let answer = Engine::call(&*client.engine, &lock, &ask(owner, 0), limit).await;
    fault(answer, FaultKind::Unknown, "in time");
    assert!(begun.elapsed() < 2 * limit, "{:?}", begun.elapsed());
    // No connection while the server sleeps: nothing was handed over.
    let answer = Engine::call(&*client.engine, &lock, &Request::Release { owner }, limit).await;
    assert_ne!(answer.expect_err("asleep").kind, FaultKind::Refused);
    server.cont();
    // The ask may have run. The release that comes after it finds out, on a new connection.
    let begun = Instant::now();
    let reply = loop {
        match client.call(&lock, Request::Release { owner }).await {
            Ok(reply) => break reply,
            Err(fault) => assert!(begun.elapsed() < SOON, "{fault}"),
        }
    };
    assert!(matches!(reply, Reply::Released | Reply::NotHeld), "{reply:?}");
    let clients = server.command(&["CLIENT", "LIST"]);
    assert_eq!(clients.lines().filter(|line| line.contains("cmd=eval")).count(), 1, "{clients}");
}

#[tokio::test]
async fn an_ask_that_was_stuck_for_too_long_does_nothing() {
    let server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, owner) = (name("x"), client.owner(1));
    let past = Request::Ask {
        owner,
        ttl_ms: 10_000,
        guard_ms: 1000,
        place_ms: 0,
        attempt: Attempt(1),
        not_after: Some(Moment(boottime().0.min(1))),
    };
    assert_eq!(client.call(&lock, past).await.unwrap(), Reply::Stale);
    assert_eq!(server.command(&["DBSIZE"]), ":0\r\n");
}

#[tokio::test]
async fn whoever_waits_looks_again_after_the_connection_was_cut() {
    let mut server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, holder, waiter) = (name("x"), client.owner(1), client.owner(2));
    client.ask(&lock, holder, 0).await.unwrap();
    client.ask(&lock, waiter, 30_000).await.unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let letter = client.heard(|message| *message == Message::Look).await;
    assert_eq!((letter.name, letter.owner), (lock.clone(), waiter));
    // The channel is heard again.
    client.call(&lock, Request::Release { owner: holder }).await.unwrap();
    client.heard(|message| matches!(message, Message::Granted { .. })).await;
    client.call(&lock, Request::Release { owner: waiter }).await.unwrap();

    client.ask(&lock, holder, 0).await.unwrap();
    client.ask(&lock, waiter, 30_000).await.unwrap();
    client.letters.lock().unwrap().clear();
    server.kill();
    server.restart_empty();
    client.heard(|message| *message == Message::Look).await;
    assert!(granted(&client.ask(&lock, waiter, 30_000).await), "the server forgot everything");
}

#[tokio::test]
async fn requests_under_way_at_a_kill_are_unknown_and_later_ones_did_not_run() {
    let mut server = RedisServer::start();
    let client = Client::new(&server.url()).await;
    let (lock, owner) = (name("x"), client.owner(1));
    server.stop();
    let request = ask(owner, 0);
    let under_way = Engine::call(&*client.engine, &lock, &request, SOON);
    let killed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.kill();
    };
    let (answer, ()) = tokio::join!(under_way, killed);
    fault(answer, FaultKind::Unknown, "broke");
    fault(client.ask(&lock, owner, 0).await, FaultKind::NotRun, "connection refused");
    server.restart_empty();
    let begun = Instant::now();
    while !granted(&client.ask(&lock, owner, 0).await) {
        assert!(begun.elapsed() < SOON);
    }
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let server = RedisServer::start();
    let client = Client::new(&format!("unix:{}?db=3", server.unix_path().display())).await;
    let owner = client.owner(1);
    assert!(granted(&client.ask(&name("x"), owner, 0).await));
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n", "another database");
    assert_eq!(client.call(&name("x"), Request::Release { owner }).await.unwrap(), Reply::Released);
}

#[tokio::test]
async fn tls_is_checked_and_used() {
    let dir = tempfile::tempdir().unwrap();
    let openssl = |words: &str| {
        let done = Command::new("openssl").args(words.split(' ')).current_dir(dir.path()).output();
        let done = done.expect("this test needs the program openssl: `apt-get install openssl`");
        assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"));
    openssl(&format!("req -new {key} -keyout server.key -out server.csr -subj /CN=server"));
    std::fs::write(dir.path().join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
    );
    let file = |name: &str| dir.path().join(name).display().to_string();
    let tls_port = free_port();
    let args = [
        "--tls-port".to_owned(),
        tls_port.to_string(),
        "--tls-cert-file".to_owned(),
        file("server.pem"),
        "--tls-key-file".to_owned(),
        file("server.key"),
        "--tls-ca-cert-file".to_owned(),
        file("ca.pem"),
        "--tls-auth-clients".to_owned(),
        "no".to_owned(),
    ];
    let server = RedisServer::with(Options { args: args.to_vec(), ..Options::default() });

    let client = Client::new(&format!("rediss://127.0.0.1:{tls_port}/0?ca={}", file("ca.pem"))).await;
    let (holder, waiter) = (client.owner(1), client.owner(2));
    assert!(granted(&client.ask(&name("x"), holder, 0).await));
    client.ask(&name("x"), waiter, 30_000).await.unwrap();
    client.call(&name("x"), Request::Release { owner: holder }).await.unwrap();
    client.heard(|message| matches!(message, Message::Granted { .. })).await;
    assert_eq!(server.command(&["EXISTS", "x"]), ":1\r\n");

    // Nobody vouches for it.
    let fault =
        RedisEngine::connect(&format!("rediss://127.0.0.1:{tls_port}")).await.expect_err("unknown authority");
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert!(fault.hint.contains("certificate"), "{fault}");
    // A server without TLS is not talked to in the clear.
    let plain = format!("rediss://127.0.0.1:{}?ca={}", server.port(), file("ca.pem"));
    assert!(RedisEngine::connect(&plain).await.is_err());
    // A server with TLS that is talked to in the clear hangs up.
    assert!(RedisEngine::connect(&format!("redis://127.0.0.1:{tls_port}")).await.is_err());
    let fault = RedisEngine::connect("rediss://h?ca=/nowhere.pem").await.expect_err("no such file");
    assert!(fault.to_string().contains("/nowhere.pem"), "{fault}");
}

#[tokio::test]
async fn cards_tell_what_a_process_does() {
    let server = RedisServer::start();
    let (one, two) = (Client::new(&server.url()).await, Client::new(&server.url()).await);
    assert_eq!(Engine::names(&*two.engine).await.unwrap(), []);
    let hold = |name: &str| CardHold {
        name: name.to_owned(),
        holder: "h".into(),
        fence: 1,
        since_ms: 2,
        renewed_ms: 3,
        ttl_ms: 4,
        cmd: None,
        label: None,
    };
    let mut card = Card { v: 1, user: "ann".into(), holds: vec![hold("b"), hold("a")], ..Card::default() };
    Engine::post(&*one.engine, &card).await.unwrap();
    assert_eq!(Engine::names(&*two.engine).await.unwrap(), [name("a"), name("b")]);
    assert_eq!(Engine::card(&*two.engine, one.engine.process()).await.unwrap(), Some(card.clone()));
    assert_eq!(Engine::card(&*two.engine, random_process()).await.unwrap(), None);
    let commands = || {
        let stats = server.command(&["INFO", "commandstats"]);
        stats.lines().find(|line| line.starts_with("cmdstat_zadd")).unwrap_or_default().to_owned()
    };
    let before = commands();
    Engine::post(&*one.engine, &card).await.unwrap();
    assert_eq!(commands(), before, "unchanged and fresh: nothing is sent");
    card.holds.pop();
    Engine::post(&*one.engine, &card).await.unwrap();
    assert_ne!(commands(), before);
    assert_eq!(Engine::names(&*two.engine).await.unwrap(), [name("b")]);
}

#[tokio::test]
async fn a_plain_command_goes_to_the_key_of_its_lock_and_no_further() {
    use tenure_forms::{Command, Reply};
    let server = RedisServer::start();
    let client = Client::new(&format!("{}?prefix=app:", server.url())).await;
    let plain = async |lock: &str, command| {
        Engine::plain(&*client.engine, &name(lock), &command, LIMIT).await.map_err(|fault| fault.to_string())
    };
    let take = |value: &str| Command::SetNx { value: value.to_owned(), ttl: None };
    assert_eq!(plain("x", take("17")).await, Ok(Reply::Yes));
    assert_eq!(plain("x", take("18")).await, Ok(Reply::No));
    assert_eq!(plain("x", Command::Expire { seconds: 60 }).await, Ok(Reply::Yes));
    let swap = Command::GetSet { value: "19".to_owned(), seen: String::new() };
    assert_eq!(plain("x", swap).await, Ok(Reply::Value(Some("17".to_owned()))));
    assert_eq!(server.command(&["GET", "app:x"]), "$2\r\n19\r\n");
    assert_eq!(plain("x", Command::Del).await, Ok(Reply::Yes));
    assert_eq!(plain("x", Command::Get).await, Ok(Reply::Value(None)));

    server.command(&["HSET", "app:y", "field", "1"]);
    assert_eq!(plain("y", take("17")).await, Ok(Reply::No));
    assert_eq!(plain("y", Command::Get).await, Ok(Reply::No), "held, by something else");
    assert_eq!(server.command(&["TYPE", "app:y"]), "+hash\r\n");
}

#[tokio::test]
async fn a_plain_command_without_an_answer_may_have_run() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let client = Client::new(&proxy.url()).await;
    proxy.next(3, Once::CutAfter);
    let take = tenure_forms::Command::SetNx { value: "17".to_owned(), ttl: None };
    let fault =
        Engine::plain(&*client.engine, &name("x"), &take, Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unknown, "{fault}");
    assert_eq!(server.command(&["GET", "x"]), "$2\r\n17\r\n");
}

#[tokio::test]
async fn a_store_of_this_host_takes_no_plain_commands() {
    let engine = tenure_embedded::MemoryEngine::new();
    let get = tenure_forms::Command::Get;
    let fault = Engine::plain(&*engine, &name("x"), &get, LIMIT).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Refused);
    assert!(fault.to_string().contains("Tenure's own protocol only"), "{fault}");
}
