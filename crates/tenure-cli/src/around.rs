//! The jobs that this process runs in, and the locks that they hold.

use std::ffi::OsString;
use std::process::Command;

use tenure::State;

use crate::failure::Failure;
use crate::locks::{Held, Locks};
use crate::store::{SCOPE_VARIABLE, URL_VARIABLE, not_seen};
use crate::trampoline;

/// In a job's environment: the public ids of all the holds around it, outermost first.
const HOLDERS_VARIABLE: &str = "TENURE_HOLDERS";

/// In a job's environment: the fencing token and the public id of its hold. Not those of a job around it where there
/// are none.
pub(crate) const FENCE_VARIABLE: &str = "TENURE_FENCE";
pub(crate) const HOLDER_VARIABLE: &str = "TENURE_HOLDER";

/// A hold that a command runs under.
pub(crate) struct Hold {
    name: String,
    /// Locks of other programs have none.
    fence: Option<u64>,
    /// Its public id.
    pub(crate) holder: String,
}

impl Hold {
    /// The hold of a job around us, if one of them has this lock. That job waits for us, so that whoever waited for the
    /// lock here would wait for ever.
    pub(crate) async fn around_us(locks: &Locks, name: &str) -> Result<Option<Self>, Failure> {
        let Ok(around) = std::env::var(HOLDERS_VARIABLE) else { return Ok(None) };
        let lock = locks.inspect(name).await.map_err(|error| not_seen(&error))?;
        // One that is about to end by the clock waits for nobody, and no command can begin under it.
        let (false, Some(holder)) = (lock.state == State::Ending, lock.holder) else { return Ok(None) };
        let is_around = around.split(' ').any(|id| id == holder.id);
        Ok(is_around.then(|| Self { name: name.to_owned(), fence: lock.fence, holder: holder.id }))
    }

    /// A command under it must find its fencing token.
    pub(crate) fn can_be_reentered(&self) -> bool {
        self.fence.is_some()
    }

    /// Becomes a command under it, which the wrapper of that job watches over. Returns only if it cannot be run, with
    /// the exit code that says so.
    pub(crate) fn reenter(&self, words: &[OsString], locks: &Locks) -> u8 {
        let (command, arguments) = words.split_first().expect("there is a command");
        trampoline::exec(
            Command::new(command)
                .args(arguments)
                .envs(of_hold(&self.name, self.fence, Some(self.holder.clone()), locks))
                .env_remove(URL_VARIABLE),
        )
    }
}

/// What a job that begins under `held` finds in its environment.
pub(crate) fn variables(held: &Held, locks: &Locks) -> Vec<(&'static str, String)> {
    let holder = held.holder();
    let mut variables = of_hold(held.name(), held.fence(), holder.clone(), locks);
    if let Some(holder) = holder {
        let around = std::env::var(HOLDERS_VARIABLE).map(|around| format!("{around} {holder}"));
        variables.push((HOLDERS_VARIABLE, around.unwrap_or(holder)));
    }
    variables
}

/// What a command finds in its environment about the hold that it runs under.
fn of_hold(
    name: &str,
    fence: Option<u64>,
    holder: Option<String>,
    locks: &Locks,
) -> Vec<(&'static str, String)> {
    let mut variables = vec![("TENURE_NAME", name.to_owned()), (SCOPE_VARIABLE, locks.scope())];
    variables.extend(fence.map(|fence| (FENCE_VARIABLE, fence.to_string())));
    variables.extend(holder.map(|holder| (HOLDER_VARIABLE, holder)));
    variables
}
