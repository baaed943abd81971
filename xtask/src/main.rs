//! The project's own commands: `cargo xtask`.
#![forbid(unsafe_code)]

mod check;
mod fuzz;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

const HELP: &str = "\
cargo xtask COMMAND

  test              everything that must hold: format, lints, tests, docs (the README's test command)
  check             every state of every scope of the protocol, and the seeded bugs, all caught
        --deep      the large scopes (minutes); --write keeps the result in docs/checked/deep.md
        --list      scopes, promises and bugs; --bug NAME, SCOPE --weakness PROMISE: its shortest counterexample
        --walks N   so many walks at random through worlds too large to be searched
  agree [N] [SEED]  N random requests to the Redis scripts and to the ledger, which must answer alike [1000000]
  simulate [N] [SEED]
                    N histories of the library on paused time, from SEED on; one alone is told in full [1000000]
  fuzz TARGET [SECONDS]
                    one of names, redis_urls, replies, messages, file_urls, records, guided by coverage [60]
  mutants           changes the core in every small way and sees whether a test notices (an hour)
  bench [PART]      what a lock costs beside plain SET NX PX: all, or one of
                    pair, server, embedded, handover, waiting, renewals
";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["test"] => test(),
        ["check", ref rest @ ..] => check::check(rest),
        ["mutants"] => mutants(),
        ["agree", ref rest @ ..] if rest.len() <= 2 => agree(rest),
        ["simulate", ref rest @ ..] if rest.len() <= 2 => simulate(rest),
        ["fuzz", target] => fuzz::fuzz(target, "60"),
        ["fuzz", target, seconds] => fuzz::fuzz(target, seconds),
        ["bench", ref rest @ ..] => bench(rest),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<()> {
    let started = Instant::now();
    programs()?;
    cargo("format", &["fmt", "--all", "--check"], &[])?;
    cargo(
        "lints",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
        &[],
    )?;
    cargo(
        "docs",
        &["doc", "--workspace", "--no-deps", "--all-features"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    cargo("tests", &["test", "--workspace", "--all-features"], &[])?;
    check::check(&[])?;
    // Other servers, so that Tenure can say that it works with them.
    for server in env::split_paths(&env::var_os("TENURE_TEST_SERVERS").unwrap_or_default()) {
        let server = server.to_str().context("TENURE_TEST_SERVERS is not UTF-8")?.to_owned();
        if server.is_empty() {
            continue;
        }
        let tests = ["--test", "redis", "--test", "redis_engine", "--test", "agrees", "--test", "compat"];
        let words = [&["test", "-p", "tenure-conformance"], &tests[..]].concat();
        cargo(&format!("tests over {server}"), &words, &[("TENURE_REDIS_SERVER", &server)])?;
    }
    eprintln!("\n── everything holds: {:.0?}", started.elapsed());
    Ok(())
}

fn agree(rest: &[&str]) -> Result<()> {
    programs()?;
    let requests = rest.first().unwrap_or(&"1000000");
    let mut vars = vec![("TENURE_AGREE_REQUESTS", *requests)];
    if let Some(seed) = rest.get(1) {
        vars.push(("TENURE_AGREE_SEED", seed));
    }
    let words = ["test", "--release", "-p", "tenure-conformance", "--test", "agrees", "--", "--nocapture"];
    cargo("scripts and ledger", &words, &vars)
}

/// Changes the core in every small way, one at a time, and sees whether a test notices. `.cargo/mutants.toml` says what
/// is changed and which tests are asked.
fn mutants() -> Result<()> {
    if !env::home_dir().is_some_and(|home| home.join(".cargo/bin/cargo-mutants").is_file())
        && !found("cargo-mutants")
    {
        bail!("cargo-mutants is missing; run `cargo install --locked cargo-mutants`");
    }
    cargo("mutants", &["mutants", "-p", "tenure-core", "--jobs", "2"], &[])
}

fn simulate(rest: &[&str]) -> Result<()> {
    let mut vars = vec![("TENURE_SIM_SEEDS", *rest.first().unwrap_or(&"1000000"))];
    if let Some(seed) = rest.get(1) {
        vars.push(("TENURE_SIM_SEED", seed));
    }
    let test = ["--test", "simulation", "the_library_keeps_its_promises", "--", "--nocapture"];
    cargo("simulation", &[&["test", "--release", "-p", "tenure-simulation"], &test[..]].concat(), &vars)
}

fn bench(rest: &[&str]) -> Result<()> {
    programs()?;
    let words = ["run", "--release", "-p", "tenure-bench", "--"];
    cargo("bench", &[&words[..], rest].concat(), &[])
}

fn cargo(what: &str, words: &[&str], vars: &[(&str, &str)]) -> Result<()> {
    eprintln!("\n── {what}: cargo {}", words.join(" "));
    let started = Instant::now();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(words)
        .envs(vars.iter().copied())
        .status()
        .context("cargo could not be started")?;
    eprintln!("── {what}: {:.0?}", started.elapsed());
    if !status.success() {
        bail!("{what} failed ({status}); run it alone with: cargo {}", words.join(" "));
    }
    Ok(())
}

/// The tests start their own servers, with certificates of their own. They need the programs, and a run without them
/// would prove nothing.
fn programs() -> Result<()> {
    let named = env::var_os("TENURE_REDIS_SERVER").is_some_and(|path| Path::new(&path).exists());
    let missing: Vec<&str> = ["redis-server", "openssl", "perl"]
        .into_iter()
        .filter(|program| !(found(program) || named && *program == "redis-server"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if !root || !found("apt-get") {
        bail!(
            "missing and not to be installed from here: {names}; run `apt-get install {names}` as root (or set \
             TENURE_REDIS_SERVER to the path of a redis-server)"
        );
    }
    let install = [&["apt-get", "install", "-y", "--no-install-recommends"], &missing[..]].concat();
    for words in [&["apt-get", "update"], &install[..]] {
        eprintln!("── missing: {names}: {}", words.join(" "));
        let status = Command::new(words[0])
            .args(&words[1..])
            .env("DEBIAN_FRONTEND", "noninteractive")
            // The package must not start a server of its own.
            .env("RUNLEVEL", "1")
            .status()
            .with_context(|| format!("{} could not be started", words[0]))?;
        if !status.success() {
            bail!("{} failed ({status})", words.join(" "));
        }
    }
    Ok(())
}

fn found(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}
