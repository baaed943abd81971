//! The scripts, and what travels to and from them.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Value};
use tenure_core::{
    Attempt, BY_BYTES_MAX, FAR_FUTURE, HolderId, Message, Moment, Name, Owner, Reply, Request, Snapshot,
    Standing, Token, Waiter, lease,
};
use tenure_engine::{Fault, Letter, Look};
use tenure_forms::Command;

use crate::keys::Keys;

/// The format of values, places and messages that this code writes and reads.
const FORMAT: &str = "1";

/// The longest message that is looked at; ours are shorter.
const MESSAGE_BYTES_MAX: usize = 2048;

/// The first waiters that a look shows.
pub(crate) const LOOK_WAITERS: usize = 100;

/// How much of a foreign value the scripts answer.
const FOREIGN_READ_BYTES: usize = 300;

/// A script and its name on the server.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    hash: String,
}

/// All scripts. The hash of each is pinned by a test: it is part of the protocol.
#[derive(Debug)]
pub(crate) struct Scripts {
    ask: Script,
    renew: Script,
    release: Script,
    stop: Script,
    inspect: Script,
    together: Script,
}

impl Scripts {
    pub(crate) fn all(&self) -> [&Script; 6] {
        [&self.ask, &self.renew, &self.release, &self.stop, &self.inspect, &self.together]
    }
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    let script = |text: &str| {
        let text = text.replace("-- include queue.lua\n", include_str!("../scripts/queue.lua"));
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Script { text, hash }
    };
    Scripts {
        ask: script(include_str!("../scripts/ask.lua")),
        renew: script(include_str!("../scripts/renew.lua")),
        release: script(include_str!("../scripts/release.lua")),
        stop: script(include_str!("../scripts/stop.lua")),
        inspect: script(include_str!("../scripts/inspect.lua")),
        together: script(include_str!("../scripts/together.lua")),
    }
});

/// How a script is named in a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// By its hash: short, but the server may have forgotten it.
    Hash,
    /// By its text.
    Text,
}

fn call(script: &Script, by: By) -> Cmd {
    let mut cmd = Cmd::new();
    match by {
        By::Hash => cmd.arg("EVALSHA").arg(&script.hash),
        By::Text => cmd.arg("EVAL").arg(&script.text),
    };
    cmd
}

fn command(script: &Script, by: By, keys: &Keys) -> Cmd {
    let mut cmd = call(script, by);
    cmd.arg(4).arg(&keys.lock).arg(&keys.queue).arg(keys.places()).arg(keys.counter);
    cmd
}

/// The command that carries a request. `not_after`: for an ask that does not say it itself.
pub(crate) fn encode(
    prefix: &str,
    name: &Name,
    request: &Request,
    not_after: Moment,
    by: By,
) -> Result<Cmd, Fault> {
    let keys = Keys::of(prefix, name)?;
    let scripts = &*SCRIPTS;
    Ok(match request {
        Request::Ask { owner, ttl_ms, guard_ms, place_ms, attempt, not_after: own } => {
            check_ask(*ttl_ms, *guard_ms, *place_ms)?;
            let mut cmd = command(&scripts.ask, by, &keys);
            cmd.arg(owner.to_string()).arg(*ttl_ms).arg(*guard_ms).arg(*place_ms).arg(attempt.0);
            cmd.arg(late_us(own.unwrap_or(not_after))).arg(ttl_ms + guard_ms);
            cmd
        }
        Request::Renew { owner, ttl_ms, guard_ms } => {
            check_ms("lease", *ttl_ms, 1)?;
            check_ms("guard", *guard_ms, 0)?;
            let mut cmd = command(&scripts.renew, by, &keys);
            cmd.arg(owner.to_string()).arg(*ttl_ms).arg(*guard_ms);
            cmd
        }
        Request::Release { owner } => {
            let mut cmd = command(&scripts.release, by, &keys);
            cmd.arg(owner.to_string());
            cmd
        }
        Request::Stop { holder, by: who } => {
            if who.len() > BY_BYTES_MAX || who.contains(char::is_control) {
                return Err(Fault::refused(format!(
                    "who asks for a stop must be named in at most {BY_BYTES_MAX} bytes without control characters"
                )));
            }
            let mut cmd = command(&scripts.stop, by, &keys);
            cmd.arg(holder.to_string()).arg(who);
            cmd
        }
    })
}

/// The first microsecond that is too late, in 16 digits: scripts compare it as a text.
fn late_us(not_after: Moment) -> String {
    format!("{:016}", not_after.plus(1).0.saturating_mul(1000).min(9_999_999_999_999_999))
}

/// The command that carries several asks and releases, with the moment from which an ask is too late. `None`: there is
/// none, or one of them can't be carried this way.
pub(crate) fn encode_together<'a>(
    prefix: &str,
    requests: impl Iterator<Item = (&'a Name, &'a Request, Moment)>,
    by: By,
) -> Option<Cmd> {
    let requests: Vec<(Keys, &Request, Moment)> = requests
        .map(|(name, request, not_after)| Some((Keys::of(prefix, name).ok()?, request, not_after)))
        .collect::<Option<_>>()?;
    if requests.is_empty() {
        return None;
    }
    let asks = requests.iter().filter(|(_, request, _)| matches!(request, Request::Ask { .. })).count();
    let mut cmd = call(&SCRIPTS.together, by);
    cmd.arg(2 * requests.len() + asks);
    for (keys, request, _) in &requests {
        cmd.arg(&keys.lock).arg(&keys.queue);
        if matches!(request, Request::Ask { .. }) {
            cmd.arg(keys.counter);
        }
    }
    for (_, request, not_after) in requests {
        match request {
            Request::Ask { owner, ttl_ms, guard_ms, place_ms, .. } => {
                check_ask(*ttl_ms, *guard_ms, *place_ms).ok()?;
                cmd.arg("ask").arg(owner.to_string()).arg(late_us(not_after));
                cmd.arg(format!(":{ttl_ms}:{guard_ms}")).arg(ttl_ms + guard_ms);
            }
            Request::Release { owner } => {
                cmd.arg("release").arg(owner.to_string());
            }
            _ => return None,
        }
    }
    Some(cmd)
}

/// The command that looks at a lock.
pub(crate) fn encode_look(prefix: &str, name: &Name, by: By) -> Result<Cmd, Fault> {
    let mut cmd = command(&SCRIPTS.inspect, by, &Keys::of(prefix, name)?);
    cmd.arg(LOOK_WAITERS);
    Ok(cmd)
}

pub(crate) fn check_ask(ttl_ms: u64, guard_ms: u64, place_ms: u64) -> Result<(), Fault> {
    check_ms("lease", ttl_ms, 1)?;
    check_ms("guard", guard_ms, 0)?;
    check_ms("place", place_ms, 0)
}

fn check_ms(what: &str, ms: u64, least: u64) -> Result<(), Fault> {
    if (least..=lease::TTL_MS_MAX).contains(&ms) {
        return Ok(());
    }
    Err(Fault::refused(format!(
        "a {what} of {ms} ms is not possible; it has {least} to {} ms",
        lease::TTL_MS_MAX
    )))
}

/// What a script answered.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) reply: Reply,
    /// The server's clock in milliseconds when it ran the script, if it told.
    pub(crate) now: Option<Moment>,
}

/// Why an answer is not a reply.
#[derive(Debug)]
pub(crate) enum Undecodable {
    /// It is none of our scripts' answers: the connection is out of step, or this is no Redis.
    Nonsense,
    /// Someone wrote in a format with this number.
    Format(String),
}

/// Reads what a script answered to a request. `deaf`: no messages come, so every hold has to be looked at.
pub(crate) fn decode(request: &Request, value: &Value, deaf: bool) -> Result<Decoded, Undecodable> {
    let decoded = decode_answer(value, deaf).ok_or(Undecodable::Nonsense)??;
    let fits = match (request, &decoded.reply) {
        (Request::Ask { .. }, reply) => matches!(
            reply,
            Reply::Granted { .. } | Reply::Queued { .. } | Reply::Busy { .. } | Reply::Full | Reply::Stale
        ),
        (Request::Renew { .. }, reply) => {
            matches!(reply, Reply::Renewed | Reply::Stopping { .. } | Reply::NotHeld)
        }
        (Request::Release { .. }, reply) => matches!(reply, Reply::Released | Reply::NotHeld),
        (Request::Stop { .. }, reply) => matches!(reply, Reply::Told { .. } | Reply::NotHeld),
    };
    // The answer to another request: the connection is out of step.
    if fits { Ok(decoded) } else { Err(Undecodable::Nonsense) }
}

fn decode_answer(value: &Value, deaf: bool) -> Option<Result<Decoded, Undecodable>> {
    let parts = match value {
        // The common cases.
        Value::BulkString(token) => {
            let token = decimal(std::str::from_utf8(token).ok()?)?;
            let (reply, now) = (Reply::Granted { token: Token(token) }, Some(Moment(token / 1000)));
            return Some(Ok(Decoded { reply, now }));
        }
        Value::Int(1) => return Some(Ok(Decoded { reply: Reply::Released, now: None })),
        Value::Array(parts) => parts,
        _ => return None,
    };
    let (word, rest) = parts.split_first()?;
    let mut now = None;
    let mut timed = |now_us: &Value| {
        now = Some(Moment(number(now_us)? / 1000));
        Some(())
    };
    let reply = match (bytes(word)?, rest) {
        (b"granted", [now_us, token]) => {
            timed(now_us)?;
            Reply::Granted { token: Token(number(token)?) }
        }
        (b"queued", [now_us, head, free_in_ms, value]) => {
            timed(now_us)?;
            Reply::Queued { head: flag(head)?, standing: standing_of(free_in_ms, value, deaf)? }
        }
        (b"busy", [now_us, _, free_in_ms, value]) => {
            timed(now_us)?;
            Reply::Busy { standing: standing_of(free_in_ms, value, deaf)? }
        }
        (b"full", [now_us]) => {
            timed(now_us)?;
            Reply::Full
        }
        (b"stale", [now_us]) => {
            timed(now_us)?;
            Reply::Stale
        }
        (b"renewed", []) => Reply::Renewed,
        (b"stopping", [by]) => Reply::Stopping { by: text(by)?.to_owned() },
        (b"released", []) => Reply::Released,
        (b"told", [reached]) => Reply::Told { reached: flag(reached)? },
        (b"not_held", []) => Reply::NotHeld,
        (b"format", [format]) => return Some(Err(Undecodable::Format(text(format)?.to_owned()))),
        _ => return None,
    };
    Some(Ok(Decoded { reply, now }))
}

/// A lock's value in parts.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    Ours { owner: Owner, token: Token, guard_ms: u64, stop: Option<String> },
    OtherFormat(String),
    Foreign,
}

fn held(value: &[u8]) -> Held {
    let parse = || {
        let value = std::str::from_utf8(value).ok()?;
        if !value.starts_with(FAR_FUTURE) {
            return None;
        }
        let mut parts = value.splitn(6, ':');
        let owner = parts.next()?.parse().ok()?;
        let format = parts.next()?;
        if format != FORMAT {
            let known = !format.is_empty() && format.bytes().all(|byte| byte.is_ascii_digit());
            return known.then(|| Held::OtherFormat(format.to_owned()));
        }
        let token = Token(decimal(parts.next()?)?);
        let _ttl_ms = decimal(parts.next()?)?;
        let guard_ms = decimal(parts.next()?)?;
        Some(Held::Ours { owner, token, guard_ms, stop: parts.next().map(str::to_owned) })
    };
    parse().unwrap_or(Held::Foreign)
}

/// `None` outside: these are no such values. Inside: nobody holds.
#[allow(clippy::option_option)]
fn standing_of(free_in_ms: &Value, value: &Value, deaf: bool) -> Option<Option<Standing>> {
    let free_in_ms = int(free_in_ms)?;
    let value = bytes(value)?;
    Some((free_in_ms != -2).then(|| match held(value) {
        Held::Ours { owner, token, guard_ms, .. } => {
            ours(owner.holder, token, guard_ms, u64::try_from(free_in_ms).ok(), deaf)
        }
        Held::OtherFormat(_) | Held::Foreign => foreign(u64::try_from(free_in_ms).ok()),
    }))
}

fn ours(holder: HolderId, token: Token, guard_ms: u64, free_in_ms: Option<u64>, deaf: bool) -> Standing {
    Standing {
        holder: Some(holder),
        token: Some(token),
        lease_ends_in_ms: free_in_ms.map(|ms| ms.saturating_sub(guard_ms)),
        free_in_ms,
        quiet: deaf,
    }
}

fn foreign(free_in_ms: Option<u64>) -> Standing {
    Standing { holder: None, token: None, lease_ends_in_ms: free_in_ms, free_in_ms, quiet: true }
}

/// Reads what the inspect script answered.
pub(crate) fn decode_look(value: &Value, deaf: bool) -> Result<Look, Undecodable> {
    let answer = || {
        let Value::Array(parts) = value else { return None };
        let [now_us, kind, free_in, value, waiting, Value::Array(owners), Value::Array(places)] = &parts[..]
        else {
            return None;
        };
        let now = Moment(number(now_us)? / 1000);
        let value = bytes(value)?;
        let held = held(value);
        let standing = standing_of(free_in, &Value::BulkString(value.to_vec()), deaf)?;
        let mut look = Look {
            snapshot: Snapshot {
                standing,
                stop: None,
                waiters: Vec::new(),
                waiting: number(waiting)? as usize,
            },
            foreign: None,
            orphaned: false,
        };
        match held {
            _ if standing.is_none() => {}
            Held::Ours { stop, .. } => look.snapshot.stop = stop,
            Held::OtherFormat(format) => return Some(Err(Undecodable::Format(format))),
            Held::Foreign => look.foreign = Some(describe(text(kind)?, value)),
        }
        for (owner, place) in owners.iter().zip(places).take(LOOK_WAITERS) {
            // What isn't ours in our own queue is not shown; the scripts take it away when they come across it.
            let Some(owner) = text(owner).and_then(|text| text.parse::<Owner>().ok()) else { continue };
            let mut place = text(place)?.split(':');
            if place.next() != Some(FORMAT) {
                continue;
            }
            let Some(until) = place.next().and_then(decimal) else { continue };
            look.snapshot
                .waiters
                .push(Waiter { holder: owner.holder, place_ends_in_ms: Moment(until).since(now) });
        }
        Some(Ok(look))
    };
    answer().ok_or(Undecodable::Nonsense)?
}

/// Reads what the server answered to a plain command. What is no text (another type, bytes that are not UTF-8) is
/// somebody's all the same: not done. `None`: no server answers so.
pub(crate) fn decode_plain(command: &Command, value: &Value) -> Option<tenure_forms::Reply> {
    use tenure_forms::Reply::{No, Value as Text, Yes};
    let reads = matches!(command, Command::Get | Command::GetSet { .. });
    Some(match value {
        Value::Nil if reads => Text(None),
        Value::BulkString(text) if reads => {
            std::str::from_utf8(text).map_or(No, |text| Text(Some(text.to_owned())))
        }
        Value::Okay | Value::Int(_) if reads => return None,
        value if done(value)? => Yes,
        _ => No,
    })
}

/// Did the server do what a plain command asks for? A key of another type is somebody's: no. `None`: no server answers
/// so.
pub(crate) fn done(value: &Value) -> Option<bool> {
    match value {
        Value::Okay | Value::Int(1) => Some(true),
        Value::Nil | Value::Int(0) => Some(false),
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Some(false),
        _ => None,
    }
}

/// What [`decode_plain_look`] reads.
pub(crate) fn encode_plain_look(key: &str) -> Pipeline {
    let mut look = Pipeline::new();
    look.cmd("TYPE").arg(key).cmd("PTTL").arg(key);
    look.cmd("GETRANGE").arg(key).arg(0).arg(FOREIGN_READ_BYTES - 1);
    look
}

/// Reads what plain commands tell of a lock: as the inspect script would, but without a queue. A classic hold of Tenure
/// shows its holder.
pub(crate) fn decode_plain_look(values: &[Value]) -> Result<Look, Undecodable> {
    let [kind, free_in_ms, value] = values else { return Err(Undecodable::Nonsense) };
    let value = Value::BulkString(bytes(value).unwrap_or_default().to_vec());
    let holder = text(&value).and_then(|text| text.parse::<Owner>().ok()).map(|owner| owner.holder);
    let (none, nobody) = (Value::Int(0), Value::Array(Vec::new()));
    let as_script = vec![none.clone(), kind.clone(), free_in_ms.clone(), value, none, nobody.clone(), nobody];
    let mut look = decode_look(&Value::Array(as_script), true)?;
    if let (Some(holder), Some(standing)) = (holder, &mut look.snapshot.standing) {
        standing.holder = Some(holder);
        look.foreign = None;
    }
    Ok(look)
}

/// `hash`, or `string of 24 bytes`. Never the value: to the client that wrote it, it is what releases the lock.
fn describe(kind: &str, value: &[u8]) -> String {
    match (kind, value.len()) {
        // Longer ones are not read to their end.
        ("string", bytes @ 0..FOREIGN_READ_BYTES) => format!("string of {bytes} bytes"),
        _ => kind.to_owned(),
    }
}

/// Reads a message. Total: whatever it is, it is a letter or nothing. `prefix` is ours; a lock outside it isn't.
pub(crate) fn read_message(payload: &[u8], prefix: &str) -> Option<Letter> {
    if payload.len() > MESSAGE_BYTES_MAX {
        return None;
    }
    let mut fields = std::str::from_utf8(payload).ok()?.split('\n');
    let mut next = || fields.next();
    if next()? != FORMAT {
        return None;
    }
    let name = Name::new(next()?.strip_prefix(prefix)?).ok()?;
    let owner = next()?.parse().ok()?;
    let message = match next()? {
        "granted" => {
            Message::Granted { token: Token(decimal(next()?)?), attempt: Attempt(next()?.parse().ok()?) }
        }
        "head" => {
            let free_in_ms = next()?.parse::<i64>().ok()?;
            let free_in_ms = u64::try_from(free_in_ms).ok();
            let (holder, token, guard_ms) = (next()?, next()?, next()?);
            let standing = match holder.parse() {
                Ok(holder) => ours(holder, Token(decimal(token)?), decimal(guard_ms)?, free_in_ms, false),
                Err(_) => foreign(free_in_ms),
            };
            Message::Head { standing }
        }
        "stop" => Message::Stop { by: next()?.to_owned() },
        _ => return None,
    };
    next().is_none().then_some(Letter { name, owner, message })
}

/// A decimal number as our scripts write it: digits only.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    int(value).and_then(|number| u64::try_from(number).ok())
}

fn flag(value: &Value) -> Option<bool> {
    match int(value)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::ProcessId;

    use super::*;

    const OWNER: &str = "9999999999999-0000000000001.7-00000000000000000000000003";

    fn owner() -> Owner {
        Owner { holder: HolderId { process: ProcessId(1), serial: 7 }, secret: 3 }
    }

    fn array(parts: &[&str]) -> Value {
        Value::Array(
            parts
                .iter()
                .map(|part| match part.strip_prefix('#').filter(|number| !number.is_empty()) {
                    Some(number) => Value::Int(number.parse().unwrap()),
                    None => Value::BulkString(part.as_bytes().to_vec()),
                })
                .collect(),
        )
    }

    /// A script is part of the protocol. Whoever changes one on purpose puts the new hash here, and thinks of clients
    /// of another version that use the same store.
    #[test]
    fn what_is_no_text_under_a_plain_key_is_not_done() {
        use tenure_forms::Reply::{No, Value as Text, Yes};
        let take = Command::SetNx { value: "1".to_owned(), ttl: None };
        let wrong: Value = redis::parse_redis_value(b"-WRONGTYPE Operation against a key\r\n").unwrap();
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        for (command, value, reply) in [
            (&take, Value::Okay, Some(Yes)),
            (&take, Value::Int(0), Some(No)),
            (&Command::Del, Value::Int(1), Some(Yes)),
            (&Command::Get, Value::Nil, Some(Text(None))),
            (&Command::Get, text(b"17"), Some(Text(Some("17".to_owned())))),
            (&Command::Get, text(b"\xff"), Some(No)),
            (&Command::Get, wrong, Some(No)),
            (&Command::Get, Value::Int(1), None),
            (&Command::Del, text(b"17"), None),
        ] {
            assert_eq!(decode_plain(command, &value), reply, "{command:?} {value:?}");
        }
    }

    #[test]
    fn the_scripts_are_these() {
        let known = [
            (&SCRIPTS.ask, "04f7837f9ce7b78a64776a6939fc62f9a74c5797"),
            (&SCRIPTS.renew, "a5da8ba8fc060c60d1e0d669d13cdb612b515c6f"),
            (&SCRIPTS.release, "5ca4ee97cce0f325fe9108b670047f6792612b6d"),
            (&SCRIPTS.stop, "4c906f7b39ca93dff377aa01efad0d1a35d54169"),
            (&SCRIPTS.inspect, "98286c1fb38a24edc907d8ffb8eccc39f6bc95ca"),
            (&SCRIPTS.together, "c4203cc2b6db0001b7b3a430a89cf3d12fb2141a"),
        ];
        for (script, hash) in known {
            assert_eq!(script.hash, hash);
        }
        for script in SCRIPTS.all() {
            assert!(!script.text.contains("-- include"), "everything is included");
            assert!(!script.text.starts_with("#!"), "or it would be refused when memory is full");
        }
    }

    #[test]
    fn answers_are_read() {
        let ask = Request::Ask {
            owner: owner(),
            ttl_ms: 1,
            guard_ms: 0,
            place_ms: 0,
            attempt: Attempt(1),
            not_after: None,
        };
        let token = Value::BulkString(b"1800000000000001".to_vec());
        let decoded = decode(&ask, &token, false).unwrap();
        assert_eq!(decoded.reply, Reply::Granted { token: Token(1_800_000_000_000_001) });
        assert_eq!(decoded.now, Some(Moment(1_800_000_000_000)));

        let value = format!("{OWNER}:1:42:30000:3000:me: again");
        for deaf in [false, true] {
            let decoded = decode(&ask, &array(&["queued", "#1000", "#1", "#3500", &value]), deaf).unwrap();
            let standing = Standing {
                holder: Some(owner().holder),
                token: Some(Token(42)),
                lease_ends_in_ms: Some(500),
                free_in_ms: Some(3500),
                quiet: deaf,
            };
            assert_eq!(decoded.reply, Reply::Queued { head: true, standing: Some(standing) });
        }
        let free = decode(&ask, &array(&["queued", "#1000", "#0", "#-2", ""]), false).unwrap();
        assert_eq!(free.reply, Reply::Queued { head: false, standing: None });
        let foreign = decode(&ask, &array(&["busy", "#1000", "#0", "#-1", "theirs"]), false).unwrap();
        assert!(matches!(
            foreign.reply,
            Reply::Busy { standing: Some(Standing { holder: None, free_in_ms: None, quiet: true, .. }) }
        ));
        assert!(
            matches!(decode(&ask, &array(&["format", "2"]), false), Err(Undecodable::Format(format)) if format == "2")
        );
    }

    #[test]
    fn what_no_script_answers_is_nonsense() {
        let release = Request::Release { owner: owner() };
        let nonsense = [
            Value::Nil,
            Value::Okay,
            Value::Int(0),
            Value::SimpleString("OJ".into()),
            Value::Array(vec![]),
            array(&["released", "#1"]),
            array(&["told", "#2"]),
            array(&["granted", "#1"]),
            array(&["granted", "#-1", "#1"]),
            // The answers to other requests.
            array(&["renewed"]),
            Value::BulkString(b"1800000000000001".to_vec()),
        ];
        for value in nonsense {
            assert!(matches!(decode(&release, &value, false), Err(Undecodable::Nonsense)), "{value:?}");
        }
        assert!(decode(&release, &Value::Int(1), false).is_ok());
    }

    #[test]
    fn messages_are_read() {
        let read = |body: &str| read_message(format!("1\napp:x\n{OWNER}\n{body}").as_bytes(), "app:");
        let message = |body: &str| {
            let letter = read(body).unwrap_or_else(|| panic!("{body}"));
            assert_eq!((letter.name.as_str(), letter.owner), ("x", owner()));
            letter.message
        };
        assert_eq!(message("granted\n42\n3"), Message::Granted { token: Token(42), attempt: Attempt(3) });
        assert_eq!(message("stop\nann: %d"), Message::Stop { by: "ann: %d".into() });
        let Message::Head { standing } = message("head\n3500\n0000000000001.7\n42\n3000") else { panic!() };
        assert_eq!((standing.lease_ends_in_ms, standing.quiet), (Some(500), false));
        let Message::Head { standing } = message("head\n-1\n\n\n") else { panic!() };
        assert_eq!(standing, foreign(None));

        for bad in
            ["granted\n42", "granted\n42\n3\n4", "granted\n+42\n3", "granted\n\n3", "head\n1", "hello", ""]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
        let whole = format!("1\napp:x\n{OWNER}\nstop\nme");
        assert_eq!(read_message(whole.as_bytes(), "other:"), None, "a lock of another prefix");
        assert_eq!(read_message(whole.replacen('1', "2", 1).as_bytes(), "app:"), None, "another format");
        assert_eq!(read_message(&vec![b'1'; 1 << 20], ""), None);
    }

    #[test]
    fn values_of_others_are_foreign() {
        let ours = format!("{OWNER}:1:42:30000:3000");
        assert!(matches!(held(ours.as_bytes()), Held::Ours { stop: None, guard_ms: 3000, .. }));
        assert!(
            matches!(held(format!("{ours}:").as_bytes()), Held::Ours { stop: Some(by), .. } if by.is_empty())
        );
        assert_eq!(held(format!("{OWNER}:2:whatever").as_bytes()), Held::OtherFormat("2".into()));
        for foreign in [
            "",
            "1795266682",
            "9999999999999-0123456789abcdef",
            OWNER,
            &format!("{OWNER}:1"),
            &format!("{OWNER}:1:42:30000"),
            &format!("{OWNER}:1:42:30000:-1"),
            &format!("{OWNER}:1::1:1"),
            &format!("{OWNER}:x:42:30000:3000"),
            &ours.to_uppercase().replace("9999999999999-0000000000001", "9999999999999-000000000000I"),
        ] {
            assert_eq!(held(foreign.as_bytes()), Held::Foreign, "{foreign}");
        }
        assert_eq!(held(b"\xff\xfe"), Held::Foreign);
    }

    #[test]
    fn bounds_are_kept_before_anything_is_sent() {
        let name = Name::new("x").unwrap();
        let ask = |ttl_ms, guard_ms, place_ms| {
            let attempt = Attempt(1);
            Request::Ask { owner: owner(), ttl_ms, guard_ms, place_ms, attempt, not_after: None }
        };
        let day = lease::TTL_MS_MAX;
        let send = |request: &Request| encode("", &name, request, Moment(1), By::Hash).map(|_| ());
        assert!(send(&ask(1, 0, 0)).is_ok() && send(&ask(day, day, day)).is_ok());
        for bad in [ask(0, 1, 1), ask(day + 1, 0, 0), ask(1, u64::MAX, 0), ask(1, 0, u64::MAX)] {
            assert_eq!(send(&bad).unwrap_err().kind, tenure_engine::FaultKind::Refused);
        }
        let good = ask(1, 0, 0);
        let together = |request: Request| {
            let requests = [(&name, &good, Moment(1)), (&name, &request, Moment(1))];
            encode_together("", requests.into_iter(), By::Hash).is_some()
        };
        assert!(together(ask(day, day, day)) && together(Request::Release { owner: owner() }));
        for bad in [ask(0, 1, 1), ask(day + 1, 0, 0), ask(1, u64::MAX, 0), ask(1, 0, u64::MAX)] {
            assert!(!together(bad), "it finds out alone what is wrong with it");
        }
        for by in ["x".repeat(BY_BYTES_MAX + 1), "a\nb".to_owned()] {
            assert!(send(&Request::Stop { holder: owner().holder, by }).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_payload_is_a_letter_or_nothing(payload in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_message(&payload, "");
            let _ = held(&payload);
        }

        #[test]
        fn any_fields_are_a_letter_or_nothing(
            fields in prop::collection::vec("[0-9a-z:.-]{0,70}|granted|head|stop|1|x", 0..9)
        ) {
            let _ = read_message(fields.join("\n").as_bytes(), "");
            let parts: Vec<_> = fields.iter().map(String::as_str).collect();
            let _ = decode(&Request::Release { owner: owner() }, &array(&parts), false);
        }
    }
}
