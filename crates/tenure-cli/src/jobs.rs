//! `tenure jobs`: the deferred jobs of this account on this host.

use tenure::{printable, span};
use tenure_engine::unix_ms;

use crate::failure::Failure;
use crate::queue::{Deferred, Entry, Id, Queue, QueueError, Shelf};
use crate::text::{command_line, print, say, table};

/// List deferred jobs, or change them
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Only jobs of this lock
    name: Option<String>,
    /// Only jobs that failed too often
    #[arg(long)]
    dead: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Make a job due at once, with all of its attempts before it: also a dead one, or a damaged one that was mended
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "dead", "json"])]
    retry: Option<Id>,
    /// Take a job out of the queue
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "dead", "json", "retry"])]
    remove: Option<Id>,
    /// Make all dead jobs due at once
    #[arg(long, requires = "dead", conflicts_with = "json")]
    retry_all: bool,
    /// Take all dead jobs out of the queue
    #[arg(long, requires = "dead", conflicts_with_all = ["json", "retry_all"])]
    remove_all: bool,
}

const AFTER_HELP: &str = "\
Examples:
  tenure jobs                          what waits, since when, and how the last try ended
  tenure jobs --retry ID               once more
  tenure jobs --dead --retry-all mail  all that failed too often under the lock 'mail'

A job is deferred by `tenure run --on-busy defer` and run by `tenure work`. The queue is a directory of this account on
this host, `jobs` beside the locks of file:, wherever the locks of the jobs are. --json leaves out the values of the
variables that a job keeps, passwords in addresses, and the arguments of a job that was deferred with --no-cmdline.

Exit code: 0; 1 there is no such job, a worker is at it or it makes no sense; 69, 71 no queue; 64 usage";

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let queue = Queue::open()?;
    if let Some(id) = args.retry {
        queue.revive(id)?;
    } else if let Some(id) = args.remove {
        queue.remove(id)?;
    } else if args.retry_all || args.remove_all {
        let change = if args.retry_all { Queue::revive } else { Queue::remove };
        for entry in queue.list(&[Shelf::Dead])?.filter(|entry| args.is_asked_for(entry)) {
            match change(&queue, entry.id) {
                // Somebody else was quicker.
                Ok(()) | Err(QueueError::NoSuchJob(_) | QueueError::Taken(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    } else {
        args.list(&queue)?;
    }
    Ok(0)
}

impl Args {
    fn list(&self, queue: &Queue) -> Result<(), Failure> {
        let now_ms = unix_ms();
        let shelves = if self.dead { &[Shelf::Dead][..] } else { &Shelf::ALL };
        let entries: Vec<Entry> = queue.list(shelves)?.filter(|entry| self.is_asked_for(entry)).collect();
        let states = entries.iter().map(|entry| state(entry, queue.is_taken(entry.id), now_ms));
        if self.json {
            print(&entries.iter().zip(states).map(|(entry, state)| json(entry, &state)).collect::<String>())?;
        } else if entries.is_empty() {
            say("no deferred jobs");
        } else {
            print(&table(
                HEADER,
                entries.iter().zip(states).map(|(entry, state)| row(entry, &state, now_ms)),
            ))?;
        }
        Ok(())
    }

    /// What cannot be read has no name.
    fn is_asked_for(&self, entry: &Entry) -> bool {
        let name = entry.job.as_ref().ok().map(|job| &job.name);
        self.name.is_none() || self.name.as_ref() == name
    }
}

const HEADER: [&str; 8] = ["ID", "LOCK", "STATE", "TRIES", "LAST", "AGE", "SCOPE", "COMMAND"];

/// In a word or two.
fn state(entry: &Entry, taken: bool, now_ms: u64) -> String {
    match &entry.job {
        Err(why) => why.to_string(),
        Ok(_) if entry.shelf == Shelf::Dead => "dead".to_owned(),
        Ok(_) if entry.shelf == Shelf::Damaged => "set aside".to_owned(),
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
            command_line(job.shown_words().map(Into::into)),
        ],
        Err(_) => [id, dash(), state, dash(), dash(), age, dash(), dash()],
    }
}

/// What may be shown of a job: the values of its variables may be secrets.
fn json_of_job(job: &Deferred) -> serde_json::Value {
    let mut row = serde_json::to_value(job).expect("a job was text before");
    row["words"] = job.shown_words().collect();
    row["surroundings"]["variables"] = job.surroundings.variables.keys().cloned().collect();
    row
}

/// The job with what follows from where it lies.
fn json(entry: &Entry, state: &str) -> String {
    let mut row = entry.job.as_ref().map_or_else(|_| serde_json::json!({}), json_of_job);
    row["id"] = entry.id.to_string().into();
    row["created_ms"] = entry.id.created_ms.into();
    row["state"] = state.into();
    row.to_string() + "\n"
}
