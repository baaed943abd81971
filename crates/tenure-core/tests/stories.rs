//! Replays the stories beside this file: what happens (at the left margin), and what follows from it (indented). With
//! `UPDATE_STORIES=1` the indented lines are written anew; read the difference before you keep it. The words that a
//! story may use are those of `tenure_model::story`.

use std::fs;
use std::path::Path;

use tenure_model::story;

#[test]
fn the_stories_are_true() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 24, "stories went missing");
    for file in files {
        let written = fs::read_to_string(&file).unwrap();
        let told = story::replay(&written);
        if std::env::var_os("UPDATE_STORIES").is_some() {
            fs::write(&file, told).unwrap();
        } else {
            assert_eq!(told, written, "{} tells something else", file.display());
        }
    }
}
