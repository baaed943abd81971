//! `tenure lab race`: many processes, one lock, and what goes wrong.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use tenure::Moment;
use tenure_engine::boottime;
use tenure_forms::{FORMS, Form};

use crate::racer::{Accident, Line, TTL_MS};
use crate::replay::key;
use crate::report::{print, table, tell, wrapped};
use crate::resource::{Resource, Written};
use crate::servers::Server;
use crate::{LabError, racer};

/// What a lock may stay idle after a death for good reason: its time, a guard time of a second, and the tries of others
/// on a busy machine.
const IDLE_MS: u64 = TTL_MS + 1000 + 1500;

/// How many forms are raced at the same time, each on servers of its own.
const AT_ONCE: usize = 3;

/// How far the clocks of timestamp forms are made to differ, by process.
const SKEWS_MS: [i64; 3] = [0, 3000, -1000];

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The form; without one: all of them, three at a time
    #[arg(value_parser = crate::form_named)]
    form: Option<&'static Form>,
    /// How many processes
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=64))]
    clients: u32,
    /// How long each form is raced, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(3..=3600))]
    secs: u32,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The server; otherwise one is started for each form. For redlock three times
    #[arg(long, value_name = "URL", requires = "form")]
    url: Vec<String>,
    /// For programs: a line for each form
    #[arg(long)]
    json: bool,
}

/// What was counted.
#[derive(Clone, Debug, Default, Serialize)]
struct Count {
    v: u32,
    form: &'static str,
    /// How often somebody had the lock.
    sections: usize,
    /// Processes that died.
    deaths: usize,
    /// Writes that the resource took from a holder after a later one had written.
    stale_writes: usize,
    /// Writes that it refused by their fencing token.
    refused_writes: usize,
    /// Sections that began while another one's time ran.
    overlaps: usize,
    /// How long nobody could get the lock, beyond what a death explains.
    stuck_ms: u64,
}

impl Count {
    fn is_clean(&self) -> bool {
        self.stale_writes == 0 && self.overlaps == 0 && self.stuck_ms == 0
    }

    fn row(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (harm, is_seen) in [
            ("stale writes", self.stale_writes > 0),
            ("overlaps", self.overlaps > 0),
            ("stuck", self.stuck_ms > 0),
        ] {
            if is_seen {
                words.push(harm);
            }
        }
        let seen = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        vec![
            self.form.to_owned(),
            self.sections.to_string(),
            self.deaths.to_string(),
            self.stale_writes.to_string(),
            self.refused_writes.to_string(),
            self.overlaps.to_string(),
            format!("{:.1} s", self.stuck_ms as f64 / 1000.0),
            seen,
        ]
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, LabError> {
    let mut rows = vec![
        ["FORM", "SECTIONS", "DEATHS", "STALE WRITES", "REFUSED", "OVERLAPS", "STUCK", "WENT WRONG"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut expected = true;
    let forms: Vec<_> = FORMS.into_iter().filter(|form| args.form.is_none_or(|one| one == *form)).collect();
    for together in forms.chunks(AT_ONCE) {
        let counts = std::thread::scope(|scope| {
            let races: Vec<_> = together.iter().map(|form| scope.spawn(|| race(form, args))).collect();
            races
                .into_iter()
                .map(|race| race.join().expect("a race does not panic"))
                .collect::<Result<Vec<_>, _>>()
        })?;
        for (form, count) in together.iter().zip(counts) {
            expected &= count.is_clean() == form.steps.is_none();
            if args.json {
                tell!("{}", serde_json::to_string(&count).expect("a row of numbers"));
            }
            rows.push(count.row());
        }
    }
    if !args.json {
        let how = format!(
            "{} processes, {} s each; locks of {TTL_MS} ms; processes die, and are stopped for longer than that; clocks of \
             getset and pid-lock differ by up to 4 s",
            args.clients, args.secs
        );
        let legend = "STALE WRITES: taken by the resource from a holder after a later one had written. REFUSED: by their \
                      fencing token. OVERLAPS: sections that began while another's time ran. STUCK: nobody got the \
                      lock, beyond what a death explains.";
        print(&format!("{}\n{}\n{}", wrapped(&how, ""), table(&rows), wrapped(legend, "")));
    }
    if !expected {
        eprintln!(
            "tenure: not what is expected: each form but tenure breaks; a longer race (--secs) may show it"
        );
    }
    Ok(u8::from(!expected))
}

fn race(form: &'static Form, args: &Args) -> Result<Count, LabError> {
    let mut servers = Server::start(&args.url, form.nodes)?;
    let key = key()?;
    let begin = boottime();
    let end = begin.plus(u64::from(args.secs) * 1000);
    // Scoped to this thread: the servers die with it.
    let told = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..args.clients)
            .map(|client| {
                let helper = helper(form, &servers, &key, client, args.seed, end);
                scope.spawn(move || lane(helper))
            })
            .collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a lane does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    for name in [key.as_str()].into_iter().chain(Resource::beside(&key).keys()) {
        for server in &mut servers {
            let _ = server.ask(&["DEL", name]);
        }
    }
    Ok(count(form, &told, begin, end))
}

fn helper(
    form: &'static Form,
    servers: &[Server],
    key: &str,
    client: u32,
    seed: u64,
    end: Moment,
) -> racer::Helper {
    let stamped = !form.turns("0").is_empty();
    racer::Helper {
        form,
        url: servers.iter().map(|server| server.url().to_owned()).collect(),
        key: key.to_owned(),
        ahead_ms: if stamped { SKEWS_MS[client as usize % SKEWS_MS.len()] } else { 0 },
        seed: seed.wrapping_mul(1_000_003).wrapping_add(u64::from(client) << 32),
        until_ms: end.0,
        accident: accident(form, client),
    }
}

/// What happens to a process first: mostly what its form is known to suffer from, so that a short race shows it.
fn accident(form: &Form, client: u32) -> Option<Accident> {
    let accidents: &[Accident] = match form.name {
        "setnx-del" => &[Accident::DieInside],
        "setnx-expire" => &[Accident::DieTaking, Accident::Oversleep],
        _ => &[Accident::Oversleep, Accident::DieInside, Accident::PauseReleasing, Accident::DieTaking],
    };
    accidents.get(client as usize % (accidents.len() + 1)).copied()
}

/// One process after the other: who dies is replaced.
fn lane(mut helper: racer::Helper) -> Result<Vec<Line>, LabError> {
    let mut told = Vec::new();
    while boottime().0 < helper.until_ms {
        let mut command = Command::new("/proc/self/exe");
        command.arg(racer::COMMAND).args(["--form", helper.form.name, "--key", &helper.key]);
        command.args(["--ahead-ms", &helper.ahead_ms.to_string(), "--seed", &helper.seed.to_string()]);
        command.args(["--until-ms", &helper.until_ms.to_string()]);
        for url in &helper.url {
            command.args(["--url", url]);
        }
        if let Some(accident) = helper.accident.take() {
            command.args(["--accident", accident.word()]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        told.extend(lines.lines().map_while(Result::ok).filter_map(|line| Line::read(&line)));
        let ended = child.wait()?;
        if ended.code().is_some_and(|code| code != 0) {
            return Err(LabError::Server("a process of the race failed; see above".to_owned()));
        }
        helper.seed = helper.seed.wrapping_add(1);
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(told)
}

/// Somebody had the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Section {
    from: Moment,
    /// When it was left, or its holder died.
    to: Moment,
    /// Until when the lock was its own.
    owned_until: Moment,
}

fn count(form: &'static Form, told: &[Vec<Line>], begin: Moment, end: Moment) -> Count {
    let mut count = Count { v: 1, form: form.name, ..Count::default() };
    let mut sections = Vec::new();
    for line in told.iter().flat_map(|lines| {
        sections.extend(sections_of(lines, end));
        lines
    }) {
        match line {
            Line::Dies(_) => count.deaths += 1,
            Line::Wrote(Written::Stale) => count.stale_writes += 1,
            Line::Wrote(Written::Refused) => count.refused_writes += 1,
            Line::In(..) | Line::Out(..) | Line::Wrote(Written::Ok) => {}
        }
    }
    sections.sort_unstable();
    count.sections = sections.len();
    // A stamp of a fast clock lasts so much longer.
    let skew_ms = if form.turns("0").is_empty() { 0 } else { 4000 };
    let stuck_ms = |from: Moment, to: Moment| to.since(from).saturating_sub(IDLE_MS + skew_ms);
    let (mut owned_until, mut used_until) = (Moment(0), begin);
    for section in &sections {
        count.overlaps += usize::from(section.from < owned_until);
        count.stuck_ms += stuck_ms(used_until, section.from);
        owned_until = owned_until.max(section.to.min(section.owned_until));
        used_until = used_until.max(section.to);
    }
    count.stuck_ms += stuck_ms(used_until, end);
    count
}

/// The sections of one lane, in which one process follows another.
fn sections_of(lines: &[Line], end: Moment) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut inside = false;
    for line in lines {
        match *line {
            Line::In(from, owned_until) => {
                sections.push(Section { from, to: end.max(from), owned_until });
                inside = true;
            }
            Line::Out(to, owned_until) if inside => {
                let last = sections.last_mut().expect("it went in");
                (last.to, last.owned_until) = (to, owned_until);
                inside = false;
            }
            Line::Dies(to) if inside => {
                sections.last_mut().expect("it went in").to = to;
                inside = false;
            }
            _ => {}
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_and_what_idles_is_counted() {
        let form = tenure_forms::form("cad").unwrap();
        let a = vec![
            Line::In(Moment(0), Moment(1000)),
            Line::Wrote(Written::Stale),
            Line::Out(Moment(1500), Moment(1000)),
        ];
        let b = vec![Line::In(Moment(999), Moment(1999)), Line::Dies(Moment(1200))];
        let c = vec![Line::In(Moment(9000), Moment(10_000)), Line::Out(Moment(9001), Moment(10_000))];
        let count = count(form, &[a, b, c], Moment(0), Moment(10_000));
        assert_eq!((count.sections, count.deaths, count.stale_writes, count.overlaps), (3, 1, 1, 1));
        assert_eq!(count.stuck_ms, 9000 - 1500 - IDLE_MS);
        assert!(!count.is_clean());
    }

    #[test]
    fn one_after_the_other_is_clean() {
        let form = tenure_forms::form("tenure").unwrap();
        let a = vec![
            Line::In(Moment(0), Moment(900)),
            Line::Out(Moment(100), Moment(950)),
            Line::In(Moment(200), Moment(1100)),
            Line::Out(Moment(300), Moment(1100)),
        ];
        let b = vec![Line::In(Moment(100), Moment(900)), Line::Out(Moment(200), Moment(900))];
        assert!(count(form, &[a, b], Moment(0), Moment(300)).is_clean());
    }

    /// A form that gives the lock to the next one while an overslept holder still works has not overlapped: its time
    /// was over.
    #[test]
    fn who_overslept_does_not_count_as_overlapped() {
        let form = tenure_forms::form("cad").unwrap();
        let a = vec![Line::In(Moment(0), Moment(1000)), Line::Out(Moment(1500), Moment(1000))];
        let b = vec![Line::In(Moment(1001), Moment(2001)), Line::Out(Moment(1100), Moment(2001))];
        assert_eq!(count(form, &[a, b], Moment(0), Moment(1500)).overlaps, 0);
    }
}
