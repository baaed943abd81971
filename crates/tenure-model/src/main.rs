//! `cargo xtask check`: visits every state of every scope, and says what was promised and reached there.
#![forbid(unsafe_code)]

use std::num::NonZero;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Parser;
use tenure_model::check::{self, Found};
use tenure_model::facts::Fact;
use tenure_model::promises::Promise;
use tenure_model::scope::{Scope, Size};
use tenure_model::{diagram, matrix, report, scopes, story, walk};

/// Visits every state of every scope of the protocol.
#[derive(Parser)]
#[command(name = "check")]
struct Args {
    /// Scopes to check; all of them without any.
    scopes: Vec<String>,
    /// The large sizes: minutes instead of seconds.
    #[arg(long)]
    deep: bool,
    /// The result as a table for people to keep.
    #[arg(long)]
    markdown: bool,
    /// Scopes and promises.
    #[arg(long)]
    list: bool,
    /// The shortest way to break a promise that a scope does not give.
    #[arg(long, value_name = "PROMISE")]
    weakness: Option<String>,
    /// With --weakness: as a story that can be replayed.
    #[arg(long)]
    story: bool,
    /// With --weakness: as JSON.
    #[arg(long)]
    json: bool,
    /// So many walks at random through worlds too large to be searched.
    #[arg(long, value_name = "N")]
    walks: Option<u64>,
    /// The seed of the first walk.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What holds under which faults, as it stands in docs/guarantees.md.
    #[arg(long)]
    guarantees: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let unknown = args.scopes.iter().find(|name| !scopes::ALL.iter().any(|scope| scope.name == **name));
    if let Some(name) = unknown {
        eprintln!("check: no scope is called {name:?}; see --list");
        return ExitCode::from(64);
    }
    let chosen = || {
        scopes::ALL
            .iter()
            .filter(|scope| args.scopes.is_empty() || args.scopes.iter().any(|name| scope.name == name))
    };
    let done = if args.list {
        list();
        true
    } else if args.guarantees {
        print!("{}", matrix::markdown());
        true
    } else if let Some(promise) = &args.weakness {
        let Some(promise) = Promise::ALL.into_iter().find(|known| known.name() == promise) else {
            eprintln!("check: no promise is called {promise:?}; see --list");
            return ExitCode::from(64);
        };
        chosen().all(|scope| weakness(scope, promise, &args))
    } else if let Some(walks) = args.walks {
        take_walks(walks, args.seed)
    } else {
        exhaust(chosen(), &args)
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn threads() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

fn list() {
    println!("SCOPES");
    for scope in scopes::ALL {
        println!("  {:<28}{}", scope.name, scope.about);
    }
    println!("\nPROMISES");
    for promise in Promise::ALL {
        println!("  {:<28}{}", promise.name(), promise.words());
    }
}

fn exhaust<'a>(chosen: impl Iterator<Item = &'static Scope> + 'a, args: &Args) -> bool {
    let (mut all_well, mut states) = (true, 0);
    let begun = Instant::now();
    if args.markdown {
        println!(
            "| Scope | What may happen | States | Promises kept | Broken by nature, and found | Facts reached | Time |"
        );
        println!("|---|---|--:|--:|---|--:|--:|");
    }
    for scope in chosen {
        let size = if args.deep { scope.deep.unwrap_or(scope.size) } else { scope.size };
        let begun = Instant::now();
        let found = check::exhaust(scope, size, threads());
        states += found.states;
        if args.markdown {
            row(scope, &found, begun.elapsed());
        } else {
            line(scope, &found, begun.elapsed());
        }
        for trouble in troubles(scope, size, &found) {
            all_well = false;
            eprintln!("  {}: {trouble}", scope.name);
        }
        if let Some(broken) = &found.counterexample {
            // The first way that was found is not the shortest.
            let shortest = check::shortest(scope, &[broken.promise]).counterexample;
            eprintln!("{}", diagram::draw(scope, shortest.as_ref().unwrap_or(broken)));
        }
    }
    let summary = format!("{} states in {:.0?}", report::grouped(states), begun.elapsed());
    if args.markdown {
        println!("\n{summary}.");
    } else {
        println!("{summary}");
    }
    all_well
}

fn line(scope: &Scope, found: &Found, time: Duration) {
    let broken = if scope.broken.is_empty() {
        String::new()
    } else {
        format!("; broken by nature and found: {}", report::names(&found.broken))
    };
    println!(
        "{:<28}{:>12} states  {:>2} promises kept, {:>2} facts reached  {time:.1?}{broken}",
        scope.name,
        report::grouped(found.states),
        scope.promises().len(),
        found.reached.count_ones(),
    );
}

fn row(scope: &Scope, found: &Found, time: Duration) {
    println!(
        "| `{}` | {} | {} | {} of {} | {} | {} | {time:.1?} |",
        scope.name,
        scope.about,
        report::grouped(found.states),
        scope.promises().len(),
        Promise::ALL.len(),
        report::names(&found.broken),
        found.reached.count_ones(),
    );
}

/// What is not as it should be.
fn troubles(scope: &'static Scope, size: Size, found: &Found) -> Vec<String> {
    let mut troubles = Vec::new();
    if let Some(broken) = &found.counterexample {
        troubles.push(format!("{} is broken: {}", broken.promise.name(), broken.what));
        return troubles;
    }
    if found.states != size.states {
        troubles.push(format!(
            "has {} states where {} are written down: if the protocol was meant to change, write the new number into \
             scopes.rs",
            found.states, size.states
        ));
    }
    for fact in scope.reaches.iter().copied().flatten().filter(|fact| found.reached & fact.bit() == 0) {
        troubles.push(format!("never reaches: {}", fact.words()));
    }
    let expected =
        scope.broken.iter().map(|(promise, _)| *promise).filter(|promise| !promise.needs_recovery());
    let expected: Vec<Promise> = expected.collect();
    if found.broken != expected {
        troubles.push(format!(
            "breaks {} where {} are expected",
            report::names(&found.broken),
            report::names(&expected)
        ));
    }
    for (promise, steps) in scope.broken {
        let shortest = check::shortest(scope, &[*promise]).counterexample.map(|found| found.actions.len());
        if shortest != Some(*steps) {
            troubles.push(format!(
                "breaks {} in {shortest:?} steps where {steps} are written down",
                promise.name()
            ));
        }
    }
    troubles
}

fn weakness(scope: &'static Scope, promise: Promise, args: &Args) -> bool {
    let Some(found) = check::shortest(scope, &[promise]).counterexample else {
        println!("{}: {} is not broken there", scope.name, promise.name());
        return true;
    };
    if args.story {
        print!("{}", story::tell(scope, &found.actions));
    } else if args.json {
        println!("{}", report::json(scope, &found));
    } else {
        print!("{}", diagram::draw(scope, &found));
    }
    true
}

fn take_walks(walks: u64, first: u64) -> bool {
    let begun = Instant::now();
    let workers = threads() as u64;
    let found = std::thread::scope(|scope| {
        let worker = |nth: u64| {
            let (mut reached, mut grants) = (0, 0);
            for seed in (first..first + walks).skip(nth as usize).step_by(workers as usize) {
                let walked = walk::walk(seed);
                reached |= walked.reached;
                grants += walked.grants;
                if walked.counterexample.is_some() {
                    return (reached, grants, Some((seed, walked)));
                }
            }
            (reached, grants, None)
        };
        let workers: Vec<_> = (0..workers).map(|nth| scope.spawn(move || worker(nth))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no walk panics")).collect::<Vec<_>>()
    });
    let (mut reached, mut grants, mut all_well) = (0, 0, true);
    for (facts, more, broken) in found {
        reached |= facts;
        grants += more;
        if let Some((seed, walked)) = broken {
            all_well = false;
            let broken = walked.counterexample.as_ref().expect("it is broken");
            eprintln!("{}", diagram::draw(&walked.scope, broken));
            eprintln!("again: cargo xtask check --walks 1 --seed {seed}\nas a story:\n");
            eprintln!("{}", story::tell(&walked.scope, &broken.actions));
        }
    }
    let facts = Fact::ALL.iter().filter(|fact| reached & fact.bit() != 0).count();
    println!(
        "{} walks from seed {first}: {} grants, {facts} kinds of facts, {:.1?}",
        report::grouped(walks as usize),
        report::grouped(grants),
        begun.elapsed()
    );
    all_well
}
