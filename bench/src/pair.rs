//! One task, one lock: what the library adds to the two commands.

use std::time::Instant;

use anyhow::Result;
use tenure_conformance::server::RedisServer;

use crate::plain::Plain;
use crate::{median, pin, runtime};

const ROUNDS: usize = 30;
const PAIRS: usize = 400;

pub(crate) fn run() -> Result<()> {
    let server = RedisServer::start();
    pin(server.pid(), 0)?;
    pin(0, 0)?;
    runtime()?.block_on(async {
        let mut plain = Plain::connect(server.port(), true).await?;
        let client = tenure::Client::connect(&server.url()).await?;
        let lock = client.lock("pair");
        let (mut plain_us, mut tenure_us) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let mut each = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let started = Instant::now();
                plain.pair("plain", "0123456789abcdef0123456789abcdef").await?;
                each.push(started.elapsed().as_secs_f64() * 1e6);
            }
            let plain_median = median(each);
            let mut each = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let started = Instant::now();
                lock.acquire().await?.release().await?;
                each.push(started.elapsed().as_secs_f64() * 1e6);
            }
            // The first rounds warm up.
            if round >= 5 {
                plain_us.push(plain_median);
                tenure_us.push(median(each));
            }
        }
        let (plain, tenure) = (median(plain_us), median(tenure_us));
        println!("  plain   {plain:7.1} us a pair (median of {} rounds of {PAIRS})", ROUNDS - 5);
        println!("  tenure  {tenure:7.1} us a pair");
        println!("  ratio   {:7.2}", tenure / plain);
        anyhow::Ok(())
    })
}
