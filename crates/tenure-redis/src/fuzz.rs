//! Whatever a user writes or a server sends is understood or refused. The corpora in `__fuzz__` are replayed by every
//! test run, with some random variations; `cargo xtask fuzz` goes on for longer.

use tenure_core::{Attempt, HolderId, Owner, ProcessId, Request};

use crate::url::Target;
use crate::wire;

#[test]
fn redis_urls() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(target) = Target::parse(text) {
            let shown = target.to_string();
            assert!(shown.starts_with("redis") || shown.starts_with("unix:"), "{shown}");
        }
    });
}

#[test]
fn replies() {
    let owner = Owner { holder: HolderId { process: ProcessId(1), serial: 1 }, secret: 1 };
    let (ttl_ms, guard_ms, attempt) = (1000, 1000, Attempt(1));
    let requests = [
        Request::Ask { owner, ttl_ms, guard_ms, place_ms: 1000, attempt, not_after: None },
        Request::Renew { owner, ttl_ms, guard_ms },
        Request::Release { owner },
        Request::Stop { holder: owner.holder, by: "me".to_owned() },
    ];
    bolero::check!().for_each(|bytes: &[u8]| {
        let Ok(value) = redis::parse_redis_value(bytes) else { return };
        for deaf in [false, true] {
            for request in &requests {
                let _ = wire::decode(request, &value, deaf);
            }
            if let Ok(look) = wire::decode_look(&value, deaf) {
                assert!(look.snapshot.waiters.len() <= wire::LOOK_WAITERS);
            }
        }
    });
}

#[test]
fn messages() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for prefix in ["", "lock:"] {
            let _ = wire::read_message(bytes, prefix);
        }
    });
}
