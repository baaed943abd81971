//! The ledger over the database against the ledger over a vector: the same requests, clocks and sights, and after
//! each the same reply, messages and state.

use std::collections::HashMap;

use tenure_core::{
    Attempt, HolderId, Ledger, Message, Moment, Name, Now, Occupant, Owner, Place, Places, ProcessId,
    Request, Sight, Token, Witness,
};

use super::Store;
use crate::book;
use crate::location::Location;

const REQUESTS: usize = 10_000;

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Sees and reaches owners as the dice fell for their process, and writes down what it says.
#[derive(Clone)]
struct Script {
    sights: HashMap<ProcessId, (Sight, bool)>,
    said: Vec<(Owner, Message)>,
}

impl Witness for Script {
    fn sees(&mut self, owner: &Owner) -> Sight {
        self.sights[&owner.holder.process].0
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let reachable = self.sights[&owner.holder.process].1;
        if reachable {
            self.said.push((*owner, message));
        }
        reachable
    }
}

fn owner(number: u64) -> Owner {
    let holder = HolderId { process: ProcessId(number % 4), serial: number as u32 };
    Owner { holder, secret: u128::from(number) << 90 | 7 }
}

fn request(dice: &mut Dice, now: Now) -> Request {
    let owner = owner(dice.roll(12));
    let (ttl_ms, guard_ms) = (100 + dice.roll(400), dice.roll(2) * 50);
    match dice.roll(20) {
        0..=9 => Request::Ask {
            owner,
            ttl_ms,
            guard_ms,
            place_ms: dice.roll(4) * 150,
            attempt: Attempt(dice.roll(9) as u32),
            not_after: (dice.roll(5) == 0).then(|| Moment(now.lease.0 + dice.roll(3)).minus(1)),
        },
        10..=13 => Request::Renew { owner, ttl_ms, guard_ms },
        14..=18 => Request::Release { owner },
        _ => Request::Stop { holder: owner.holder, by: format!("op{}", dice.roll(3)) },
    }
}

type State = (Option<Occupant>, Vec<Place>, usize, Token);

fn state<P: Places>(ledger: &Ledger<P>) -> State {
    let mut places = Vec::new();
    let mut seq = 0;
    while let Some(place) = ledger.places.after(seq) {
        seq = place.seq;
        places.push(place);
    }
    assert_eq!(ledger.places.last(), places.last());
    (ledger.occupant.clone(), places, ledger.places.len(), ledger.last)
}

#[test]
fn the_database_does_what_the_vector_does() {
    for seed in [1, 20_261_121, tenure_engine::random_process().0] {
        run(seed);
    }
}

fn run(seed: u64) {
    println!("seed {seed}");
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(&Location::Directory(place.path().join("t"))).unwrap();
    let entered = store.guard.enter_blocking().unwrap();
    let mut dice = Dice(seed);
    // One name is the beginning of the other.
    let names = ["a", "ab", "b"].map(|name| Name::new(name).unwrap());
    let mut model: HashMap<Name, Ledger<Vec<Place>>> = HashMap::new();
    let (mut lease, mut last) = (Moment(1000), Token(0));
    let (mut granted, mut queued, mut said) = (0, 0, 0);
    for step in 0..REQUESTS {
        lease = lease.plus(dice.roll(40));
        // Two clocks, never mixed: this one stands still and goes back at times.
        let now = Now { lease, wall_us: 1_000_000 + step as u64 * 3 - dice.roll(300) };
        let name = &names[dice.roll(3) as usize];
        let request = request(&mut dice, now);
        let sights = (0..4).map(|process| {
            let sight = [
                Sight::Unknown,
                Sight::Unknown,
                Sight::Unknown,
                Sight::Gone,
                Sight::Working,
                Sight::Orphaned,
            ][dice.roll(6) as usize];
            (ProcessId(process), (sight, dice.roll(4) > 0))
        });
        let mut witness = Script { sights: sights.collect(), said: Vec::new() };
        let mut on_disk = witness.clone();

        let ledger = model.entry(name.clone()).or_default();
        ledger.last = last;
        let expected = ledger.apply(now, &request, &mut witness);
        last = ledger.last;
        let seen = store.tree.write(&entered, |txn| {
            let reply = book::apply(txn, name, now, &request, &mut on_disk)?;
            let (state, shown) = book::with_ledger(txn, name, |ledger| {
                (state(ledger), ledger.snapshot(now, 3, &mut on_disk))
            })?;
            let key = crate::records::head_key(name.as_str());
            Ok((reply, state, shown, txn.get(&key)?.is_some()))
        });
        let (reply, disk_state, shown, has_record) = seen.unwrap();
        let context = format!("seed {seed}, step {step}: {request:?} for {name:?}");
        assert_eq!(reply, expected, "{context}");
        assert_eq!(on_disk.said, witness.said, "{context}");
        assert_eq!(disk_state, state(ledger), "{context}");
        assert_eq!(shown, ledger.snapshot(now, 3, &mut witness), "{context}");
        assert_eq!(has_record, !ledger.is_blank(), "{context}");
        granted += usize::from(matches!(reply, tenure_core::Reply::Granted { .. }));
        queued += usize::from(matches!(reply, tenure_core::Reply::Queued { .. }));
        said += witness.said.len();
    }
    // A test that grants nothing agrees about everything.
    assert!(granted > 500 && queued > 500 && said > 500, "{granted} granted, {queued} queued, {said} said");
}
