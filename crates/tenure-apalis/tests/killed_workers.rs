//! Workers in processes of their own, some of which are killed or stopped.

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_apalis::Queue;
use tenure_engine::boottime;
use tenure_own_redis::RedisServer;

const JOBS: u32 = 100;
const WORKERS: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);

/// A job at work: when it began, and when it ended, was killed or had to stop.
#[derive(Debug)]
struct Span {
    number: u32,
    begin: u64,
    end: u64,
}

/// Worker processes, and what is known of their work.
struct Crew {
    url: String,
    children: Vec<Option<Child>>,
    /// What each of them has begun.
    open: Vec<Option<Span>>,
    spans: Vec<Span>,
    told: Sender<(usize, Option<String>)>,
    hear: Receiver<(usize, Option<String>)>,
}

/// Cargo builds the examples for `cargo test`, next to the folder of this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples/worker")
}

impl Crew {
    fn new(url: &str) -> Self {
        let (told, hear) = channel();
        Self { url: url.to_owned(), children: Vec::new(), open: Vec::new(), spans: Vec::new(), told, hear }
    }

    fn start_one(&mut self) {
        let mut child = Command::new(program());
        let child = child.args([&self.url, "jobs"]).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("the worker runs; build it: cargo build --examples");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (me, told) = (self.children.len(), self.told.clone());
        spawn(move || {
            for line in lines {
                let _ = told.send((me, line.ok()));
            }
            let _ = told.send((me, None));
        });
        self.children.push(Some(child));
        self.open.push(None);
    }

    /// Stops it until it is told to go on: a machine that hangs, a debugger, a suspend.
    fn signal(&self, worker: usize, signal: Signal) {
        let pid = self.children[worker].as_ref().expect("it lives").id();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Waits until a worker says this.
    fn hears(&self, worker: usize, begin: &str) {
        loop {
            let (who, line) = self.hear.recv_timeout(LIMIT).expect("it says so in time");
            if who == worker && line.expect("it lives").starts_with(begin) {
                return;
            }
        }
    }

    fn kill(&mut self, worker: usize) {
        let mut child = self.children[worker].take().expect("it lives");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Takes down what a worker says, and answers its first word.
    fn note(&mut self, worker: usize, line: &str) -> String {
        let mut words = line.split(' ').map(str::to_owned);
        let word = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        match (&*word, &numbers[..]) {
            ("begin", &[number, begin, deadline]) => {
                // One that lost its lock says no end; it had to stop at the deadline.
                self.spans.extend(self.open[worker].take());
                self.open[worker] = Some(Span { number: number as u32, begin, end: deadline });
            }
            ("wrote", _) => {}
            ("end", &[_, end]) => {
                let span = self.open[worker].take().expect("it has begun");
                self.spans.push(Span { end, ..span });
            }
            _ => panic!("a worker said {line:?}"),
        }
        word
    }

    /// What a worker had begun when it was gone.
    fn gone(&mut self, worker: usize) {
        let killed_by = boottime().0;
        let span = self.open[worker].take();
        self.spans.extend(span.map(|span| Span { end: span.end.min(killed_by), ..span }));
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn number(server: &RedisServer, words: &[&str]) -> u32 {
    server.command(words).trim_start_matches(':').trim_end().parse().unwrap()
}

fn push(server: &RedisServer, numbers: Range<u32>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let queue: Queue<u32> = Queue::connect(&server.url(), "jobs").await.unwrap();
        for job in numbers {
            queue.push("counter", &job).await.unwrap();
        }
    });
}

#[test]
fn a_worker_that_slept_finds_its_job_done_by_another_and_works_on() {
    let server = RedisServer::start();
    let mut crew = Crew::new(&server.url());
    crew.start_one();
    push(&server, 0..1);
    crew.hears(0, "begin 0 ");
    crew.signal(0, Signal::STOP);
    crew.start_one();
    crew.hears(1, "wrote 0 1");
    crew.kill(1);
    crew.signal(0, Signal::CONT);
    push(&server, 1..2);
    crew.hears(0, "wrote 1 1");
    assert_eq!(number(&server, &["HLEN", "numbers"]), 2);
    assert_eq!(number(&server, &["SCARD", "jobs:dead"]), 0);
}

#[test]
fn a_hundred_jobs_of_one_lock_are_each_done_and_have_one_effect_although_workers_are_killed() {
    let server = RedisServer::start();
    push(&server, 0..JOBS);
    let mut crew = Crew::new(&server.url());
    for _ in 0..WORKERS {
        crew.start_one();
    }
    // Before the effect, after it, and once more.
    let mut kills = [(20, "begin"), (45, "wrote"), (70, "begin")].into_iter().peekable();
    let (begun_at, mut begun, mut killed) = (Instant::now(), 0, 0);
    while number(&server, &["HLEN", "numbers"]) < JOBS || killed < 3 {
        assert!(begun_at.elapsed() < LIMIT, "after {LIMIT:?}: {:?}", crew.spans);
        let Ok((worker, line)) = crew.hear.recv_timeout(Duration::from_millis(100)) else { continue };
        let Some(line) = line else {
            crew.gone(worker);
            continue;
        };
        let word = crew.note(worker, &line);
        begun += usize::from(word == "begin");
        let lives = crew.children[worker].is_some();
        if lives && kills.next_if(|&(after, when)| begun >= after && word == when).is_some() {
            crew.kill(worker);
            crew.start_one();
            killed += 1;
        }
    }
    let took = begun_at.elapsed();
    // What was done, but not yet said to be, is tried again and changes nothing. Then all are forgotten.
    while number(&server, &["HLEN", "jobs:data"]) > 0 {
        assert!(begun_at.elapsed() < LIMIT, "jobs are left");
        sleep(Duration::from_millis(50));
    }
    for worker in 0..crew.children.len() {
        if crew.children[worker].is_some() {
            crew.kill(worker);
        }
    }
    // The readers end with the workers.
    let mut ended = crew.children.len() - killed;
    while ended > 0 {
        match crew.hear.recv_timeout(LIMIT).unwrap() {
            (worker, Some(line)) => drop(crew.note(worker, &line)),
            (worker, None) => {
                crew.gone(worker);
                ended -= 1;
            }
        }
    }

    let mut spans = std::mem::take(&mut crew.spans);
    spans.sort_by_key(|span| span.begin);
    for pair in spans.windows(2) {
        assert!(pair[0].end <= pair[1].begin, "two at a time: {pair:?}");
    }
    let mut done: Vec<u32> = spans.iter().map(|span| span.number).collect();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done, (0..JOBS).collect::<Vec<_>>(), "each began at least once");
    assert!(spans.len() > JOBS as usize, "what was killed began again");
    assert_eq!(number(&server, &["SCARD", "jobs:dead"]), 0);
    println!("{JOBS} jobs, {} begun, {killed} workers killed, {took:?}", spans.len());
}
