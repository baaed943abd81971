//! Take a lock again that is held already: functions that lock for themselves can call each other.

use tenure::{AcquireError, Released, Session};

async fn book(session: &Session, amount: u32) -> Result<u32, AcquireError> {
    let _guard = session.lock("example:session").acquire().await?;
    Ok(amount)
}

async fn transfer(session: &Session) -> Result<u32, AcquireError> {
    let _guard = session.lock("example:session").acquire().await?;
    Ok(book(session, 3).await? + book(session, 4).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let tenure = tenure::Client::connect(&url).await?;
    let import = tenure.session().label("import-7");
    assert_eq!(transfer(&import).await?, 7);

    let outer = import.lock("example:session").acquire().await?;
    let inner = import.lock("example:session").acquire().await?;
    assert_eq!(outer.fence(), inner.fence(), "the store knows one hold");
    let other = tenure.session().lock("example:session");
    assert!(other.try_acquire().await?.is_none(), "another session is somebody else");

    // In any order: the hold goes with the last guard.
    assert_eq!(outer.release().await?, Released::StillHeld);
    assert!(inner.holds());
    assert_eq!(inner.release().await?, Released::Confirmed);
    other.acquire().await?.release().await?;
    Ok(())
}
