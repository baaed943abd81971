//! `taker URL` takes locks as it is told, and reports: a process to be killed, stopped and counted.
//!
//! It reads lines and answers each with one line that begins with the same tag; `lost` lines come unasked. It ends
//! at the end of its input, so none outlives a test.
//!
//! ```text
//! TAG acquire TTL_MS WAIT_MS NAME   TAG acquired FENCE HOLDER | TAG failed WHY
//!                                   TAG lost REASON
//! TAG release                       TAG released | TAG not_held | TAG failed WHY
//! TAG count TTL_MS TIMES FILE NAME  TAG counted | TAG failed WHY
//! TAG fork                          TAG forked ACQUIRE RELEASE HOLDS: what a copy of this process gets
//! ```
#![deny(unsafe_code)]

mod fork;

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure::{AcquireError, Client, Guard, ReleaseError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;

/// The longest line.
const LINE_BYTES_MAX: usize = 4096;

type Guards = Arc<Mutex<HashMap<String, Guard>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: taker URL")?;
    let client = Client::connect(&url).await?;
    let guards = Guards::default();
    // Not tokio's own input: that would be a second thread.
    let input = pipe::Receiver::from_owned_fd(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut lines = BufReader::new(input).lines();
    say("taker", "ready");
    while let Some(line) = lines.next_line().await? {
        assert!(line.len() <= LINE_BYTES_MAX, "a line has at most {LINE_BYTES_MAX} bytes");
        let (tag, words) = line.split_once(' ').ok_or("a line has a tag and a word")?;
        let (tag, words) = (tag.to_owned(), words.to_owned());
        let (client, guards) = (client.clone(), guards.clone());
        tokio::spawn(async move {
            if let Err(why) = obey(&client, &guards, &tag, &words).await {
                say(&tag, &format!("failed {why}"));
            }
        });
    }
    Ok(())
}

fn say(tag: &str, words: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever listened is gone: there is nobody to tell.
    let _ = writeln!(out, "{tag} {words}").and_then(|()| out.flush());
}

async fn obey(
    client: &Client,
    guards: &Guards,
    tag: &str,
    words: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
    match verb {
        "acquire" => {
            let (ttl, wait, name) = (number(rest, 0)?, number(rest, 1)?, rest.splitn(3, ' ').nth(2));
            let lock = client.lock(name.ok_or("which lock?")?).ttl(ttl).wait(wait);
            let guard = lock.acquire().await?;
            let lease = guard.lease().clone();
            say(tag, &format!("acquired {} {}", guard.fence(), guard.holder()));
            guards.lock().expect("no panic").insert(tag.to_owned(), guard);
            say(tag, &format!("lost {:?}", lease.lost().await));
        }
        "release" => {
            let guard = guards.lock().expect("no panic").remove(tag).ok_or("nothing is held")?;
            match guard.release().await {
                Ok(_) => say(tag, "released"),
                Err(ReleaseError::NotHeld) => say(tag, "not_held"),
                Err(error) => return Err(error.into()),
            }
        }
        "count" => {
            let (ttl, times) = (number(rest, 0)?, number(rest, 1)?.as_millis());
            let mut words = rest.splitn(4, ' ').skip(2);
            let (file, name) = (words.next().ok_or("which file?")?, words.next().ok_or("which lock?")?);
            for _ in 0..times {
                let guard = client.lock(name).ttl(ttl).wait_forever().acquire().await?;
                count_on(Path::new(file)).await?;
                guard.release().await?;
            }
            say(tag, "counted");
        }
        "fork" => fork(client, guards, tag)?,
        _ => return Err("what?".into()),
    }
    Ok(())
}

fn number(words: &str, at: usize) -> Result<Duration, Box<dyn std::error::Error>> {
    let word = words.split(' ').nth(at).ok_or("a number is missing")?;
    Ok(Duration::from_millis(word.parse()?))
}

/// Reads, waits, writes: two at a time would lose a step.
async fn count_on(file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::fs::read_to_string(file)?.trim().parse()?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(std::fs::write(file, (count + 1).to_string())?)
}

/// Lets a copy of this process try what it must not: the guard's release, another acquire, and a drop.
fn fork(client: &Client, guards: &Guards, tag: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut guards = guards.lock().expect("no panic");
    if guards.len() != 2 {
        return Err("a fork needs two guards: one to release and one to drop".into());
    }
    fork::in_a_copy(|| {
        let mut guards = std::mem::take(&mut *guards).into_values();
        let (released, dropped) = (guards.next().expect("two"), guards.next().expect("two"));
        let holds = released.holds() || dropped.holds();
        let acquire = at_once(client.lock("other").acquire());
        let acquire = matches!(acquire, Some(Err(AcquireError::Forked(_))));
        let release = matches!(at_once(released.release()), Some(Err(ReleaseError::Forked(_))));
        drop(dropped);
        let word = |forked| if forked { "Forked" } else { "else" };
        say(tag, &format!("forked {} {} {holds}", word(acquire), word(release)));
    });
    Ok(())
}

/// What a future says without waiting: the copy shares the sockets of its parent and must not touch them.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
