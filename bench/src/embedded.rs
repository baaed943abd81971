//! One task on one host, without a server.

use std::time::Instant;

use anyhow::Result;

use crate::{median, pin, runtime};

const ROUNDS: usize = 25;
const PAIRS: u32 = 2000;

pub(crate) fn run() -> Result<()> {
    pin(0, 0)?;
    let folder = tempfile::tempdir()?;
    let url = format!("file:{}", folder.path().display());
    runtime()?.block_on(async {
        let client = tenure::Client::connect(&url).await?;
        let lock = client.lock("pair");
        let mut us = Vec::new();
        for _ in 0..ROUNDS {
            let started = Instant::now();
            for _ in 0..PAIRS {
                lock.acquire().await?.release().await?;
            }
            us.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS));
        }
        println!("  tenure  {:7.2} us a pair (median of {ROUNDS} rounds of {PAIRS})", median(us));
        anyhow::Ok(())
    })
}
