//! A program that panics under a lock frees it before it ends.

use std::process::Command;

use tenure_conformance::server::RedisServer;

#[test]
fn a_panic_that_ends_the_program_frees_the_lock_first() {
    let server = RedisServer::start();
    for way in ["async", "blocking", "compat"] {
        let program = env!("CARGO_BIN_EXE_panics");
        let ended = Command::new(program).args([&server.url(), way]).output().expect("it starts");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(101), "{told}");
        assert!(told.contains("out of paper"), "{told}");
        let left = server.command(&["EXISTS", "x"]);
        assert_eq!(left.trim(), ":0", "{way}: the lock is still held");
    }
}
