//! Fail at once if somebody else holds the lock, and say who.

use tenure::{AcquireError, OnBusy, Ran, WithError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let lock = tenure.lock("example:fail");

    assert_eq!(lock.run(OnBusy::Fail, async |_| "done").await?, Ran::Done("done"));

    let held = lock.acquire().await?;
    let error = lock.run(OnBusy::Fail, async |_| "done").await.unwrap_err();
    println!("{error}");
    let WithError::Acquire(AcquireError::Busy(holder)) = error else { panic!("{error}") };
    assert_eq!(holder.id, Some(held.holder()));
    held.release().await?;
    Ok(())
}
