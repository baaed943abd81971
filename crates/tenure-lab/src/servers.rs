//! The servers of an experiment: of its own, or named by the user.

use redis::{Connection, ConnectionInfo, IntoConnectionInfo, Value};
use tenure_forms::{Command, Reply};
use tenure_own_redis::{Options, RedisServer};

use crate::{LabError, tied};

/// One server and a connection to it.
pub(crate) struct Server {
    url: String,
    connection: Connection,
    /// Ours, if it was not named.
    own: Option<RedisServer>,
}

impl Server {
    /// Connects to each of these, or starts `count` servers if there are none.
    pub(crate) fn start(urls: &[String], count: usize) -> Result<Vec<Self>, LabError> {
        if urls.is_empty() {
            return (0..count).map(|_| Self::own()).collect();
        }
        if urls.len() != count {
            return Err(LabError::Usage(format!(
                "this form asks {count} server(s); give --url {count} time(s), or not at all"
            )));
        }
        urls.iter().map(|url| Self::named(url)).collect()
    }

    /// One of our own, gone with this process.
    pub(crate) fn own() -> Result<Self, LabError> {
        let options = Options { through: tied::words(), ..Options::default() };
        let server = RedisServer::try_with(options).map_err(|error| LabError::Server(error.to_string()))?;
        Ok(Self { url: server.url(), connection: connect(&server.url())?, own: Some(server) })
    }

    fn named(url: &str) -> Result<Self, LabError> {
        Ok(Self { url: url.to_owned(), connection: connect(url)?, own: None })
    }

    /// Its address, for a `tenure` of the experiment.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How it is called in reports, without secrets.
    pub(crate) fn shown(&self) -> String {
        let own = if self.own.is_some() { " (its own, stopped at the end)" } else { "" };
        let address = self.url.rsplit('@').next().unwrap_or_default();
        format!("{}{own}", address.strip_prefix("redis://").unwrap_or(address))
    }

    /// Carries out a command on the lock.
    pub(crate) fn run(&mut self, key: &str, command: &Command) -> Result<Reply, LabError> {
        run(&mut self.connection, key, command)
    }

    /// Carries out any command.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<Value, LabError> {
        ask(&mut self.connection, words)
    }

    /// It forgets the key: by a restart if it is ours.
    pub(crate) fn forget(&mut self, key: &str) -> Result<(), LabError> {
        match &mut self.own {
            Some(server) => {
                server.restart_empty();
                self.connection = connect(&self.url)?;
            }
            None => drop(self.ask(&["DEL", key])?),
        }
        Ok(())
    }
}

/// A connection of one's own.
pub(crate) fn connect(url: &str) -> Result<Connection, LabError> {
    let info: ConnectionInfo = url
        .into_connection_info()
        .map_err(|error| LabError::Usage(format!("--url is no address of a Redis server ({error})")))?;
    let client = redis::Client::open(info)?;
    client.get_connection().map_err(|error| LabError::Server(format!("cannot reach the server: {error}")))
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
