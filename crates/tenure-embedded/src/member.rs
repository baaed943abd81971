//! One engine value of this process: its ear, and its watch over the holders before whom it is next.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tenure_core::{HolderId, Message, Moment, Name, Owner, ProcessId, Standing};
use tenure_engine::{Card, Ear, Letter, boottime};
use tokio::io::{Interest, unix::AsyncFd};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::processes::{Processes, Pulse, locked};
use crate::store::Store;

/// How often a process is looked at that cannot be waited for: it is in another pid namespace.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the file of a job is looked at whose holder is gone.
const JOB_EVERY: Duration = Duration::from_millis(25);
/// How often a watch asks whether anybody still waits.
const STILL_WANTED_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Member {
    id: ProcessId,
    file: OwnedFd,
    card: Mutex<Option<Card>>,
    voice: OnceLock<(Ear, Handle)>,
    tasks: Mutex<JoinSet<()>>,
    watch: Mutex<Watch>,
}

#[derive(Default)]
struct Watch {
    /// The owners of ours who are first in a queue, and before whom.
    heads: HashMap<Owner, Before>,
    /// The processes for which a task runs: one each, however many wait.
    watched: HashSet<ProcessId>,
}

struct Before {
    name: Name,
    holder: HolderId,
    /// Nobody waits here for longer, even if the claim was forgotten.
    until: Moment,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Member {
    /// `file` is the locked file of this process.
    pub(crate) fn new(id: ProcessId, file: OwnedFd) -> Self {
        Self {
            id,
            file,
            card: Mutex::default(),
            voice: OnceLock::new(),
            tasks: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> ProcessId {
        self.id
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(crate) fn card(&self) -> Option<Card> {
        locked(&self.card).clone()
    }

    pub(crate) fn has_card(&self, card: &Card) -> bool {
        locked(&self.card).as_ref() == Some(card)
    }

    pub(crate) fn keep_card(&self, card: &Card) {
        *locked(&self.card) = Some(card.clone());
    }

    pub(crate) fn set_voice(&self, ear: Ear, runtime: Handle) {
        // The port says once; a second ear would get half of the letters.
        assert!(self.voice.set((ear, runtime)).is_ok(), "an engine is listened to once");
    }

    /// Somebody takes letters.
    pub(crate) fn hears(&self) -> bool {
        self.voice.get().is_some()
    }

    /// Runs on the listener's runtime until the engine is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some((_, runtime)) = self.voice.get() {
            let mut tasks = locked(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(task, runtime);
        }
    }

    /// Ends all tasks.
    pub(crate) fn stop(&self) {
        locked(&self.tasks).abort_all();
    }

    pub(crate) fn deliver(self: &Arc<Self>, store: &Arc<Store>, letter: Letter) {
        match &letter.message {
            Message::Head { standing } => {
                self.is_head(store, &letter.name, letter.owner, Some(standing), tenure_core::lease::PLACE_MS);
            }
            Message::Granted { .. } => self.is_no_head(&letter.owner),
            Message::Stop { .. } | Message::Look => {}
        }
        self.hand(letter);
    }

    fn hand(&self, letter: Letter) {
        if let Some((ear, _)) = self.voice.get() {
            ear(letter);
        }
    }

    /// This owner of ours is the first in line: the end of the holder's process has to be noticed.
    pub(crate) fn is_head(
        self: &Arc<Self>,
        store: &Arc<Store>,
        name: &Name,
        owner: Owner,
        standing: Option<&Standing>,
        place_ms: u64,
    ) {
        let Some(holder) = standing.and_then(|standing| standing.holder) else {
            return self.is_no_head(&owner);
        };
        let process = holder.process;
        if process == self.id || !self.hears() {
            return;
        }
        let mut watch = locked(&self.watch);
        let until = boottime().plus(place_ms);
        watch.heads.insert(owner, Before { name: name.clone(), holder, until });
        if watch.watched.insert(process) {
            drop(watch);
            let (member, store) = (self.clone(), store.clone());
            self.spawn(async move { member.watch(&store, process).await });
        }
    }

    /// This owner of ours holds, has left, or stands further behind.
    pub(crate) fn is_no_head(&self, owner: &Owner) {
        locked(&self.watch).heads.remove(owner);
    }

    /// Tells those who wait for a process when it has ended, and its job too.
    async fn watch(&self, store: &Store, process: ProcessId) {
        let processes = store.processes();
        while self.is_wanted(process) {
            match processes.pulse(process) {
                Pulse::Gone { .. } => {
                    self.tell_freed(processes, process);
                    sleep(JOB_EVERY).await;
                }
                Pulse::Alive(Some(pid)) => match pidfd_of(processes, process, pid) {
                    Some(exit) => {
                        let _ = timeout(STILL_WANTED_EVERY, exit.readable()).await;
                    }
                    None => sleep(LOOK_EVERY).await,
                },
                Pulse::Alive(None) | Pulse::Here(_) | Pulse::Unknown => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Does anybody still wait for this process? If not, its watch has ended.
    fn is_wanted(&self, process: ProcessId) -> bool {
        let now = boottime();
        let mut watch = locked(&self.watch);
        watch.heads.retain(|_, before| now <= before.until);
        let wanted = watch.heads.values().any(|before| before.holder.process == process);
        if !wanted {
            watch.watched.remove(&process);
        }
        wanted
    }

    fn tell_freed(&self, processes: &Processes, process: ProcessId) {
        let mut freed = Vec::new();
        locked(&self.watch).heads.retain(|owner, Before { name, holder, .. }| {
            let is_freed = holder.process == process && processes.job_runs(*holder) == Some(false);
            if is_freed {
                freed.push(Letter { name: name.clone(), owner: *owner, message: Message::Look });
            }
            !is_freed
        });
        for letter in freed {
            self.hand(letter);
        }
    }
}

/// Becomes readable when the process ends. `None`: it has ended already, or cannot be waited for.
fn pidfd_of(processes: &Processes, process: ProcessId, pid: Pid) -> Option<AsyncFd<OwnedFd>> {
    let exit = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Its number may have passed to another process before we opened it, but not since.
    let still = matches!(processes.pulse(process), Pulse::Alive(Some(still)) if still == pid);
    if !still {
        return None;
    }
    // Its successor is unsafe for types whose descriptor may change. That of an `OwnedFd` cannot.
    #[expect(deprecated)]
    AsyncFd::with_interest(exit, Interest::READABLE).ok()
}
