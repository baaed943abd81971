use serde::{Deserialize, Serialize};

/// Who a process is and what it does, for people to read. Locks never depend on it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Card {
    /// Format of the card: 1.
    pub v: u32,
    /// The account it runs as.
    pub user: String,
    /// The machine.
    pub host: String,
    /// Its process number there.
    pub pid: u32,
    /// Its command line, or the name that the program gave itself.
    pub cmd: String,
    /// The version of Tenure in it.
    pub version: String,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
    /// What it holds.
    #[serde(default)]
    pub holds: Vec<CardHold>,
    /// What it waits for.
    #[serde(default)]
    pub waits: Vec<CardWait>,
}

/// One hold on a [`Card`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CardHold {
    /// The lock.
    pub name: String,
    /// The public id of the acquisition.
    pub holder: String,
    /// Its fencing token.
    pub fence: u64,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// When the lease was last renewed, in milliseconds since 1970.
    pub renewed_ms: u64,
    /// Length of the lease.
    pub ttl_ms: u64,
    /// What it runs under the lock, if that isn't the process itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// What the session is called that holds it, if it is called anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// One wait on a [`Card`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CardWait {
    /// The lock.
    pub name: String,
    /// The public id of the acquisition.
    pub holder: String,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// What the session is called that waits, if it is called anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}
