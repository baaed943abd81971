//! Wait in line: first come, first served, and no longer than ten seconds.

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let lock = tenure.lock("example:wait").wait(Duration::from_secs(10));

    let first = lock.acquire().await?;
    let fence = first.fence();
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.release().await
    };
    // Served by the release, not by asking again and again.
    let (second, released) = tokio::join!(lock.acquire(), release);
    let second = second?;
    assert!(released?.is_confirmed() && second.holds());
    assert!(second.fence() > fence, "whatever the lock protects can refuse the first one from now on");
    second.release().await?;

    let _held = lock.acquire().await?;
    let error = lock.clone().wait(Duration::from_millis(50)).acquire().await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, tenure::AcquireError::WaitElapsed { .. }));
    tenure.close(Duration::from_secs(1)).await;
    Ok(())
}
