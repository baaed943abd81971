//! The jobs that this process runs in, and the locks that they hold.

use std::ffi::OsString;
use std::process::Command;

use tenure::{Client, Guard, State};

use crate::failure::Failure;
use crate::store::{SCOPE_VARIABLE, URL_VARIABLE, not_seen};
use crate::trampoline;

/// In a job's environment: the public ids of all the holds around it, outermost first.
const HOLDERS_VARIABLE: &str = "TENURE_HOLDERS";

/// A hold that a command runs under.
pub(crate) struct Hold {
    name: String,
    fence: u64,
    /// Its public id.
    pub(crate) holder: String,
}

impl Hold {
    /// The hold of a job around us, if one of them has this lock. That job waits for us, so that whoever waited for the
    /// lock here would wait for ever.
    pub(crate) async fn around_us(client: &Client, name: &str) -> Result<Option<Self>, Failure> {
        let Ok(around) = std::env::var(HOLDERS_VARIABLE) else { return Ok(None) };
        let lock = client.inspect(name).await.map_err(|error| not_seen(&error))?;
        // One that is about to end by the clock waits for nobody, and no command can begin under it.
        let (false, Some(holder), Some(fence)) = (lock.state == State::Ending, lock.holder, lock.fence)
        else {
            return Ok(None);
        };
        let is_around = around.split(' ').any(|id| id == holder.id);
        Ok(is_around.then(|| Self { name: name.to_owned(), fence, holder: holder.id }))
    }

    /// What a command under it finds in its environment.
    fn variables(&self, client: &Client) -> Vec<(&'static str, String)> {
        vec![
            ("TENURE_NAME", self.name.clone()),
            ("TENURE_FENCE", self.fence.to_string()),
            ("TENURE_HOLDER", self.holder.clone()),
            (SCOPE_VARIABLE, client.scope()),
        ]
    }

    /// Becomes a command under it, which the wrapper of that job watches over. Returns only if it cannot be run, with
    /// the exit code that says so.
    pub(crate) fn reenter(&self, words: &[OsString], client: &Client) -> u8 {
        let (command, arguments) = words.split_first().expect("there is a command");
        trampoline::exec(
            Command::new(command).args(arguments).envs(self.variables(client)).env_remove(URL_VARIABLE),
        )
    }
}

/// What a job that begins under `guard` finds in its environment.
pub(crate) fn variables(guard: &Guard, client: &Client) -> Vec<(&'static str, String)> {
    let holder = guard.holder().to_string();
    let around = std::env::var(HOLDERS_VARIABLE).map(|around| format!("{around} {holder}"));
    let around = around.unwrap_or_else(|_| holder.clone());
    let hold = Hold { name: guard.name().to_owned(), fence: guard.fence(), holder };
    let mut variables = hold.variables(client);
    variables.push((HOLDERS_VARIABLE, around));
    variables
}
