//! `tenure::fence::REDIS` on a real server.

use std::thread::scope;

use redis::{Connection, RedisResult, Script, Value};
use tenure_own_redis::RedisServer;

struct Db {
    server: RedisServer,
    connection: Connection,
}

impl Db {
    fn start() -> Self {
        let server = RedisServer::start();
        let connection = connect(&server);
        Self { server, connection }
    }

    /// Runs a command under a token.
    fn fenced(&mut self, token: &str, command: &[&str]) -> RedisResult<Vec<Value>> {
        fenced(&mut self.connection, token, command)
    }

    fn get(&mut self, key: &str) -> Option<String> {
        redis::cmd("GET").arg(key).query(&mut self.connection).unwrap()
    }
}

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

fn fenced(connection: &mut Connection, token: &str, command: &[&str]) -> RedisResult<Vec<Value>> {
    Script::new(tenure::fence::REDIS).key("x:fence").key("x").arg(token).arg(command).invoke(connection)
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

#[test]
fn the_same_hold_writes_again_and_an_earlier_one_is_refused() {
    let mut db = Db::start();
    for value in ["a", "b"] {
        assert_eq!(db.fenced("7", &["SET", "x", value]).unwrap(), [text("ok"), Value::Okay]);
    }
    assert_eq!(db.fenced("8", &["GET", "x"]).unwrap(), [text("ok"), text("b")]);
    assert_eq!(db.fenced("7", &["SET", "x", "late"]).unwrap(), [text("stale"), text("8")]);
    assert_eq!(db.get("x").as_deref(), Some("b"));
}

#[test]
fn a_token_is_installed_without_a_command_and_before_one_that_fails() {
    let mut db = Db::start();
    assert_eq!(db.fenced("7", &[]).unwrap(), [text("ok")]);
    assert_eq!(db.fenced("6", &[]).unwrap(), [text("stale"), text("7")]);
    db.server.command(&["LPUSH", "x", "no number"]);
    let failed = db.fenced("8", &["INCR", "x"]).unwrap_err();
    assert!(failed.to_string().contains("WRONGTYPE"), "{failed}");
    assert_eq!(db.fenced("7", &[]).unwrap(), [text("stale"), text("8")]);
}

#[test]
fn tokens_are_compared_exactly_up_to_the_largest_one_and_what_is_larger_is_refused() {
    let mut db = Db::start();
    // The larger one has more digits, so that it would be the smaller text.
    db.fenced("999", &[]).unwrap();
    db.fenced("1000", &[]).unwrap();
    db.fenced("9007199254740991", &[]).unwrap();
    db.fenced("9007199254740992", &[]).unwrap();
    assert_eq!(db.fenced("9007199254740991", &[]).unwrap(), [text("stale"), text("9007199254740992")]);
    for token in ["9007199254740994", "18446744073709551615", "", "-1", "1e3", "0x10", "1.5", " 7", "nan"] {
        let refused = db.fenced(token, &["SET", "x", "written"]).unwrap_err();
        assert!(refused.to_string().contains("is no fencing token"), "{token:?}: {refused}");
    }
    assert_eq!(db.get("x"), None);
}

#[test]
fn a_key_that_holds_something_else_lets_nobody_through() {
    let mut db = Db::start();
    for (value, error) in [("SET", "is no fencing token"), ("LPUSH", "WRONGTYPE")] {
        db.server.command(&["DEL", "x:fence"]);
        db.server.command(&[value, "x:fence", "something"]);
        let refused = db.fenced("7", &["SET", "x", "written"]).unwrap_err();
        assert!(refused.to_string().contains(error), "{refused}");
    }
    assert_eq!(db.get("x"), None);
}

#[test]
fn of_many_writers_at_once_none_writes_after_a_later_one() {
    const WRITERS: usize = 4;
    let db = Db::start();
    scope(|s| {
        for first in 1..=WRITERS {
            let mut connection = connect(&db.server);
            s.spawn(move || {
                for token in (first..=400).step_by(WRITERS) {
                    let token = token.to_string();
                    fenced(&mut connection, &token, &["RPUSH", "x", &token]).unwrap();
                }
            });
        }
    });
    let mut connection = connect(&db.server);
    let written: Vec<u32> = redis::cmd("LRANGE").arg("x").arg(0).arg(-1).query(&mut connection).unwrap();
    assert!(written.is_sorted(), "a later holder was overtaken: {written:?}");
    assert_eq!(written.last(), Some(&400));
}
