//! Try again: three more times, every 20 ms; or with growing pauses, for a second at the most.

use std::time::Duration;

use tenure::{AcquireError, Retry};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let lock = tenure.lock("example:retry");
    let held = lock.acquire().await?;

    let error = lock.acquire_retrying(Retry::times(3).every(Duration::from_millis(20))).await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, AcquireError::GaveUp { tries: 4, .. }));
    assert!(error.try_again_in().is_some(), "the error knows when the lease ends");

    let growing = Retry::forever()
        .backoff(Duration::from_millis(5), Duration::from_millis(50))
        .within(Duration::from_secs(1));
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        held.release().await
    };
    let (guard, released) = tokio::join!(lock.acquire_retrying(growing), release);
    assert!(released?.is_confirmed());
    guard?.release().await?;
    Ok(())
}
