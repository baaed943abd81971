//! `tenure lab race`: many processes, one lock, and what goes wrong.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::Duration;

use serde::Serialize;
use tenure::Moment;
use tenure_engine::boottime;
use tenure_forms::{FORMS, Form};

use crate::racer::{self, Accident, Line, TTL_MS, URLS_VARIABLE};
use crate::replay::key;
use crate::report::{print, progress, tell, wrapped};
use crate::resource::{Resource, Written};
use crate::servers::Server;
use crate::traces::Traces;
use crate::{LabError, tied};

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
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(6..=3600))]
    secs: u32,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The server, by redis://HOST:PORT/DB or unix:/PATH; otherwise one is started for each form. For redlock three times
    #[arg(long, value_name = "URL", requires = "form")]
    url: Vec<String>,
    /// For programs: a line for each form
    #[arg(long)]
    json: bool,
}

/// What can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    StaleWrites,
    Overlaps,
    Stuck,
    /// A holder was refused within its time.
    Wronged,
}

impl Harm {
    fn word(self) -> &'static str {
        match self {
            Self::StaleWrites => "stale writes",
            Self::Overlaps => "overlaps",
            Self::Stuck => "stuck",
            Self::Wronged => "holders refused",
        }
    }
}

/// What a form is known for: accidents that are arranged, one for each process in turn, so that a short race shows what
/// it suffers from; and the harm that it may show. Other accidents happen by chance.
fn known(form: &Form) -> (&'static [Accident], &'static [Harm]) {
    use Accident::{DieInside, DieTaking, Oversleep, PauseReleasing};
    use Harm::{Overlaps, StaleWrites, Stuck};
    let all: &[Accident] = &[Oversleep, DieInside, PauseReleasing, DieTaking];
    match form.name {
        "setnx-del" => (&[DieInside], &[Stuck]),
        "setnx-expire" => (&[DieTaking, Oversleep], &[Stuck, StaleWrites, Overlaps]),
        "cad" => (all, &[StaleWrites]),
        "tenure" => (all, &[]),
        _ => (all, &[StaleWrites, Overlaps]),
    }
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
    /// Those of them whose holder was within its time.
    wronged_holders: usize,
    /// Sections that began within their time while another one's time ran.
    overlaps: usize,
    /// How long nobody could get the lock, beyond what a death explains.
    stuck_ms: u64,
}

impl Count {
    fn harm(&self) -> Vec<Harm> {
        let counts = [
            (Harm::StaleWrites, self.stale_writes > 0),
            (Harm::Overlaps, self.overlaps > 0),
            (Harm::Stuck, self.stuck_ms > 0),
            (Harm::Wronged, self.wronged_holders > 0),
        ];
        counts.into_iter().filter(|(_, seen)| *seen).map(|(harm, _)| harm).collect()
    }

    /// A form shows what it is known for, and nothing else.
    fn is_as_expected(&self, form: &Form) -> bool {
        let ((_, known), seen) = (known(form), self.harm());
        seen.is_empty() == known.is_empty() && seen.iter().all(|harm| known.contains(harm))
    }

    fn row(&self) -> [String; 8] {
        let words: Vec<_> = self.harm().into_iter().map(Harm::word).collect();
        [
            self.form.to_owned(),
            self.sections.to_string(),
            self.deaths.to_string(),
            self.stale_writes.to_string(),
            self.refused_writes.to_string(),
            self.overlaps.to_string(),
            format!("{:.1} s", self.stuck_ms as f64 / 1000.0),
            if words.is_empty() { "nothing".to_owned() } else { words.join(", ") },
        ]
    }
}

const HEAD: [&str; 8] =
    ["FORM        ", "SECTIONS", "DEATHS", "STALE WRITES", "REFUSED", "OVERLAPS", "STUCK ", "WENT WRONG"];

fn line(cells: &[String; 8]) -> String {
    let cells = cells.iter().zip(HEAD).map(|(cell, head)| format!("{cell:<width$}", width = head.len()));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

pub(crate) fn run(args: &Args) -> Result<u8, LabError> {
    if !args.json {
        let how = format!(
            "{} processes, {} s each; locks of {TTL_MS} ms; processes die, and are stopped for longer than that, each at \
             first as arranged, then by chance; clocks of getset and pid-lock differ by up to 4 s; one server of redlock \
             restarts empty",
            args.clients, args.secs
        );
        print(&format!("{}\n{}\n", wrapped(&how, ""), line(&HEAD.map(|head| head.trim().to_owned()))));
    }
    let mut expected = true;
    let forms: Vec<_> = FORMS.into_iter().filter(|form| args.form.is_none_or(|one| one == *form)).collect();
    for together in forms.chunks(AT_ONCE) {
        let names: Vec<_> = together.iter().map(|form| form.name).collect();
        progress(&format!("racing {} for {} s", names.join(", "), args.secs));
        let counts = scope(|scope| {
            let races: Vec<_> = together.iter().map(|form| scope.spawn(|| race(form, args))).collect();
            races
                .into_iter()
                .map(|race| race.join().expect("a race does not panic"))
                .collect::<Result<Vec<_>, _>>()
        })?;
        for (form, count) in together.iter().zip(counts) {
            expected &= count.is_as_expected(form);
            if args.json {
                tell!("{}", serde_json::to_string(&count).expect("a row of numbers"));
            } else {
                tell!("{}", line(&count.row()));
            }
        }
    }
    if !args.json {
        let legend = "STALE WRITES: taken by the resource from a holder after a later one had written. REFUSED: by their \
                      fencing token. OVERLAPS: sections that began while another's time ran. STUCK: nobody got the \
                      lock, beyond what a death explains.";
        print(&format!("\n{}", wrapped(legend, "")));
    }
    if !expected {
        eprintln!(
            "tenure: not what is expected: each form shows what it is known for, and tenure nothing; a longer race \
             (--secs) may show more"
        );
    }
    Ok(u8::from(!expected))
}

fn race(form: &'static Form, args: &Args) -> Result<Count, LabError> {
    let key = key()?;
    let resource = Resource::beside(&key);
    let [record, holders] = resource.keys();
    let mut servers = Server::start(&args.url, form.nodes, &[&key, record, holders])?;
    let begin = boottime();
    let end = begin.plus(u64::from(args.secs) * 1000);
    let helpers: Vec<_> =
        (0..args.clients).map(|client| helper(form, &servers, &key, client, args.seed, end)).collect();
    let told = scope(|scope| {
        let lanes: Vec<_> = helpers.into_iter().map(|helper| scope.spawn(move || lane(helper))).collect();
        if let [_, second, ..] = &mut servers[..] {
            sleep(Duration::from_secs(u64::from(args.secs) / 2));
            second.forget(&key)?;
        }
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a lane does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
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
    let (accidents, _) = known(form);
    racer::Helper {
        form,
        urls: servers.iter().map(|server| server.url().to_owned()).collect(),
        key: key.to_owned(),
        ahead_ms: if form.stamped { SKEWS_MS[client as usize % SKEWS_MS.len()] } else { 0 },
        seed: seed.wrapping_mul(1_000_003).wrapping_add(u64::from(client) << 32),
        until_ms: end.0,
        accident: accidents.get(client as usize % (accidents.len() + 1)).copied(),
    }
}

/// One process after the other: who dies is replaced.
fn lane(mut helper: racer::Helper) -> Result<Vec<Line>, LabError> {
    let mut told = Vec::new();
    while boottime() < Moment(helper.until_ms) {
        // Tied to this thread, which waits for its end.
        let words = tied::words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["/proc/self/exe", racer::COMMAND]).args(helper.arguments());
        // Not as an argument: everybody could read a password in it.
        command.env(URLS_VARIABLE, helper.urls.join("\n"));
        helper.accident = None;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Traces::spawn(&mut command)?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        told.extend(lines.lines().map_while(Result::ok).filter_map(|line| Line::read(&line)));
        let ended = child.wait_with_output()?;
        if ended.status.code().is_some_and(|code| code != 0) {
            let text = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
            return Err(LabError::Server(format!("a process of the race failed: {text}")));
        }
        helper.seed = helper.seed.wrapping_add(1);
        sleep(Duration::from_millis(50));
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
    for line in told.iter().flatten() {
        match line {
            Line::Dies(_) => count.deaths += 1,
            Line::Wrote(Written::Stale) => count.stale_writes += 1,
            Line::Wrote(Written::Refused) => count.refused_writes += 1,
            Line::Wronged => count.wronged_holders += 1,
            Line::In(..) | Line::Out(..) | Line::Wrote(Written::Ok) => {}
        }
    }
    let mut sections: Vec<_> = told.iter().flat_map(|lines| sections_of(lines, end)).collect();
    sections.sort_unstable();
    count.sections = sections.len();
    // A stamp of a fast clock lasts so much longer.
    let skew_ms = if form.stamped { 4000 } else { 0 };
    let stuck_ms = |from: Moment, to: Moment| to.since(from).saturating_sub(IDLE_MS + skew_ms);
    let (mut owned_until, mut used_until) = (Moment(0), begin);
    for section in &sections {
        // Who was stopped right after it had won may be over its time before it is counted.
        count.overlaps += usize::from(section.from < owned_until && section.from < section.owned_until);
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

    fn section(from: u64, to: u64, owned_until: u64) -> Vec<Line> {
        vec![Line::In(Moment(from), Moment(owned_until)), Line::Out(Moment(to), Moment(owned_until))]
    }

    fn counted(form: &str, lanes: &[Vec<Line>], end: u64) -> Count {
        count(tenure_forms::form(form).unwrap(), lanes, Moment(0), Moment(end))
    }

    #[test]
    fn what_overlaps_and_what_idles_is_counted() {
        let a = [section(0, 1500, 1000), vec![Line::Wrote(Written::Stale)]].concat();
        let b = vec![Line::In(Moment(999), Moment(1999)), Line::Dies(Moment(1200))];
        let count = counted("set-nx-ex", &[a, b, section(9000, 9001, 10_000)], 10_000);
        assert_eq!((count.sections, count.deaths, count.stale_writes, count.overlaps), (3, 1, 1, 1));
        assert_eq!(count.stuck_ms, 9000 - 1500 - IDLE_MS);
    }

    #[test]
    fn one_after_the_other_is_clean() {
        let a = [section(0, 100, 950), section(200, 300, 1100)].concat();
        assert_eq!(counted("tenure", &[a, section(100, 200, 900)], 300).harm(), []);
    }

    #[test]
    fn who_works_on_when_its_time_is_over_has_not_overlapped() {
        assert_eq!(counted("cad", &[section(0, 1500, 1000), section(1001, 1100, 2001)], 1500).overlaps, 0);
        // Stopped right after it had won, and overtaken.
        assert_eq!(counted("cad", &[section(1300, 1400, 1000), section(1100, 1350, 2100)], 1500).overlaps, 0);
    }

    #[test]
    fn each_form_shows_what_it_is_known_for_and_tenure_nothing() {
        let stale = Count { stale_writes: 1, ..Count::default() };
        let overlapped = Count { overlaps: 1, ..stale.clone() };
        let wronged = Count { wronged_holders: 1, ..Count::default() };
        let is = |count: &Count, form| count.is_as_expected(tenure_forms::form(form).unwrap());
        assert!(is(&stale, "cad") && is(&overlapped, "redlock") && is(&Count::default(), "tenure"));
        assert!(!is(&overlapped, "cad") && !is(&stale, "tenure") && !is(&Count::default(), "cad"));
        assert!(!is(&wronged, "tenure"));
    }
}
