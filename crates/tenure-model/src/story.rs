//! Any way through a world, told in words; and words, replayed on a world.
//!
//! A story is a text: what happens stands at the left margin, what follows from it is indented. Replaying it writes the
//! indented lines anew.
//!
//! ```text
//! claim NAME [ttl MS] [guard MS] [place MS] [wait MS] [try] [without renewal]
//! [MS]  NAME acquires | releases | extends MS | ticks | is pinned | is asked to stop by WHOM |
//!       is out of reach | is in reach | is gone | dies
//! [MS]  NAME#N arrives | is answered [by answer K] | stays unanswered | did not run | is refused
//!                                                                    (N: which send of NAME)
//! [MS]  NAME hears [it again | message K]                            (without K: the last message to NAME)
//! [MS]  time passes            a Tick for every claim whose deadline has come
//! [MS]  NAME's clock gains MS | NAME's clock loses MS | store's clock gains MS | store's clock loses MS
//! [MS]  store forgets | NAME's job works on | NAME's job is orphaned
//! [MS]  foreign client takes [for MS] | foreign client leaves
//! [MS]  who holds
//! ```

use std::fmt::Write as _;

use crate::promises::called;
use crate::protocol::{
    Attempt, End, HolderId, Lost, Message, Moment, Notice, Outcome, Output, Phase, Reply, Request, Sight,
    Standing, Terms,
};
use crate::scope::Scope;
use crate::world::{Action, Body, Happened, Letter, World};

/// Replays a story: its text with the consequences as they are now.
///
/// # Panics
/// When a line is none that a story may have.
pub fn replay(text: &str) -> String {
    let mut story = Story { world: World::new(0, &[]), names: Vec::new() };
    let mut told = String::new();
    for line in text.lines().filter(|line| !line.starts_with("    ")) {
        let _ = writeln!(told, "{line}");
        if !line.starts_with('#') && !line.trim().is_empty() {
            for consequence in story.perform(line) {
                let _ = writeln!(told, "    {consequence}");
            }
        }
    }
    told
}

/// Turns any way through the world of a scope into a story that can be replayed.
pub fn tell(scope: &Scope, actions: &[Action]) -> String {
    let mut text = String::new();
    for (caller, terms) in scope.callers.iter().enumerate() {
        let Terms { ttl_ms, guard_ms, place_ms, wait_ms, renew } = terms;
        let queue = if *place_ms == 0 { "try".to_owned() } else { format!("place {place_ms}") };
        let wait = wait_ms.map(|ms| format!(" wait {ms}")).unwrap_or_default();
        let renewal = if *renew { "" } else { " without renewal" };
        let _ =
            writeln!(text, "claim {} ttl {ttl_ms} guard {guard_ms} {queue}{wait}{renewal}", called(caller));
    }
    for line in lines(scope, actions) {
        let _ = writeln!(text, "{}", line.story());
    }
    replay(&text)
}

/// One thing that happened, in the words of stories.
#[derive(Clone, Debug)]
pub struct Line {
    /// In true time.
    pub at: u64,
    /// The words; `None`: nothing that a story tells, only time.
    pub words: Option<String>,
    /// What a reader should know that is not for replaying.
    pub remark: Option<String>,
    /// Who does it; `None`: the store, or nobody.
    pub who: Option<usize>,
    /// What follows from it.
    pub happened: Happened,
    /// The world afterwards.
    pub world: World,
}

impl Line {
    fn story(&self) -> String {
        match (&self.words, &self.remark) {
            (Some(words), _) => format!("{} {words}", self.at),
            (None, Some(remark)) => format!("# {remark}"),
            (None, None) => format!("# it is {} now", self.at),
        }
    }
}

/// A way through a world, line by line.
pub fn lines(scope: &Scope, actions: &[Action]) -> Vec<Line> {
    let mut world = scope.world();
    // Which message to its reader, and which answer to its request, each letter under way is.
    let mut ordinals: Vec<(Letter, usize)> = Vec::new();
    let mut counted: Vec<((usize, Attempt, bool), usize)> = Vec::new();
    let mut lines = Vec::new();
    for action in actions {
        let before = world.clone();
        let happened = world.act(action);
        let (words, remark) = words(&before, action, &ordinals);
        if let Action::Deliver(at) | Action::Lose(at) = *action
            && let Some(gone) = before.letters.get(at)
            && let Some(known) = ordinals.iter().position(|(letter, _)| letter == gone)
        {
            ordinals.remove(known);
        }
        for letter in &world.letters {
            let had = |letters: &[Letter]| letters.iter().filter(|known| *known == letter).count();
            let numbered = ordinals.iter().filter(|(known, _)| known == letter).count();
            if !matches!(letter.body, Body::Request { .. }) && had(&world.letters) > numbered {
                let key = (letter.caller, letter.attempt, matches!(letter.body, Body::Message(_)));
                let at = counted.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                    counted.push((key, 0));
                    counted.len() - 1
                });
                counted[at].1 += 1;
                ordinals.push((letter.clone(), counted[at].1));
            }
        }
        let who = match *action {
            Action::Acquire(who)
            | Action::Release(who)
            | Action::Extend(who, _)
            | Action::Tick(who)
            | Action::Miss(who, ..)
            | Action::Drift(who, _)
            | Action::Crash(who)
            | Action::Reach(who, _)
            | Action::See(who, _)
            | Action::Pin(who) => Some(who),
            Action::Deliver(at) | Action::Repeat(at) => match before.letters.get(at) {
                Some(Letter { body: Body::Request { .. }, .. }) | None => None,
                Some(letter) => Some(letter.caller),
            },
            _ => None,
        };
        lines.push(Line {
            at: before.now.max(passed(action)),
            words,
            remark,
            who,
            happened,
            world: world.clone(),
        });
    }
    lines
}

fn passed(action: &Action) -> u64 {
    if let Action::Pass(to) = action { *to } else { 0 }
}

/// An action in the words of stories, or a remark where they have none.
fn words(before: &World, action: &Action, ordinals: &[(Letter, usize)]) -> (Option<String>, Option<String>) {
    let by = |by_ms: i64| format!("{} {}", if by_ms < 0 { "loses" } else { "gains" }, by_ms.abs());
    let words = match action {
        Action::Acquire(who) => format!("{} acquires", called(*who)),
        Action::Release(who) => format!("{} releases", called(*who)),
        Action::Extend(who, ms) => format!("{} extends {ms}", called(*who)),
        Action::Tick(who) => format!("{} ticks", called(*who)),
        Action::Deliver(at) | Action::Repeat(at) => {
            let Some(letter) = before.letters.get(*at) else { return (None, None) };
            let ordinal =
                ordinals.iter().find(|(known, _)| known == letter).map_or(1, |(_, ordinal)| *ordinal);
            let same = |(known, _): &&(Letter, usize)| {
                known.caller == letter.caller
                    && known.attempt == letter.attempt
                    && known.body.rank() == letter.body.rank()
            };
            let newest = ordinals.iter().filter(same).map(|(_, ordinal)| *ordinal).max() <= Some(ordinal);
            let name = called(letter.caller);
            match (&letter.body, newest) {
                (Body::Request { .. }, _) => format!("{name}#{} arrives", letter.attempt.0),
                (Body::Reply(_), true) => format!("{name}#{} is answered", letter.attempt.0),
                (Body::Reply(_), false) => {
                    format!("{name}#{} is answered by answer {ordinal}", letter.attempt.0)
                }
                (Body::Message(_), _) => format!("{name} hears message {ordinal}"),
            }
        }
        Action::Lose(at) => {
            let Some(letter) = before.letters.get(*at) else { return (None, None) };
            let name = called(letter.caller);
            let what = match letter.body {
                Body::Request { .. } => format!("{name}#{} never arrives", letter.attempt.0),
                Body::Reply(_) => format!("the answer to {name}#{} is lost", letter.attempt.0),
                Body::Message(_) => format!("a message to {name} is lost"),
            };
            return (None, Some(what));
        }
        Action::Miss(who, attempt, outcome) => {
            let what = match outcome {
                Outcome::NotRun => "did not run",
                Outcome::Refused => "is refused",
                Outcome::Unknown | Outcome::Answered(_) => "stays unanswered",
            };
            format!("{}#{} {what}", called(*who), attempt.0)
        }
        Action::Pass(_) => return (None, None),
        Action::Drift(who, by_ms) => format!("{}'s clock {}", called(*who), by(*by_ms)),
        Action::StoreClock(by_ms) => format!("store's clock {}", by(*by_ms)),
        Action::Forget => "store forgets".to_owned(),
        Action::Crash(who) => format!("{} dies", called(*who)),
        Action::Reach(who, true) => format!("{} is in reach", called(*who)),
        Action::Reach(who, false) => format!("{} is out of reach", called(*who)),
        Action::See(who, Sight::Working) => format!("{}'s job works on", called(*who)),
        Action::See(who, Sight::Orphaned) => format!("{}'s job is orphaned", called(*who)),
        Action::See(who, Sight::Gone | Sight::Unknown) => format!("{} is gone", called(*who)),
        Action::Pin(who) => format!("{} is pinned", called(*who)),
        Action::Stop(who, by) => format!("{} is asked to stop by {by}", called(*who)),
        Action::ForeignTakes(None) => "foreign client takes".to_owned(),
        Action::ForeignTakes(Some(ms)) => format!("foreign client takes for {ms}"),
        Action::ForeignLeaves => "foreign client leaves".to_owned(),
    };
    (Some(words), None)
}

/// A story that is being replayed. Letters that have arrived stay, so that a story can let them arrive again.
struct Story {
    world: World,
    names: Vec<String>,
}

impl Story {
    fn perform(&mut self, line: &str) -> Vec<String> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "claim" {
            self.enter(&words[1..]);
            return Vec::new();
        }
        if let Ok(at) = words[0].parse() {
            assert!(at >= self.world.now, "time goes forward: {line}");
            self.world.act(&Action::Pass(at));
            words.remove(0);
        }
        match words[..] {
            ["time", "passes"] => {
                let due: Vec<usize> = (0..self.names.len()).filter(|who| self.is_due(*who)).collect();
                due.into_iter().flat_map(|who| self.act(&Action::Tick(who))).collect()
            }
            ["store", "forgets"] => self.act(&Action::Forget),
            ["store's", "clock", way, ms] => self.act(&Action::StoreClock(by(way, ms))),
            ["foreign", "client", "takes", ref rest @ ..] => {
                self.act(&Action::ForeignTakes(rest.get(1).map(|ms| number(ms))))
            }
            ["foreign", "client", "leaves"] => self.act(&Action::ForeignLeaves),
            ["who", "holds"] => {
                let holders: Vec<&str> = self.world.holders().map(|who| self.names[who].as_str()).collect();
                vec![if holders.is_empty() { "nobody".to_owned() } else { holders.join(" and ") }]
            }
            [name, ref event @ ..] => self.happen(name, event),
            [] => unreachable!("lines have words"),
        }
    }

    fn happen(&mut self, name: &str, event: &[&str]) -> Vec<String> {
        if let Some((name, send)) = name.split_once('#') {
            let (who, attempt) = (self.who_is(name), Attempt(number(send) as u32));
            return match event {
                ["arrives"] => self.letter_arrives(who, attempt, 0, None),
                ["is", "answered"] => self.letter_arrives(who, attempt, 1, None),
                ["is", "answered", "by", "answer", at] => {
                    self.letter_arrives(who, attempt, 1, Some(number(at)))
                }
                ["stays", "unanswered"] => self.act(&Action::Miss(who, attempt, Outcome::Unknown)),
                ["did", "not", "run"] => self.act(&Action::Miss(who, attempt, Outcome::NotRun)),
                ["is", "refused"] => self.act(&Action::Miss(who, attempt, Outcome::Refused)),
                other => panic!("no such event: {other:?}"),
            };
        }
        if let Some(name) = name.strip_suffix("'s") {
            let who = self.who_is(name);
            return match event {
                ["clock", way, ms] => self.act(&Action::Drift(who, by(way, ms))),
                ["job", "works", "on"] => self.act(&Action::See(who, Sight::Working)),
                ["job", "is", "orphaned"] => self.act(&Action::See(who, Sight::Orphaned)),
                other => panic!("no such event: {other:?}"),
            };
        }
        let who = self.who_is(name);
        match event {
            ["acquires"] => self.act(&Action::Acquire(who)),
            ["releases"] => self.act(&Action::Release(who)),
            ["extends", ms] => self.act(&Action::Extend(who, number(ms))),
            ["ticks"] => self.act(&Action::Tick(who)),
            ["is", "pinned"] => self.act(&Action::Pin(who)),
            ["hears", "message", at] => self.letter_arrives(who, Attempt(0), 2, Some(number(at))),
            ["hears", ..] => self.letter_arrives(who, Attempt(0), 2, None),
            ["is", "asked", "to", "stop", "by", by] => self.act(&Action::Stop(who, (*by).to_owned())),
            ["is", "gone"] => self.act(&Action::See(who, Sight::Gone)),
            ["dies"] => self.act(&Action::Crash(who)),
            ["is", "out", "of", "reach"] => self.act(&Action::Reach(who, false)),
            ["is", "in", "reach"] => self.act(&Action::Reach(who, true)),
            other => panic!("no such event: {other:?}"),
        }
    }

    fn enter(&mut self, words: &[&str]) {
        let given = |key: &str, default: u64| {
            words.iter().position(|word| *word == key).map_or(default, |at| number(words[at + 1]))
        };
        self.world.enter(Terms {
            ttl_ms: given("ttl", 30_000),
            guard_ms: given("guard", 3_000),
            place_ms: if words.contains(&"try") { 0 } else { given("place", 30_000) },
            wait_ms: words.contains(&"wait").then(|| given("wait", 0)),
            renew: !words.contains(&"without"),
        });
        self.names.push(words[0].to_owned());
    }

    fn who_is(&self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| panic!("nobody is called {name:?}"))
    }

    fn is_due(&self, who: usize) -> bool {
        self.world.callers[who].claim.deadline().is_some_and(|at| at <= self.world.clock(who))
    }

    /// The `nth` letter of a kind, or the last one. Nobody reads answers and messages to a claim that is over.
    fn letter_arrives(&mut self, who: usize, attempt: Attempt, rank: u8, nth: Option<u64>) -> Vec<String> {
        let letters: Vec<usize> = (0..self.world.letters.len())
            .filter(|at| {
                let letter = &self.world.letters[*at];
                (letter.caller, letter.attempt, letter.body.rank()) == (who, attempt, rank)
            })
            .collect();
        let at = match nth {
            Some(nth) => letters.get(nth as usize - 1),
            None => letters.last(),
        };
        let over =
            matches!(self.world.callers[who].claim.phase(), Phase::Ended) || !self.world.callers[who].alive;
        assert!(at.is_some() || rank > 0 && over, "there is no such letter: {} {attempt:?}", self.names[who]);
        at.map(|at| self.act(&Action::Repeat(*at))).unwrap_or_default()
    }

    fn act(&mut self, action: &Action) -> Vec<String> {
        let happened = self.world.act(action);
        consequences(&self.world, &happened, &|who| self.names[who].clone())
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word:?}"))
}

fn by(way: &str, ms: &str) -> i64 {
    let ms = number(ms).cast_signed();
    match way {
        "gains" => ms,
        "loses" => -ms,
        other => panic!("clocks gain and lose: {other:?}"),
    }
}

/// What followed from an action, a line each.
pub fn consequences(world: &World, happened: &Happened, name: &dyn Fn(usize) -> String) -> Vec<String> {
    let words = Words { world, name };
    let mut lines = Vec::new();
    if let Some(ran) = &happened.ran {
        let to = if ran.attempt == Attempt(0) {
            String::new()
        } else {
            format!(" {}#{}", name(ran.caller), ran.attempt.0)
        };
        lines.push(format!("store answers{to}: {}", words.reply(&ran.reply)));
    }
    lines.extend(happened.told.iter().map(|(to, message)| words.message(*to, message)));
    lines.extend(happened.outputs.iter().map(|(who, output)| words.output(*who, output)));
    lines
}

/// What there is, in words.
struct Words<'a> {
    world: &'a World,
    name: &'a dyn Fn(usize) -> String,
}

impl Words<'_> {
    fn output(&self, who: usize, output: &Output) -> String {
        let name = (self.name)(who);
        match output {
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
                let until = self.world.callers[who].claim.valid_until().unwrap_or(Moment::NEVER).0;
                format!("{name} HOLDS with token {token}, until {until}")
            }
            Output::Tell(Notice::AtRisk) => format!("{name} is at risk"),
            Output::Tell(Notice::Lost(Lost::Expired)) => format!("{name} HAS LOST: the lease ran out"),
            Output::Tell(Notice::Lost(Lost::Taken)) => format!("{name} HAS LOST: the store says so"),
            Output::Tell(Notice::Lost(Lost::Asked { by })) => format!("{name} should stop: {by} asks"),
            Output::Tell(Notice::Ended(end)) => format!("{name} is done: {}", self.end(end)),
        }
    }

    fn end(&self, end: &End) -> String {
        match end {
            End::Released { confirmed: true } => "released".to_owned(),
            End::Released { confirmed: false } => "released, though the store did not confirm it".to_owned(),
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
        (self.name)(holder.serial as usize)
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
        let name = (self.name)(to);
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
