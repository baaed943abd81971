//! Which keys belong to a lock.
//!
//! Everything that one script touches lies in the hash slot of the lock's key, so that the scripts run on a cluster,
//! and no two locks share a key, whatever their names look like.

use std::sync::LazyLock;

use tenure_core::{Name, RESERVED_PREFIX};
use tenure_engine::Fault;

/// How many hash slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The keys of one lock, as the scripts expect them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    /// The lock: a string.
    pub(crate) lock: String,
    /// Its queue: a sorted set, owner to order of arrival.
    pub(crate) queue: String,
    /// The last fencing token of the slot.
    pub(crate) counter: &'static str,
}

impl Keys {
    pub(crate) fn of(prefix: &str, name: &Name) -> Result<Self, Fault> {
        let lock = format!("{prefix}{name}");
        // The name alone was checked; `?prefix=ten` and `ure:x` make one of our own keys together.
        if lock.starts_with(RESERVED_PREFIX) {
            return Err(Fault::refused(format!(
                "the key {lock:?} (prefix and lock name) begins with {RESERVED_PREFIX:?}, which is kept for \
                 Tenure's own keys"
            ))
            .hint("choose another name or prefix"));
        }
        let tag = tag(&lock);
        let slot = slot_of(tag.unwrap_or(&lock));
        let queue = match tag {
            Some(_) => format!("tenure:a:q:{lock}"),
            None if !lock.contains('}') => format!("tenure:b:q:{{{lock}}}"),
            None => format!("tenure:c:q:{{{}}}:{lock}", short(slot)),
        };
        Ok(Self { queue, counter: counter(slot), lock })
    }

    /// Its places: a hash, owner to place. The name of the queue with another letter.
    pub(crate) fn places(&self) -> String {
        self.queue.replacen(":q:", ":w:", 1)
    }
}

/// The part of a key that is hashed instead of the whole: what is between the first `{` and the next `}`, unless
/// that is nothing.
fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The slot of a text that is hashed as a whole.
fn slot_of(text: &str) -> u16 {
    crc16(text.as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, which Redis Cluster uses.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// A short text that lies in this slot: shorter ones come first, then 0-9 before a-z.
fn short(slot: u16) -> &'static str {
    counter(slot).trim_start_matches("tenure:f:{").trim_end_matches('}')
}

/// The token counter of this slot.
fn counter(slot: u16) -> &'static str {
    static TABLE: LazyLock<Vec<String>> = LazyLock::new(|| {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut table = vec![String::new(); usize::from(SLOTS)];
        let mut missing = SLOTS;
        // Bijective base 36 counts 0, 1, .., z, 00, 01, ..: shorter texts first, each once. Four digits are enough.
        for number in 0_u32.. {
            let (mut text, mut begin) = ([0; 8], 8);
            let mut rest = number + 1;
            while rest > 0 {
                rest -= 1;
                begin -= 1;
                text[begin] = DIGITS[(rest % 36) as usize];
                rest /= 36;
            }
            let text = &text[begin..];
            let place = &mut table[usize::from(crc16(text) % SLOTS)];
            if place.is_empty() {
                *place = format!("tenure:f:{{{}}}", std::str::from_utf8(text).expect("digits are ASCII"));
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        table
    });
    &TABLE[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(lock: &str) -> Keys {
        Keys::of("", &Name::new(lock).unwrap()).unwrap()
    }

    fn slot(key: &str) -> u16 {
        slot_of(tag(key).unwrap_or(key))
    }

    #[test]
    fn slots_are_those_of_redis() {
        // From the cluster specification, and CLUSTER KEYSLOT of 7.0.15.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, is) in
            [("foo", 12182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363), ("foo{{bar}}zap", 4015)]
        {
            assert_eq!(slot(key), is, "{key}");
        }
    }

    #[test]
    fn the_table_of_short_texts_never_changes() {
        let whole = (0..SLOTS).map(short).collect::<Vec<_>>().join("\n") + "\n";
        let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!((short(0), short(1), short(12182), short(16383)), ("1bz", "emj", "foo", "hia"));
        // FNV-1a of the whole; another implementation can check its table by it.
        assert_eq!(hash, 0x2fdb_2fc9_7e02_d461);
    }

    #[test]
    fn short_texts_lie_in_their_slots() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(short(slot)), slot);
        }
    }

    #[test]
    fn each_kind_of_name_has_its_form() {
        assert_eq!(keys("orders:{42}").queue, "tenure:a:q:orders:{42}");
        assert_eq!(keys("orders:42").queue, "tenure:b:q:{orders:42}");
        assert_eq!(keys("a{b").places(), "tenure:b:w:{a{b}");
        assert!(keys("a}b").places().starts_with("tenure:c:w:{"));
        assert!(keys("foo{}bar").places().ends_with("}:foo{}bar"));
    }

    #[test]
    fn a_prefix_cannot_lead_into_the_keys_of_tenure() {
        let fault = Keys::of("ten", &Name::new("ure:x").unwrap()).unwrap_err();
        assert!(fault.to_string().contains("kept for"), "{fault}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn the_keys_of_a_lock_share_its_slot(name in "[ab{}:q]{1,12}") {
            let keys = keys(&name);
            let home = slot(&keys.lock);
            prop_assert_eq!(slot(&keys.queue), home);
            prop_assert_eq!(slot(&keys.places()), home);
            prop_assert_eq!(slot(keys.counter), home);
        }

        #[test]
        fn no_two_locks_share_a_key(one in "[ab{}:q]{1,8}", other in "[ab{}:q]{1,8}") {
            prop_assume!(one != other);
            let (one, other) = (keys(&one), keys(&other));
            for key in [&one.lock, &one.queue, &one.places()] {
                for taken in [&*other.lock, &other.queue, &other.places(), other.counter] {
                    prop_assert_ne!(key, taken);
                }
            }
            prop_assert_ne!(&one.queue, &one.places());
        }
    }
}
