//! A way to a broken promise as a sequence diagram in plain text: a lane for each caller, and what the key holds.

use std::fmt::Write as _;

use tenure_forms::{Command, Form, Reply};

pub use super::promise::called;
use super::{Action, Broken, Doing, Happened, Promise, World};

/// What the lock is called in diagrams.
pub const KEY: &str = "lock";

/// The diagram.
pub fn draw(form: &Form, promise: Promise, broken: &Broken) -> String {
    let mut text = format!("broken: {} ({})\n", promise.name(), promise.words());
    let _ = writeln!(text, "form:   {} ({})", form.name, form.breaks);
    if let Some(clocks) = clocks(&broken.begin) {
        let _ = writeln!(text, "clocks: {clocks}");
    }
    let lanes = Lanes::of(&broken.begin, &broken.actions);
    let _ = writeln!(text, "\n{}", lanes.head());
    let mut world = broken.begin.clone();
    for action in &broken.actions {
        let happened = world.act(*action);
        let keys: Vec<String> = world.nodes.iter().map(|node| key(&world, node)).collect();
        let _ = writeln!(text, "{}", lanes.row(&world, *action, &happened, &keys));
    }
    let _ = writeln!(text, "\nwhat went wrong: {}", broken.what);
    let _ = writeln!(text, "steps: {}    (█ works under the lock, ✗ is dead)", broken.actions.len());
    text
}

/// Whose clock differs, in words.
pub fn clocks(world: &World) -> Option<String> {
    let (who, ahead_ms) = world
        .players
        .iter()
        .enumerate()
        .find_map(|(who, player)| (player.ahead_ms != 0).then_some((who, player.ahead_ms)))?;
    let way = if ahead_ms > 0 { "ahead" } else { "behind" };
    Some(format!("that of {} is {} s {way}", called(who), ahead_ms.unsigned_abs() / 1000))
}

/// The lanes of a drawing: as wide as the longest that happens in them.
pub struct Lanes(Vec<usize>);

impl Lanes {
    /// The lanes for this way.
    pub fn of(begin: &World, actions: &[Action]) -> Self {
        let mut world = begin.clone();
        let mut widths = vec![1; world.players.len()];
        for action in actions {
            let happened = world.act(*action);
            if let (Some(who), words) = told(*action, &happened, world.nodes.len()) {
                widths[who] = widths[who].max(words.chars().count());
            }
        }
        Self(widths)
    }

    /// Their names.
    pub fn head(&self) -> String {
        let mut head = format!("{:>6} ", "ms");
        for (who, width) in self.0.iter().enumerate() {
            let _ = write!(head, "  {:<width$}  ", called(who));
        }
        format!("{head}{KEY}")
    }

    /// One thing that happened, and what the key then was on each server.
    pub fn row(&self, world: &World, action: Action, happened: &Happened, keys: &[String]) -> String {
        let mut row = format!("{:>6} ", world.elapsed_ms());
        let (actor, words) = told(action, happened, world.nodes.len());
        for (who, width) in self.0.iter().enumerate() {
            let words = if actor == Some(who) { words.as_str() } else { "" };
            let _ = write!(row, "{} {words:<width$}  ", mark(world, who));
        }
        let note = if actor.is_none() { format!("   ({words})") } else { String::new() };
        format!("{row}{}{note}", keys.join(" | ")).trim_end().to_owned()
    }
}

/// One thing that happened, in a line of its own.
pub fn line(world: &World, action: Action, happened: &Happened, keys: &[String]) -> String {
    let (actor, words) = told(action, happened, world.nodes.len());
    let actor = actor.map_or_else(String::new, |who| format!("{} ", called(who)));
    format!("{:>6}   {actor}{words}    ({KEY}: {})", world.elapsed_ms(), keys.join(" | "))
}

fn mark(world: &World, who: usize) -> char {
    match world.players[who].doing {
        Doing::Dead => '✗',
        Doing::Inside { .. } => '█',
        _ => ' ',
    }
}

/// Who did it, and in words what.
fn told(action: Action, happened: &Happened, nodes: usize) -> (Option<usize>, String) {
    match action {
        Action::Die(who) => (Some(who), "dies".to_owned()),
        Action::Pass => (None, "time passes".to_owned()),
        Action::Forget(node) => (None, format!("server {} restarts empty", node + 1)),
        Action::Go(who) => {
            let Some(done) = &happened.done else { return (Some(who), "is done".to_owned()) };
            let outcome = if happened.won {
                " HAS IT"
            } else if happened.busy {
                " busy"
            } else {
                ""
            };
            let at = if nodes > 1 { format!("{}: ", done.node + 1) } else { String::new() };
            let command = done.command.shown(KEY);
            (Some(who), format!("{at}{command} → {}{outcome}", answer(&done.command, &done.reply)))
        }
    }
}

/// A reply to a command as `redis-cli` shows it, in short.
pub fn answer(command: &Command, reply: &Reply) -> String {
    let set = matches!(command, Command::SetNx { ttl: Some(_), .. });
    match reply {
        Reply::Yes if set => "OK".to_owned(),
        Reply::No if set => "nil".to_owned(),
        Reply::Yes => "1".to_owned(),
        Reply::No => "0".to_owned(),
        Reply::Value(None) => "nil".to_owned(),
        Reply::Value(Some(value)) => value.clone(),
    }
}

fn key(world: &World, node: &super::world::Node) -> String {
    match node.slot.look(world.now_ms) {
        None => "-".to_owned(),
        Some((value, None)) => format!("{value} (no end)"),
        Some((value, Some(at))) => format!("{value} ({} ms)", at - world.now_ms),
    }
}
