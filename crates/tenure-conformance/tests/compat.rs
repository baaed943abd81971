//! Tenure among programs that take other locks: a client in Perl that knows nothing of Tenure, and the same keys.

use std::time::{Duration, Instant};

use tenure::compat::{Client, Guard, Listing, Lock, Protocol};
use tenure::{AcquireError, Lost, ReleaseError, Released, Retry, WithError};
use tenure_conformance::fleet::{Fleet, Ring};
use tenure_conformance::newer::Newer;
use tenure_conformance::proxy::{FaultProxy, Once, Way};
use tenure_conformance::server::RedisServer;
use tenure_engine::{boottime, unix_ms};

const GETSET: Protocol = Protocol::GetSet(Listing::AsMeant);
const PID_LOCK: Protocol = Protocol::PidLock(Listing::AsMeant);

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(5);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn client(url: &str, protocol: Protocol) -> Client {
    Client::connect(url, protocol).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn lock(server: &RedisServer, protocol: Protocol) -> Lock {
    client(&server.url(), protocol).await.lock("x").ttl(SECOND)
}

/// A length as a client of the fleet takes it.
fn in_its_unit(protocol: Protocol, ttl: Duration) -> u64 {
    if protocol == GETSET { ttl.as_secs() } else { ttl.as_millis() as u64 }
}

/// A text as the server answers it.
fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// What lies under the key.
fn value(server: &RedisServer) -> String {
    let answer = server.command(&["GET", "x"]);
    answer.split("\r\n").nth(1).unwrap_or_default().to_owned()
}

async fn is_lost(guard: &Guard) -> Lost {
    tokio::time::timeout(SOON, guard.lost()).await.expect("it is told")
}

/// Both take turns under one key until each had `turns`.
async fn alternate(server: &RedisServer, protocol: Protocol) {
    let turns = 250;
    let dir = tempfile::tempdir().unwrap();
    let ring = Ring::new(dir.path());
    let mut theirs = Fleet::start(server, protocol.name(), "x", in_its_unit(protocol, SOON));
    theirs.tell(&ring.race('p', turns));
    let ours = lock(server, protocol).await.ttl(SOON).retry(Retry::forever().every(ms(2)).within(4 * SOON));
    // The first turn is theirs, so that each of the others changes hands.
    for _ in 0..turns {
        while !ring.was_last('p') {
            tokio::time::sleep(ms(1)).await;
        }
        let guard = ours.acquire().await.unwrap_or_else(|error| panic!("{error}"));
        assert!(guard.holds());
        ring.turn('t');
        assert_eq!(guard.release().await, Ok(Released::Confirmed));
    }
    assert_eq!(theirs.answer(), "raced");
    assert_eq!(ring.log(), "pt".repeat(turns));
}

#[tokio::test]
async fn getset_clients_and_tenure_are_never_inside_together() {
    alternate(&RedisServer::start(), GETSET).await;
}

#[tokio::test]
async fn pid_lock_clients_and_tenure_are_never_inside_together() {
    alternate(&RedisServer::start(), PID_LOCK).await;
}

#[tokio::test]
async fn classic_clients_and_tenure_are_never_inside_together_and_nothing_lies_beside_the_key() {
    let server = RedisServer::start();
    server.command(&["SET", "theirs", "1"]);
    alternate(&server, Protocol::Classic).await;
    assert_eq!(server.command(&["KEYS", "*"]), "*1\r\n$6\r\ntheirs\r\n");
    let guard = lock(&server, Protocol::Classic).await.acquire_now().await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]), ":2\r\n");
    guard.release().await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]), ":1\r\n");
}

/// A referee that sees nothing proves nothing.
#[tokio::test]
#[should_panic(expected = "two at a time")]
async fn two_at_a_time_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("inside"), "").unwrap();
    Ring::new(dir.path()).turn('t');
}

#[tokio::test]
async fn a_client_that_was_killed_is_succeeded_when_its_stamp_is_past() {
    for protocol in [Protocol::Classic, GETSET, PID_LOCK] {
        let server = RedisServer::start();
        let mut theirs = Fleet::start(&server, protocol.name(), "x", in_its_unit(protocol, SECOND));
        let begun = Instant::now();
        assert!(theirs.wins());
        theirs.kill();
        let ours = lock(&server, protocol).await.retry(Retry::forever().every(ms(10)).within(SOON));
        assert!(ours.try_acquire().await.unwrap().is_none(), "{protocol}: it lives as long as its key");
        let guard = ours.acquire().await.unwrap_or_else(|error| panic!("{protocol}: {error}"));
        assert!(begun.elapsed() + ms(5) > SECOND, "{protocol}: after {:?}", begun.elapsed());
        assert!(!theirs_wins(&server, protocol), "{protocol}");
        guard.release().await.unwrap();
        assert!(theirs_wins(&server, protocol), "{protocol}");
    }
}

fn theirs_wins(server: &RedisServer, protocol: Protocol) -> bool {
    Fleet::start(server, protocol.name(), "x", in_its_unit(protocol, SECOND)).wins()
}

/// It died between SETNX and EXPIRE: a stamp, and no end.
#[tokio::test]
async fn a_stamp_without_an_end_is_taken_over_in_the_second_after_it_and_not_before() {
    let server = RedisServer::start();
    let stamp = unix_ms() / 1000;
    server.command(&["SET", "x", &stamp.to_string()]);
    let ours = lock(&server, GETSET).await;
    let AcquireError::Busy(holder) = ours.acquire_now().await.unwrap_err() else { panic!("it is taken") };
    assert!(
        holder.to_string().starts_with(&format!(
            "'x' is held by a client that does not speak Tenure (stamp {stamp}); it ends in "
        )),
        "{holder}"
    );
    let guard = ours.acquire().await.unwrap();
    assert!(unix_ms() >= (stamp + 1) * 1000, "the whole second is theirs");
    assert_ne!(value(&server), stamp.to_string());
    assert!(server.command(&["PTTL", "x"]).trim_start_matches(':').trim().parse::<i64>().unwrap() > 0);
    guard.release().await.unwrap();
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
}

#[tokio::test]
async fn a_stamp_is_over_in_time_and_is_never_renewed() {
    let server = RedisServer::start();
    let lock = lock(&server, PID_LOCK).await.ttl(ms(300));
    let begun = boottime();
    let guard = lock.acquire().await.unwrap();
    assert!(guard.holds() && guard.holder().is_none());
    assert!(guard.deadline() < begun.plus(300), "it has to stop before anybody else can hold");
    assert_eq!(is_lost(&guard).await, Lost::Expired);
    assert!(!guard.holds() && guard.remaining().is_zero());
    // It is too late to release: the key may be somebody else's.
    let before = value(&server);
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert_eq!(value(&server), before);
}

#[tokio::test]
async fn a_late_release_is_left_out_as_meant_and_harmful_as_written() {
    for (listing, left) in [(Listing::AsMeant, true), (Listing::AsWritten, false)] {
        let server = RedisServer::start();
        let late = lock(&server, Protocol::PidLock(listing)).await.ttl(ms(300)).acquire().await.unwrap();
        tokio::time::sleep(ms(310)).await;
        let mut next = Fleet::start(&server, "pid-lock", "x", 60_000);
        assert!(next.wins());
        drop(late);
        tokio::time::sleep(ms(100)).await;
        assert_eq!(server.command(&["EXISTS", "x"]) == ":1\r\n", left, "{listing:?}");
    }
}

#[tokio::test]
async fn a_listing_as_written_gives_up_after_eleven_tries() {
    let server = RedisServer::start();
    assert!(Fleet::start(&server, "getset", "x", 60).wins());
    let written = lock(&server, Protocol::GetSet(Listing::AsWritten)).await;
    let error = written.acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::GaveUp { tries: 11, .. }), "{error}");
    let server = RedisServer::start();
    assert!(Fleet::start(&server, "pid-lock", "x", 60_000).wins());
    let once = lock(&server, PID_LOCK).await.acquire().await.unwrap_err();
    assert!(matches!(once, AcquireError::GaveUp { tries: 1, .. }), "{once}");
    let more = lock(&server, PID_LOCK).await.retry(Retry::times(2).every(ms(1))).acquire().await.unwrap_err();
    assert!(matches!(more, AcquireError::GaveUp { tries: 3, .. }), "{more}");
}

#[tokio::test]
async fn a_fast_clock_takes_a_living_lock() {
    let server = RedisServer::start();
    let guard = lock(&server, GETSET).await.ttl(SOON).acquire().await.unwrap();
    let mut fast = Fleet::start(&server, "getset", "x", 60);
    assert!(!fast.wins());
    assert_eq!(fast.say("clock 10000"), "ok");
    assert!(fast.wins());
    // Its stamp is under the key, and stays there.
    assert_eq!(guard.release().await, Ok(Released::Unconfirmed));
    assert_eq!(server.command(&["EXISTS", "x"]), ":1\r\n");
}

#[tokio::test]
async fn what_is_no_lock_of_these_is_held_and_stays() {
    for protocol in [Protocol::Classic, GETSET, PID_LOCK] {
        let server = RedisServer::start();
        server.command(&["HSET", "x", "field", "1"]);
        let error = lock(&server, protocol).await.acquire_now().await.unwrap_err();
        assert!(error.to_string().contains("does not speak Tenure (hash)"), "{protocol}: {error}");
        assert_eq!(server.command(&["TYPE", "x"]), "+hash\r\n", "{protocol}");
        server.command(&["DEL", "x"]);
        // It becomes one while it is held.
        let guard = lock(&server, protocol).await.acquire_now().await.unwrap();
        server.command(&["DEL", "x"]);
        server.command(&["HSET", "x", "field", "1"]);
        assert_eq!(guard.release().await, Err(ReleaseError::NotHeld), "{protocol}");
        assert_eq!(server.command(&["TYPE", "x"]), "+hash\r\n", "{protocol}");
    }
}

#[tokio::test]
async fn an_answer_that_is_lost_is_not_taken_for_an_answer() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let lock = client(&proxy.url(), PID_LOCK).await.lock("x").ttl(ms(800));
    proxy.next(3, Once::CutAfter);
    let AcquireError::Backend(fault) = lock.acquire().await.unwrap_err() else { panic!("no answer") };
    assert_eq!(fault.kind, tenure::FaultKind::Unknown);
    assert!(
        fault.to_string().contains("may have been taken all the same, and ends by itself in "),
        "{fault}"
    );
    assert!(!value(&server).is_empty(), "it was");
    // After that it is free.
    let guard = lock.clone().wait(SOON).acquire().await.unwrap();

    // GET has two words, and so has DEL: here the first of them is lost.
    proxy.next(2, Once::CutAfter);
    let Err(ReleaseError::Unanswered { free_in, .. }) = guard.release().await else { panic!("no answer") };
    assert!(free_in > ms(500) && free_in <= ms(801), "{free_in:?}");
}

#[tokio::test]
async fn a_win_that_is_told_too_late_does_not_count() {
    let server = RedisServer::start();
    server.command(&["SET", "x", "17"]);
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let lock = client(&proxy.url(), PID_LOCK).await.lock("x").ttl(ms(100));
    proxy.down(Way::Slow(ms(30)));
    let error = lock.acquire().await.unwrap_err();
    assert!(error.to_string().contains("may have been taken all the same"), "{error}");
}

#[tokio::test]
async fn a_key_that_is_deleted_before_it_has_an_end_is_not_held() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let lock = client(&proxy.url(), GETSET).await.lock("x").ttl(4 * SECOND);
    proxy.down(Way::Slow(ms(200)));
    let acquire = tokio::spawn(async move { lock.try_acquire().await });
    while value(&server).is_empty() {
        tokio::time::sleep(ms(1)).await;
    }
    server.command(&["DEL", "x"]);
    assert!(acquire.await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn a_cancelled_try_gives_back_what_it_wins() {
    let server = RedisServer::start();
    for protocol in [Protocol::Classic, GETSET, PID_LOCK] {
        let client = client(&server.url(), protocol).await;
        let lock = client.lock("x").ttl(SECOND);
        for after in [0, 50, 100, 200, 400] {
            let _ = tokio::time::timeout(Duration::from_micros(after), lock.try_acquire()).await;
        }
        drop(lock);
        // An ask of a classic claim may be carried out for seconds yet, and somebody has to stay for that.
        assert!(client.close(ms(500)).await || protocol == Protocol::Classic, "{protocol}");
        assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n", "{protocol}");
    }
}

#[tokio::test]
async fn a_classic_lock_is_renewed_and_a_loss_is_told() {
    let server = RedisServer::start();
    let client = client(&server.url(), Protocol::Classic).await;
    let guard = client.lock("x").ttl(ms(600)).acquire_now().await.unwrap();
    let token = value(&server);
    assert!(token.starts_with("9999999999999-") && token.contains(&guard.holder().unwrap().to_string()));
    let mut theirs = Fleet::start(&server, "classic", "x", 1000);
    // Longer than the lease and what the server adds to it.
    tokio::time::sleep(ms(1700)).await;
    assert!(guard.holds() && !theirs.wins());
    let busy = client.lock("x").acquire_now().await.unwrap_err().to_string();
    assert!(busy.contains(&format!("is held by {}", guard.holder().unwrap())), "{busy}");

    server.command(&["DEL", "x"]);
    assert!(theirs.wins());
    assert_eq!(is_lost(&guard).await, Lost::Taken);
    let theirs_value = value(&server);
    drop(guard);
    assert!(client.close(SOON).await);
    assert_eq!(value(&server), theirs_value, "the thief's key is left alone");
}

#[tokio::test]
async fn a_classic_ask_whose_answer_was_lost_is_a_grant_after_all() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await.unwrap();
    let client = client(&proxy.url(), Protocol::Classic).await;
    proxy.next(6, Once::CutAfter);
    let guard = client.lock("x").ttl(SECOND).acquire_now().await.unwrap();
    assert_eq!(proxy.counters().struck, 1);
    assert!(guard.holds());
    assert!(value(&server).contains(&guard.holder().unwrap().to_string()));
    guard.release().await.unwrap();
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
}

#[tokio::test]
async fn a_user_without_scripts_is_refused_with_the_reason() {
    let server = RedisServer::start();
    let user = |name: &str, rules: &[&str]| {
        let answer = server.command(&[&["ACL", "SETUSER", name, "on", ">secret"], rules].concat());
        assert_eq!(answer, "+OK\r\n");
        format!("redis://{name}:secret@127.0.0.1:{}", server.port())
    };
    let commands = ["+set", "+setnx", "+get", "+getset", "+del", "+expire", "+type", "+pttl", "+getrange"];
    let url = user("plain", &[&["~*", "resetchannels", "-@all"], &commands[..]].concat());
    let error = Client::connect(&url, Protocol::Classic).await.unwrap_err().to_string();
    for part in ["NOPERM", "eval", "could not be given back safely", "+eval", "Redis 8.4 or Valkey 9"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(server.command(&["DBSIZE"]), ":0\r\n", "nothing was changed to find out");
    // The stamps need no scripts.
    client(&url, GETSET).await.lock("x").ttl(SECOND).acquire_now().await.unwrap().release().await.unwrap();

    // Who may use these keys alone may not use the key of the probe, and gets locks.
    let url =
        user("few", &["resetkeys", "~lock:*", "resetchannels", "-@all", "+set", "+get", "+del", "+eval"]);
    client(&url, Protocol::Classic)
        .await
        .lock("lock:x")
        .acquire_now()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn without_scripts_the_commands_of_newer_servers_will_do() {
    for newer in [Newer::Redis84, Newer::Valkey9] {
        let server = RedisServer::start();
        let url = format!("redis://127.0.0.1:{}", newer.before(server.port()));
        let client = client(&url, Protocol::Classic).await;
        let guard = client.lock("x").ttl(ms(600)).acquire_now().await.unwrap();
        tokio::time::sleep(ms(700)).await;
        assert!(guard.holds(), "{newer:?}: renewed");
        guard.release().await.unwrap();
        assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n", "{newer:?}");
        let guard = client.lock("x").ttl(ms(600)).acquire_now().await.unwrap();
        server.command(&["SET", "x", "theirs"]);
        assert_eq!(is_lost(&guard).await, Lost::Taken, "{newer:?}");
        drop(guard);
        client.close(SOON).await;
        assert_eq!(server.command(&["GET", "x"]), bulk("theirs"), "{newer:?}");
    }
    for newer in [Newer::Valkey81, Newer::Neither] {
        let server = RedisServer::start();
        let url = format!("redis://127.0.0.1:{}", newer.before(server.port()));
        let error = Client::connect(&url, Protocol::Classic).await.unwrap_err().to_string();
        assert!(error.contains("unknown command 'EVAL'"), "{newer:?}: {error}");
    }
}

#[tokio::test]
async fn these_locks_are_on_redis_and_seconds_are_whole() {
    let error = Client::connect("file:", GETSET).await.unwrap_err().to_string();
    assert!(error.contains("getset locks are on Redis"), "{error}");
    let server = RedisServer::start();
    for ttl in [ms(1500), ms(0), SECOND * 100_000] {
        let error = lock(&server, GETSET).await.ttl(ttl).acquire_now().await.unwrap_err().to_string();
        assert!(error.contains("no whole number of seconds"), "{error}");
    }
}

#[tokio::test]
async fn work_is_dropped_when_the_stamp_ends() {
    let server = RedisServer::start();
    let lock = lock(&server, PID_LOCK).await.ttl(ms(200));
    let held = lock.clone();
    let held = tokio::spawn(async move { held.with(async |guard| guard.holds()).await });
    assert!(held.await.unwrap().unwrap());
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
    let slow = lock.with(async |_| tokio::time::sleep(SOON).await).await;
    let Err(WithError::Lost(lost)) = slow else { panic!("{slow:?}") };
    assert_eq!((lost.why, lost.value), (Lost::Expired, None));
}

// ── Tenure's own lock among them ────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn clients_that_read_a_stamp_keep_away_from_tenures_own_lock() {
    let server = RedisServer::start();
    let client = tenure::Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("x").acquire_now().await.unwrap();
    let before = value(&server);
    for protocol in [Protocol::Classic, GETSET, PID_LOCK] {
        assert!(!theirs_wins(&server, protocol), "{protocol}");
        assert!(lock(&server, protocol).await.try_acquire().await.unwrap().is_none(), "{protocol}");
    }
    let error = lock(&server, GETSET).await.acquire_now().await.unwrap_err().to_string();
    assert!(error.contains(&format!("is held by {}", guard.holder())), "{error}");
    assert_eq!(value(&server), before);
    assert!(guard.holds());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_without_a_name_deletes_tenures_lock_and_tenure_notices() {
    let server = RedisServer::start();
    let mut late = Fleet::start(&server, "pid-lock", "x", 50);
    assert!(late.wins());
    tokio::time::sleep(ms(60)).await;
    // Somebody takes over and gives back.
    let mut next = Fleet::start(&server, "pid-lock", "x", 1000);
    assert!(next.wins());
    assert_eq!(next.say("release"), "released");

    let client = tenure::Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("x").ttl(ms(600)).acquire_now().await.unwrap();
    assert_eq!(late.say("release"), "released", "it reads a stamp of the far future, and deletes");
    assert_eq!(server.command(&["EXISTS", "x"]), ":0\r\n");
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await, Ok(Lost::Taken));
}
