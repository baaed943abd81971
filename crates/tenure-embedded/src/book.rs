//! The locks in an open transaction: each is put together as a [`Ledger`], asked, and put back.

use std::cell::RefCell;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::{
    Hold, HolderId, Ledger, Name, Now, Occupant, Owner, Place, Places, ProcessId, Reply, Request, Sight,
    Snapshot, Token, Witness,
};
use tenure_engine::Letter;

use crate::lmdb::{Record, Trouble, Txn};
use crate::records::{
    Head, LAST_KEY, Mail, PlaceRecord, addressee_of, head_key, mail_key, owner_key, place_key, seq_of,
};

/// The most letters that wait for one process. Messages may be lost: a process that does not read loses them.
const LETTERS_MAX: u64 = 10_000;

/// In debug builds, queues up to this length are checked after every request.
const CHECKED_WAITERS_MAX: usize = 64;

/// Carries out one request about one lock.
pub(crate) fn apply(
    txn: &mut Txn<'_, '_>,
    name: &Name,
    now: Now,
    request: &Request,
    witness: &mut impl Witness,
) -> Result<Reply, Trouble> {
    with_ledger(txn, name, |ledger| ledger.apply(now, request, witness))
}

/// One lock for people to look at, and who holds it. Changes nothing.
pub(crate) fn snapshot(
    txn: &mut Txn<'_, '_>,
    name: &Name,
    now: Now,
    most: usize,
    witness: &mut impl Witness,
) -> Result<(Snapshot, Option<Owner>), Trouble> {
    with_ledger(txn, name, |ledger| {
        let owner = match &ledger.occupant {
            Some(Occupant::Ours(hold)) => Some(hold.owner),
            _ => None,
        };
        (ledger.snapshot(now, most, witness), owner)
    })
}

/// Does anybody hold this lock or wait for it? Changes nothing.
pub(crate) fn is_used(
    txn: &mut Txn<'_, '_>,
    name: &Name,
    now: Now,
    witness: &mut impl Witness,
) -> Result<bool, Trouble> {
    with_ledger(txn, name, |ledger| match &ledger.occupant {
        _ if !ledger.places.is_empty() => true,
        Some(Occupant::Ours(hold)) => match witness.sees(&hold.owner) {
            Sight::Gone => false,
            Sight::Working | Sight::Orphaned => true,
            Sight::Unknown => now.lease <= hold.ends,
        },
        _ => false,
    })
}

/// Does this head tell of a hold by this holder?
pub(crate) fn is_held_by(head: &[u8], holder: HolderId) -> Result<bool, Trouble> {
    let hold: Option<Hold> = decode::<Head>(head)?.hold.map(Into::into);
    Ok(hold.is_some_and(|hold| hold.owner.holder == holder))
}

/// Puts a lock together, lets `work` change it, and writes back what has changed. A free lock without waiters
/// leaves no record.
pub(crate) fn with_ledger<R>(
    txn: &mut Txn<'_, '_>,
    name: &Name,
    work: impl FnOnce(&mut Ledger<Queue<'_, '_, '_>>) -> R,
) -> Result<R, Trouble> {
    let key = head_key(name.as_str());
    let old = txn.get(&key)?.map(<[u8]>::to_vec);
    let head: Head = old.as_deref().map(decode).transpose()?.unwrap_or_default();
    let old_last = last(txn)?;
    let mut ledger = Ledger {
        occupant: head.hold.map(|hold| Occupant::Ours(hold.into())),
        places: Queue { txn, name, waiting: head.waiting, trouble: RefCell::default() },
        last: old_last,
    };
    let result = work(&mut ledger);
    if let Some(trouble) = ledger.places.trouble.take() {
        return Err(trouble);
    }
    if cfg!(debug_assertions) && ledger.places.len() <= CHECKED_WAITERS_MAX {
        ledger.check();
    }
    let Ledger { occupant, places: Queue { txn, waiting, .. }, last } = ledger;
    let hold = match &occupant {
        Some(Occupant::Ours(hold)) => Some(hold.into()),
        Some(Occupant::Foreign { .. }) => unreachable!("everybody in this store speaks Tenure"),
        None => None,
    };
    let new = (occupant.is_some() || waiting > 0).then(|| encode(&Head { hold, waiting })).transpose()?;
    if new != old {
        match new {
            Some(new) => txn.put(&key, &new)?,
            None => txn.delete(&key)?,
        }
    }
    if last != old_last {
        set_last(txn, last)?;
    }
    Ok(result)
}

/// The largest token that was given out.
pub(crate) fn last(txn: &Txn<'_, '_>) -> Result<Token, Trouble> {
    let bytes = txn.get(LAST_KEY)?.unwrap_or_default();
    let bytes = bytes.try_into().map_err(|_| postcard::Error::DeserializeUnexpectedEnd)?;
    Ok(Token(u64::from_le_bytes(bytes)))
}

/// Raises the largest token.
pub(crate) fn set_last(txn: &mut Txn<'_, '_>, last: Token) -> Result<(), Trouble> {
    txn.put(LAST_KEY, &last.0.to_le_bytes())
}

/// Leaves a letter for another process.
pub(crate) fn post(txn: &mut Txn<'_, '_>, process: ProcessId, mail: &Mail) -> Result<(), Trouble> {
    let last = txn.up_to(&mail_key(process, u64::MAX))?.and_then(|(key, _)| addressee_of(key));
    let seq = last.filter(|(of, _)| *of == process).map_or(0, |(_, seq)| seq) + 1;
    // Numbers begin anew whenever the box has been emptied, so the last one counts the letters.
    if seq > LETTERS_MAX {
        return Ok(());
    }
    txn.put(&mail_key(process, seq), &encode(mail)?)
}

/// Takes all letters of a process.
pub(crate) fn collect(txn: &mut Txn<'_, '_>, process: ProcessId) -> Result<Vec<Letter>, Trouble> {
    let mut letters = Vec::new();
    while let Some((key, value)) = txn.after(&mail_key(process, 0))?
        && addressee_of(key).is_some_and(|(of, _)| of == process)
    {
        // A letter that cannot be read is as good as lost, and so are lost letters harmless.
        letters.extend(decode::<Mail>(value).ok().and_then(Mail::letter));
        let key = key.to_vec();
        txn.delete(&key)?;
    }
    Ok(letters)
}

pub(crate) fn encode(record: &impl Serialize) -> Result<Vec<u8>, Trouble> {
    Ok(postcard::to_stdvec(record)?)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Trouble> {
    Ok(postcard::from_bytes(bytes)?)
}

/// The queue of one lock. The ledger's own steps cannot fail, so a failure is kept aside, everything after it does
/// nothing, and the transaction is given up.
pub(crate) struct Queue<'q, 't, 'e> {
    txn: &'q mut Txn<'t, 'e>,
    name: &'q Name,
    waiting: u32,
    trouble: RefCell<Option<Trouble>>,
}

impl Queue<'_, '_, '_> {
    fn keep<T: Default>(&self, result: Result<T, Trouble>) -> T {
        result.unwrap_or_else(|trouble| {
            self.trouble.borrow_mut().get_or_insert(trouble);
            T::default()
        })
    }

    fn place(&self, record: Option<Record<'_>>) -> Result<Option<Place>, Trouble> {
        let Some((key, value)) = record else { return Ok(None) };
        let Some(seq) = seq_of(self.name, key) else { return Ok(None) };
        Ok(Some(decode::<PlaceRecord>(value)?.at(seq)))
    }

    fn search(&self, owner: &Owner) -> Result<Option<Place>, Trouble> {
        let Some(seq) = self.txn.get(&owner_key(self.name, owner))? else { return Ok(None) };
        let seq = u64::from_be_bytes(seq.try_into().map_err(|_| postcard::Error::DeserializeUnexpectedEnd)?);
        let key = place_key(self.name, seq);
        let place = self.place(self.txn.get(&key)?.map(|value| (&key[..], value)))?;
        Ok(place.filter(|place| place.owner == *owner))
    }

    fn write(&mut self, place: &Place) -> Result<(), Trouble> {
        let key = place_key(self.name, place.seq);
        if self.txn.get(&key)?.is_none() {
            self.waiting += 1;
            self.txn.put(&owner_key(self.name, &place.owner), &place.seq.to_be_bytes())?;
        }
        self.txn.put(&key, &encode(&PlaceRecord::from(place))?)
    }

    fn erase(&mut self, place: &Place) -> Result<(), Trouble> {
        let key = place_key(self.name, place.seq);
        if self.txn.get(&key)?.is_some() {
            self.waiting -= 1;
            self.txn.delete(&key)?;
            self.txn.delete(&owner_key(self.name, &place.owner))?;
        }
        Ok(())
    }

    fn broken(&self) -> bool {
        self.trouble.borrow().is_some()
    }
}

impl Places for Queue<'_, '_, '_> {
    fn after(&self, seq: u64) -> Option<Place> {
        if self.waiting == 0 || self.broken() {
            return None;
        }
        self.keep(self.txn.after(&place_key(self.name, seq)).and_then(|record| self.place(record)))
    }

    fn last(&self) -> Option<Place> {
        if self.waiting == 0 || self.broken() {
            return None;
        }
        self.keep(self.txn.up_to(&place_key(self.name, u64::MAX)).and_then(|record| self.place(record)))
    }

    fn find(&self, owner: &Owner) -> Option<Place> {
        if self.waiting == 0 || self.broken() {
            return None;
        }
        self.keep(self.search(owner))
    }

    fn put(&mut self, place: Place) {
        if !self.broken() {
            let written = self.write(&place);
            self.keep(written);
        }
    }

    fn remove(&mut self, place: &Place) {
        if !self.broken() {
            let erased = self.erase(place);
            self.keep(erased);
        }
    }

    fn len(&self) -> usize {
        self.waiting as usize
    }
}
