//! One process of a race: it takes the lock again and again, writes to what the lock guards, and meets with accidents.

use std::io::Write as _;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};
use redis::Connection;
use rustix::process::{Signal, getpid, kill_process};
use tenure::{Client, Guard, Moment};
use tenure_engine::{boottime, unix_ms};
use tenure_forms::{Caller, Command, Done, Form, Next, Reply};

use crate::resource::{Resource, Written};
use crate::servers::{connect, run};
use crate::{LabError, form_named};

/// What the process is called with.
pub(crate) const COMMAND: &str = "__racer";

/// In whose environment the servers are named, a line each.
pub(crate) const URLS_VARIABLE: &str = "TENURE_LAB_URLS";

/// How long each lock is to last.
pub(crate) const TTL_MS: u64 = tenure_model::lab::TTL_MS;

/// The pause between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// What a process of a race is told.
#[derive(Parser, Clone, Debug)]
pub(crate) struct Helper {
    #[arg(long, value_parser = form_named)]
    pub(crate) form: &'static Form,
    #[arg(skip)]
    pub(crate) urls: Vec<String>,
    #[arg(long)]
    pub(crate) key: String,
    /// How far its clock is ahead.
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) ahead_ms: i64,
    #[arg(long)]
    pub(crate) seed: u64,
    /// When the race ends, in milliseconds of CLOCK_BOOTTIME.
    #[arg(long)]
    pub(crate) until_ms: u64,
    /// An accident that happens at the first opportunity; others happen by chance.
    #[arg(long, value_enum)]
    pub(crate) accident: Option<Accident>,
}

impl Helper {
    /// All of it but the servers, as arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--form={}", self.form.name),
            format!("--key={}", self.key),
            format!("--ahead-ms={}", self.ahead_ms),
            format!("--seed={}", self.seed),
            format!("--until-ms={}", self.until_ms),
        ];
        let accident = self.accident.and_then(|accident| accident.to_possible_value());
        arguments.extend(accident.map(|accident| format!("--accident={}", accident.get_name())));
        arguments
    }
}

/// What happens to a process, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Accident {
    /// It is stopped inside for longer than the lock lasts.
    Oversleep,
    /// It dies inside.
    DieInside,
    /// It dies while it acquires, after a command that was carried out.
    DieTaking,
    /// It is stopped right before it deletes, or hands over.
    PauseReleasing,
}

impl Accident {
    /// How often it happens by chance, in thousand opportunities.
    fn per_mille(self) -> u64 {
        match self {
            Self::Oversleep => 10,
            Self::DieInside | Self::DieTaking | Self::PauseReleasing => 5,
        }
    }
}

/// What a process tells on stdout, a line each, at once: it may die in the next moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    /// It has the lock, which is its own until the second moment.
    In(Moment, Moment),
    /// It is about to release the lock, which was its own until the second moment.
    Out(Moment, Moment),
    /// It dies.
    Dies(Moment),
    /// It wrote.
    Wrote(Written),
    /// It was refused although it was within its time.
    Wronged,
}

impl Line {
    fn tell(self) {
        let mut stdout = std::io::stdout().lock();
        let told = match self {
            Self::In(at, until) => writeln!(stdout, "in {} {}", at.0, until.0),
            Self::Out(at, until) => writeln!(stdout, "out {} {}", at.0, until.0),
            Self::Dies(at) => writeln!(stdout, "dies {} 0", at.0),
            Self::Wrote(written) => writeln!(stdout, "wrote {} 0", written as u8),
            Self::Wronged => writeln!(stdout, "wronged 0 0"),
        };
        if told.and_then(|()| stdout.flush()).is_err() {
            // Nobody listens any more.
            std::process::exit(0);
        }
    }

    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, at, until) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        match (kind, at) {
            ("in", _) => Some(Self::In(Moment(at), Moment(until))),
            ("out", _) => Some(Self::Out(Moment(at), Moment(until))),
            ("dies", _) => Some(Self::Dies(Moment(at))),
            ("wronged", _) => Some(Self::Wronged),
            ("wrote", 0) => Some(Self::Wrote(Written::Ok)),
            ("wrote", 1) => Some(Self::Wrote(Written::Stale)),
            ("wrote", _) => Some(Self::Wrote(Written::Refused)),
            _ => None,
        }
    }
}

pub(crate) fn main(mut helper: Helper) -> u8 {
    helper.urls = std::env::var(URLS_VARIABLE).unwrap_or_default().lines().map(str::to_owned).collect();
    let resource = Resource::beside(&helper.key);
    let raced = connect(helper.urls.first().map_or("", String::as_str)).and_then(|connection| {
        let racer = Racer { chance: helper.seed, helper, resource, connection };
        if racer.helper.form.steps.is_some() { racer.by_steps() } else { racer.by_tenure() }
    });
    match raced {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            69
        }
    }
}

struct Racer {
    helper: Helper,
    resource: Resource,
    /// To what the lock guards.
    connection: Connection,
    chance: u64,
}

/// The connections to the servers of the lock, made anew when they break.
type Servers = Vec<Option<Connection>>;

impl Racer {
    fn is_over(&self) -> bool {
        boottime() >= Moment(self.helper.until_ms)
    }

    /// What its wall clock shows.
    fn clock_ms(&self) -> u64 {
        unix_ms().saturating_add_signed(self.helper.ahead_ms)
    }

    /// One of the historical forms.
    fn by_steps(mut self) -> Result<(), LabError> {
        let mut servers: Servers = self.helper.urls.iter().map(|_| None).collect();
        while !self.is_over() {
            let token = format!("{:016x}", self.random());
            let mut caller = Caller::new(&token, TTL_MS);
            let begun = boottime();
            let Next::Won { until_ms } = self.take(&mut caller, &mut servers)? else {
                std::thread::sleep(TRY_AGAIN);
                continue;
            };
            let owned_until = if self.helper.form.ends { begun.plus(TTL_MS) } else { Moment::NEVER };
            Line::In(boottime(), owned_until).tell();
            let number = self.resource.number(&mut self.connection)?;
            self.write(number, None)?;
            std::thread::sleep(self.work());
            // Who is told when to stop looks before it writes; what happens after the look it can't help.
            if until_ms.is_none_or(|until| self.clock_ms() < until) {
                self.perhaps_inside();
                self.write(number, None)?;
            }
            Line::Out(boottime(), owned_until).tell();
            self.give_back(&mut caller, &mut servers)?;
        }
        Ok(())
    }

    /// Goes through an acquire; its end.
    fn take(&mut self, caller: &mut Caller, servers: &mut Servers) -> Result<Next, LabError> {
        let mut last: Option<Done> = None;
        loop {
            match self.helper.form.acquire(caller, self.clock_ms(), last.as_ref()) {
                Next::Send { node, command } => {
                    let reply = self.ask(servers, node, &command)?;
                    let took = matches!(command, Command::SetNx { .. } | Command::GetSet { .. })
                        && reply != Reply::No;
                    if took && self.happens(Accident::DieTaking) {
                        die();
                    }
                    last = Some(Done { node, command, reply });
                }
                end => return Ok(end),
            }
        }
    }

    fn give_back(&mut self, caller: &mut Caller, servers: &mut Servers) -> Result<(), LabError> {
        let mut last: Option<Done> = None;
        loop {
            let next = self.helper.form.release(caller, self.clock_ms(), last.as_ref());
            let Next::Send { node, command } = next else { return Ok(()) };
            if command != Command::Get && self.happens(Accident::PauseReleasing) {
                std::thread::sleep(self.pause());
            }
            let reply = self.ask(servers, node, &command)?;
            last = Some(Done { node, command, reply });
        }
    }

    /// Of several servers one may be away: it gives no vote.
    fn ask(&self, servers: &mut Servers, node: usize, command: &Command) -> Result<Reply, LabError> {
        let mut connection = match servers[node].take() {
            Some(connection) => Ok(connection),
            None => connect(&self.helper.urls[node]),
        };
        let answer = connection
            .as_mut()
            .map_err(|error| LabError::Server(error.to_string()))
            .and_then(|connection| run(connection, &self.helper.key, command));
        match answer {
            Err(_) if servers.len() > 1 => Ok(Reply::No),
            answer => {
                servers[node] = connection.ok();
                answer
            }
        }
    }

    /// Tenure's own lock, through the library.
    fn by_tenure(mut self) -> Result<(), LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let failed = |error: &dyn std::fmt::Display| LabError::Server(error.to_string());
            let client = Client::connect(&self.helper.urls[0]).await.map_err(|error| failed(&error))?;
            let lock = client.lock(&self.helper.key).ttl(Duration::from_millis(TTL_MS));
            while !self.is_over() {
                let left = Duration::from_millis(Moment(self.helper.until_ms).since(boottime()));
                let dies_in = if self.happens(Accident::DieTaking) { self.random() % 5 } else { u64::MAX };
                let guard = tokio::select! {
                    guard = async { lock.clone().wait(left).acquire().await } => guard,
                    () = tokio::time::sleep(Duration::from_millis(dies_in)) => {
                        die();
                        continue;
                    }
                };
                let guard = match guard {
                    Ok(guard) => guard,
                    Err(tenure::AcquireError::Busy(_) | tenure::AcquireError::WaitElapsed { .. }) => continue,
                    Err(error) => return Err(failed(&error)),
                };
                Line::In(boottime(), guard.deadline()).tell();
                let number = self.resource.number(&mut self.connection)?;
                self.write(number, Some(&guard))?;
                tokio::time::sleep(self.work()).await;
                if guard.holds() {
                    self.perhaps_inside();
                    self.write(number, Some(&guard))?;
                }
                Line::Out(boottime(), guard.deadline()).tell();
                if self.happens(Accident::PauseReleasing) {
                    std::thread::sleep(self.pause());
                }
                // Whether it was lost is what the race is about; the next acquire begins anew.
                let _ = guard.release().await;
            }
            client.close(Duration::from_millis(100)).await;
            Ok(())
        })
    }

    fn write(&mut self, number: u64, guard: Option<&Guard>) -> Result<(), LabError> {
        let written = self.resource.write(&mut self.connection, number, guard.map(|guard| guard.fence()))?;
        Line::Wrote(written).tell();
        // It held before the answer, too: what has been lost does not come back.
        if written == Written::Refused && guard.is_some_and(|guard| guard.holds()) {
            Line::Wronged.tell();
        }
        Ok(())
    }

    fn perhaps_inside(&mut self) {
        if self.happens(Accident::DieInside) {
            die();
        }
        if self.happens(Accident::Oversleep) {
            // The whole process: nothing in it runs, as under SIGSTOP.
            std::thread::sleep(self.pause());
        }
    }

    /// Is it time for this accident?
    fn happens(&mut self, accident: Accident) -> bool {
        if self.helper.accident == Some(accident) {
            self.helper.accident = None;
            return true;
        }
        self.random() % 1000 < accident.per_mille()
    }

    fn work(&mut self) -> Duration {
        Duration::from_millis(5 + self.random() % 15)
    }

    /// Longer than a lock of a second and its guard time.
    fn pause(&mut self) -> Duration {
        Duration::from_millis(TTL_MS * 9 / 4 + self.random() % 500)
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Nothing is cleaned up, nobody is told.
fn die() {
    Line::Dies(boottime()).tell();
    let _ = kill_process(getpid(), Signal::KILL);
}
