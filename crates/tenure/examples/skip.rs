//! Skip the work if somebody else is at it: a job that runs every minute need not run twice.

use tenure::{OnBusy, Ran};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let lock = tenure.lock("example:skip");

    let held = lock.acquire().await?;
    match lock.run(OnBusy::Skip, async |_| ()).await? {
        Ran::Done(()) => panic!("it is held"),
        Ran::Skipped(holder) => println!("skipped: {holder}"),
    }
    held.release().await?;

    assert_eq!(lock.run(OnBusy::Skip, async |lease| lease.holds()).await?.done(), Some(true));
    Ok(())
}
