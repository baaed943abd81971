//! `cargo xtask check --bug NAME`: switches mistakes on, one by one, and shows that the checker sees each of them.
#![forbid(unsafe_code)]

mod bugs;

use std::process::ExitCode;
use std::time::Instant;

use bugs::{BUGS, Bug};
use clap::Parser;
use tenure_seeded_bugs::check::{self, Found};
use tenure_seeded_bugs::promises::Promise;
use tenure_seeded_bugs::scope::Scope;
use tenure_seeded_bugs::{diagram, report, scopes, seeded, story};

/// Switches mistakes on, one by one, and shows that the checker sees each of them.
#[derive(Parser)]
#[command(name = "seeded-bugs")]
struct Args {
    /// The diagram of the shortest counterexample of this one.
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    /// With --bug: as a story that can be replayed.
    #[arg(long)]
    story: bool,
    /// With --bug: as JSON.
    #[arg(long)]
    json: bool,
    /// The table in Markdown.
    #[arg(long)]
    markdown: bool,
    /// Their names and what somebody thought.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.bug {
        Some(name) => {
            let Some(number) = BUGS.iter().position(|bug| bug.name == name) else {
                eprintln!("check: no bug is called {name:?}; see --list");
                return ExitCode::from(64);
            };
            show(number, &args)
        }
        None if args.list => {
            println!("BUGS");
            for bug in BUGS {
                println!("  {:<32}{}", bug.name, bug.words);
            }
            true
        }
        None => table(&args),
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Bug {
    fn scope(&self) -> &'static Scope {
        scopes::ALL.iter().find(|scope| scope.name == self.scope).expect("the scope exists")
    }

    fn promise(&self) -> Promise {
        Promise::ALL.into_iter().find(|promise| promise.name() == self.promise).expect("the promise exists")
    }

    /// The change, as a person would make it.
    fn change(&self) -> String {
        let wrong = self.wrong.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{}, after {:?}:\n  right: {}\n  wrong: {wrong}", self.file, self.near, self.right)
    }
}

fn look_for(number: usize) -> Found {
    seeded::switch_on(number);
    let bug = &BUGS[number];
    let found = check::shortest(bug.scope(), &[bug.promise()]);
    seeded::switch_off();
    found
}

fn show(number: usize, args: &Args) -> bool {
    let bug = &BUGS[number];
    let Some(found) = look_for(number).counterexample else {
        println!("{}: NOT FOUND in {}", bug.name, bug.scope);
        return false;
    };
    // It is told as it happens with the mistake.
    seeded::switch_on(number);
    if args.story {
        print!("{}", story::tell(bug.scope(), &found.actions));
    } else if args.json {
        println!("{}", report::json(bug.scope(), &found));
    } else {
        println!("{}: {}\n{}\n", bug.name, bug.words, bug.change());
        print!("{}", diagram::draw(bug.scope(), &found));
    }
    true
}

fn table(args: &Args) -> bool {
    let (mut all_caught, begun) = (true, Instant::now());
    if args.markdown {
        println!(
            "| Mistake | What somebody thought | Promise that it breaks | Scope | Steps |\n|---|---|---|---|--:|"
        );
    }
    for (number, bug) in BUGS.iter().enumerate() {
        let found = look_for(number);
        let steps = found.counterexample.map(|found| found.actions.len());
        if args.markdown {
            let Bug { name, words, promise, scope, .. } = bug;
            println!("| `{name}` | {words} | {promise} | {scope} | {} |", steps.unwrap_or(0));
        } else {
            let caught = steps.map_or("NOT CAUGHT".to_owned(), |steps| format!("caught in {steps:>2} steps"));
            println!("{:<32}{caught} by {:<20} in {}", bug.name, bug.promise, bug.scope);
        }
        if steps != Some(bug.steps) {
            all_caught = false;
            eprintln!("  {}: {steps:?} steps where {} are written down in bugs.rs", bug.name, bug.steps);
        }
    }
    let unproven: Vec<Promise> =
        Promise::ALL.into_iter().filter(|one| !BUGS.iter().any(|bug| bug.promise == one.name())).collect();
    if !unproven.is_empty() {
        all_caught = false;
        eprintln!("  no bug shows that these can fail: {}", report::names(&unproven));
    }
    let summary = format!(
        "{} seeded bugs{} in {:.0?}",
        BUGS.len(),
        if all_caught { ", all caught," } else { "" },
        begun.elapsed()
    );
    println!("{}{summary}{}", if args.markdown { "\n" } else { "" }, if args.markdown { "." } else { "" });
    all_caught
}
