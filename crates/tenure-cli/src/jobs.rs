//! `tenure jobs`: the deferred jobs of this account on this host.

use tenure::{printable, span};
use tenure_engine::unix_ms;

use crate::failure::Failure;
use crate::queue::{Deferred, Entry, Id, Queue};
use crate::text::{command_line, print, say, table};

/// List deferred jobs, or change one
///
/// A job is deferred by `tenure run --on-busy defer` and run by `tenure work`. The queue is a directory of this account
/// on this host, `jobs` beside the locks of file:, wherever the locks of the jobs are.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only jobs of this lock
    name: Option<String>,
    /// Only jobs that failed too often
    #[arg(long)]
    dead: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Make a job due at once, a dead one too, with all of its attempts before it
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "dead", "json", "remove"])]
    retry: Option<Id>,
    /// Take a job out of the queue
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "dead", "json"])]
    remove: Option<Id>,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let queue = Queue::open()?;
    if let Some(id) = args.retry {
        queue.revive(id)?;
    } else if let Some(id) = args.remove {
        queue.remove(id)?;
    } else {
        args.list(&queue)?;
    }
    Ok(0)
}

impl Args {
    fn list(&self, queue: &Queue) -> Result<(), Failure> {
        let now_ms = unix_ms();
        let mut entries: Vec<Entry> = queue.list()?.collect();
        entries.retain(|entry| match &entry.job {
            Ok(job) => self.name.as_ref().is_none_or(|name| *name == job.name) && (job.dead || !self.dead),
            Err(_) => self.name.is_none() && !self.dead,
        });
        let states = entries.iter().map(|entry| state(entry, queue.is_taken(entry.id), now_ms));
        if self.json {
            print(&entries.iter().zip(states).map(|(entry, state)| json(entry, &state)).collect::<String>());
        } else if entries.is_empty() {
            say("no deferred jobs");
        } else {
            print(&table(
                HEADER,
                entries.iter().zip(states).map(|(entry, state)| row(entry, &state, now_ms)),
            ));
        }
        Ok(())
    }
}

const HEADER: [&str; 8] = ["ID", "LOCK", "STATE", "TRIES", "LAST", "AGE", "SCOPE", "COMMAND"];

/// In a word or two.
fn state(entry: &Entry, taken: bool, now_ms: u64) -> String {
    match &entry.job {
        Err(why) => why.to_string(),
        Ok(job) if job.dead => "dead".to_owned(),
        Ok(_) if taken => "taken".to_owned(),
        Ok(job) if job.is_due(now_ms) => "due".to_owned(),
        Ok(job) => format!("due in {}", span(job.not_before_ms.saturating_sub(now_ms))),
    }
}

fn row(entry: &Entry, state: &str, now_ms: u64) -> [String; 8] {
    let age = span(now_ms.saturating_sub(entry.id.created_ms));
    let dash = || "-".to_owned();
    let (id, state) = (entry.id.to_string(), printable(state));
    match &entry.job {
        Ok(job) => [
            id,
            printable(&job.name),
            state,
            job.attempts.to_string(),
            job.last.map_or_else(dash, |last| format!("exit {}", last.exit)),
            age,
            printable(&job.scope),
            shown(job),
        ],
        Err(_) => [id, dash(), state, dash(), dash(), age, dash(), dash()],
    }
}

fn shown(job: &Deferred) -> String {
    command_line(job.words.iter().map(|word| word.as_str().into()))
}

/// The job as it is kept, with what follows from where it lies.
fn json(entry: &Entry, state: &str) -> String {
    let mut row = match &entry.job {
        Ok(job) => serde_json::to_value(job).expect("a job was text before"),
        Err(_) => serde_json::json!({}),
    };
    row["id"] = entry.id.to_string().into();
    row["created_ms"] = entry.id.created_ms.into();
    row["state"] = state.into();
    row.to_string() + "\n"
}
