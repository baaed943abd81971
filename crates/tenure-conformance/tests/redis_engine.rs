//! The Redis engine against real servers, sound and broken.
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tenure_conformance::server::RedisServer;
use tenure_core::*;
use tenure_engine::*;
use tenure_redis::RedisEngine;

const LIMIT: Duration = Duration::from_secs(2);

fn ask(owner: Owner, place_ms: u64, attempt: u32) -> Request {
    Request::Ask {
        owner,
        ttl_ms: 10_000,
        guard_ms: 1000,
        place_ms,
        attempt: Attempt(attempt),
        not_after: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let server = RedisServer::start();
    let one = RedisEngine::connect(&server.url()).await.unwrap();
    let two = RedisEngine::connect(&server.url()).await.unwrap();
    let letters = Arc::new(Mutex::new(Vec::new()));
    let ear = letters.clone();
    two.listen(Arc::new(move |l| ear.lock().unwrap().push(l)));
    let (one, two): (Arc<dyn Engine>, Arc<dyn Engine>) = (one, two);
    let name = Name::new("orders:42").unwrap();
    let owner = |e: &Arc<dyn Engine>, serial| random_owner(HolderId { process: e.process(), serial });
    let (a, b) = (owner(&one, 1), owner(&two, 1));
    println!("{:?}", one.call(&name, &ask(a, 30_000, 1), LIMIT).await);
    println!("{:?}", two.call(&name, &ask(b, 30_000, 1), LIMIT).await);
    println!(
        "{:?}",
        one.call(&name, &Request::Renew { owner: a, ttl_ms: 10_000, guard_ms: 1000 }, LIMIT).await
    );
    println!("{:?}", two.look(&name).await);
    println!("{:?}", two.call(&name, &Request::Stop { holder: a.holder, by: "me".into() }, LIMIT).await);
    println!(
        "{:?}",
        one.call(&name, &Request::Renew { owner: a, ttl_ms: 10_000, guard_ms: 1000 }, LIMIT).await
    );
    println!("{:?}", one.call(&name, &Request::Release { owner: a }, LIMIT).await);
    println!(
        "{:?}",
        two.call(&name, &Request::Renew { owner: b, ttl_ms: 10_000, guard_ms: 1000 }, LIMIT).await
    );
    println!("{:?}", letters.lock().unwrap());
    println!("{:?}", two.call(&name, &Request::Release { owner: b }, LIMIT).await);
    println!("{}", server.command(&["KEYS", "*"]));
}
