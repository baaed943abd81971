//! `tenure::fence::sql` on SQLite.

use std::path::Path;
use std::thread::scope;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};
use tenure::fence::sql;

fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    db.execute_batch(sql::TABLE).unwrap();
    db
}

fn install(db: &Connection, resource: &str, fence: i64) -> usize {
    db.execute(sql::INSTALL, params![resource, fence]).unwrap()
}

#[test]
fn the_same_hold_installs_again_and_an_earlier_one_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(&directory.path().join("db"));
    assert_eq!([7, 7, 8, 7, 8].map(|fence| install(&db, "x", fence)), [1, 1, 1, 0, 1]);
    assert_eq!(install(&db, "y", 1), 1, "each resource has its own token");
    assert_eq!([i64::MAX, i64::MAX - 1].map(|fence| install(&db, "x", fence)), [1, 0]);
    // The table may be there already.
    db.execute_batch(sql::TABLE).unwrap();
    assert_eq!(install(&db, "x", 8), 0);
}

#[test]
fn a_token_goes_with_its_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(&directory.path().join("db"));
    let transaction = db.transaction().unwrap();
    assert_eq!(install(&transaction, "x", 8), 1);
    transaction.rollback().unwrap();
    assert_eq!(install(&db, "x", 7), 1);
}

#[test]
fn of_many_writers_at_once_none_writes_after_a_later_one() {
    const WRITERS: i64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    open(&path).execute_batch("CREATE TABLE written (at INTEGER PRIMARY KEY, fence INTEGER)").unwrap();
    scope(|s| {
        for first in 1..=WRITERS {
            let mut db = open(&path);
            s.spawn(move || {
                for fence in (first..=100).step_by(WRITERS as usize) {
                    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                    if install(&transaction, "x", fence) == 1 {
                        transaction.execute("INSERT INTO written (fence) VALUES (?1)", [fence]).unwrap();
                        transaction.commit().unwrap();
                    }
                }
            });
        }
    });
    let db = open(&path);
    let mut rows = db.prepare("SELECT fence FROM written ORDER BY at").unwrap();
    let written: Vec<i64> = rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert!(written.is_sorted(), "a later holder was overtaken: {written:?}");
    assert_eq!(written.last(), Some(&100));
}
