use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tenure_core::{Attempt, Reply};
use tenure_engine::{FaultKind, random_owner};

use super::*;

fn somewhere() -> (tempfile::TempDir, Location, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("t");
    (place, Location::Directory(path.clone()), path)
}

/// A store smaller than anybody would set.
fn small(location: &Location, bytes: u64) -> Arc<Store> {
    let directory = Directory::open(location).unwrap();
    let guard = Guard::open(&directory).unwrap();
    let fence = Fence::open(&directory).unwrap();
    let path = directory.boot_path.join("store");
    create_tree(&guard.enter_blocking().unwrap(), &directory, &fence, &path, bytes).unwrap();
    Store::open(location).unwrap()
}

fn ask(owner: Owner) -> Request {
    Request::Ask {
        owner,
        ttl_ms: 60_000,
        guard_ms: 0,
        place_ms: 60_000,
        attempt: Attempt(1),
        not_after: None,
    }
}

fn owner(member: &Member, serial: u32) -> Owner {
    random_owner(HolderId { process: member.id(), serial })
}

fn one(store: &Arc<Store>, name: &str, request: &Request) -> Result<Reply, Fault> {
    let entered = store.guard.enter_blocking().unwrap();
    let (mut replies, post) = store.apply(&entered, [(&Name::new(name).unwrap(), request)])?;
    drop(entered);
    store.send(post);
    Ok(replies.remove(0))
}

fn boot_directory(path: &Path) -> PathBuf {
    let is_directory = |entry: &fs::DirEntry| entry.file_type().unwrap().is_dir();
    fs::read_dir(path).unwrap().flatten().find(is_directory).unwrap().path()
}

/// A store that nobody grew.
fn take_and_free(names: u32) {
    let (_place, location, _path) = somewhere();
    let store = Store::open(&location).unwrap();
    let (me, _bell) = store.join().unwrap();
    let mut pages = 0;
    for serial in 0..names {
        let (owner, name) = (owner(&me, serial), format!("orders:{serial}"));
        assert!(matches!(one(&store, &name, &ask(owner)), Ok(Reply::Granted { .. })));
        assert!(matches!(one(&store, &name, &Request::Release { owner }), Ok(Reply::Released)));
        if serial == 100 {
            pages = store.tree.pages();
        }
    }
    assert_eq!(store.tree.pages(), pages, "names that are free take no room");
}

#[test]
fn a_hundred_thousand_names_leave_nothing_behind() {
    take_and_free(100_000);
}

/// Takes a while in a debug build: `cargo test --release -p tenure-embedded -- --ignored a_million`.
#[test]
#[ignore = "a longer run of the test above"]
fn a_million_names_leave_nothing_behind() {
    take_and_free(1_000_000);
}

#[test]
fn a_full_store_refuses_what_is_new_and_loses_nothing() {
    let (_place, location, _path) = somewhere();
    let store = small(&location, 256 << 10);
    let (me, _bell) = store.join().unwrap();
    let mut held = Vec::new();
    let fault = loop {
        let owner = owner(&me, held.len() as u32);
        let name = format!("a name of some length, so that it goes faster: {:x}", owner.secret);
        match one(&store, &name, &ask(owner)) {
            Ok(Reply::Granted { token }) => held.push((name, owner, token)),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => break fault,
        }
        assert!(held.len() < 100_000, "the store never gets full");
    };
    assert_eq!(fault.kind, FaultKind::NotRun);
    assert!(fault.to_string().contains("is full"), "{fault}");
    assert!(held.len() > 500, "{} locks in 256 KiB", held.len());
    for (name, owner, token) in &held {
        let renew = Request::Renew { owner: *owner, ttl_ms: 60_000, guard_ms: 0 };
        assert_eq!(one(&store, name, &renew).unwrap(), Reply::Renewed);
        assert_eq!(one(&store, name, &ask(*owner)).unwrap(), Reply::Granted { token: *token });
    }
    // Whoever comes now can still come, and see.
    let (_late, _its_bell) = store.join().unwrap();
    let many = held.len();
    for (name, owner, _) in held {
        assert_eq!(one(&store, &name, &Request::Release { owner }).unwrap(), Reply::Released);
    }
    for serial in 0..many as u32 / 2 {
        let granted = one(&store, &format!("again {serial}"), &ask(owner(&me, serial)));
        assert!(matches!(granted, Ok(Reply::Granted { .. })), "{granted:?}");
    }
}

#[test]
fn a_long_queue_costs_its_requests_nothing() {
    let (_place, location, _path) = somewhere();
    let store = Store::open(&location).unwrap();
    let (me, _bell) = store.join().unwrap();
    let owners: Vec<_> = (0..=10_000).map(|serial| owner(&me, serial)).collect();
    let begun = std::time::Instant::now();
    for (i, owner) in owners.iter().enumerate() {
        let reply = one(&store, "x", &ask(*owner)).unwrap();
        assert!(if i == 0 {
            matches!(reply, Reply::Granted { .. })
        } else {
            matches!(reply, Reply::Queued { .. })
        });
    }
    assert_eq!(one(&store, "x", &ask(owner(&me, 20_000))).unwrap(), Reply::Full);
    for owner in owners.iter().rev() {
        assert_eq!(one(&store, "x", &Request::Release { owner: *owner }).unwrap(), Reply::Released);
    }
    // Quadratic costs would be minutes.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn what_the_dead_held_is_swept() {
    let (_place, location, path) = somewhere();
    let store = Store::open(&location).unwrap();
    let (me, _bell) = store.join().unwrap();
    let (dead, _its_bell) = store.join().unwrap();
    for serial in 0..600 {
        one(&store, &format!("n{serial}"), &ask(owner(&dead, serial))).unwrap();
    }
    one(&store, "kept", &ask(owner(&me, 1))).unwrap();
    store.processes.leave(dead.id());
    // What a process leaves that was killed.
    fs::write(boot_directory(&path).join("processes").join(dead.id().to_string()), "").unwrap();
    fs::write(boot_directory(&path).join("jobs").join(format!("{}.7", dead.id())), "").unwrap();
    let count = || {
        store
            .tree
            .write(&store.guard.enter_blocking().unwrap(), |txn| {
                let (mut key, mut count) = (head_key(""), 0);
                while let Some((next, _)) = txn.after(&key)?
                    && name_of(next).is_some()
                {
                    key = next.to_vec();
                    count += 1;
                }
                Ok(count)
            })
            .unwrap()
    };
    assert_eq!(count(), 601);
    for _ in 0..3 {
        store.sweep(&store.guard.enter_blocking().unwrap()).map(drop).unwrap();
    }
    assert_eq!(count(), 1);
    assert_eq!(fs::read_dir(boot_directory(&path).join("processes")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(boot_directory(&path).join("jobs")).unwrap().count(), 0);
}

#[test]
fn one_directory_is_one_store_however_it_is_spelt() {
    let (place, location, path) = somewhere();
    let store = Store::open(&location).unwrap();
    symlink(&path, place.path().join("other")).unwrap();
    let other = Store::open(&Location::Directory(place.path().join("other"))).unwrap();
    assert!(Arc::ptr_eq(&store, &other));
    drop((store, other));
    Store::open(&location).unwrap();
}

#[test]
fn a_store_of_another_boot_is_removed_and_tokens_go_on_above_its_own() {
    let (_place, location, path) = somewhere();
    let store = Store::open(&location).unwrap();
    let (me, _bell) = store.join().unwrap();
    let Ok(Reply::Granted { token }) = one(&store, "x", &ask(owner(&me, 1))) else { panic!() };
    let mark = store.fence.mark();
    assert!(mark > token);
    drop(store);
    // The machine starts again: another boot id, the same fence.
    let old = path.join("00000000-1111-2222-3333-444444444444");
    fs::rename(boot_directory(&path), &old).unwrap();
    fs::create_dir(path.join("not a boot")).unwrap();
    let store = Store::open(&location).unwrap();
    assert!(!old.exists() && path.join("not a boot").exists());
    let (me, _bell) = store.join().unwrap();
    let Ok(Reply::Granted { token }) = one(&store, "x", &ask(owner(&me, 1))) else { panic!() };
    assert!(token > mark, "the clock may have gone back between the boots");
}

#[test]
fn a_store_that_was_deleted_in_use_is_not_used_any_more() {
    let (_place, location, path) = somewhere();
    let store = Store::open(&location).unwrap();
    store.check_still_there().unwrap();
    fs::remove_dir_all(&path).unwrap();
    store.looked_at_ms.store(0, Ordering::Relaxed);
    let fault = store.check_still_there().unwrap_err();
    assert_eq!(fault.kind, FaultKind::Refused);
    assert!(fault.to_string().contains("deleted"), "{fault}");
}

#[test]
fn an_unknown_format_is_refused() {
    let (_place, location, _path) = somewhere();
    let store = Store::open(&location).unwrap();
    let entered = store.guard.enter_blocking().unwrap();
    store.tree.write(&entered, |txn| txn.put(FORMAT_KEY, &7u32.to_le_bytes())).unwrap();
    drop(entered);
    drop(store);
    let fault = Store::open(&location).unwrap_err().to_string();
    assert!(fault.contains("format 7"), "{fault}");
}

#[test]
fn directories_that_are_not_safe_are_refused() {
    let (place, location, path) = somewhere();
    let refused = |why: &str| {
        let fault = Store::open(&location).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Refused);
        assert!(fault.to_string().contains(why) && fault.to_string().contains("TENURE_DIR"), "{fault}");
    };
    for mode in [0o777, 0o770, 0o702] {
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        refused("others may write");
        fs::remove_dir(&path).unwrap();
    }
    fs::write(&path, "").unwrap();
    refused("Not a directory");
    fs::remove_file(&path).unwrap();
    Store::open(&location).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let missing = Location::Directory(place.path().join("a/b"));
    let fault = Store::open(&missing).unwrap_err().to_string();
    assert!(fault.contains("a/b") && fault.contains("No such file"), "{fault}");
}

#[test]
fn half_made_stores_are_made_anew() {
    let (_place, location, _path) = somewhere();
    let directory = Directory::open(&location).unwrap();
    fs::write(directory.boot_path.join("store.new"), vec![7; 5000]).unwrap();
    Store::open(&location).unwrap();
    assert!(!directory.boot_path.join("store.new").exists());
}
