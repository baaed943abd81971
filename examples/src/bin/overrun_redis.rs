//! A holder that is stopped for longer than its lease, and a Redis server that refuses its late write. Give it the URL of
//! a server, or it starts one of its own.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use redis::{Connection, Script, ScriptInvocation, Value};
use tenure_examples::Process;
use tenure_own_redis::{Options, RedisServer};

const FENCE: &str = "example:balance:fence";
const BALANCE: &str = "example:balance";

/// Runs a fenced command. `None`: a later holder has been here.
fn run(db: &mut Connection, fenced: &ScriptInvocation<'_>) -> Result<Option<Value>> {
    let answer: Vec<Value> = fenced.invoke(db)?;
    Ok(match &answer[..] {
        [Value::BulkString(word), reply @ ..] if word == b"ok" => {
            Some(reply.first().cloned().unwrap_or(Value::Nil))
        }
        [Value::BulkString(word), _] if word == b"stale" => None,
        _ => bail!("the script answers {answer:?}"),
    })
}

/// Installs the token and reads.
fn read(db: &mut Connection, fence: u64) -> Result<Option<i64>> {
    let script = Script::new(tenure::fence::REDIS);
    let reply = run(db, script.key(FENCE).key(BALANCE).arg(fence).arg("GET").arg(BALANCE))?;
    Ok(reply.map(redis::from_redis_value).transpose().map_err(redis::RedisError::from)?)
}

/// Writes, unless a later holder has been here.
fn write(db: &mut Connection, fence: u64, amount: i64) -> Result<bool> {
    let script = Script::new(tenure::fence::REDIS);
    let set = run(db, script.key(FENCE).key(BALANCE).arg(fence).arg("SET").arg(BALANCE).arg(amount))?;
    Ok(set.is_some())
}

fn main() -> Result<()> {
    let (url, _server) = if let Some(url) = std::env::args().nth(1) {
        (url, None)
    } else {
        let server = RedisServer::try_with(Options::default())?;
        (server.url(), Some(server))
    };
    let mut db = redis::Client::open(&*url)?.get_connection()?;
    let _: () = redis::cmd("SET").arg(BALANCE).arg(100).query(&mut db)?;

    let (a, b) = (Process::start(&url)?, Process::start(&url)?);
    let hold = a.acquire("example:lock")?;
    let seen = read(&mut db, hold.fence())?.expect("A is the first");
    println!("A holds the lock with token {} and reads {seen}", hold.fence());
    println!("A is stopped for longer than its lease");

    // Waits until the lease of A is over.
    let next = b.acquire("example:lock")?;
    let fresh = read(&mut db, next.fence())?.expect("B is later than A");
    assert!(write(&mut db, next.fence(), fresh + 20)?);
    println!("B holds the lock with token {}, reads {fresh} and writes {}", next.fence(), fresh + 20);

    println!("A goes on, without a look at holds(), which is {}", hold.holds());
    assert!(!write(&mut db, hold.fence(), seen + 10)?, "the late write got through");
    let kept: i64 = redis::cmd("GET").arg(BALANCE).query(&mut db)?;
    assert_eq!(kept, 120);
    println!("The write of A is refused: the balance is {kept}");
    Ok(())
}
