//! The floor: the two commands that every simple lock sends, over the client that Tenure uses.

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// A lock of two commands.
#[derive(Clone)]
pub(crate) struct Plain {
    connection: MultiplexedConnection,
    sha: String,
}

impl Plain {
    /// `nodelay`: send every piece at once; the client's own default is to gather (Nagle).
    pub(crate) async fn connect(port: u16, nodelay: bool) -> Result<Self> {
        let info = format!("redis://127.0.0.1:{port}/?protocol=resp3").into_connection_info()?;
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(nodelay));
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection =
            Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await?;
        Ok(Self { connection, sha })
    }

    pub(crate) async fn pair(&mut self, name: &str, token: &str) -> Result<()> {
        let taken: Option<String> = redis::cmd("SET")
            .arg(name)
            .arg(token)
            .arg("NX")
            .arg("PX")
            .arg(30_000)
            .query_async(&mut self.connection)
            .await?;
        anyhow::ensure!(taken.is_some(), "the lock was free");
        let freed: i32 = redis::cmd("EVALSHA")
            .arg(&self.sha)
            .arg(1)
            .arg(name)
            .arg(token)
            .query_async(&mut self.connection)
            .await?;
        anyhow::ensure!(freed == 1, "the lock was ours");
        Ok(())
    }

    /// The answer to `INFO section`, a number of it.
    pub(crate) async fn info(&mut self, section: &str, key: &str) -> Result<String> {
        let text: String = redis::cmd("INFO").arg(section).query_async(&mut self.connection).await?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        Ok(line.unwrap_or_default().to_owned())
    }

    /// Microseconds that the server has spent in these commands. A script counts as a whole; the commands inside are
    /// counted under their own names once more.
    pub(crate) async fn server_usec(&mut self, commands: &[&str]) -> Result<f64> {
        let mut total = 0.0;
        for command in commands {
            let stat = self.info("commandstats", command).await?;
            let usec = stat.split(',').find_map(|field| field.strip_prefix("usec="));
            total += usec.map_or(Ok(0.0), str::parse)?;
        }
        Ok(total)
    }

    pub(crate) async fn reset_stats(&mut self) -> Result<()> {
        Ok(redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut self.connection).await?)
    }

    /// Seconds of CPU that the server process has used.
    pub(crate) async fn server_cpu(&mut self) -> Result<f64> {
        let user: f64 = self.info("cpu", "used_cpu_user").await?.parse()?;
        let system: f64 = self.info("cpu", "used_cpu_sys").await?.parse()?;
        Ok(user + system)
    }

    /// Calls of these commands.
    pub(crate) async fn calls(&mut self, commands: &[&str]) -> Result<u64> {
        let mut total = 0;
        for command in commands {
            let stat = self.info("commandstats", command).await?;
            let calls = stat.split(',').find_map(|field| field.strip_prefix("calls="));
            total += calls.map_or(Ok(0), str::parse)?;
        }
        Ok(total)
    }
}
