//! What becomes of jobs, on a real server.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure::{Client, JobId, Lease, RanOrDeferred};
use tenure_apalis::{ConnectError, PushError, Queue};
use tenure_own_redis::RedisServer;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(20);

type Seen = Arc<Mutex<Vec<String>>>;

async fn queue<J>(server: &RedisServer) -> Queue<J> {
    let queue = Queue::connect(&server.url(), "jobs").await.unwrap();
    queue.heartbeat(Duration::ZERO).pause(Duration::ZERO)
}

/// Locks of a server that is not asked: they are in memory.
async fn locks() -> Client {
    Client::connect("memory:").await.unwrap()
}

/// Notes what jobs are done, and does nothing else.
fn noting<J: std::fmt::Debug>(
    seen: &Seen,
) -> impl Fn(Lease, J) -> std::future::Ready<Result<(), String>> + Clone + Send + Sync + use<J> {
    let seen = seen.clone();
    move |lease, job| {
        assert!(lease.holds());
        seen.lock().unwrap().push(format!("{} {job:?}", lease.name()));
        std::future::ready(Ok(()))
    }
}

/// Works until the condition is true.
async fn work_until<J, Fut, E>(
    queue: &Queue<J>,
    locks: &Client,
    work: impl Fn(Lease, J) -> Fut + Clone + Send + Sync + 'static,
    mut enough: impl AsyncFnMut() -> bool,
) where
    J: DeserializeOwned + Send + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let locks = locks.clone();
    let stop = async {
        while !enough().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let worked = queue.work(move |name| locks.lock(name).wait(Duration::ZERO), work, stop);
    timeout(LIMIT, worked).await.expect("it becomes true");
}

/// How many jobs apalis knows anything of.
fn known(server: &RedisServer) -> String {
    server.command(&["HLEN", "jobs:data"]).trim().to_owned()
}

#[tokio::test]
async fn a_job_is_done_under_its_lock_and_forgotten() {
    let (server, locks, seen) = (RedisServer::start(), locks().await, Seen::default());
    let queue = queue(&server).await;
    queue.push("x", &7).await.unwrap();
    queue.push("y", &8).await.unwrap();
    assert_eq!(queue.waiting().await.unwrap(), 2);
    work_until(&queue, &locks, noting::<u32>(&seen), async || known(&server) == ":0").await;
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["x 7", "y 8"]);
    assert!(locks.inspect("x").await.unwrap().is_free());
    let left = server.command(&["KEYS", "jobs:*"]);
    let worker = left.lines().find(|key| key.starts_with("jobs:workers:metadata:")).unwrap();
    assert!(left.starts_with("*2\r\n"), "only of workers something is left: {left}");
    let seconds: u32 = server.command(&["TTL", worker])[1..].trim().parse().unwrap();
    assert!(seconds > 80_000, "and not for ever: {seconds}");
}

#[tokio::test]
async fn a_job_whose_lock_is_busy_is_deferred_and_done_when_it_is_free() {
    let (server, locks, seen) = (RedisServer::start(), locks().await, Seen::default());
    let queue = queue(&server).await;
    let lock = locks.lock("x").ttl(Duration::from_millis(1500));
    let held = lock.acquire().await.unwrap();
    let ran = lock.run_or_defer(7_u32, &queue, async |_, _| panic!("it is held")).await.unwrap();
    assert!(matches!(ran, RanOrDeferred::Deferred { .. }));
    held.release().await.unwrap();

    let again = lock.run_or_defer(8_u32, &queue, async |_, job| job).await.unwrap();
    assert_eq!(again, RanOrDeferred::Done(8), "it is free");
    work_until(&queue, &locks, noting::<u32>(&seen), async || known(&server) == ":0").await;
    assert_eq!(*seen.lock().unwrap(), ["x 7"]);
}

#[tokio::test]
async fn to_be_put_back_is_no_failure_and_holds_nobody_up() {
    let (server, locks, seen) = (RedisServer::start(), locks().await, Seen::default());
    let queue = queue(&server).await.attempts(2).concurrency(1);
    let mut held = Some(locks.lock("busy").acquire().await.unwrap());
    let busy = queue.push("busy", &1).await.unwrap();
    server.command(&["HSET", &format!("jobs:meta:{busy}"), "attempts", "1"]);
    queue.push("free", &2).await.unwrap();
    work_until(&queue, &locks, noting::<u32>(&seen), async || {
        let put_back_twice = format!("jobs:meta:{busy}.2");
        if held.is_some() && server.command(&["EXISTS", &put_back_twice]) == ":1\r\n" {
            let tries = server.command(&["HGET", &put_back_twice, "attempts"]);
            assert_eq!(tries, "$1\r\n1\r\n", "what was tried before counts, and nothing else");
            held = None;
        }
        known(&server) == ":0"
    })
    .await;
    assert_eq!(*seen.lock().unwrap(), ["free 2", "busy 1"]);
    assert_eq!(queue.dead(9).await.unwrap(), []);
}

#[tokio::test]
async fn a_job_that_fails_or_panics_is_tried_again_and_dead_in_the_end() {
    let (server, locks) = (RedisServer::start(), locks().await);
    let queue = queue(&server).await.attempts(2);
    queue.push("x", &"fails".to_owned()).await.unwrap();
    queue.push("y", &"panics".to_owned()).await.unwrap();
    let tried = Arc::new(AtomicUsize::new(0));
    let counted = tried.clone();
    let work = move |_, job: String| {
        counted.fetch_add(1, SeqCst);
        assert_ne!(job, "panics", "on purpose");
        std::future::ready(Err::<(), _>("no paper"))
    };
    work_until(&queue, &locks, work, async || queue.dead(9).await.unwrap().len() == 2).await;
    assert_eq!(tried.load(SeqCst), 4);
    assert_eq!(queue.waiting().await.unwrap(), 0);
    let mut dead = queue.dead(9).await.unwrap();
    dead.sort_by_key(|dead| dead.error.clone());
    assert!(dead[0].error.contains("no paper"), "{dead:?}");
    assert!(dead[0].entry.contains(r#""lock":"x","job":"fails""#), "{dead:?}");
    assert!(dead[1].error.contains("panicked"), "{dead:?}");
    assert!(locks.inspect("y").await.unwrap().is_free());

    assert_eq!(queue.dead(1).await.unwrap().len(), 1, "no more than asked for");
    for dead in dead {
        queue.forget(&dead.id).await.unwrap();
    }
    assert_eq!(queue.dead(9).await.unwrap(), []);
    assert_eq!(known(&server), ":0");
}

#[tokio::test]
async fn a_job_that_kills_its_worker_has_as_many_attempts_as_one_that_fails() {
    let (server, locks, seen) = (Arc::new(RedisServer::start()), locks().await, Seen::default());
    let queue = queue(&server).await.attempts(2);
    let meta = |id: JobId| format!("jobs:meta:{id}");
    let again = meta(queue.push("x", &"again".to_owned()).await.unwrap());
    let hopeless = meta(queue.push("y", &"hopeless".to_owned()).await.unwrap());
    // What a worker leaves that was killed once, and twice.
    server.command(&["HSET", &again, "attempts", "1"]);
    server.command(&["HSET", &hopeless, "attempts", "2"]);
    let (at_work, note) = (server.clone(), noting(&seen));
    let work = move |lease, job: String| {
        assert_eq!(at_work.command(&["HGET", &again, "attempts"]), "$1\r\n2\r\n", "noted when it begins");
        note(lease, job)
    };
    work_until(&queue, &locks, work, async || known(&server) == ":1").await;
    assert_eq!(*seen.lock().unwrap(), ["x \"again\""]);
    let dead = queue.dead(9).await.unwrap();
    assert!(dead[0].error.contains("its worker died at it"), "{dead:?}");
}

#[tokio::test]
async fn a_job_that_cannot_be_read_or_locked_is_dead_at_once_and_others_are_done() {
    let (server, locks, seen) = (RedisServer::start(), locks().await, Seen::default());
    let words: Queue<String> = queue(&server).await;
    words.push("x", &"no number".to_owned()).await.unwrap();
    let numbers: Queue<u32> = queue(&server).await;
    numbers.push("", &6).await.unwrap();
    numbers.push("x", &7).await.unwrap();
    let work = noting::<u32>(&seen);
    work_until(&numbers, &locks, work, async || known(&server) == ":2").await;
    assert_eq!(*seen.lock().unwrap(), ["x 7"]);
    let mut errors: Vec<_> = numbers.dead(9).await.unwrap().into_iter().map(|dead| dead.error).collect();
    errors.sort();
    assert!(errors[0].contains("invalid type: string \"no number\", expected u32"), "{errors:?}");
    assert!(errors[1].contains("name"), "{errors:?}");
}

#[tokio::test]
async fn a_worker_that_is_stopped_ends_what_it_has_begun() {
    let (server, locks) = (RedisServer::start(), locks().await);
    let queue = queue(&server).await;
    queue.push("x", &7_u32).await.unwrap();
    let (begins, begun) = oneshot::channel();
    let (begins, ended) = (Arc::new(Mutex::new(Some(begins))), Arc::new(AtomicUsize::new(0)));
    let ending = ended.clone();
    let work = move |_, _: u32| {
        begins.lock().unwrap().take().expect("it runs once").send(()).unwrap();
        let ended = ending.clone();
        async move {
            sleep(Duration::from_millis(300)).await;
            ended.fetch_add(1, SeqCst);
            Ok::<_, String>(())
        }
    };
    let stop = async { begun.await.unwrap() };
    timeout(LIMIT, queue.work(move |name| locks.lock(name), work, stop)).await.expect("it ends");
    assert_eq!(ended.load(SeqCst), 1);
    assert_eq!(server.command(&["KEYS", "jobs:inflight:*"]), "*0\r\n", "and has said so");
}

#[tokio::test]
async fn a_worker_outlives_a_server_that_is_away() {
    let (mut server, locks, seen) = (RedisServer::start(), locks().await, Seen::default());
    let queue: Queue<u32> = queue(&server).await;
    let work = noting(&seen);
    let (worker, of_worker) = (queue.clone(), locks.clone());
    let working =
        tokio::spawn(async move { worker.work(move |name| of_worker.lock(name), work, pending()).await });
    sleep(Duration::from_millis(300)).await;
    server.restart_empty();
    let pushed = async {
        while queue.push("x", &7).await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
        while seen.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, pushed).await.expect("it is done");
    working.abort();
}

#[tokio::test]
async fn a_full_queue_takes_no_more_and_can_be_worked_off() {
    let (server, locks, seen) = (RedisServer::start(), locks().await, Seen::default());
    let queue: Queue<u32> = queue(&server).await;
    for jobs in (0..7_000).collect::<Vec<u32>>().chunks(500) {
        try_join_all(jobs.iter().map(|job| queue.push("x", job))).await.unwrap();
    }
    let full = queue.push("x", &7_000).await.unwrap_err();
    assert!(full.to_string().starts_with("the queue has 7000 jobs and takes no more"), "{full}");
    assert!(matches!(queue.clone().capacity(0).push("x", &1).await, Err(PushError::Full { capacity: 0 })));
    let enough = async || seen.lock().unwrap().len() >= 10;
    work_until(&queue, &locks, noting::<u32>(&seen), enough).await;
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused() {
    #[derive(Serialize)]
    struct Odd {
        map: std::collections::HashMap<(u8, u8), u8>,
    }
    let server = RedisServer::start();
    for name in ["", "a\nb", &"x".repeat(201)] {
        let refused = Queue::<u32>::connect(&server.url(), name).await.unwrap_err();
        assert!(matches!(refused, ConnectError::BadName(_)), "{refused}");
    }
    let closed = format!("redis://127.0.0.1:{}", tenure_own_redis::free_port());
    let refused =
        timeout(LIMIT / 4, Queue::<u32>::connect(&closed, "jobs")).await.expect("soon").unwrap_err();
    assert!(refused.to_string().contains("see that it runs"), "{refused}");
    let large = queue(&server).await.push("x", &"x".repeat(64 * 1024)).await.unwrap_err();
    assert!(large.to_string().contains("65536 are allowed"), "{large}");
    let odd = Odd { map: [((1, 2), 3)].into() };
    let refused = queue(&server).await.push("x", &odd).await.unwrap_err();
    assert!(matches!(refused, PushError::Json(_)), "{refused}");
    assert_eq!(known(&server), ":0");
}
