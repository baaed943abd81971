//! Replays the stories beside this file: what happens (at the left margin), and what follows from it (indented). With
//! `UPDATE_STORIES=1` the indented lines are written anew; read the difference before you keep it.
//!
//! ```text
//! claim NAME [ttl MS] [guard MS] [place MS] [wait MS] [try] [without renewal]
//! [MS]  NAME acquires | releases | extends MS | ticks | is pinned | is asked to stop by WHOM |
//!       is out of reach | is in reach
//! [MS]  NAME#N arrives | is answered | stays unanswered | did not run | is refused     (N: which send of NAME)
//! [MS]  NAME hears [nothing | it again]                                               (the last message to NAME)
//! [MS]  time passes            a Tick for every claim whose deadline has come
//! [MS]  store forgets | NAME is gone | NAME's job works on | NAME's job is orphaned
//! [MS]  foreign client takes [for MS] | foreign client leaves
//! [MS]  who holds
//! ```

mod world;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use tenure_core::{
    Attempt, End, HolderId, Input, Ledger, Lost, Message, Moment, Notice, Occupant, Outcome, Output, Reply,
    Request, Sight, Standing, Terms,
};
use world::World;

#[derive(Default)]
struct Story {
    world: World,
    names: Vec<String>,
    claims: HashMap<String, usize>,
}

impl Story {
    fn perform(&mut self, line: &str) -> Vec<String> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "claim" {
            self.enter(&words[1..]);
            return Vec::new();
        }
        if let Ok(at) = words[0].parse() {
            assert!(at >= self.world.now.0, "time goes forward: {line}");
            self.world.now = Moment(at);
            words.remove(0);
        }
        match words[..] {
            ["time", "passes"] => {
                let due: Vec<usize> = (0..self.names.len())
                    .filter(|claim| {
                        self.world.claims[*claim].deadline().is_some_and(|at| at <= self.world.now)
                    })
                    .collect();
                due.into_iter().flat_map(|claim| self.feed(claim, Input::Tick)).collect()
            }
            ["store", "forgets"] => {
                self.world.ledger = Ledger::default();
                Vec::new()
            }
            ["foreign", "client", "takes", ref rest @ ..] => {
                let ends = rest.get(1).map(|ms| self.world.now.plus(ms.parse().unwrap()));
                self.world.ledger.occupant = Some(Occupant::Foreign { ends });
                Vec::new()
            }
            ["foreign", "client", "leaves"] => {
                self.world.ledger.occupant = None;
                Vec::new()
            }
            ["who", "holds"] => {
                let holders: Vec<String> =
                    self.world.holders().iter().map(|claim| self.names[*claim].clone()).collect();
                vec![if holders.is_empty() { "nobody".to_owned() } else { holders.join(" and ") }]
            }
            [name, ref event @ ..] => self.happen(name, event),
            [] => unreachable!("lines have words"),
        }
    }

    fn happen(&mut self, name: &str, event: &[&str]) -> Vec<String> {
        if let Some((name, send)) = name.split_once('#') {
            let claim = self.claims[name];
            let attempt = Attempt(send.parse().unwrap());
            let known = |sent: &(usize, Attempt)| *sent == (claim, attempt);
            let outcome = match event {
                ["arrives"] => {
                    let at = self
                        .world
                        .requests
                        .iter()
                        .rposition(|(c, a, _)| known(&(*c, *a)))
                        .expect("it was sent");
                    let (reply, messages) = self.world.arrive(at);
                    let mut lines: Vec<String> =
                        messages.iter().map(|(to, message)| self.message(*to, message)).collect();
                    lines.insert(0, format!("store answers {name}: {}", self.reply(&reply)));
                    return lines;
                }
                ["is", "answered"] => {
                    let reply = self.world.replies.iter().rev().find(|(c, a, _)| known(&(*c, *a)));
                    Outcome::Answered(reply.expect("it arrived").2.clone())
                }
                ["stays", "unanswered"] => Outcome::Unknown,
                ["did", "not", "run"] => Outcome::NotRun,
                ["is", "refused"] => Outcome::Refused,
                other => panic!("no such event: {other:?}"),
            };
            return self.feed(claim, Input::Reply { attempt, outcome });
        }
        if let Some(name) = name.strip_suffix("'s") {
            let sight = match event {
                ["job", "works", "on"] => Sight::Working,
                ["job", "is", "orphaned"] => Sight::Orphaned,
                other => panic!("no such event: {other:?}"),
            };
            self.world.sights[self.claims[name]] = sight;
            return Vec::new();
        }
        let claim = self.claims[name];
        match event {
            ["acquires"] => self.feed(claim, Input::Acquire),
            ["releases"] => self.feed(claim, Input::Release),
            ["extends", ms] => {
                let guard_ms = self.world.claims[claim].terms().guard_ms;
                self.feed(claim, Input::Extend { ttl_ms: ms.parse().unwrap(), guard_ms })
            }
            ["ticks"] => self.feed(claim, Input::Tick),
            ["is", "pinned"] => self.feed(claim, Input::Pin),
            ["hears", ..] => {
                let message = self.world.messages.iter().rev().find(|(to, _)| *to == claim);
                let message = message.expect("there is a message for it").1.clone();
                self.feed(claim, Input::Message(message))
            }
            ["is", "asked", "to", "stop", "by", by] => {
                let told_before = self.world.messages.len();
                let holder = self.world.claims[claim].owner().holder;
                let reply = self.world.apply(&Request::Stop { holder, by: (*by).to_owned() });
                let messages = self.world.messages[told_before..].to_vec();
                let mut lines = vec![format!("store answers: {}", self.reply(&reply))];
                lines.extend(messages.iter().map(|(to, message)| self.message(*to, message)));
                lines
            }
            ["is", "gone"] => {
                self.world.sights[claim] = Sight::Gone;
                Vec::new()
            }
            ["is", "out", "of", "reach"] => {
                self.world.unreachable.insert(claim);
                Vec::new()
            }
            ["is", "in", "reach"] => {
                self.world.unreachable.remove(&claim);
                Vec::new()
            }
            other => panic!("no such event: {other:?}"),
        }
    }

    fn enter(&mut self, words: &[&str]) {
        let number = |key: &str, default: u64| {
            words.iter().position(|word| *word == key).map_or(default, |at| words[at + 1].parse().unwrap())
        };
        let terms = Terms {
            ttl_ms: number("ttl", 30_000),
            guard_ms: number("guard", 3_000),
            place_ms: if words.contains(&"try") { 0 } else { number("place", 30_000) },
            wait_ms: words.contains(&"wait").then(|| number("wait", 0)),
            renew: !words.contains(&"without"),
        };
        self.claims.insert(words[0].to_owned(), self.world.enter(terms));
        self.names.push(words[0].to_owned());
    }

    fn feed(&mut self, claim: usize, input: Input) -> Vec<String> {
        let name = self.names[claim].clone();
        self.world
            .feed(claim, input)
            .into_iter()
            .map(|output| match output {
                Output::Send { attempt, request } => {
                    let what = match request {
                        Request::Ask { place_ms: 0, .. } => "asks, ready to be told busy".to_owned(),
                        Request::Ask { .. } => "asks".to_owned(),
                        Request::Renew { ttl_ms, .. } => format!("renews for {ttl_ms}"),
                        Request::Release { .. } => "sends a release".to_owned(),
                        Request::Stop { .. } => unreachable!("claims stop nobody"),
                    };
                    format!("{name} {what} ({name}#{})", attempt.0)
                }
                Output::Tell(Notice::Granted { token }) => {
                    let until = self.world.claims[claim].valid_until().expect("it holds").0;
                    format!("{name} HOLDS with token {token}, until {until}")
                }
                Output::Tell(Notice::AtRisk) => format!("{name} is at risk"),
                Output::Tell(Notice::Lost(Lost::Expired)) => format!("{name} HAS LOST: the lease ran out"),
                Output::Tell(Notice::Lost(Lost::Taken)) => format!("{name} HAS LOST: the store says so"),
                Output::Tell(Notice::Lost(Lost::Asked { by })) => format!("{name} should stop: {by} asks"),
                Output::Tell(Notice::Ended(end)) => format!("{name} is done: {}", self.end(&end)),
            })
            .collect()
    }

    fn end(&self, end: &End) -> String {
        match end {
            End::Released { confirmed: true } => "released".to_owned(),
            End::Released { confirmed: false } => "released, though the first answer was lost".to_owned(),
            End::NotHeld => "NOT HELD any more when released; overlap possible".to_owned(),
            End::ReleaseUnknown { by } => format!("release unknown, free by {}", by.0),
            End::Busy(standing) => format!("busy; {}", self.standing(standing.as_ref())),
            End::WaitElapsed(standing) => format!("waited long enough; {}", self.standing(standing.as_ref())),
            End::Full => "the queue is full".to_owned(),
            End::Unreachable => "the store is out of reach".to_owned(),
            End::Refused => "the store refuses".to_owned(),
            End::Cancelled => "cancelled".to_owned(),
        }
    }

    fn who(&self, holder: HolderId) -> String {
        self.names[holder.serial as usize].clone()
    }

    fn standing(&self, standing: Option<&Standing>) -> String {
        let Some(standing) = standing else { return "free, but others come first".to_owned() };
        let holder = standing.holder.map_or("a foreign client".to_owned(), |holder| self.who(holder));
        let ends = standing
            .free_in_ms
            .map_or("without an end".to_owned(), |ms| format!("free in {ms} at the latest"));
        let quiet = if standing.quiet { ", nobody will tell" } else { "" };
        format!("{holder} holds, {ends}{quiet}")
    }

    fn reply(&self, reply: &Reply) -> String {
        match reply {
            Reply::Granted { token } => format!("granted, token {token}"),
            Reply::Queued { head, standing } => {
                let place = if *head { "queued as the first" } else { "queued" };
                format!("{place}; {}", self.standing(standing.as_ref()))
            }
            Reply::Busy { standing } => format!("busy; {}", self.standing(standing.as_ref())),
            Reply::Full => "full".to_owned(),
            Reply::Stale => "stale".to_owned(),
            Reply::Renewed => "renewed".to_owned(),
            Reply::Stopping { by } => format!("not renewed, {by} asked it to stop"),
            Reply::Released => "released".to_owned(),
            Reply::Told { reached } => {
                format!("told{}", if *reached { "" } else { ", though no message reaches it" })
            }
            Reply::NotHeld => "not held".to_owned(),
        }
    }

    fn message(&self, to: usize, message: &Message) -> String {
        let name = &self.names[to];
        match message {
            Message::Granted { token, attempt } => {
                format!("store tells {name}: it is yours, token {token}, since {name}#{}", attempt.0)
            }
            Message::Head { standing } => {
                format!("store tells {name}: you are the first; {}", self.standing(Some(standing)))
            }
            Message::Stop { by } => format!("store tells {name}: {by} asks you to stop"),
            Message::Look => format!("store tells {name}: look"),
        }
    }
}

fn replay(text: &str) -> String {
    let mut story = Story::default();
    let mut told = String::new();
    for line in text.lines().filter(|line| !line.starts_with("    ")) {
        writeln!(told, "{line}").unwrap();
        if !line.starts_with('#') && !line.trim().is_empty() {
            for consequence in story.perform(line) {
                writeln!(told, "    {consequence}").unwrap();
            }
        }
    }
    told
}

#[test]
fn the_stories_are_true() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 12, "stories went missing");
    for file in files {
        let written = fs::read_to_string(&file).unwrap();
        let told = replay(&written);
        if std::env::var_os("UPDATE_STORIES").is_some() {
            fs::write(&file, told).unwrap();
        } else {
            assert_eq!(told, written, "{} tells something else", file.display());
        }
    }
}
