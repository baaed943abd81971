//! What a server says to the slips of the documents' listings.

use redis::{Connection, ErrorKind, RedisError, Value};
use tenure_forms::{SCRIPT, slips};
use tenure_own_redis::RedisServer;

fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value, RedisError> {
    redis::cmd(words[0]).arg(&words[1..]).query(connection)
}

/// `SET key value NX 10 EX`: nobody ever gets the lock.
#[test]
fn words_in_the_wrong_order_are_a_syntax_error() {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let error = ask(&mut connection, &["SET", "lock", "token", "NX", "10", "EX"]).unwrap_err();
    assert!(error.to_string().contains("syntax error"), "{error}");
    assert_eq!(ask(&mut connection, &["EXISTS", "lock"]).unwrap(), Value::Int(0));
    assert_eq!(ask(&mut connection, &["SET", "lock", "token", "NX", "EX", "10"]).unwrap(), Value::Okay);
    assert!(slips::SLIPS.iter().any(|slip| slip.effect.contains("syntax error")));
}

/// `EVAL script key token`: nobody ever releases.
#[test]
fn a_script_without_the_number_of_keys_is_refused() {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    ask(&mut connection, &["SET", "lock", "token", "NX", "EX", "10"]).unwrap();
    let error = ask(&mut connection, &["EVAL", SCRIPT, "lock", "token"]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Server(_)), "{error:?}");
    assert!(error.to_string().contains("not an integer"), "{error}");
    assert_eq!(ask(&mut connection, &["EXISTS", "lock"]).unwrap(), Value::Int(1));
    assert_eq!(ask(&mut connection, &["EVAL", SCRIPT, "1", "lock", "token"]).unwrap(), Value::Int(1));
}
