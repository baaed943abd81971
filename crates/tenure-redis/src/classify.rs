//! What an error reply of a server means for the request that it answers.

use tenure_engine::Fault;

const SERVER_TEXT_MAX: usize = 300;

/// What an error reply says about its request: whether it ran, and what to do.
///
/// The code, the first word, decides. Three rules about the scripts make that right: they read first and write last;
/// a server checks its own state (memory, disk, role, replicas) before a script's first write only; and no command
/// after the deciding write needs a right that those before did not need.
pub(crate) fn classify(reply: &str) -> Fault {
    let code = reply.split(' ').next().unwrap_or("");
    let said = format!("the server answered: {}", plain(reply));
    let not_run = |hint| Fault::not_run(&*said).hint(hint);
    let refused = |hint| Fault::refused(&*said).hint(hint);
    match code {
        "OOM" => not_run(
            "its memory is full: raise maxmemory, or free some; locks already held can still be renewed and released",
        ),
        "READONLY" => not_run("it is a replica: connect to the primary"),
        "MASTERDOWN" => not_run("it is a replica that lost its primary: connect to the primary"),
        "LOADING" => not_run("it is still starting: try again"),
        "BUSY" => not_run("another program's script keeps it busy: look at its SLOWLOG"),
        "NOREPLICAS" => not_run("too few of its replicas follow: look at min-replicas-to-write"),
        "MISCONF" => not_run("it cannot save to its disk: look at its log and its disk space"),
        "TRYAGAIN" => not_run("its slot is moving to another node: try again"),
        "MOVED" | "ASK" => not_run("the key is on another node of this cluster: connect to that node"),
        "CLUSTERDOWN" => not_run("the cluster is not complete: look at CLUSTER INFO"),
        "NOSCRIPT" => not_run("it forgets scripts at once: try again"),
        "NOAUTH" => refused("give a password in the URL: redis://:password@host"),
        "WRONGPASS" => refused("check user and password in the URL"),
        "NOPERM" => refused("give the user the rights listed in docs/protocol.md, or use another user"),
        "DENIED" => refused("it is in protected mode: set a password, or bind it to the address you use"),
        "NOPROTO" => refused("Tenure needs Redis 6 or later"),
        "CROSSSLOT" => refused("this is a bug in Tenure: its keys of one lock must lie in one slot"),
        "WRONGTYPE" => Fault::unknown(&*said)
            .hint("another program wrote to one of Tenure's own keys (tenure:*): delete that key"),
        "ERR" if reply.starts_with("ERR max number of clients") => {
            not_run("it has no connection left: raise maxclients, or close some")
        }
        "ERR" if reply.starts_with("ERR The user executing the script") => {
            refused("give the user the rights listed in docs/protocol.md, or use another user")
        }
        "ERR" if reply.starts_with("ERR unknown command") => {
            refused("Tenure needs Redis 6 or later with scripts allowed")
        }
        "ERR" if reply.starts_with("ERR DB index") || reply.starts_with("ERR invalid DB index") => {
            refused("it has fewer databases: choose a smaller number in the URL")
        }
        "ERR"
            if reply.starts_with("ERR Client sent AUTH") || reply.contains("called without any password") =>
        {
            refused("it has no password: leave it out of the URL")
        }
        _ => Fault::unknown(said).hint("look at the server's log"),
    }
}

/// One line of bounded length, whatever a server says.
fn plain(text: &str) -> String {
    let mut text: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SERVER_TEXT_MAX).collect();
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use tenure_engine::FaultKind::{self, NotRun, Refused, Unknown};

    use super::*;

    #[test]
    fn every_error_has_its_meaning() {
        const SHA: &str = " script: 0123456789abcdef0123456789abcdef01234567, on @user_script:12.";
        let table: &[(FaultKind, &str)] = &[
            (NotRun, "OOM command not allowed when used memory > 'maxmemory'."),
            (NotRun, &format!("OOM command not allowed when used memory > 'maxmemory'.{SHA}")),
            (NotRun, "READONLY You can't write against a read only replica."),
            (NotRun, &format!("READONLY You can't write against a read only replica.{SHA}")),
            (NotRun, "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
            (NotRun, "LOADING Redis is loading the dataset in memory"),
            (
                NotRun,
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            ),
            (NotRun, "NOREPLICAS Not enough good replicas to write."),
            (NotRun, &format!("NOREPLICAS Not enough good replicas to write.{SHA}")),
            (NotRun, "MISCONF Errors writing to the AOF file: No space left on device"),
            (
                NotRun,
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
            ),
            (NotRun, "TRYAGAIN Multiple keys request during rehashing of slot"),
            (NotRun, "MOVED 3999 127.0.0.1:6381"),
            (NotRun, "ASK 3999 127.0.0.1:6381"),
            (NotRun, "CLUSTERDOWN Hash slot not served"),
            (NotRun, "CLUSTERDOWN The cluster is down"),
            (NotRun, "NOSCRIPT No matching script. Please use EVAL."),
            (NotRun, "ERR max number of clients reached"),
            (NotRun, "ERR max number of clients + cluster connections reached"),
            (Refused, "NOAUTH Authentication required."),
            (
                Refused,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used",
            ),
            (Refused, "WRONGPASS invalid username-password pair or user is disabled."),
            (Refused, "NOPERM this user has no permissions to run the 'evalsha' command"),
            (Refused, "NOPERM this user has no permissions to access one of the keys used as arguments"),
            (Refused, "ERR The user executing the script can't run this command or subcommand"),
            (
                Refused,
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            ),
            (Refused, "DENIED Redis is running in protected mode because protected mode is enabled"),
            (Refused, "NOPROTO unsupported protocol version"),
            (Refused, "CROSSSLOT Keys in request don't hash to the same slot"),
            (Refused, "ERR unknown command 'EVALSHA', with args beginning with: "),
            (Refused, "ERR DB index is out of range"),
            (
                Refused,
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ),
            (Unknown, &format!("WRONGTYPE Operation against a key holding the wrong kind of value{SHA}")),
            (Unknown, &format!("ERR user_script:12: attempt to index a nil value{SHA}")),
            (Unknown, "ERR Error running script (call to f_0123): @user_script:1: -OOM"),
            (Unknown, "ERR Protocol error: invalid multibulk length"),
            (Unknown, "ERR value is not an integer or out of range"),
            (Unknown, "UNBLOCKED force unblock from blocking operation"),
            (Unknown, "SOMETHING nobody ever heard of"),
            (Unknown, ""),
        ];
        assert!(table.len() >= 30);
        for (kind, reply) in table {
            let fault = classify(reply);
            assert_eq!(fault.kind, *kind, "{reply}");
            assert!(!fault.hint.is_empty(), "{reply}: says what to do");
        }
    }

    #[test]
    fn what_a_server_says_is_one_short_line() {
        let fault = classify(&format!("ERR \x1b[31m\r\n{}", "x".repeat(10_000)));
        assert!(fault.what.len() < 400 && !fault.what.contains(char::is_control));
    }
}
