//! `tenure inspect`: one lock, with everything that is known of it.

use std::fmt::Write as _;

use tenure::{Inspection, State, printable, span};

use crate::failure::Failure;
use crate::ls::json;
use crate::store::{Store, not_seen};
use crate::text::{ago, held_by, print, quoted, until};

/// Show who holds a lock and who waits for it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock
    name: String,
    /// One JSON object, stable
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Store,
}

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.store.connect(None).await?;
    let lock = client.inspect(&args.name).await.map_err(|error| not_seen(&error))?;
    print(&if args.json { json(&lock) + "\n" } else { page(&lock) })?;
    Ok(0)
}

fn page(lock: &Inspection) -> String {
    let mut page = format!("{}: {}\n", printable(&lock.name), held_by(lock));
    let mut line = |what: &str, text: Option<String>| {
        if let Some(text) = text {
            let _ = writeln!(page, "  {what:<9}{}", printable(&text));
        }
    };
    if let Some(holder) = &lock.holder {
        line("holder", Some(holder.id.clone()));
        let since = holder.since.as_ref().map(|since| match ago(Some(since)) {
            Some(ago) => format!("{since} ({ago})"),
            None => since.clone(),
        });
        line("session", holder.labels.get("session").cloned());
        line("since", since);
        line("renewed", ago(holder.renewed.as_deref()).map(|ago| format!("{ago} ago, at the latest")));
        line("version", holder.version.clone());
    }
    line("fence", lock.fence.map(|fence| fence.to_string()));
    line("ttl", lock.ttl_ms.map(span));
    line("end", until(lock));
    line("stopping", lock.stop_asked_by.as_ref().map(|by| format!("asked by {by}")));
    if lock.waiting > 0 {
        line("waiting", Some(lock.waiting.to_string()));
    }
    for waiter in &lock.waiters {
        let mut text = format!("{}. {}", waiter.place, waiter.id);
        if let (Some(user), Some(host), Some(pid)) = (&waiter.user, &waiter.host, waiter.pid) {
            let _ = write!(text, " {user}@{host}:{pid}");
        }
        if let Some(session) = waiter.labels.get("session") {
            let _ = write!(text, " ({session})");
        }
        if let Some(ms) = waiter.waited_ms {
            let _ = write!(text, " for {}", span(ms));
        }
        line("", Some(text));
    }
    line("scope", Some(lock.scope.clone()));
    if let (State::Held, Some(holder)) = (lock.state, &lock.holder) {
        line("stop it", Some(format!("tenure release {} --holder {}", quoted(&lock.name), holder.id)));
    }
    page
}
