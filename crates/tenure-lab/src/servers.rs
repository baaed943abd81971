//! The servers of an experiment: of its own, or named by the user.

use std::time::Duration;

use redis::{Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Value};
use tenure_forms::{Command, Reply};
use tenure_own_redis::{Options, RedisServer};

use crate::traces::Traces;
use crate::{LabError, tied};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One server and a connection to it.
pub(crate) struct Server {
    url: String,
    shown: String,
    connection: Connection,
    /// Ours, if it was not named.
    own: Option<RedisServer>,
}

impl Server {
    /// Connects to each of these, or starts `count` servers if there are none. `keys` are wiped from servers that are not
    /// ours, however this process ends.
    pub(crate) fn start(urls: &[String], count: usize, keys: &[&str]) -> Result<Vec<Self>, LabError> {
        if urls.is_empty() {
            return (0..count).map(|_| Self::own()).collect();
        }
        let distinct = urls.iter().enumerate().all(|(at, url)| !urls[..at].contains(url));
        if urls.len() != count || !distinct {
            return Err(LabError::Usage(format!(
                "this form asks {count} server(s); give --url {count} time(s), each of another one, or not at all"
            )));
        }
        urls.iter().map(|url| Self::named(url, keys)).collect()
    }

    /// One of our own, gone with this process.
    fn own() -> Result<Self, LabError> {
        let options = Options { through: tied::words(), inside: Some(Traces::dir()?), ..Options::default() };
        let server = RedisServer::try_with(options).map_err(|error| LabError::Server(error.to_string()))?;
        Traces::server(&server);
        let shown = format!("127.0.0.1:{} (its own, stopped at the end)", server.port());
        Ok(Self { url: server.url(), shown, connection: connect(&server.url())?, own: Some(server) })
    }

    fn named(url: &str, keys: &[&str]) -> Result<Self, LabError> {
        let shown = info(url)?.addr().to_string();
        let connection = connect(url)?;
        Traces::keys(url, keys);
        Ok(Self { url: url.to_owned(), shown, connection, own: None })
    }

    /// Its address, for a `tenure` of the experiment. May hold a password.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Its address as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Carries out a command on the lock.
    pub(crate) fn run(&mut self, key: &str, command: &Command) -> Result<Reply, LabError> {
        run(&mut self.connection, key, command)
    }

    /// Carries out any command.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<Value, LabError> {
        ask(&mut self.connection, words)
    }

    /// Carries out a command that answers with a number.
    pub(crate) fn number(&mut self, words: &[&str]) -> Result<i64, LabError> {
        Ok(redis::from_redis_value(self.ask(words)?).map_err(redis::RedisError::from)?)
    }

    /// It forgets the key: by a restart if it is ours.
    pub(crate) fn forget(&mut self, key: &str) -> Result<(), LabError> {
        match &mut self.own {
            Some(server) => {
                server.try_restart_empty().map_err(|error| LabError::Server(error.to_string()))?;
                Traces::server(server);
                self.connection = connect(&self.url)?;
            }
            None => drop(self.ask(&["DEL", key])?),
        }
        Ok(())
    }
}

fn info(url: &str) -> Result<ConnectionInfo, LabError> {
    let bad = |why: &str| LabError::Usage(format!("--url is no address that the lab can use: {why}"));
    if url.starts_with("rediss:") {
        return Err(bad("it speaks no TLS"));
    }
    if ["prefix=", "ca="].iter().any(|option| url.contains(option)) {
        return Err(bad("it takes no options"));
    }
    let info = url.into_connection_info().map_err(|error| bad(&error.to_string()))?;
    match info.addr() {
        ConnectionAddr::Tcp(..) | ConnectionAddr::Unix(_) => Ok(info),
        _ => Err(bad("use redis://HOST:PORT/DB or unix:/PATH")),
    }
}

/// A connection of one's own.
pub(crate) fn connect(url: &str) -> Result<Connection, LabError> {
    let connection = redis::Client::open(info(url)?)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// Carries out a command on the lock.
pub(crate) fn run(connection: &mut Connection, key: &str, command: &Command) -> Result<Reply, LabError> {
    let words = command.words(key);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let value = ask(connection, &words)?;
    Ok(match command {
        Command::Get | Command::GetSet { .. } => {
            Reply::Value(redis::from_redis_value(value).map_err(redis::RedisError::from)?)
        }
        _ if value == Value::Int(0) || value == Value::Nil => Reply::No,
        _ => Reply::Yes,
    })
}

/// Carries out any command.
pub(crate) fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value, LabError> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    Ok(command.query(connection)?)
}
