//! `tenure release`: ask a holder to stop.

use tenure::{HolderId, State, StopError, printable, span};

use crate::exit_codes;
use crate::failure::Failure;
use crate::store::{Store, not_seen};
use crate::text::{held_by, print, quoted};

/// Ask the holder of a lock to stop
///
/// A `tenure run` that is asked stops its command (TERM, then KILL after its --kill-after), releases the lock and
/// ends with 79. A program that uses the library learns that its lock is lost. The lock itself stays with the holder
/// until it has stopped, or until its lease ends: nothing overlaps.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock
    name: String,
    /// Whom to ask, as `tenure inspect NAME` shows it; anybody else who holds by now is left alone
    #[arg(long, value_name = "ID")]
    holder: HolderId,
    #[command(flatten)]
    store: Store,
}

pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.store.connect(None).await?;
    let lock = client.inspect(&args.name).await.map_err(|error| not_seen(&error))?;
    if lock.state == State::Orphaned
        && lock.holder.as_ref().is_some_and(|holder| holder.id == args.holder.to_string())
    {
        let folder = lock.scope.trim_start_matches("file:").split(" (").next().unwrap_or_default();
        return Err(Failure {
            code: exit_codes::NOT_THE_HOLDER,
            text: format!(
                "the holder of '{}' is gone, but processes of its job still run and keep the lock: nobody is left to \
                 ask. End them, and the lock is free. Find them: fuser -v {folder}/*/jobs/{}",
                printable(&args.name),
                args.holder,
            ),
        });
    }
    match client.ask_to_stop(&args.name, args.holder, &by()).await {
        Ok(reached) => {
            let name = printable(&args.name);
            let told = if reached {
                "It was told at once"
            } else {
                "It could not be reached, and learns of it by its next renewal"
            };
            let end = match lock.free_in_ms {
                Some(ms) => format!(" or its lease is over, in {} at the latest", span(ms)),
                None => String::new(),
            };
            print(&format!(
                "Asked {} to stop '{name}', {}.\n{told}. A `tenure run` stops its command now and ends with 79. The \
                 lock passes on when it has stopped{end}.\nSee: tenure inspect {}\n",
                args.holder,
                held_by(&lock),
                quoted(&args.name),
            ))?;
            Ok(0)
        }
        Err(StopError::NotHolder(id)) => Err(Failure {
            code: exit_codes::NOT_THE_HOLDER,
            text: format!(
                "{id} does not hold '{name}' (any more); it is {now}. Nobody was asked. See: tenure inspect {word}",
                name = printable(&args.name),
                now = held_by(&lock),
                word = quoted(&args.name),
            ),
        }),
        Err(error @ StopError::BadInput(_)) => Err(Failure::usage(error.to_string())),
        Err(error) => Err(Failure::backend(error.to_string())),
    }
}

/// Who asks, for the holder's people to read.
fn by() -> String {
    let uid = nix::unistd::Uid::current();
    let user =
        nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let by = format!("{user}@{host}");
    // A host's name may have 64 bytes, an account's 32; the rest is for the process number.
    let short: String = by.chars().filter(|c| !c.is_control()).take(100).collect();
    format!("{short} (pid {})", std::process::id())
}
