//! `cargo xtask check`: every state of every scope of the protocol, and every seeded bug.

use std::env;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo;

/// Two programs: the model over the core itself, and over the copy of it in which bugs can be switched on.
const MODEL: [&str; 5] = ["run", "--release", "-q", "-p", "tenure-model"];
const BUGS: [&str; 5] = ["run", "--release", "-q", "-p", "tenure-seeded-bugs"];

pub(crate) fn check(rest: &[&str]) -> Result<()> {
    let model = |words: &[&str]| cargo("scopes", &[&MODEL[..], &["--"], words].concat(), &[]);
    let bugs = |words: &[&str]| cargo("seeded bugs", &[&BUGS[..], &["--"], words].concat(), &[]);
    if rest.contains(&"--bug") {
        return bugs(rest);
    }
    if let ["--deep", "--write"] = rest {
        return write_deep();
    }
    model(rest)?;
    // Whoever asks for something particular gets that alone.
    match rest {
        [] | ["--deep"] => {
            model(&["--walks", "200000"])?;
            bugs(&[])
        }
        ["--list"] => bugs(rest),
        _ => Ok(()),
    }
}

/// Keeps the result of the deep run, with what it was run on.
fn write_deep() -> Result<()> {
    let said = |program: &str, words: &[&str]| -> Result<String> {
        let output =
            Command::new(program).args(words).output().with_context(|| format!("{program} is missing"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let run = |program: [&str; 5], words: &[&str]| -> Result<String> {
        let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(program)
            .arg("--")
            .args(words)
            .stderr(Stdio::inherit())
            .output()
            .context("cargo could not be started")?;
        if !output.status.success() {
            bail!("not everything holds; nothing was written");
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let scopes = run(MODEL, &["--deep", "--markdown"])?;
    let bugs = run(BUGS, &["--markdown"])?;
    let text = format!(
        "# The deep run\n\nFrom a run of `cargo xtask check --deep` (`--write` writes this page): every state of every scope in its large \
         size, and \
         every seeded bug.\n\n- Date: {}\n- Commit: {}\n- Machine: {}, {threads} threads\n- Compiler: {}\n\n## Scopes\n\n\
         {scopes}\n## Seeded bugs\n\n{bugs}",
        said("date", &["-u", "+%Y-%m-%d"])?,
        said("git", &["rev-parse", "--short=12", "HEAD"])?,
        cpu.trim_start_matches([':', ' ', '\t']),
        said("rustc", &["-V"])?,
    );
    std::fs::create_dir_all("docs/checked")?;
    std::fs::write("docs/checked/deep.md", text)?;
    eprintln!("── written: docs/checked/deep.md");
    Ok(())
}
