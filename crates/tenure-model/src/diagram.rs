//! A way through a world as a sequence diagram in plain text: a lane for each caller and one for the store, a row for
//! each thing that happened.

use std::fmt::Write as _;

use crate::check::Counterexample;
use crate::promises::called;
use crate::protocol::{Message, Output, Phase};
use crate::scope::Scope;
use crate::story::{self, Line};
use crate::world::{Action, World};

/// Width of a caller's lane.
const LANE: usize = 34;
/// Width of the store's lane.
const STORE: usize = 44;

/// The diagram of a counterexample.
pub fn draw(scope: &Scope, found: &Counterexample) -> String {
    let mut text = String::new();
    let callers = scope.callers.len();
    let _ = writeln!(text, "broken: {}\n        {}", found.promise.name(), found.promise.words());
    let _ = writeln!(text, "scope:  {} ({})\n", scope.name, scope.about);
    let mut head = format!("{:>8}  ", "ms");
    for caller in 0..callers {
        let _ = write!(head, "{:<LANE$}", format!("caller {}", called(caller)));
    }
    let _ = writeln!(text, "{head}store");
    let lines = story::lines(scope, &found.actions);
    for (line, action) in lines.iter().zip(&found.actions) {
        if matches!(action, Action::Pass(_)) {
            let _ = writeln!(text, "{:>8}", line.at - crate::scope::BEGIN_MS);
            continue;
        }
        rows(&mut text, line, callers);
    }
    let _ = writeln!(text, "\nwhat went wrong: {}", found.what);
    let _ = writeln!(text, "steps: {}", found.actions.len());
    let _ = writeln!(
        text,
        "(█ believes that it holds, │ does not, ✗ is dead; before the store's lane: whose hold the store keeps)"
    );
    text
}

/// One thing that happened: the event in the lane of whoever did it, what follows in the lanes of those concerned.
fn rows(text: &mut String, line: &Line, callers: usize) {
    let mut lanes: Vec<Vec<String>> = vec![Vec::new(); callers + 1];
    if let Some(words) = line.words.as_ref().or(line.remark.as_ref()) {
        let lane = line.who.unwrap_or(callers);
        let name = line.who.map(|who| format!("{} ", called(who))).unwrap_or_default();
        lanes[lane].push(words.strip_prefix(&name).unwrap_or(words).to_owned());
    }
    let happened = &line.happened;
    let name = |who: usize| called(who).to_string();
    for (who, output) in &happened.outputs {
        let one = story::consequences(
            &line.world,
            &crate::world::Happened { outputs: vec![(*who, output.clone())], ..Default::default() },
            &name,
        );
        let arrow = if matches!(output, Output::Send { .. }) { "──▶ " } else { "" };
        for words in one {
            let words = words.strip_prefix(&format!("{} ", called(*who))).unwrap_or(&words).to_owned();
            lanes[*who].push(format!("{arrow}{words}"));
        }
    }
    if let Some(ran) = &happened.ran {
        let only = crate::world::Happened { ran: Some(ran.clone()), ..Default::default() };
        for words in story::consequences(&line.world, &only, &name) {
            lanes[callers].push(words.replace("store answers", "answers"));
        }
    }
    for (to, message) in &happened.told {
        let what = match message {
            Message::Granted { token, .. } => format!("tells {}: it is yours, token {token}", called(*to)),
            Message::Head { .. } => format!("tells {}: you are the first", called(*to)),
            Message::Stop { .. } => format!("tells {}: stop", called(*to)),
            Message::Look => format!("tells {}: look", called(*to)),
        };
        lanes[callers].push(what);
    }
    let widths = |lane: usize| if lane == callers { STORE } else { LANE - 4 };
    let lanes: Vec<Vec<String>> = lanes
        .into_iter()
        .enumerate()
        .map(|(lane, items)| items.iter().flat_map(|item| wrap(item, widths(lane))).collect())
        .collect();
    let height = lanes.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..height {
        let time = if row == 0 { (line.at - crate::scope::BEGIN_MS).to_string() } else { String::new() };
        let _ = write!(text, "{time:>8}  ");
        for (lane, items) in lanes.iter().enumerate() {
            let item = items.get(row).map_or("", String::as_str);
            if lane == callers {
                let _ = write!(text, "{} {item}", keeper(&line.world));
            } else {
                let _ = write!(text, "{} {item:<width$}", belief(&line.world, lane), width = LANE - 2);
            }
        }
        let _ = writeln!(text);
    }
}

fn belief(world: &World, caller: usize) -> char {
    let known = &world.callers[caller];
    match known.claim.phase() {
        _ if !known.alive => '✗',
        Phase::Idle => '·',
        _ if world.holds(caller).is_some() => '█',
        _ => '│',
    }
}

fn keeper(world: &World) -> String {
    match world.occupant() {
        Some(caller) if world.is_held() => format!("[{}]", called(caller)),
        _ if world.is_held() => "[foreign]".to_owned(),
        _ => "[ ]".to_owned(),
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 1 + word.chars().count() <= width => {
                row.push(' ');
                row.push_str(word);
            }
            Some(_) => rows.push(format!("  {word}")),
            None => rows.push(word.to_owned()),
        }
    }
    rows
}
