//! The few commands that locks are made of, and a key that answers them.

/// Deletes the key if it holds the caller's token, in one step.
pub const SCRIPT: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// A command about the lock's key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// `SETNX key value`, or `SET key value NX EX|PX ttl`.
    SetNx {
        /// What is written if the key is free.
        value: String,
        /// How long it lasts; `None`: for ever.
        ttl: Option<Ttl>,
    },
    /// `EXPIRE key seconds`.
    Expire {
        /// How long the key lasts from now on.
        seconds: u64,
    },
    /// `GET key`.
    Get,
    /// `GETSET key value`, which takes the key's time to live away.
    GetSet {
        /// What is written, whatever is there.
        value: String,
        /// What the caller saw there before: it has won if that is what comes back.
        seen: String,
    },
    /// `DEL key`.
    Del,
    /// The script [`SCRIPT`].
    DelIf {
        /// Only if this is there.
        value: String,
    },
}

/// How long a key lasts, in the unit in which the command says it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ttl {
    /// `EX`.
    Seconds(u64),
    /// `PX`.
    Millis(u64),
}

impl Ttl {
    fn ms(self) -> u64 {
        match self {
            Self::Seconds(seconds) => seconds.saturating_mul(1000),
            Self::Millis(ms) => ms,
        }
    }
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Reply {
    /// `OK` or 1: it was done.
    Yes,
    /// Nil or 0: it was not.
    No,
    /// What is, or was, under the key.
    Value(Option<String>),
}

impl Command {
    /// The words that go over the wire.
    pub fn words(&self, key: &str) -> Vec<String> {
        let words: Vec<&str> = match self {
            Self::SetNx { value, ttl: None } => vec!["SETNX", key, value],
            Self::SetNx { value, ttl: Some(Ttl::Seconds(seconds)) } => {
                return owned(&["SET", key, value, "NX", "EX", &seconds.to_string()]);
            }
            Self::SetNx { value, ttl: Some(Ttl::Millis(ms)) } => {
                return owned(&["SET", key, value, "NX", "PX", &ms.to_string()]);
            }
            Self::Expire { seconds } => return owned(&["EXPIRE", key, &seconds.to_string()]),
            Self::Get => vec!["GET", key],
            Self::GetSet { value, .. } => vec!["GETSET", key, value],
            Self::Del => vec!["DEL", key],
            Self::DelIf { value } => vec!["EVAL", SCRIPT, "1", key, value],
        };
        owned(&words)
    }

    /// The command as people write it: a script by its name.
    pub fn shown(&self, key: &str) -> String {
        match self {
            Self::DelIf { value } => format!("EVAL compare-and-delete {key} {value}"),
            _ => self.words(key).join(" "),
        }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// One key of a plain key-value store with expiry.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slot {
    value: Option<String>,
    /// From when on it is gone.
    expires_ms: Option<u64>,
}

impl Slot {
    /// Carries a command out at `now_ms` by the store's clock.
    pub fn run(&mut self, now_ms: u64, command: &Command) -> Reply {
        self.expire(now_ms);
        match command {
            Command::SetNx { .. } if self.value.is_some() => Reply::No,
            Command::SetNx { value, ttl } => {
                self.value = Some(value.clone());
                self.expires_ms = ttl.map(|ttl| now_ms.saturating_add(ttl.ms()));
                Reply::Yes
            }
            Command::Expire { .. } if self.value.is_none() => Reply::No,
            Command::Expire { seconds } => {
                self.expires_ms = Some(now_ms.saturating_add(Ttl::Seconds(*seconds).ms()));
                Reply::Yes
            }
            Command::Get => Reply::Value(self.value.clone()),
            Command::GetSet { value, .. } => {
                self.expires_ms = None;
                Reply::Value(self.value.replace(value.clone()))
            }
            Command::DelIf { value } if self.value.as_ref() != Some(value) => Reply::No,
            Command::Del | Command::DelIf { .. } => {
                self.expires_ms = None;
                if self.value.take().is_some() { Reply::Yes } else { Reply::No }
            }
        }
    }

    /// What is under the key at `now_ms`, and when it will be gone.
    pub fn look(&self, now_ms: u64) -> Option<(&str, Option<u64>)> {
        let value = self.value.as_deref()?;
        self.expires_ms.is_none_or(|at| now_ms < at).then_some((value, self.expires_ms))
    }

    /// Lets go of what has expired.
    pub fn expire(&mut self, now_ms: u64) {
        if self.look(now_ms).is_none() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_lasts_as_long_as_it_was_told() {
        let mut slot = Slot::default();
        let take = Command::SetNx { value: "a".to_owned(), ttl: Some(Ttl::Seconds(1)) };
        assert_eq!(slot.run(0, &take), Reply::Yes);
        assert_eq!(slot.run(999, &take), Reply::No);
        assert_eq!(slot.run(1000, &take), Reply::Yes);
    }

    #[test]
    fn getset_takes_the_time_to_live_away() {
        let mut slot = Slot::default();
        slot.run(0, &Command::SetNx { value: "a".to_owned(), ttl: Some(Ttl::Millis(10)) });
        let was = slot.run(5, &Command::GetSet { value: "b".to_owned(), seen: String::new() });
        assert_eq!(was, Reply::Value(Some("a".to_owned())));
        assert_eq!(slot.look(1_000_000), Some(("b", None)));
    }

    #[test]
    fn only_the_right_token_deletes() {
        let mut slot = Slot::default();
        slot.run(0, &Command::SetNx { value: "a".to_owned(), ttl: None });
        assert_eq!(slot.run(0, &Command::DelIf { value: "b".to_owned() }), Reply::No);
        assert_eq!(slot.run(0, &Command::DelIf { value: "a".to_owned() }), Reply::Yes);
        assert_eq!(slot.run(0, &Command::Del), Reply::No);
    }
}
