//! What a lock costs, beside plain `SET NX PX` with compare-and-delete over the same client, in one run. Absolute
//! numbers depend on the machine; the ratios are what counts.
#![forbid(unsafe_code)]

mod embedded;
mod handover;
mod pair;
mod plain;
mod renewals;
mod server;

use anyhow::{Result, bail};

const PARTS: [(&str, &str); 6] = [
    ("pair", "one task, one lock: acquire and release, side by side, on one core"),
    ("server", "64 tasks on 64 locks: pairs per second, and what they cost the server"),
    ("embedded", "one task on one host, without a server"),
    ("handover", "20 processes wait for one lock: the order, and the gap between release and next acquire"),
    ("waiting", "20 waiters: commands per waiter and second"),
    ("renewals", "10,000 held locks in one process: its share of a core"),
];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // A process of the hand-over test.
        ["wait-in-line", url, name, hold_ms] => handover::wait_in_line(url, name, hold_ms.parse()?),
        [] | ["all"] => PARTS.iter().try_for_each(|(part, what)| run(part, what)),
        [part] => match PARTS.iter().find(|(known, _)| *known == part) {
            Some((part, what)) => run(part, what),
            None => bail!("no such part: {part}; there are {:?}", PARTS.map(|(part, _)| part)),
        },
        _ => bail!("one part at a time"),
    }
}

fn run(part: &str, what: &str) -> Result<()> {
    println!("\n{part}: {what}");
    match part {
        "pair" => pair::run(),
        "server" => server::run(),
        "embedded" => embedded::run(),
        "handover" => handover::run(),
        "waiting" => handover::waiting(),
        _ => renewals::run(),
    }
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Puts a process (0: this thread) on one core, so that the two sides of a comparison travel the same way.
fn pin(pid: u32, core: usize) -> Result<()> {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    Ok(rustix::thread::sched_setaffinity(pid, &cores)?)
}

/// A runtime on this thread alone.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
