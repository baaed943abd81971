//! The words of the protocol: who, what, when.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A point in time in whole milliseconds on *one* clock. Moments of two clocks are never compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// The end of time: what never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `ms` milliseconds later.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// The moment `ms` milliseconds earlier.
    #[must_use]
    pub const fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to this moment; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A fencing token: per lock, each grant's token is larger than every earlier one. Microseconds of the store's
/// wall clock, pushed up by one wherever the clock did not advance; exact in an IEEE double until the year 2255.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ties an answer to the send that caused it. Counts up from 1 within one claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Attempt(pub u32);

/// One running program that uses Tenure: 64 random bits, drawn anew at each start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// The public name of one acquisition: its process and a serial number within it. Safe to print and to share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId {
    /// The process that asked.
    pub process: ProcessId,
    /// Counts the acquisitions of that process.
    pub serial: u32,
}

/// The secret name of one acquisition: whoever knows it can release the lock. Fresh for every acquisition, so
/// that a late message of an old one names nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The public part.
    pub holder: HolderId,
    /// 128 random bits.
    pub secret: u128,
}

/// What every owner token begins with. A client of the old timestamp lock reads the value of the key as the
/// time at which it expires, and takes over whatever is past: thirteen nines are the year 2286 in milliseconds.
pub const FAR_FUTURE: &str = "9999999999999-";

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The last `N` digits of a number.
fn base32<const N: usize>(value: u128) -> [u8; N] {
    std::array::from_fn(|at| ALPHABET[(value >> (5 * (N - 1 - at))) as usize & 31])
}

fn write_base32<const N: usize>(f: &mut fmt::Formatter<'_>, value: u128) -> fmt::Result {
    f.write_str(std::str::from_utf8(&base32::<N>(value)).unwrap_or_default())
}

fn read_base32(text: &str, digits: usize) -> Option<u128> {
    if text.len() != digits {
        return None;
    }
    text.bytes().try_fold(0u128, |value, byte| {
        let digit = ALPHABET.iter().position(|&known| known == byte)?;
        // The first of 13 (26) digits carries only 4 (3) bits: anything larger would not come back the same.
        (value >> (123)).eq(&0).then_some(value << 5 | digit as u128)
    })
}

/// The text is not an identity of this kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAnId;

impl fmt::Display for NotAnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a Tenure id (as shown by `tenure inspect NAME`)")
    }
}

impl std::error::Error for NotAnId {}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base32::<13>(f, u128::from(self.0))
    }
}

impl FromStr for ProcessId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let value = read_base32(text, 13).ok_or(NotAnId)?;
        u64::try_from(value).map(Self).map_err(|_| NotAnId)
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.process, self.serial)
    }
}

impl FromStr for HolderId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let (process, serial) = text.split_once('.').ok_or(NotAnId)?;
        let canonical = !serial.is_empty()
            && serial.bytes().all(|byte| byte.is_ascii_digit())
            && (serial == "0" || !serial.starts_with('0'));
        if !canonical {
            return Err(NotAnId);
        }
        Ok(Self { process: process.parse()?, serial: serial.parse().map_err(|_| NotAnId)? })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FAR_FUTURE}{}-", self.holder)?;
        write_base32::<26>(f, self.secret)
    }
}

impl FromStr for Owner {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let (holder, secret) =
            text.strip_prefix(FAR_FUTURE).and_then(|rest| rest.split_once('-')).ok_or(NotAnId)?;
        Ok(Self { holder: holder.parse()?, secret: read_base32(secret, 26).ok_or(NotAnId)? })
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shows the public part only: logs must not hold what releases a lock.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.holder)
    }
}

/// The longest name of a lock, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 480;

/// Names below this prefix are Tenure's own keys.
pub const RESERVED_PREFIX: &str = "tenure:";

/// The name of a lock: 1 to 480 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// A name that no lock may have, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadName {
    /// The empty name.
    Empty,
    /// More than [`NAME_BYTES_MAX`] bytes: this many.
    TooLong(usize),
    /// A control character at this byte.
    Control(usize),
    /// It begins with [`RESERVED_PREFIX`].
    Reserved(String),
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the lock name is empty; give it 1 to 480 bytes"),
            Self::TooLong(bytes) => {
                write!(f, "the lock name has {bytes} bytes; the limit is {NAME_BYTES_MAX}")
            }
            Self::Control(at) => {
                write!(f, "the lock name has a control character at byte {at}; use printable text")
            }
            Self::Reserved(name) => {
                write!(
                    f,
                    "the lock name {name:?} begins with {RESERVED_PREFIX:?}, which is kept for Tenure's own keys"
                )
            }
        }
    }
}

impl std::error::Error for BadName {}

impl Name {
    /// Checks and keeps a name.
    ///
    /// ```
    /// use tenure_core::{BadName, Name};
    /// assert_eq!(Name::new("orders:42").unwrap().as_str(), "orders:42");
    /// assert_eq!(Name::new("a\nb"), Err(BadName::Control(1)));
    /// ```
    pub fn new(text: &str) -> Result<Self, BadName> {
        if text.is_empty() {
            return Err(BadName::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(BadName::TooLong(text.len()));
        }
        if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(BadName::Control(at));
        }
        if text.starts_with(RESERVED_PREFIX) {
            return Err(BadName::Reserved(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_the_way_over_the_wire() {
        for (process, serial, secret) in [(0, 0, 0), (u64::MAX, u32::MAX, u128::MAX), (7, 42, 1 << 100)] {
            let owner = Owner { holder: HolderId { process: ProcessId(process), serial }, secret };
            assert_eq!(owner.to_string().parse(), Ok(owner));
        }
    }

    #[test]
    fn only_the_canonical_text_is_an_owner() {
        let owner =
            Owner { holder: HolderId { process: ProcessId(1), serial: 1 }, secret: 0xabcd }.to_string();
        for bad in [
            String::new(),
            owner.replace(".1-", ".01-"),
            owner.replace(".1-", ".+1-"),
            owner.to_uppercase(),
            format!("{owner}0"),
            owner.replacen("9999999999999-0", "9999999999999-z", 1),
            owner[..owner.len() - 26].to_owned() + &"z".repeat(26),
        ] {
            assert_eq!(bad.parse::<Owner>(), Err(NotAnId), "{bad}");
        }
    }

    #[test]
    fn printing_an_owner_for_a_log_keeps_its_secret() {
        let owner = Owner { holder: HolderId { process: ProcessId(1), serial: 2 }, secret: u128::MAX };
        assert!(!format!("{owner:?}").contains("zzzz"));
    }

    #[test]
    fn names_have_limits_and_say_which() {
        assert_eq!(Name::new(""), Err(BadName::Empty));
        assert_eq!(Name::new(&"x".repeat(481)), Err(BadName::TooLong(481)));
        assert!(Name::new(&"x".repeat(480)).is_ok());
        assert_eq!(Name::new("ä\u{7f}"), Err(BadName::Control(2)));
        assert!(matches!(Name::new("tenure:x"), Err(BadName::Reserved(_))));
        assert!(Name::new("schloß-日本").is_ok());
    }
}
