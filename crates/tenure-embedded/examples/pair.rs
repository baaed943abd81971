//! Measures one acquire and release: `cargo run --release -p tenure-embedded --example pair [DIR]`. Several at once
//! show what processes with locks of their own cost each other.

use std::time::{Duration, Instant};

use tenure_core::{Attempt, HolderId, Name, Reply, Request};
use tenure_embedded::{EmbeddedEngine, Location};
use tenure_engine::{Engine, random_owner};

const PAIRS: usize = 100_000;
const LIMIT: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::args_os().nth(1).map_or(Location::Default, |path| Location::Directory(path.into()));
    let engine = EmbeddedEngine::open(&place)?;
    println!("{}", engine.scope());
    let name = Name::new(&format!("pair {}", std::process::id()))?;
    let mut took = Vec::with_capacity(PAIRS);
    for serial in 0..PAIRS as u32 {
        let owner = random_owner(HolderId { process: engine.process(), serial });
        let ask = Request::Ask {
            owner,
            ttl_ms: 30_000,
            guard_ms: 0,
            place_ms: 30_000,
            attempt: Attempt(1),
            not_after: None,
        };
        let begun = Instant::now();
        let granted = engine.call(&name, &ask, LIMIT).await?;
        let released = engine.call(&name, &Request::Release { owner }, LIMIT).await?;
        took.push(begun.elapsed());
        assert!(
            matches!((granted, released), (Reply::Granted { .. }, Reply::Released)),
            "nobody else takes this lock"
        );
    }
    let total: Duration = took.iter().sum();
    took.sort_unstable();
    let at = |share: f64| took[((PAIRS - 1) as f64 * share) as usize];
    println!(
        "{PAIRS} pairs: mean {:?}, p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        total / PAIRS as u32,
        at(0.5),
        at(0.99),
        at(0.999),
        took[PAIRS - 1]
    );
    Ok(())
}
