//! Work under a lock: given back on return, on error and on panic; and a choice of what a loss does to the work.

use std::time::Duration;

use tenure::{LostAtWork, OnLoss, WithError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let lock = tenure.lock("example:template");

    let rows = lock.with(async |lease| format!("written with fence {}", lease.fence())).await?;
    println!("{rows}");
    let failed: Result<u32, &str> = lock.with(async |_| Err("no paper")).await?;
    assert_eq!(failed, Err("no paper"), "what the work returns is returned as it is");
    assert!(tenure.inspect("example:template").await?.is_free());

    // A lease that nobody renews is lost after 200 ms. By default the work is dropped at that moment.
    let short = lock.ttl(Duration::from_millis(200)).without_renewal();
    let error = short.with(async |_| std::future::pending::<()>().await).await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, WithError::Lost(LostAtWork { value: None, .. })));

    // Or it runs to its end, and the error brings what it returned.
    let finishing = short.wait(Duration::from_secs(10)).on_loss(OnLoss::Finish);
    let work = async |lease: tenure::Lease| {
        lease.lost().await;
        "half of it twice"
    };
    let error = finishing.with(work).await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, WithError::Lost(LostAtWork { value: Some("half of it twice"), .. })));
    Ok(())
}
