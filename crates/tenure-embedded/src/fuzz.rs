//! Whatever a user writes or a damaged file holds is understood or refused. The corpora in `__fuzz__` are replayed by
//! every test run, with some random variations; `cargo xtask fuzz` goes on for longer.

use tenure_core::{Hold, Name};

use crate::Location;
use crate::book::{decode, encode, is_held_by};
use crate::records::{Head, Mail, PlaceRecord, addressee_of, name_of, seq_of};

#[test]
fn file_urls() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(Location::Directory(path)) = Location::from_url(text) {
            assert!(path.is_absolute());
        }
    });
}

#[test]
fn records() {
    let name = Name::new("orders:42").expect("a name");
    bolero::check!().for_each(|bytes: &[u8]| {
        let _ = (name_of(bytes), seq_of(&name, bytes), addressee_of(bytes));
        if let Ok(head) = decode::<Head>(bytes) {
            // Numbers have more than one spelling, but what is written is read the same.
            let written = encode(&head).expect("a head");
            assert_eq!(encode(&decode::<Head>(&written).expect("a head")).expect("a head"), written);
            if let Some(hold) = head.hold.map(Hold::from) {
                assert!(is_held_by(&written, hold.owner.holder).is_ok_and(|held| held));
            }
        }
        if let Ok(place) = decode::<PlaceRecord>(bytes) {
            let place = place.at(7);
            let written = encode(&PlaceRecord::from(&place)).expect("a place");
            assert_eq!(decode::<PlaceRecord>(&written).expect("a place").at(7), place);
        }
        if let Some(letter) = decode::<Mail>(bytes).ok().and_then(Mail::letter) {
            let written =
                encode(&Mail::new(&letter.name, &letter.owner, letter.message.clone())).expect("a letter");
            assert_eq!(decode::<Mail>(&written).ok().and_then(Mail::letter), Some(letter));
        }
    });
}
