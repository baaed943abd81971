//! A lock in a program without async: its lease is renewed by a thread of the client.

use std::thread::sleep;
use std::time::Duration;

use tenure::blocking::Client;
use tenure::{OnBusy, Ran};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = Client::connect(&url)?;
    let lock = tenure.lock("example:blocking").ttl(Duration::from_millis(200));

    let guard = lock.acquire()?;
    sleep(Duration::from_millis(300));
    assert!(guard.holds(), "past the first lease");
    assert!(matches!(lock.run(OnBusy::Skip, |_| ())?, Ran::Skipped(_)));
    guard.release()?;

    // What blocks can't be stopped from outside: it asks between its steps.
    let steps = lock.with(|lease| (0..3).take_while(|_| lease.holds()).count())?;
    assert_eq!(steps, 3);
    tenure.close(Duration::from_secs(1));
    Ok(())
}
