//! The classic lock: `SET key token NX PX`, compare and delete, and nothing beside the key.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tenure_core::{HolderId, Name, ProcessId, Reply, Request, Standing, Token, lease};
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Fault, FaultKind, Look, random_owner};

use crate::classify::classify;
use crate::engine::{RedisEngine, copy, refused};
use crate::link::{Link, words as text_of};
use crate::wire::{self, Undecodable};

/// How long the probe at connect may take.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

const PROLONG: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

/// Uses every right that the scripts of a lock need. Theirs ask for the later ones only if the key holds the token, so that
/// on a key that does not exist they would tell nothing.
const EVERY_RIGHT: &str =
    "redis.call('get', KEYS[1]) redis.call('pexpire', KEYS[1], 1) return redis.call('del', KEYS[1])";

/// Locks as most programs take them on Redis: the key holds the token of its owner and ends by itself.
///
/// It answers the requests of a claim with the commands that such programs use, so leases are counted, renewed and
/// lost as everywhere in Tenure. What the key alone cannot do is not there: no fencing token (each grant has 0), no
/// queue (an ask is granted or busy), no message, no card, nobody can be asked to stop. An ask that was stuck on its
/// way may take the lock after its claim is over: it is idle then until the key ends.
///
/// A renewal of another length than the one before is not safe here: a late copy of it would cut the lease.
#[derive(Debug)]
pub struct ClassicEngine {
    redis: Arc<RedisEngine>,
    compare: Compare,
}

/// By which commands a server compares a key and changes it in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compare {
    /// Scripts.
    Eval,
    /// Redis 8.4.
    Delex,
    /// Valkey 9.
    Delifeq,
}

impl Compare {
    const ALL: [Self; 3] = [Self::Eval, Self::Delex, Self::Delifeq];

    /// Deletes the key if it holds this token.
    fn delete(self, key: &str, token: &str) -> Cmd {
        match self {
            Self::Eval => words(&["EVAL", tenure_forms::SCRIPT, "1", key, token]),
            Self::Delex => words(&["DELEX", key, "IFEQ", token]),
            Self::Delifeq => words(&["DELIFEQ", key, token]),
        }
    }

    /// Lets the key last for so long from now on if it holds this token.
    fn prolong(self, key: &str, token: &str, ms: u64) -> Cmd {
        let ms = &ms.to_string();
        match self {
            Self::Eval => words(&["EVAL", PROLONG, "1", key, token, ms]),
            Self::Delex | Self::Delifeq => words(&["SET", key, token, "IFEQ", token, "PX", ms]),
        }
    }

    /// What fails on a key that does not exist unless this user can release and renew by these commands.
    fn probe(self, key: &str, token: &str) -> Vec<Cmd> {
        match self {
            Self::Eval => vec![words(&["EVAL", EVERY_RIGHT, "1", key])],
            Self::Delex | Self::Delifeq => vec![self.delete(key, token), self.prolong(key, token, 1000)],
        }
    }

    /// The commands of a request.
    fn commands(self, key: &str, request: &Request) -> Result<Vec<Cmd>, Fault> {
        Ok(match request {
            Request::Ask { owner, ttl_ms, guard_ms, attempt, .. } => {
                wire::check_ask(*ttl_ms, *guard_ms, 0)?;
                let (token, keep_ms) = (owner.to_string(), ttl_ms + guard_ms);
                let mut commands = vec![words(&["SET", key, &token, "NX", "PX", &keep_ms.to_string()])];
                // An earlier ask may have got the key, and only its answer was lost.
                if attempt.0 > 1 {
                    commands.push(self.prolong(key, &token, keep_ms));
                }
                commands
            }
            Request::Renew { owner, ttl_ms, guard_ms } => {
                wire::check_ask(*ttl_ms, *guard_ms, 0)?;
                vec![self.prolong(key, &owner.to_string(), ttl_ms + guard_ms)]
            }
            Request::Release { owner } => vec![self.delete(key, &owner.to_string())],
            Request::Stop { .. } => {
                return Err(Fault::refused("the classic lock has no way to ask its holder to stop")
                    .hint("stop the program that holds it"));
            }
        })
    }
}

/// What the answers to the commands of a request say. `None`: no server answers so.
fn decode(request: &Request, answers: &[Value]) -> Option<Reply> {
    let done: Vec<bool> = answers.iter().map(wire::done).collect::<Option<_>>()?;
    Some(match (request, done.contains(&true)) {
        (Request::Ask { .. }, true) => Reply::Granted { token: Token(0) },
        // Who it is shows when somebody looks.
        (Request::Ask { .. }, false) => Reply::Busy { standing: Some(SOMEBODY) },
        (Request::Renew { .. }, true) => Reply::Renewed,
        (Request::Release { .. }, true) => Reply::Released,
        _ => Reply::NotHeld,
    })
}

const SOMEBODY: Standing =
    Standing { holder: None, token: None, lease_ends_in_ms: None, free_in_ms: None, quiet: true };

fn words(words: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg(words);
    cmd
}

impl ClassicEngine {
    /// Connects as [`RedisEngine::connect`] does, and finds out how the server compares and changes a key in one step:
    /// by scripts, or else by the commands that Redis 8.4 and Valkey 9 have for it. Changes nothing.
    ///
    /// # Errors
    /// Refused if it knows neither, or forbids it to this user: without it a lock could not be given back safely.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Arc<Self>, Fault> {
        let redis = RedisEngine::connect_plain(url).await?;
        let compare = find(&redis).await?;
        Ok(Arc::new(Self { redis, compare }))
    }

    async fn call_many(&self, calls: &[(Name, Request)], limit: Duration) -> Vec<Answer> {
        let commands: Vec<Result<Vec<Cmd>, Fault>> = calls
            .iter()
            .map(|(name, request)| self.compare.commands(&self.redis.key(name)?, request))
            .collect();
        let mut pipeline = Pipeline::new();
        for command in commands.iter().flatten().flatten() {
            pipeline.add_command(command.clone());
        }
        let sent = self.redis.send(&pipeline, limit).await;
        let mut values = sent.as_ref().map_or(&[][..], |(_, values)| values);
        let mut answers = Vec::with_capacity(calls.len());
        for ((name, request), commands) in calls.iter().zip(commands) {
            answers.push(match (commands, &sent) {
                (Err(fault), _) => Err(fault),
                (_, Err(fault)) => Err(copy(fault)),
                (Ok(commands), Ok((link, _))) => {
                    let these;
                    (these, values) = values.split_at(commands.len());
                    self.read(name, request, link, these)
                }
            });
        }
        answers
    }

    fn read(&self, name: &Name, request: &Request, link: &Link, values: &[Value]) -> Answer {
        for value in values {
            if let Value::ServerError(error) = value
                && error.code() != "WRONGTYPE"
            {
                return Err(refused(link, error));
            }
        }
        decode(request, values).ok_or_else(|| self.redis.undecodable(name, Undecodable::Nonsense, link))
    }
}

/// Finds out by which commands this server compares and changes in one step.
async fn find(redis: &RedisEngine) -> Result<Compare, Fault> {
    let id = HolderId { process: redis.process(), serial: 0 };
    // No lock may have this name, and nobody else knows the number in it or the token: nothing is there to be changed.
    let (key, token) = (redis.own_key(&format!("probe:{}", id.process)), random_owner(id).to_string());
    let mut why = None;
    for compare in Compare::ALL {
        let mut probe = Pipeline::new();
        for command in compare.probe(&key, &token) {
            probe.add_command(command);
        }
        let (_, answers) = redis.send(&probe, PROBE_LIMIT).await?;
        match answers.iter().find_map(objection) {
            None => return Ok(compare),
            Some(fault) if fault.kind == FaultKind::NotRun => return Err(fault),
            Some(fault) => why = why.or(Some(fault.what)),
        }
    }
    Err(Fault::refused(format!(
        "{} cannot compare and delete a key in one step for this user ({}), so a lock could not be given back safely",
        redis.scope(),
        why.unwrap_or_default()
    ))
    .hint(
        "allow EVAL to the user (ACL SETUSER name +eval +get +del +pexpire), also on the key of this probe: by ~tenure:probe:*, \
         or by ?prefix= in the URL with the prefix that it may use; or use Redis 8.4 or Valkey 9",
    ))
}

/// Why the server does not carry a command of the probe out.
fn objection(answer: &Value) -> Option<Fault> {
    let Value::ServerError(error) = answer else { return None };
    Some(classify(&text_of(error)))
}

impl Engine for ClassicEngine {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let call = [(name.clone(), request.clone())];
            self.call_many(&call, limit).await.pop().expect("one answer to one call")
        })
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        Box::pin(self.call_many(calls, limit))
    }

    /// Nothing is ever said unasked.
    fn listen(&self, _: Ear) {}

    fn process(&self) -> ProcessId {
        self.redis.process()
    }

    fn guard_ms(&self, ttl_ms: u64) -> u64 {
        lease::guard_ms(ttl_ms)
    }

    fn scope(&self) -> String {
        self.redis.scope()
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        self.redis.look(name)
    }

    /// Nobody tells of a classic lock but its key.
    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn card(&self, _: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        Box::pin(async { Ok(None) })
    }

    fn post<'a>(&'a self, _: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }

    fn job_file(&self, _: HolderId) -> Result<Option<OwnedFd>, Fault> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Attempt, Owner};

    use super::*;

    const OWNER: &str = "9999999999999-0000000000001.7-00000000000000000000000003";

    fn owner() -> Owner {
        OWNER.parse().unwrap()
    }

    fn ask(attempt: u32) -> Request {
        let attempt = Attempt(attempt);
        Request::Ask { owner: owner(), ttl_ms: 30_000, guard_ms: 3000, place_ms: 0, attempt, not_after: None }
    }

    fn sent(compare: Compare, request: &Request) -> Vec<String> {
        let line = |cmd: &Cmd| {
            let words = cmd.args_iter().map(|arg| match arg {
                redis::Arg::Simple(word) => String::from_utf8_lossy(word).replace(OWNER, "TOKEN"),
                _ => panic!("a word"),
            });
            words.collect::<Vec<_>>().join(" ")
        };
        compare.commands("x", request).unwrap().iter().map(line).collect()
    }

    #[test]
    fn a_request_is_the_commands_that_every_client_uses() {
        assert_eq!(sent(Compare::Eval, &ask(1)), ["SET x TOKEN NX PX 33000"]);
        let release = Request::Release { owner: owner() };
        assert_eq!(sent(Compare::Eval, &release), [format!("EVAL {} 1 x TOKEN", tenure_forms::SCRIPT)]);
        assert_eq!(sent(Compare::Delex, &release), ["DELEX x IFEQ TOKEN"]);
        assert_eq!(sent(Compare::Delifeq, &release), ["DELIFEQ x TOKEN"]);
        let renew = Request::Renew { owner: owner(), ttl_ms: 30_000, guard_ms: 3000 };
        assert_eq!(sent(Compare::Eval, &renew), [format!("EVAL {PROLONG} 1 x TOKEN 33000")]);
        assert_eq!(sent(Compare::Delifeq, &renew), ["SET x TOKEN IFEQ TOKEN PX 33000"]);
    }

    #[test]
    fn who_asks_again_and_has_the_key_begins_its_lease_anew() {
        assert_eq!(
            sent(Compare::Delex, &ask(2)),
            ["SET x TOKEN NX PX 33000", "SET x TOKEN IFEQ TOKEN PX 33000"]
        );
        let granted = Some(Reply::Granted { token: Token(0) });
        assert_eq!(decode(&ask(2), &[Value::Nil, Value::Okay]), granted);
        assert_eq!(decode(&ask(2), &[Value::Nil, Value::Int(1)]), granted);
        assert!(matches!(decode(&ask(2), &[Value::Nil, Value::Int(0)]), Some(Reply::Busy { .. })));
    }

    #[test]
    fn an_answer_that_no_server_gives_is_none() {
        assert_eq!(decode(&ask(1), &[Value::Int(7)]), None);
        assert_eq!(decode(&ask(1), &[Value::Array(Vec::new())]), None);
    }

    #[test]
    fn a_lease_that_is_too_long_is_refused() {
        let renew = Request::Renew { owner: owner(), ttl_ms: u64::MAX, guard_ms: u64::MAX };
        assert_eq!(Compare::Eval.commands("x", &renew).unwrap_err().kind, FaultKind::Refused);
    }
}
