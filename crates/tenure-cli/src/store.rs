//! Which store, and the way to it.

use tenure::compat::{self, Protocol};
use tenure::{Client, ConnectError, InspectError};

use crate::failure::Failure;
use crate::locks::Locks;
use crate::text::say;

/// Where the environment names the store.
pub(crate) const URL_VARIABLE: &str = "TENURE_URL";

/// In a job's environment: the store of its lock, in words.
pub(crate) const SCOPE_VARIABLE: &str = "TENURE_SCOPE";

/// The option that every command has.
#[derive(clap::Args, Debug)]
pub(crate) struct Store {
    /// Where the locks are: file: (this host), file:/DIR, redis://HOST:PORT/DB, rediss://.., unix:/PATH. Otherwise
    /// TENURE_URL, otherwise file:. An address with a password belongs into TENURE_URL: everybody can read arguments
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

impl Store {
    /// Connects. `label` is what the process is called for others, if not by its own name.
    pub(crate) async fn connect(&self, label: Option<&str>) -> Result<Client, Failure> {
        let (url, source) = self.address()?;
        let mut builder = Client::builder(&url).announce_at_once();
        if let Some(label) = label {
            builder = builder.label(label);
        }
        builder.connect().await.map_err(|error| not_connected(&error, source))
    }

    /// Connects to Tenure's own locks, or to those of other programs.
    pub(crate) async fn connect_to(&self, protocol: Option<Protocol>, label: &str) -> Result<Locks, Failure> {
        let Some(protocol) = protocol else { return self.connect(Some(label)).await.map(Locks::Own) };
        let (url, source) = self.address()?;
        let client = compat::Client::connect(&url, protocol).await;
        client.map(Locks::Others).map_err(|error| not_connected(&error, source))
    }

    /// The URL, and where it is from.
    fn address(&self) -> Result<(String, &'static str), Failure> {
        let variable = std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty());
        Ok(match (&self.url, variable) {
            (Some(url), _) => {
                if has_password(url) {
                    say(
                        "the password in --url can be read by everybody on this host (ps); set TENURE_URL instead",
                    );
                }
                (url.clone(), " (from --url)")
            }
            (None, Some(url)) => (url, " (from TENURE_URL)"),
            (None, None) => {
                not_by_accident()?;
                ("file:".to_owned(), " (neither --url nor TENURE_URL is set)")
            }
        })
    }
}

fn not_connected(error: &ConnectError, source: &str) -> Failure {
    let text = format!("{error}{source}. Nothing was run or changed");
    match error {
        ConnectError::Backend(_) => Failure::backend(text),
        _ => Failure::usage(text),
    }
}

/// Jobs don't inherit TENURE_URL, because it may hold a password. A `tenure` inside a job that names no store would
/// lock on this host only, while the job around it locks for many: two scopes, in silence.
fn not_by_accident() -> Result<(), Failure> {
    match std::env::var(SCOPE_VARIABLE) {
        Ok(scope) if !scope.starts_with("file:") => Err(Failure::usage(format!(
            "this runs inside the job of a lock on {}, and TENURE_URL is not passed on to jobs. Name the store: \
             --url URL, or --url file: for a lock on this host only",
            tenure::printable(&scope)
        ))),
        _ => Ok(()),
    }
}

/// Does an address hold a password?
fn has_password(url: &str) -> bool {
    let user_info = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    user_info.and_then(|(user_info, _)| user_info.split_once(':')).is_some_and(|(_, word)| !word.is_empty())
}

/// A look at a lock that failed.
pub(crate) fn not_seen(error: &InspectError) -> Failure {
    match error {
        InspectError::BadInput(_) => Failure::usage(error.to_string()),
        _ => Failure::backend(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn a_password_is_seen() {
        for (url, has) in [
            ("redis://u:p@h:1/0", true),
            ("redis://:p@h", true),
            ("redis://u@h:1/0", false),
            ("redis://u:@h", false),
            ("redis://h:6379/0", false),
            ("file:/a@b:c", false),
        ] {
            assert_eq!(has_password(url), has, "{url}");
        }
    }
}
