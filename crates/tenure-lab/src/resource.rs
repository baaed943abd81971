//! What the lock guards in these experiments: a record that knows who wrote last, and refuses old fencing tokens where
//! there are any.

use redis::{Connection, Value};

use crate::LabError;
use crate::servers::ask;

/// Writes as the holder number ARGV[1], with the fencing token ARGV[2] if the form has one (otherwise empty).
const WRITE: &str = "
local fence = tonumber(ARGV[2])
if fence then
    if fence < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then return 'refused' end
    redis.call('HSET', KEYS[1], 'fence', ARGV[2])
end
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'holder') or 0) then return 'stale' end
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
return 'ok'";

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// Accepted, and rightly so.
    Ok,
    /// Accepted, although a later holder had written before.
    Stale,
    /// Refused: a later holder's token had been seen.
    Refused,
}

/// The record beside a lock.
pub(crate) struct Resource {
    record: String,
    holders: String,
}

impl Resource {
    pub(crate) fn beside(key: &str) -> Self {
        Self { record: format!("{key}:record"), holders: format!("{key}:holders") }
    }

    /// The number of a new holder, which orders its writes among those of others.
    pub(crate) fn number(&self, connection: &mut Connection) -> Result<u64, LabError> {
        let number = ask(connection, &["INCR", &self.holders])?;
        Ok(redis::from_redis_value(number).map_err(redis::RedisError::from)?)
    }

    /// Writes as holder `number`.
    pub(crate) fn write(
        &self,
        connection: &mut Connection,
        number: u64,
        fence: Option<u64>,
    ) -> Result<Written, LabError> {
        let fence = fence.map_or_else(String::new, |fence| fence.to_string());
        let answer = ask(connection, &["EVAL", WRITE, "1", &self.record, &number.to_string(), &fence])?;
        Ok(match &answer {
            Value::BulkString(word) if word == b"ok" => Written::Ok,
            Value::BulkString(word) if word == b"stale" => Written::Stale,
            _ => Written::Refused,
        })
    }

    /// The keys that it uses.
    pub(crate) fn keys(&self) -> [&str; 2] {
        [&self.record, &self.holders]
    }
}
