//! 20 processes wait for one lock. Each takes it once, holds it for a moment and says when it got it and when it
//! began to give it back, on a clock that all processes share.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tenure_conformance::server::RedisServer;

use crate::plain::Plain;
use crate::{median, runtime};

const WAITERS: usize = 20;
const HOLD_MS: u64 = 20;

fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// What each waiting process runs.
pub(crate) fn wait_in_line(url: &str, name: &str, hold_ms: u64) -> Result<()> {
    runtime()?.block_on(async {
        let client = tenure::Client::connect(url).await?;
        println!("ready");
        // Waits for its turn to ask.
        std::io::stdin().lock().read_line(&mut String::new())?;
        let guard = client.lock(name).wait_forever().acquire().await?;
        let got = now_us();
        tokio::time::sleep(Duration::from_millis(hold_ms)).await;
        println!("{got} {} {}", now_us(), guard.fence());
        guard.release().await?;
        anyhow::Ok(())
    })
}

pub(crate) fn run() -> Result<()> {
    let server = RedisServer::start();
    line("redis", &server.url())?;
    let folder = tempfile::tempdir()?;
    line("embedded", &format!("file:{}", folder.path().display()))
}

fn line(engine: &str, url: &str) -> Result<()> {
    let turns = runtime()?.block_on(async {
        let client = tenure::Client::connect(url).await?;
        let guard = client.lock("line").acquire().await?;
        let mut children: Vec<Child> = (0..WAITERS).map(|_| child(url)).collect::<Result<_>>()?;
        for child in &mut children {
            ready(child)?;
        }
        // One after the other, so that the order of arrival is known.
        for child in &mut children {
            writeln!(child.stdin.as_mut().context("a pipe")?)?;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        let freed = now_us();
        guard.release().await?;
        // The children report when they are done; the release of the last one is not waited for.
        let mut turns = vec![(0, freed, 0)];
        for child in &mut children {
            let mut text = String::new();
            BufReader::new(child.stdout.as_mut().context("a pipe")?).read_line(&mut text)?;
            let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            turns.push((numbers[0], numbers[1], numbers[2]));
            child.wait()?;
        }
        anyhow::Ok(turns)
    })?;
    let in_order = turns.windows(2).filter(|pair| pair[0].1 <= pair[1].0 && pair[0].2 < pair[1].2).count();
    let gaps: Vec<f64> =
        turns.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].1) as f64 / 1000.0).collect();
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    println!(
        "  {engine:<9} {in_order} of {WAITERS} in the order in which they came, none overlapping; \
         from release to the next one's start: median {:.2} ms, longest {longest:.2} ms",
        median(gaps)
    );
    anyhow::ensure!(in_order == WAITERS, "the order was broken: {turns:?}");
    Ok(())
}

/// What waiting costs the server.
pub(crate) fn waiting() -> Result<()> {
    const SECONDS: u64 = 20;
    // What waiters send: asks, the cards of their processes, signs of life. No script calls any of these while it
    // only keeps a place.
    const SENT: [&str; 8] = ["evalsha", "eval", "ping", "set", "get", "zadd", "zremrangebyscore", "publish"];
    let server = RedisServer::start();
    runtime()?.block_on(async {
        let mut meter = Plain::connect(server.port(), true).await?;
        let client = tenure::Client::connect(&server.url()).await?;
        let guard = client.lock("line").acquire().await?;
        let mut children: Vec<Child> = (0..WAITERS).map(|_| child(&server.url())).collect::<Result<_>>()?;
        for child in &mut children {
            ready(child)?;
            writeln!(child.stdin.as_mut().context("a pipe")?)?;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let sent = SENT.map(|command| format!("cmdstat_{command}"));
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        let (before, started) = (meter.calls(&sent).await?, Instant::now());
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
        let commands = meter.calls(&sent).await? - before;
        let each = commands as f64 / started.elapsed().as_secs_f64() / WAITERS as f64;
        println!("  {commands} commands in {SECONDS} s from {WAITERS} waiters");
        println!("  {each:.2} commands per waiter and second");
        guard.release().await?;
        for mut child in children {
            child.wait()?;
        }
        anyhow::Ok(())
    })
}

fn child(url: &str) -> Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["wait-in-line", url, "line", &HOLD_MS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("a waiting process could not be started")
}

fn ready(child: &mut Child) -> Result<()> {
    // Byte by byte: whatever is read ahead would be lost to the next reader.
    use std::io::Read;
    let stdout = child.stdout.as_mut().context("a pipe")?;
    let mut byte = [0];
    while byte != [b'\n'] {
        stdout.read_exact(&mut byte)?;
    }
    Ok(())
}
