//! Ten thousand held locks in one process: what keeping them costs.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tenure_conformance::server::RedisServer;
use tokio::task::JoinSet;

use crate::runtime;

const LOCKS: usize = 10_000;
const SECONDS: u64 = 40;

pub(crate) fn run() -> Result<()> {
    let server = RedisServer::start();
    runtime()?.block_on(async {
        let client = tenure::Client::connect(&server.url()).await?;
        let mut tasks = JoinSet::new();
        for number in 0..LOCKS {
            let lock = client.lock(&format!("held-{number}"));
            tasks.spawn(async move { lock.acquire().await });
            // A process does not take all of its locks in one instant.
            if number % 500 == 499 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let guards = tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (cpu, started) = (cpu_seconds(), Instant::now());
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
        let share = (cpu_seconds() - cpu) / started.elapsed().as_secs_f64();
        let held = guards.iter().filter(|guard| guard.holds()).count();
        println!("  {held} of {LOCKS} held after {SECONDS} s at a TTL of 30 s");
        println!("  {:.1} % of a core", share * 100.0);
        anyhow::ensure!(held == LOCKS, "{} locks were lost", LOCKS - held);
        anyhow::Ok(())
    })
}

fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
