//! A worker in a process of its own: `worker REDIS_URL QUEUE`. Each of its jobs counts once, however often it runs and
//! whichever worker is killed meanwhile. It tells what it does on standard output.

use std::time::Duration;

use redis::Script;
use redis::aio::ConnectionManager;
use tenure::{Client, JobId, Lease};
use tenure_apalis::Queue;
use tenure_engine::boottime;
use tokio::time::sleep;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Counts a job, unless a later holder has been here or it is counted already.
async fn count(lease: Lease, id: JobId, number: u32, db: ConnectionManager) -> Result<(), Error> {
    println!("begin {number} {} {}", boottime().0, lease.deadline().0);
    // In a task of its own, which goes on when the lock is lost: like a request that has left already.
    tokio::spawn(write(lease.fence(), id, number, db)).await??;
    sleep(Duration::from_millis(5)).await;
    println!("end {number} {}", boottime().0);
    Ok(())
}

async fn write(fence: u64, id: JobId, number: u32, mut db: ConnectionManager) -> Result<(), Error> {
    sleep(Duration::from_millis(20)).await;
    let script = Script::new(include_str!("count.lua"));
    let mut once = script.key("count:fence");
    once.key("count:ids").key("count").arg(fence).arg(id.as_str());
    match once.invoke_async(&mut db).await? {
        -1 => {
            println!("refused {number}");
            return Err("the lock has passed on".into());
        }
        new => println!("wrote {number} {new}"),
    }
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
    queue.work(lock, move |lease, id, number| count(lease, id, number, db.clone()), stop).await;
    Ok(())
}
