//! Both engines through the port, in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tenure_core::{Attempt, HolderId, Message, Name, Owner, Reply, Request, Snapshot};
use tenure_engine::{Card, Engine, FaultKind, Letter, random_owner};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::{EmbeddedEngine, Location, MemoryEngine};

const LIMIT: Duration = Duration::from_secs(1);

/// An engine, and what it hears.
struct Peer {
    engine: Arc<dyn Engine>,
    letters: UnboundedReceiver<Letter>,
    serial: u32,
}

impl Peer {
    fn new(engine: Arc<dyn Engine>) -> Self {
        let (sender, letters) = unbounded_channel();
        engine.listen(Arc::new(move |letter| drop(sender.send(letter))));
        Self { engine, letters, serial: 0 }
    }

    fn owner(&mut self) -> Owner {
        self.serial += 1;
        random_owner(HolderId { process: self.engine.process(), serial: self.serial })
    }

    async fn call(&self, name: &Name, request: Request) -> Reply {
        self.engine.call(name, &request, LIMIT).await.unwrap()
    }

    async fn ask(&self, name: &Name, owner: Owner) -> Reply {
        self.call(name, ask(owner)).await
    }

    async fn letter(&mut self) -> Letter {
        timeout(LIMIT, self.letters.recv()).await.expect("a letter comes").expect("the engine lives")
    }
}

fn ask(owner: Owner) -> Request {
    Request::Ask {
        owner,
        ttl_ms: 30_000,
        guard_ms: 0,
        place_ms: 30_000,
        attempt: Attempt(1),
        not_after: None,
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Two peers on one store, for either engine.
fn pairs() -> Vec<(Option<TempDir>, Peer, Peer)> {
    let place = tempfile::tempdir().unwrap();
    let location = Location::Directory(place.path().join("store"));
    let open = || Peer::new(EmbeddedEngine::open(&location).unwrap());
    let files = (open(), open());
    let shared = format!("pair {:?}", tenure_engine::random_process());
    let open = || Peer::new(MemoryEngine::named(&shared));
    vec![(Some(place), files.0, files.1), (None, open(), open())]
}

#[tokio::test]
async fn the_lock_goes_from_hand_to_hand() {
    for (_place, mut a, mut b) in pairs() {
        let name = name("orders:42");
        let (first, second, third) = (a.owner(), b.owner(), a.owner());
        let Reply::Granted { token } = a.ask(&name, first).await else { panic!("a free lock is granted") };
        assert_eq!(a.ask(&name, first).await, Reply::Granted { token }, "the same grant again");
        let Reply::Queued { head: true, standing: Some(standing) } = b.ask(&name, second).await else {
            panic!("the second waits at the head")
        };
        assert_eq!((standing.holder, standing.token), (Some(first.holder), Some(token)));
        assert!(matches!(a.ask(&name, third).await, Reply::Queued { head: false, .. }));

        assert_eq!(a.call(&name, Request::Release { owner: first }).await, Reply::Released);
        let letter = b.letter().await;
        let Message::Granted { token: next, attempt: Attempt(1) } = letter.message else {
            panic!("{letter:?}")
        };
        assert_eq!((letter.owner, &letter.name), (second, &name));
        assert!(next > token);
        let letter = a.letter().await;
        assert!(matches!(letter.message, Message::Head { .. }) && letter.owner == third, "{letter:?}");

        let look = a.engine.look(&name).await.unwrap();
        assert_eq!(look.snapshot.standing.unwrap().holder, Some(second.holder));
        assert_eq!((look.snapshot.waiting, look.orphaned), (1, false));
        assert_eq!(a.engine.names().await.unwrap(), std::slice::from_ref(&name));

        b.call(&name, Request::Release { owner: second }).await;
        b.call(&name, Request::Release { owner: third }).await;
        assert_eq!(a.engine.names().await.unwrap(), []);
        assert_eq!(a.engine.look(&name).await.unwrap().snapshot, Snapshot::default());
    }
}

#[tokio::test]
async fn an_engine_that_is_dropped_is_a_process_that_died() {
    for (_place, mut a, mut b) in pairs() {
        let name = name("x");
        let (first, second) = (a.owner(), b.owner());
        a.ask(&name, first).await;
        assert!(matches!(b.ask(&name, second).await, Reply::Queued { head: true, .. }));
        drop(a);
        match b.letter().await.message {
            Message::Look => assert!(matches!(b.ask(&name, second).await, Reply::Granted { .. })),
            Message::Granted { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    for (_place, mut a, _b) in pairs() {
        let owners: Vec<_> = (0..300).map(|_| a.owner()).collect();
        let calls: Vec<_> =
            owners.iter().enumerate().map(|(i, &owner)| (name(&format!("n{}", i / 2)), ask(owner))).collect();
        let answers = a.engine.call_many(&calls, LIMIT).await;
        for (i, answer) in answers.into_iter().enumerate() {
            match answer.unwrap() {
                Reply::Granted { .. } => assert_eq!(i % 2, 0),
                Reply::Queued { head: true, .. } => assert_eq!(i % 2, 1),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(a.engine.names().await.unwrap().len(), 150);
    }
}

#[tokio::test]
async fn cards_are_left_for_others() {
    for (_place, a, b) in pairs() {
        assert_eq!(b.engine.card(a.engine.process()).await.unwrap(), None);
        for cmd in ["a long name of a program", "short"] {
            let card = Card { v: 1, cmd: cmd.into(), ..Card::default() };
            a.engine.post(&card).await.unwrap();
            a.engine.post(&card).await.unwrap();
            assert_eq!(b.engine.card(a.engine.process()).await.unwrap(), Some(card));
        }
    }
}

#[tokio::test]
async fn a_holder_is_asked_to_stop() {
    for (_place, mut a, b) in pairs() {
        let name = name("x");
        let owner = a.owner();
        a.ask(&name, owner).await;
        let stop = Request::Stop { holder: owner.holder, by: "me".into() };
        assert_eq!(b.call(&name, stop).await, Reply::Told { reached: true });
        assert_eq!(a.letter().await.message, Message::Stop { by: "me".into() });
        let renew = Request::Renew { owner, ttl_ms: 30_000, guard_ms: 0 };
        assert_eq!(a.call(&name, renew).await, Reply::Stopping { by: "me".into() });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_on_many_threads_exclude_each_other() {
    for (_place, a, b) in pairs() {
        let inside: Arc<[AtomicBool; 4]> = Arc::default();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..32_usize {
            let engine = if task % 2 == 0 { a.engine.clone() } else { b.engine.clone() };
            let inside = inside.clone();
            tasks.spawn(async move {
                let (lock, mut held) = (task % 4, 0);
                let name = name(&format!("n{lock}"));
                for serial in 0..400 {
                    let holder = HolderId { process: engine.process(), serial: task as u32 * 1000 + serial };
                    let owner = random_owner(holder);
                    let mut ask = ask(owner);
                    if let Request::Ask { place_ms, .. } = &mut ask {
                        *place_ms = 0;
                    }
                    match engine.call(&name, &ask, LIMIT).await.unwrap() {
                        Reply::Granted { .. } => held += 1,
                        Reply::Busy { .. } => continue,
                        other => panic!("{other:?}"),
                    }
                    assert!(!inside[lock].swap(true, Ordering::SeqCst), "two inside");
                    tokio::task::yield_now().await;
                    inside[lock].store(false, Ordering::SeqCst);
                    let release = Request::Release { owner };
                    assert_eq!(engine.call(&name, &release, LIMIT).await.unwrap(), Reply::Released);
                }
                held
            });
        }
        let held: u32 = tasks.join_all().await.into_iter().sum();
        assert!(held > 100, "only {held} times");
    }
}

#[test]
fn a_store_is_opened_and_closed_from_many_threads() {
    let place = tempfile::tempdir().unwrap();
    let location = Location::Directory(place.path().join("store"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    EmbeddedEngine::open(&location).unwrap();
                }
            });
        }
    });
}

#[tokio::test]
async fn a_job_file_is_given_only_to_who_still_holds() {
    let place = tempfile::tempdir().unwrap();
    let location = Location::Directory(place.path().join("store"));
    let open = || Peer::new(EmbeddedEngine::open(&location).unwrap());
    let (mut a, mut b) = (open(), open());
    let (name, first, second) = (name("x"), a.owner(), b.owner());
    for i in 0..600 {
        a.ask(&self::name(&format!("before {i}")), second).await;
    }
    let mut short = ask(first);
    if let Request::Ask { ttl_ms, .. } = &mut short {
        *ttl_ms = 500;
    }
    assert!(matches!(a.call(&name, short).await, Reply::Granted { .. }));
    drop(a.engine.job_file(first.holder).unwrap().expect("it still holds"));
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(matches!(b.ask(&name, second).await, Reply::Granted { .. }));

    let fault = a.engine.job_file(first.holder).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Refused);
    assert!(fault.to_string().contains("is not held any more"), "{fault}");
    let boot = std::fs::read_dir(place.path().join("store")).unwrap().flatten();
    let boot = boot.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
    assert_eq!(std::fs::read_dir(boot.join("jobs")).unwrap().count(), 0);
    drop(b.engine.job_file(second.holder).unwrap().expect("it holds"));
}
