//! `docs/story.md` shows what the command prints. `UPDATE_STORY=1` writes it anew.
mod common;

use std::path::Path;

use common::Bench;

/// What a block shows is one run of many; it has to be there, and no more.
const ONE_RUN: [&str; 2] = ["tenure lab replay tenure", "tenure lab race"];

#[test]
fn the_story_shows_what_the_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/story.md");
    let page = std::fs::read_to_string(&path).expect("the story is there");
    let mut fresh = String::new();
    let mut shown = 0;
    let mut rest = page.as_str();
    while let Some((before, block)) = rest.split_once("```console\n$ ") {
        let (command, block) = block.split_once('\n').expect("a command");
        let (output, after) = block.split_once("```\n").expect("the block ends");
        let printed: String = if ONE_RUN.contains(&command) && !output.is_empty() {
            output.to_owned()
        } else {
            let words: Vec<_> = command.split(' ').skip(1).collect();
            let output = Bench::embedded().output(&words);
            // The lab ends with 1 where it does not find what is pinned.
            assert!(output.status.success(), "{command}: {output:?}");
            // An editor would take spaces at the end of a line away.
            String::from_utf8(output.stdout)
                .unwrap()
                .lines()
                .map(|line| line.trim_end().to_owned() + "\n")
                .collect()
        };
        assert!(printed.lines().count() > 5, "{command} prints {printed:?}");
        fresh.extend([before, "```console\n$ ", command, "\n", &printed, "```\n"]);
        shown += 1;
        rest = after;
    }
    fresh.push_str(rest);
    assert_eq!(shown, 11);
    let tenure = fresh.lines().find(|line| line.starts_with("tenure  ")).expect("the table has its row");
    assert_eq!(
        tenure.split_whitespace().collect::<Vec<_>>(),
        ["tenure", "kept", "kept", "kept", "kept", "kept", "BROKEN", "in", "7"]
    );
    if std::env::var_os("UPDATE_STORY").is_some() {
        std::fs::write(&path, fresh).expect("the story can be written");
    } else {
        assert!(fresh == page, "docs/story.md is not what the command prints; UPDATE_STORY=1 writes it anew");
    }
}
