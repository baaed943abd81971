//! `cargo xtask fuzz`: looks for text that breaks a reader.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::cargo;

/// How libFuzzer sees which branches are taken. Any compiler knows these; a C++ compiler builds libFuzzer itself.
const COVERAGE: &str = "--cfg fuzzing --cfg fuzzing_libfuzzer -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Every test run replays the corpora; this looks for what they lack. What breaks a target is put beside its corpus, and
/// is replayed with it from then on.
pub(crate) fn fuzz(target: &str, seconds: &str) -> Result<()> {
    let (package, part, folder, test) = match target {
        "names" => ("tenure-core", "--test=fuzz", "tests", target.to_owned()),
        "redis_urls" | "replies" | "messages" => ("tenure-redis", "--lib", "src", format!("fuzz::{target}")),
        "file_urls" | "records" => ("tenure-embedded", "--lib", "src", format!("fuzz::{target}")),
        _ => bail!("there is no target {target:?}; see `cargo xtask help`"),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the project")?;
    let here = root.join("crates").join(package).join(folder).join("__fuzz__").join(test.replace("::", "__"));
    let found = env::temp_dir().join("tenure-fuzz").join(target);
    let crashes = here.join("crashes");
    for dir in [&found, &crashes] {
        fs::create_dir_all(dir).with_context(|| format!("{} could not be made", dir.display()))?;
    }
    let limits = format!("-max_total_time={seconds} -timeout=10 -rss_limit_mb=1024 -print_final_stats=1");
    let [found, corpus, crashes] = [found, here.join("corpus"), crashes].map(|dir| dir.display().to_string());
    let args = format!("{found} {corpus} {crashes} -artifact_prefix={crashes}/ {limits}");
    // A target that is named keeps the flags away from build scripts.
    let rustc = Command::new("rustc").arg("-vV").output().context("rustc could not be started")?;
    let version = String::from_utf8(rustc.stdout)?;
    let host =
        version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names its host")?;
    let words = [
        "test",
        "--profile=fuzz",
        "--target",
        host,
        "-p",
        package,
        part,
        &test,
        "--",
        "--exact",
        "--nocapture",
    ];
    let vars = [
        ("RUSTFLAGS", COVERAGE),
        ("BOLERO_FUZZER", "libfuzzer"),
        ("BOLERO_TEST_NAME", &test),
        ("BOLERO_LIBTEST_HARNESS", "1"),
        ("BOLERO_LIBFUZZER_ARGS", &args),
    ];
    cargo(&format!("fuzz {target}"), &words, &vars)
}
