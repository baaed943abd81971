//! A worker in a process of its own: `worker REDIS_URL QUEUE`. Its jobs count a number each, once, however often they run
//! and whichever worker is killed meanwhile. It tells what it does on standard output.

use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{Script, Value};
use tenure::{Client, Lease};
use tenure_apalis::Queue;
use tenure_engine::boottime;
use tokio::time::sleep;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Counts a number, unless a later holder has been here or the number is counted already.
async fn count(lease: Lease, number: u32, mut db: ConnectionManager) -> Result<(), Error> {
    println!("begin {number} {} {}", boottime().0, lease.deadline().0);
    sleep(Duration::from_millis(20)).await;
    let script = Script::new(tenure::fence::REDIS);
    let mut fenced = script.key("numbers:fence");
    fenced.key("numbers").arg(lease.fence()).arg("HSETNX").arg("numbers").arg(number).arg(lease.fence());
    let answer: Vec<Value> = fenced.invoke_async(&mut db).await?;
    match &answer[..] {
        [Value::BulkString(word), Value::Int(new)] if word == b"ok" => println!("wrote {number} {new}"),
        _ => return Err(format!("the lock has passed on: {answer:?}").into()),
    }
    sleep(Duration::from_millis(5)).await;
    println!("end {number} {}", boottime().0);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, queue] = &words[..] else { return Err("worker REDIS_URL QUEUE".into()) };
    let tenure = Client::connect(url).await?;
    let db = redis::Client::open(&**url)?.get_connection_manager().await?;
    let queue: Queue<u32> =
        Queue::connect(url, queue).await?.concurrency(1).heartbeat(Duration::from_secs(1));

    let lock = move |name: &str| tenure.lock(name).ttl(Duration::from_secs(1)).wait(Duration::from_secs(1));
    let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    queue.work(lock, move |lease, number| count(lease, number, db.clone()), stop).await;
    Ok(())
}
