//! `tenure`: run a command while holding a lock, on one host or on many; and look at the locks.
#![forbid(unsafe_code)]

mod alarm;
mod around;
mod busy;
mod duration;
mod exit_codes;
mod failure;
mod files;
mod inspect;
mod job;
mod jobs;
mod keeper;
mod locks;
mod ls;
mod orders;
mod plan;
mod queue;
mod release;
mod run;
mod signals;
mod store;
mod supervise;
mod terminal;
mod text;
mod trampoline;
mod waiting;
mod work;

use clap::{Parser, Subcommand};

/// Run a command while holding a lock, on one host or on many
#[derive(Parser, Debug)]
#[command(name = "tenure", version, after_help = EXAMPLES, disable_help_subcommand = true, term_width = 120)]
struct Tenure {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::Args),
    Ls(ls::Args),
    Inspect(inspect::Args),
    Release(release::Args),
    Jobs(jobs::Args),
    Work(work::Args),
    Lab(tenure_lab::Args),
}

const EXAMPLES: &str = "\
Examples:
  tenure run mail:daily -- php artisan mail:daily   wait for the lock, then run
  tenure run -n -q backup -- ./backup               in cron: not at all while another one runs
  tenure run --on-busy defer tidy -- ./tidy         now, or by `tenure work` when the lock is free
  tenure ls                                         who holds what, who waits
  tenure inspect mail:daily                         holder, queue, end of the lease

Locks are on this host unless TENURE_URL or --url names a store: redis://HOST:PORT/DB for many hosts.";

fn main() {
    std::process::exit(i32::from(exit_code()));
}

fn exit_code() -> u8 {
    // What `run` starts on its way is this program too, and has to be quick: it comes before everything else.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(word) if word == trampoline::COMMAND => return trampoline::main(arguments),
        Some(word) if word == keeper::COMMAND => return keeper::main(arguments),
        _ => {}
    }
    if let Some(code) = tenure_lab::helper(std::env::args_os().skip(1)) {
        return code;
    }
    let command = match Tenure::try_parse() {
        Ok(Tenure { command }) => command,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit_codes::USAGE } else { 0 };
        }
    };
    // It brings its own threads, and blocks.
    let command = match command {
        Command::Lab(args) => return lab(args),
        command => command,
    };
    // One thread: a job is tied to the life of the thread that started it.
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(carry_out(command)));
    result.unwrap_or_else(|failure: failure::Failure| {
        text::say(&failure.text);
        failure.code
    })
}

async fn carry_out(command: Command) -> Result<u8, failure::Failure> {
    match command {
        Command::Run(args) => run::run(args).await,
        Command::Ls(args) => ls::run(args).await,
        Command::Inspect(args) => inspect::run(args).await,
        Command::Release(args) => release::run(args).await,
        Command::Jobs(args) => jobs::run(&args),
        Command::Work(args) => work::run(args).await,
        Command::Lab(_) => unreachable!("it was carried out before"),
    }
}

fn lab(args: tenure_lab::Args) -> u8 {
    tenure_lab::run(args).unwrap_or_else(|error| {
        text::say(&error.to_string());
        match error {
            tenure_lab::LabError::Usage(_) => exit_codes::USAGE,
            tenure_lab::LabError::Server(_) => exit_codes::BACKEND,
            tenure_lab::LabError::System(_) => exit_codes::SYSTEM,
        }
    })
}
