//! `tenure ls`: the locks that are held or waited for.

use tenure::Inspection;

use crate::failure::Failure;
use crate::store::{Store, not_seen};
use crate::text::{ago, colourful, print, say, who};

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
        print(&locks.iter().map(|lock| json(lock) + "\n").collect::<String>());
        return Ok(0);
    }
    if !locks.is_empty() {
        print(&table(&locks, colourful(&std::io::stdout())));
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

fn table(locks: &[Inspection], colour: bool) -> String {
    let rows: Vec<[String; 6]> = locks.iter().map(row).collect();
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([HEADER[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: [&str; 6]| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let header = line(HEADER);
    let header = if colour { format!("\x1b[1m{}\x1b[0m\n", header.trim_end()) } else { header };
    rows.iter().fold(header, |text, row| text + &line(row.each_ref().map(String::as_str)))
}

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
