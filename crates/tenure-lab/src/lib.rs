//! The locks of the documents, to be seen: explained, checked in every interleaving, driven over a real server through
//! the very schedule that breaks them, and raced against each other by real processes.
//!
//! ```text
//!            tenure-forms (the steps)
//!       ┌────────────┼───────────────┐
//!  explain, ls     check           replay ──────▶ race
//!                 (tenure-model)  (a real server) (many processes)
//! ```
#![forbid(unsafe_code)]

mod check;
mod explain;
mod fenced;
mod race;
mod racer;
mod replay;
mod report;
mod resource;
mod servers;
mod tied;
mod traces;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use tenure_forms::{FORMS, Form};
use tenure_model::lab::Promise;

use crate::traces::Traces;

/// The locks of the documents: explained, checked, broken on purpose
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// The forms, in the order of history
    Ls(explain::LsArgs),
    /// How a form works, what breaks and when, what the next one changed, and the slips of the documents' listings
    Explain(explain::Args),
    /// Tries everything that can happen with a form; without a name: with all of them
    Check(check::Args),
    /// Drives a real server through the schedule that breaks a form, and shows the damage
    Replay(replay::Args),
    /// Lets many processes contend, with crashes and pauses, and counts what goes wrong
    Race(race::Args),
}

const EXAMPLES: &str = "\
Examples:
  tenure lab ls                      the nine forms
  tenure lab explain getset          the timestamp lock: how it works, what breaks
  tenure lab check                   the table: each form, each promise
  tenure lab check get-del           the shortest way to break it, drawn
  tenure lab replay get-del          the same on a real redis-server of its own
  tenure lab race                    all of them, by real processes, for some seconds each

replay and race start redis-servers of their own and stop them; --url names another.";

/// The lab could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The caller has to change something.
    #[error("{0}")]
    Usage(String),
    /// No server, or one that does not answer.
    #[error("{0}")]
    Server(String),
    /// The operating system refused something.
    #[error("the operating system refused something: {0}")]
    System(#[from] std::io::Error),
}

impl From<redis::RedisError> for LabError {
    fn from(error: redis::RedisError) -> Self {
        Self::Server(format!("the server of the experiment failed: {error}"))
    }
}

/// Carries a command of the lab out. Returns the exit code: 0, or 1 if what was seen is not what was expected.
pub fn run(args: Args) -> Result<u8, LabError> {
    Traces::guard()?;
    let done = carry_out(args);
    Traces::end();
    done
}

fn carry_out(args: Args) -> Result<u8, LabError> {
    match args.command {
        Command::Ls(args) => Ok(explain::ls(&args)),
        Command::Explain(args) => Ok(explain::explain(&args)),
        Command::Check(args) => check::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Race(args) => race::run(&args),
    }
}

/// Programs that the lab starts from the same executable: `Some` if these are the arguments of one.
pub fn helper(arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    let mut arguments = arguments;
    match arguments.next()?.to_str()? {
        tied::COMMAND => Some(tied::main(arguments)),
        racer::COMMAND => Some(racer::main(racer::Helper::parse_from(
            [OsString::from(racer::COMMAND)].into_iter().chain(arguments),
        ))),
        _ => None,
    }
}

/// A form by its name, for the argument parser.
fn form_named(name: &str) -> Result<&'static Form, String> {
    tenure_forms::form(name).ok_or_else(|| {
        let names: Vec<_> = FORMS.iter().map(|form| form.name).collect();
        format!("no form is called {name:?}; there are {}", names.join(", "))
    })
}

/// A promise by its name, for the argument parser.
fn promise_named(name: &str) -> Result<Promise, String> {
    Promise::named(name).ok_or_else(|| {
        let names: Vec<_> = Promise::ALL.iter().map(|promise| promise.name()).collect();
        format!("no promise is called {name:?}; there are {}", names.join(", "))
    })
}
