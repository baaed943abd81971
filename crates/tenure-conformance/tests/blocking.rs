//! The library without async, over a real server.

use std::time::{Duration, Instant};

use tenure::blocking::Client;
use tenure_conformance::server::RedisServer;

#[test]
fn a_lease_is_renewed_beyond_its_client_and_its_lock_is_given_back_by_the_last_drop() {
    let server = RedisServer::start();
    let witness = Client::connect(&server.url()).expect("the server answers");
    let client = Client::connect(&server.url()).expect("the server answers");
    let ttl = Duration::from_secs(2);
    let guard = client.lock("x").ttl(ttl).acquire().expect("it is free");
    drop(client);
    std::thread::sleep(ttl + ttl / 2);
    assert!(guard.holds() && witness.lock("x").try_acquire().expect("the server answers").is_none());
    drop(guard);
    let begun = Instant::now();
    witness.lock("x").acquire().expect("its turn comes").release().expect("it is held");
    assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
}
