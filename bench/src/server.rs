//! 64 tasks on 64 locks over one connection: throughput, and what it costs the server.

use std::time::Instant;

use anyhow::Result;
use tenure_conformance::server::RedisServer;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::plain::Plain;
use crate::{median, pin, runtime};

const TASKS: usize = 64;
const PAIRS: usize = 400;
const ROUNDS: usize = 9;

#[derive(Default)]
struct Cost {
    per_second: Vec<f64>,
    usec: Vec<f64>,
    cpu: Vec<f64>,
}

pub(crate) fn run() -> Result<()> {
    println!("  tokio's usual runtime, nothing pinned:");
    let server = RedisServer::start();
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    compare(&server, &threads)?;
    println!("  a runtime of one thread, client and server on a core of their own:");
    let server = RedisServer::start();
    pin(server.pid(), 0)?;
    pin(0, 1)?;
    compare(&server, &runtime()?)
}

fn compare(server: &RedisServer, runtime: &Runtime) -> Result<()> {
    runtime.block_on(async {
        let mut meter = Plain::connect(server.port(), true).await?;
        let plain = Plain::connect(server.port(), true).await?;
        let nagle = Plain::connect(server.port(), false).await?;
        let client = tenure::Client::connect(&server.url()).await?;
        let mut costs: [Cost; 3] = Default::default();
        for round in 0..ROUNDS {
            for (side, cost) in costs.iter_mut().enumerate() {
                meter.reset_stats().await?;
                let cpu = meter.server_cpu().await?;
                let started = Instant::now();
                match side {
                    0 => plain_round(&plain).await?,
                    1 => plain_round(&nagle).await?,
                    _ => tenure_round(&client).await?,
                }
                let seconds = started.elapsed().as_secs_f64();
                if round > 0 {
                    let pairs = (TASKS * PAIRS) as f64;
                    cost.per_second.push(pairs / seconds);
                    let sent: &[&str] =
                        if side < 2 { &["cmdstat_set", "cmdstat_evalsha"] } else { &["cmdstat_evalsha"] };
                    cost.usec.push(meter.server_usec(sent).await? / pairs);
                    cost.cpu.push((meter.server_cpu().await? - cpu) * 1e6 / pairs);
                }
            }
        }
        let rows = costs.map(|cost| (median(cost.per_second), median(cost.usec), median(cost.cpu)));
        println!("                          pairs/s   server us in commands   server us of CPU");
        for (name, (per_second, usec, cpu)) in
            ["plain", "plain, gathering (Nagle)", "tenure"].iter().zip(rows)
        {
            println!("  {name:<24} {per_second:8.0}   {usec:21.2}   {cpu:16.2}");
        }
        for (name, floor) in [("plain", rows[0]), ("gathering", rows[1])] {
            println!(
                "  ratio to {name:<15} {:8.2}   {:21.2}   {:16.2}",
                rows[2].0 / floor.0,
                rows[2].1 / floor.1,
                rows[2].2 / floor.2
            );
        }
        anyhow::Ok(())
    })
}

async fn plain_round(plain: &Plain) -> Result<()> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let mut plain = plain.clone();
        tasks.spawn(async move {
            let (name, token) = (format!("plain:{task}"), format!("0123456789abcdef0123456789abc{task:03}"));
            for _ in 0..PAIRS {
                plain.pair(&name, &token).await?;
            }
            anyhow::Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect()
}

async fn tenure_round(client: &tenure::Client) -> Result<()> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lock = client.lock(&format!("tenure-{task}"));
        tasks.spawn(async move {
            for _ in 0..PAIRS {
                lock.acquire().await?.release().await?;
            }
            anyhow::Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect()
}
