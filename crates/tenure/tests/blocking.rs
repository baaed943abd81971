//! Locks for programs without async: leases are renewed while the program does other things, and nothing hangs.
#![cfg(feature = "embedded")]

use std::thread::sleep;
use std::time::Duration;

use tenure::blocking::Client;
use tenure::{
    AcquireError, ConnectError, DeferError, Deferrer, InspectError, JobId, Lost, LostAtWork, OnBusy, Ran,
    RanOrDeferred, ReleaseError, Released, Retry, WithError,
};

const MS: Duration = Duration::from_millis(1);

fn client() -> Client {
    Client::connect("memory:").unwrap()
}

#[test]
fn a_lock_is_taken_renewed_and_given_back() {
    let client = client();
    let lock = client.lock("x").ttl(1000 * MS).note("sums");
    let guard = lock.acquire().unwrap();
    assert_eq!(guard.lost_within(1200 * MS), None);
    assert!(guard.holds() && guard.loss().is_none() && guard.fence() > 0, "past its first lease");
    assert!(guard.remaining() <= 1000 * MS && guard.deadline() > tenure::Moment(0));
    assert!(client.lock("x").try_acquire().unwrap().is_none());
    let error = client.lock("x").wait(MS).acquire().unwrap_err();
    assert!(matches!(error, AcquireError::WaitElapsed { .. }), "{error}");
    let error = client.lock("x").acquire_retrying(Retry::times(1).every(MS)).unwrap_err();
    assert!(matches!(error, AcquireError::GaveUp { tries: 2, .. }), "{error}");
    let error = client.lock("x").acquire_now().unwrap_err();
    assert!(matches!(error, AcquireError::Busy(_)), "{error}");
    guard.extend(Duration::from_secs(9)).unwrap();
    assert!(guard.remaining() > Duration::from_secs(8));
    assert!(guard.release().unwrap().is_confirmed());
    assert!(client.lock("x").try_acquire().unwrap().is_some());
}

#[test]
fn threads_take_turns() {
    let client = client();
    let sum = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|threads| {
        for _ in 0..10 {
            threads.spawn(|| {
                for _ in 0..10 {
                    let add = |_: &_| {
                        let seen = sum.load(std::sync::atomic::Ordering::SeqCst);
                        std::thread::yield_now();
                        sum.store(seen + 1, std::sync::atomic::Ordering::SeqCst);
                    };
                    client.lock("x").with(add).unwrap();
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 100);
}

#[test]
fn work_that_loses_its_lock_can_see_it_and_the_error_brings_its_result() {
    let lock = client().lock("x").ttl(100 * MS).without_renewal();
    let work = |lease: &tenure::blocking::Lease| {
        while lease.holds() {
            sleep(MS);
        }
        // Told by the clock first, and by the thread soon after.
        assert_eq!(lease.lost_within(Duration::from_secs(10)), Some(Lost::Expired));
        assert_eq!(lease.loss(), Some(Lost::Expired));
        7
    };
    let error = lock.with(work).unwrap_err();
    let WithError::Lost(LostAtWork { why: Lost::Expired, value: Some(7), .. }) = error else {
        panic!("{error}")
    };
    let guard = lock.acquire().unwrap();
    sleep(150 * MS);
    assert_eq!(guard.release(), Err(ReleaseError::NotHeld));
}

#[test]
fn a_busy_lock_is_skipped_and_a_panic_frees_it() {
    let client = client();
    let lock = client.lock("x");
    let guard = lock.acquire().unwrap();
    let skipped = lock.run(OnBusy::Skip, |_| panic!("it must not run")).unwrap();
    assert!(matches!(skipped, Ran::Skipped(holder) if holder.id == Some(guard.holder())));
    drop(guard);
    let inside = lock.clone();
    std::thread::spawn(move || inside.with(|_| panic!("out of paper"))).join().unwrap_err();
    assert_eq!(lock.run(OnBusy::Fail, |_| 7).unwrap(), Ran::Done(7), "it was free before the panic went on");
}

#[test]
fn a_holder_is_seen_and_asked_to_stop_and_work_that_stops_in_time_has_lost_nothing() {
    let client = Client::builder("memory:").label("reports").announce_at_once().connect().unwrap();
    let work = |lease: &tenure::blocking::Lease| {
        let seen = client.inspect("x").unwrap();
        assert_eq!(seen.holder.unwrap().id, lease.holder().to_string());
        assert!(client.ask_to_stop("x", lease.holder(), "ops").unwrap());
        assert_eq!(lease.lost_within(Duration::from_secs(10)), Some(Lost::Asked { by: "ops".to_owned() }));
        7
    };
    assert_eq!(client.lock("x").with(work).unwrap(), 7);
    assert!(client.inspect("x").unwrap().is_free() && client.list().unwrap().is_empty());
    assert!(matches!(client.inspect(""), Err(InspectError::BadInput(_))));
    assert!(client.scope().starts_with("memory:"));
}

#[test]
fn a_job_runs_if_its_lock_is_free_and_is_deferred_if_it_is_busy() {
    struct Later;

    impl Deferrer<u32> for Later {
        type Error = std::convert::Infallible;

        async fn defer(&self, lock: &str, job: &u32, _: Duration) -> Result<JobId, Self::Error> {
            // It may wait as anything async does.
            tokio::time::sleep(MS).await;
            Ok(JobId::new(format!("{lock}-{job}")))
        }
    }

    let client = client();
    let lock = client.lock("x");
    let ran = lock.run_or_defer(7, &Later, |lease, job| (lease.holds(), job)).unwrap();
    assert_eq!(ran, RanOrDeferred::Done((true, 7)));
    let guard = lock.acquire().unwrap();
    let ran = lock.run_or_defer(7, &Later, |_, _| -> u32 { panic!("it must not run") }).unwrap();
    let RanOrDeferred::Deferred { id, holder } = ran else { panic!("it ran") };
    assert_eq!((id.as_str(), holder.id), ("x-7", Some(guard.holder())));
    let error = client.lock("").run_or_defer(7, &Later, |_, _| ()).unwrap_err();
    assert!(matches!(error, DeferError::Acquire { job: 7, .. }), "{error}");
}

#[test]
fn a_session_nests() {
    let session = client().session().label("import-7");
    let outer = session.lock("x").acquire().unwrap();
    let inner = session.lock("x").acquire().unwrap();
    assert_eq!(outer.fence(), inner.fence());
    assert_eq!(outer.release(), Ok(Released::StillHeld));
    assert_eq!(inner.release(), Ok(Released::Confirmed));
}

#[test]
fn a_guard_is_renewed_after_its_client_is_gone_and_freed_when_it_is_dropped() {
    let witness = Client::connect("memory:blocking-guard").unwrap();
    let guard = Client::connect("memory:blocking-guard").unwrap().lock("x").ttl(1000 * MS).acquire().unwrap();
    sleep(1200 * MS);
    assert!(guard.holds());
    // The end of the lease is not what frees it.
    guard.extend(Duration::from_secs(3600)).unwrap();
    drop(guard);
    witness.lock("x").acquire().unwrap().release().unwrap();
}

#[test]
fn a_client_that_closes_gives_everything_back() {
    let witness = Client::connect("memory:blocking-close").unwrap();
    let client = Client::connect("memory:blocking-close").unwrap();
    let guard = client.lock("x").acquire().unwrap();
    assert!(client.close(Duration::from_secs(1)));
    assert!(witness.lock("x").try_acquire().unwrap().is_some());
    assert!(!guard.holds());
}

#[tokio::test]
async fn inside_a_runtime_it_says_so_and_never_hangs() {
    let error = Client::connect("memory:").unwrap_err();
    assert!(matches!(error, ConnectError::InsideRuntime(_)), "{error}");
    let outside = std::thread::spawn(|| {
        let client = client();
        let guard = client.lock("x").acquire().unwrap();
        (client, guard)
    });
    let (client, guard) = outside.join().unwrap();
    let error = client.lock("x").acquire().unwrap_err();
    assert!(matches!(error, AcquireError::InsideRuntime(_)), "{error}");
    assert!(error.to_string().contains("use tenure::Client here"), "{error}");
    // What depends on nobody else is done.
    assert!(guard.holds());
    assert!(guard.release().unwrap().is_confirmed());
    assert!(client.close(Duration::from_secs(1)));
}

#[test]
fn a_url_that_is_none_is_refused() {
    assert!(matches!(Client::connect("mysql://h"), Err(ConnectError::BadUrl(_))));
}
