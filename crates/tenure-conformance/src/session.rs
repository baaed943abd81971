//! A lock that a session takes again.

use tenure::{AcquireError, Lost, ReleaseError, Released};

use crate::faulty::Calls;
use crate::lease::{TTL, comes_free};
use crate::subject::{Store, look};

pub(crate) async fn a_lock_taken_again_is_one_hold_until_its_last_guard_goes(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let session = client.session();
    let lock = session.lock("x").ttl(TTL);
    let outer = lock.acquire().await.expect("it is free");
    let inner = lock.acquire_now().await.expect("the session holds it");
    let third = lock.try_acquire().await.expect("it is held").expect("by the session");
    assert_eq!((inner.fence(), third.fence()), (outer.fence(), outer.fence()));
    assert_eq!(outer.release().await, Ok(Released::StillHeld));
    for stranger in [client.lock("x"), client.session().lock("x"), other.session().lock("x")] {
        assert!(stranger.try_acquire().await.expect("the store answers").is_none());
    }
    drop(third);
    assert!(inner.holds() && look(&other, "x").await.fence == Some(inner.fence()));
    assert_eq!(inner.release().await, Ok(Released::Confirmed));
    comes_free(&other, "x").await;
}

pub(crate) async fn a_loss_is_told_to_all_guards_and_nothing_nests_in_it(store: &Store) {
    let ((client, faults), other) = (store.faulty_client().await, store.client().await);
    let lock = client.session().lock("x").ttl(TTL);
    let (outer, inner) =
        (lock.acquire().await.expect("it is free"), lock.acquire().await.expect("it is held by us"));
    faults.calls(Calls::CutOff);
    assert_eq!((outer.lost().await, inner.lost().await), (Lost::Expired, Lost::Expired));
    let next = other.lock("x").acquire().await.expect("its turn comes");
    faults.calls(Calls::Pass);
    let error = lock.acquire().await.expect_err("the old guards are still there");
    assert!(matches!(error, AcquireError::OldGuards { .. }), "{error}");
    assert_eq!(outer.release().await, Err(ReleaseError::NotHeld));
    assert_eq!(inner.release().await, Err(ReleaseError::NotHeld));
    let busy = lock.acquire_now().await.expect_err("the next one holds it");
    assert!(matches!(busy, AcquireError::Busy(_)), "{busy}");
    next.release().await.expect("it is held");
    comes_free(&client, "x").await;
}
