//! `tenure ls`: the locks that are held or waited for.

use tenure::Inspection;

use crate::failure::Failure;
use crate::store::{Store, not_seen};
use crate::text::{ago, print, say, table, who};

/// List the locks that are held or waited for
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// One JSON object per line, stable
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Store,
}

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.store.connect(None).await?;
    let locks = client.list().await.map_err(|error| not_seen(&error))?;
    if args.json {
        print(&locks.iter().map(|lock| json(lock) + "\n").collect::<String>())?;
        return Ok(0);
    }
    if !locks.is_empty() {
        print(&table(HEADER, locks.iter().map(row)))?;
    }
    let none = if locks.is_empty() { "nothing is held or waited for; " } else { "" };
    say(&format!("{none}scope: {}", client.scope()));
    Ok(0)
}

/// The row of a lock in its stable form.
pub(crate) fn json(lock: &Inspection) -> String {
    serde_json::to_string(lock).expect("a row of strings and numbers")
}

const HEADER: [&str; 6] = ["NAME", "STATE", "HOLDER", "SINCE", "TTL", "WAITING"];

fn row(lock: &Inspection) -> [String; 6] {
    let dash = || "-".to_owned();
    let holder = lock.holder.as_ref();
    let place = holder.map(|holder| match (who(holder), holder.pid) {
        (Some(who), Some(pid)) => format!("{who}:{pid}"),
        _ => holder.id.clone(),
    });
    [
        tenure::printable(&lock.name),
        format!("{:?}", lock.state).to_lowercase(),
        place.or(lock.foreign.as_deref().map(tenure::printable)).unwrap_or_else(dash),
        holder.and_then(|holder| ago(holder.since.as_deref())).unwrap_or_else(dash),
        lock.ttl_ms.map_or_else(dash, tenure::span),
        lock.waiting.to_string(),
    ]
}
