//! A holder that is stopped for longer than its lease, and a table that refuses its late write.
#![forbid(unsafe_code)]

use anyhow::Result;
use rusqlite::{Connection, TransactionBehavior, params};
use tenure::fence::sql;
use tenure_examples::Process;

/// Installs the token and reads. `None`: a later holder has been here.
fn read(db: &mut Connection, fence: u64) -> Result<Option<i64>> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if transaction.execute(sql::INSTALL, params!["balance", i64::try_from(fence)?])? == 0 {
        return Ok(None);
    }
    let amount = transaction.query_row("SELECT amount FROM balance", [], |row| row.get(0))?;
    transaction.commit()?;
    Ok(Some(amount))
}

/// Writes, unless a later holder has been here.
fn write(db: &mut Connection, fence: u64, amount: i64) -> Result<bool> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if transaction.execute(sql::INSTALL, params!["balance", i64::try_from(fence)?])? == 0 {
        return Ok(false);
    }
    transaction.execute("UPDATE balance SET amount = ?1", [amount])?;
    transaction.commit()?;
    Ok(true)
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let locks = format!("file:{}", directory.path().join("locks").display());
    let mut db = Connection::open(directory.path().join("db"))?;
    db.execute_batch(sql::TABLE)?;
    db.execute_batch("CREATE TABLE balance (amount INTEGER); INSERT INTO balance VALUES (100)")?;

    let (a, b) = (Process::start(&locks)?, Process::start(&locks)?);
    let hold = a.acquire("balance")?;
    let seen = read(&mut db, hold.fence())?.expect("A is the first");
    println!("A holds the lock with token {} and reads {seen}", hold.fence());
    println!("A is stopped for longer than its lease");

    // Waits until the lease of A is over.
    let next = b.acquire("balance")?;
    let fresh = read(&mut db, next.fence())?.expect("B is later than A");
    assert!(write(&mut db, next.fence(), fresh + 20)?);
    println!("B holds the lock with token {}, reads {fresh} and writes {}", next.fence(), fresh + 20);

    println!("A goes on, without a look at holds(), which is {}", hold.holds());
    assert!(!write(&mut db, hold.fence(), seen + 10)?, "the late write got through");
    let kept: i64 = db.query_row("SELECT amount FROM balance", [], |row| row.get(0))?;
    assert_eq!(kept, 120);
    println!("The write of A is refused: the balance is {kept}");
    Ok(())
}
