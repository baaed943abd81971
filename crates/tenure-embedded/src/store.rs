//! One store on disk, as the engine values of this process share it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, fallocate, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use tenure_core::{HolderId, Message, Name, Now, Owner, ProcessId, Reply, Request, Sight, Witness};
use tenure_engine::{Fault, Letter, Look, boottime, random_process};

use crate::book;
use crate::directory::{Directory, PRIVATE_FILE, cannot};
use crate::fence::Fence;
use crate::guard::{Entered, Guard};
use crate::lmdb::{Tree, Trouble, Txn};
use crate::location::Location;
use crate::member::Member;
use crate::processes::{Processes, Pulse, locked};
use crate::records::{FORMAT, FORMAT_KEY, Mail, SWEPT_KEY, addressee_of, head_key, mail_key, name_of};

/// The size of a new store unless `TENURE_STORE_MIB` says otherwise.
const STORE_MIB: u64 = 64;
const STORE_MIB_MAX: u64 = 1 << 20;

/// The most locks that one sweep looks at.
const SWEPT_LOCKS_MAX: usize = 256;

/// The most names that are read in one transaction.
const NAMES_AT_ONCE: usize = 512;

/// LMDB and POSIX locks both forbid to open a file twice in one process, so one path, however it is spelt, is one
/// store.
static STORES: LazyLock<Mutex<Stores>> = LazyLock::new(Mutex::default);

/// By device and inode of their directories.
type Stores = HashMap<(u64, u64), Weak<Store>>;

#[derive(Debug)]
pub(crate) struct Store {
    /// The process that opened it. A forked copy of that process must not touch it.
    pid: u32,
    tree: Tree,
    fence: Fence,
    guard: Guard,
    processes: Processes,
    /// Rings other processes' bells.
    ringer: UnixDatagram,
    directory: Directory,
    /// The inode of the database.
    inode: u64,
    looked_at_ms: AtomicU64,
}

/// What a transaction leaves to be done after it.
#[derive(Default)]
#[must_use = "letters have to be delivered"]
pub(crate) struct Post {
    here: Vec<(Arc<Member>, Letter)>,
    bells: HashSet<ProcessId>,
}

impl Store {
    /// Opens the store at this place, or finds it open.
    pub(crate) fn open(location: &Location) -> Result<Arc<Self>, Fault> {
        let directory = Directory::open(location)?;
        let identity = directory
            .identity()
            .map_err(|error| cannot("examine the directory", &directory.boot_path, error))?;
        let mut stores = locked(&STORES);
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(&identity).and_then(Weak::upgrade) {
            store.check_process()?;
            return Ok(store);
        }
        let guard = Guard::open(&directory)?;
        let (fence, tree, inode) = {
            let entered = guard.enter_blocking()?;
            let fence = Fence::open(&directory)?;
            let (tree, inode) = open_tree(&entered, &directory, &fence)?;
            (fence, tree, inode)
        };
        directory.remove_other_boots();
        let processes = Processes::open(&directory)?;
        let ringer = UnixDatagram::unbound()
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(|error| Fault::refused("cannot open a socket to wake other processes").source(error))?;
        let (pid, looked_at_ms) = (std::process::id(), AtomicU64::new(0));
        let store =
            Arc::new(Self { pid, tree, fence, guard, processes, ringer, directory, inode, looked_at_ms });
        stores.insert(identity, Arc::downgrade(&store));
        Ok(store)
    }

    /// A new member, alive from now on, and its bell.
    pub(crate) fn join(self: &Arc<Self>) -> Result<(Arc<Member>, UnixDatagram), Fault> {
        let id = random_process();
        let file_path = self.directory.boot_path.join("processes").join(id.to_string());
        let bell_path = self.directory.boot_path.join("bells").join(id.to_string());
        let entered = self.guard.enter_blocking()?;
        let file = self.processes.create(id).map_err(|error| cannot("create", &file_path, error))?;
        let bell = UnixDatagram::bind(self.directory.short_path(&format!("bells/{id}")))
            .and_then(|bell| bell.set_nonblocking(true).map(|()| bell))
            .map_err(|error| cannot("create the socket", &bell_path, error))?;
        let member = Arc::new(Member::new(id, file));
        self.processes.join(member.clone());
        let swept = self.sweep(&entered);
        drop(entered);
        match swept {
            Ok(post) => self.send(post),
            // A store that is full still serves, and most of all those who release.
            Err(fault) => tracing::debug!(%fault, "cannot clear up after dead processes"),
        }
        Ok((member, bell))
    }

    /// Enters the guard of a store that is still the one at its path.
    pub(crate) async fn enter(&self, limit: Duration) -> Result<Entered<'_>, Fault> {
        self.check_process()?;
        let entered = self.guard.enter(limit).await?;
        self.check_still_there()?;
        Ok(entered)
    }

    /// Somebody may have deleted or moved the directory: whoever comes next creates a new one in its place, and
    /// those two don't exclude each other. Looked at once a second.
    fn check_still_there(&self) -> Result<(), Fault> {
        let now = boottime().0;
        if now.saturating_sub(self.looked_at_ms.load(Ordering::Relaxed)) < 1000 {
            return Ok(());
        }
        let path = self.directory.boot_path.join("store");
        if fs::symlink_metadata(&path).map_or(0, |found| found.ino()) != self.inode {
            return Err(Fault::refused(format!(
                "the store {} was deleted or replaced while this process used it",
                path.display()
            ))
            .hint("end every process that uses it, then start them again"));
        }
        self.looked_at_ms.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Is this the process that opened the store, not a forked copy of it?
    pub(crate) fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    /// A forked copy shares the guard's lock with its parent, so nothing would keep the two apart.
    pub(crate) fn check_process(&self) -> Result<(), Fault> {
        if self.is_ours() {
            return Ok(());
        }
        Err(Fault::refused(format!(
            "this process is a forked copy of process {}, which has the store {} open",
            self.pid,
            self.directory.boot_path.display()
        ))
        .hint("drop what was connected before the fork, then connect anew"))
    }

    /// What a forked copy of this process would have.
    #[cfg(test)]
    pub(crate) fn into_a_copy(self) -> Self {
        Self { pid: 1, ..self }
    }

    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory.root_path
    }

    /// Does `work` in one transaction, with what it says to waiters: all of it, or on a fault nothing.
    pub(crate) fn transact<R>(
        &self,
        entered: &Entered<'_>,
        work: impl FnOnce(&mut Txn<'_, '_>, &mut Eyes<'_>) -> Result<R, Trouble>,
    ) -> Result<(R, Post), Fault> {
        let mut eyes = Eyes::new(&self.processes);
        let mut post = Post::default();
        let result = self.tree.write(entered, |txn| {
            let result = work(txn, &mut eyes)?;
            for (name, owner, message) in eyes.said.drain(..) {
                let process = owner.holder.process;
                if let Some(member) = self.processes.here(process) {
                    post.here.push((member, Letter { name, owner, message }));
                } else {
                    book::post(txn, process, &Mail::new(&name, &owner, message))?;
                    post.bells.insert(process);
                }
            }
            for process in eyes.dead() {
                book::collect(txn, process)?;
            }
            let last = book::last(txn)?;
            if last > self.fence.mark() {
                self.fence.cover(last, now().wall_us).map_err(Trouble::Fault)?;
            }
            Ok(result)
        });
        let result = result.map_err(|trouble| self.fault(trouble))?;
        eyes.dead().for_each(|process| self.processes.forget(process));
        Ok((result, post))
    }

    /// Carries out requests, in order and in one transaction.
    pub(crate) fn apply<'a>(
        &self,
        entered: &Entered<'_>,
        calls: impl IntoIterator<Item = (&'a Name, &'a Request)>,
    ) -> Result<(Vec<Reply>, Post), Fault> {
        self.transact(entered, |txn, eyes| {
            calls.into_iter().map(|(name, request)| eyes.apply(txn, name, request)).collect()
        })
    }

    /// Brings letters to the members of this process and wakes others. Outside of the guard.
    pub(crate) fn send(self: &Arc<Self>, post: Post) {
        self.ring(post.bells);
        for (member, letter) in post.here {
            member.deliver(self, letter);
        }
    }

    fn ring(&self, bells: HashSet<ProcessId>) {
        for process in bells {
            // A full bell has been rung; one that is gone belongs to the dead. The letters themselves may be lost.
            let path = self.directory.short_path(&format!("bells/{process}"));
            if let Err(error) = self.ringer.send_to(&[], path)
                && error.kind() != io::ErrorKind::WouldBlock
            {
                tracing::debug!(%process, %error, "cannot wake a process");
            }
        }
    }

    /// One lock for people. A hold that has ended is dropped first: nobody may be shown as a holder who is none.
    pub(crate) fn look(
        &self,
        entered: &Entered<'_>,
        name: &Name,
        most: usize,
    ) -> Result<(Look, Post), Fault> {
        self.transact(entered, |txn, eyes| {
            eyes.apply(txn, name, &ask_for_nothing())?;
            let (snapshot, holder) = book::snapshot(txn, name, now(), most, eyes)?;
            let orphaned = holder.is_some_and(|owner| eyes.sees(&owner) == Sight::Orphaned);
            Ok(Look { snapshot, foreign: None, orphaned })
        })
    }

    /// The letters for this member, out of its box.
    pub(crate) fn collect(&self, entered: &Entered<'_>, process: ProcessId) -> Result<Vec<Letter>, Fault> {
        self.tree.write(entered, |txn| book::collect(txn, process)).map_err(|trouble| self.fault(trouble))
    }

    /// The next names after this one that are held or waited for, in order, and the name to go on after; `None`:
    /// these are the last.
    pub(crate) fn names_after(
        &self,
        entered: &Entered<'_>,
        after: Option<Name>,
    ) -> Result<(Vec<Name>, Option<Name>), Fault> {
        let work = |txn: &mut Txn<'_, '_>, eyes: &mut Eyes<'_>| {
            let (mut names, mut last) = (Vec::new(), after);
            for _ in 0..NAMES_AT_ONCE {
                let next = txn.after(&head_key(last.as_ref().map_or("", Name::as_str)))?;
                let Some(name) = next.and_then(|(key, _)| name_of(key)) else { return Ok((names, None)) };
                names.extend(book::is_used(txn, &name, now(), eyes)?.then(|| name.clone()));
                last = Some(name);
            }
            Ok((names, last))
        };
        // Nothing is asked of a ledger, so there is nothing to send.
        self.transact(entered, work).map(|(found, _)| found)
    }

    /// Does this holder hold anything now? For outside of async code.
    pub(crate) fn holds(&self, holder: HolderId) -> Result<bool, Fault> {
        let mut key = head_key("");
        loop {
            let entered = self.guard.enter_blocking()?;
            self.check_still_there()?;
            let found = self.tree.write(&entered, |txn| {
                for _ in 0..NAMES_AT_ONCE {
                    match txn.after(&key)? {
                        Some((next, _)) if name_of(next).is_none() => return Ok(Some(false)),
                        None => return Ok(Some(false)),
                        Some((_, head)) if book::is_held_by(head, holder)? => return Ok(Some(true)),
                        Some((next, _)) => key = next.to_vec(),
                    }
                }
                // A hold does not change its name: what is behind `key` cannot have moved before it.
                Ok(None)
            });
            if let Some(found) = found.map_err(|trouble| self.fault(trouble))? {
                return Ok(found);
            }
        }
    }

    /// Clears away some of what dead processes left: their files, their letters, their holds.
    pub(crate) fn sweep(&self, entered: &Entered<'_>) -> Result<Post, Fault> {
        let dead = self.processes.sweep();
        self.transact(entered, |txn, eyes| {
            for process in dead {
                book::collect(txn, process)?;
            }
            let mut process = ProcessId(0);
            for _ in 0..SWEPT_LOCKS_MAX {
                let next = txn.after(&mail_key(process, u64::MAX))?;
                let Some((next, _)) = next.and_then(|(key, _)| addressee_of(key)) else { break };
                process = next;
                if matches!(eyes.pulse(process), Pulse::Gone { .. }) {
                    book::collect(txn, process)?;
                }
            }
            sweep_locks(txn, eyes)
        })
        .map(|((), post)| post)
    }

    fn fault(&self, trouble: Trouble) -> Fault {
        let store = self.directory.boot_path.join("store");
        let store = store.display();
        match trouble {
            Trouble::Full => Fault::not_run(format!("the store {store} is full")).hint(
                "nothing is lost: release locks, or set TENURE_STORE_MIB and end every process that uses it",
            ),
            Trouble::Fault(fault) => fault,
            Trouble::Lmdb(error) => {
                Fault::not_run(format!("the store {store} failed: {error}")).source(error)
            }
            Trouble::Unreadable(error) => Fault::refused(format!(
                "the store {store} holds a record that this version cannot read"
            ))
            .hint("use one version of Tenure on this host, or end every process that uses it and remove it")
            .source(error),
        }
    }
}

/// Asks some locks for nothing, so that holds of the dead end and live waiters get them. Goes on where the last
/// sweep, of whatever process, has ended.
fn sweep_locks(txn: &mut Txn<'_, '_>, eyes: &mut Eyes<'_>) -> Result<(), Trouble> {
    let mut key = txn.get(SWEPT_KEY)?.map_or_else(|| head_key(""), <[u8]>::to_vec);
    for _ in 0..SWEPT_LOCKS_MAX {
        let Some(name) = txn.after(&key)?.and_then(|(key, _)| name_of(key)) else {
            key = head_key("");
            break;
        };
        eyes.apply(txn, &name, &ask_for_nothing())?;
        key = head_key(name.as_str());
    }
    txn.put(SWEPT_KEY, &key)
}

/// A request that changes nothing, but lets the ledger see whose time is over.
pub(crate) fn ask_for_nothing() -> Request {
    let nobody = HolderId { process: ProcessId(0), serial: 0 };
    Request::Release { owner: Owner { holder: nobody, secret: 0 } }
}

/// The two clocks of a store on this host.
pub(crate) fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { lease: boottime(), wall_us: wall.as_micros() as u64 }
}

/// What the ledgers see and say during one transaction. Everybody is looked at once, so that nobody dies halfway.
pub(crate) struct Eyes<'a> {
    processes: &'a Processes,
    pulses: Vec<(ProcessId, Pulse)>,
    jobs: Vec<(HolderId, Option<bool>)>,
    saying: Vec<(Owner, Message)>,
    said: Vec<(Name, Owner, Message)>,
}

impl<'a> Eyes<'a> {
    fn new(processes: &'a Processes) -> Self {
        Self { processes, pulses: Vec::new(), jobs: Vec::new(), saying: Vec::new(), said: Vec::new() }
    }

    /// Carries out one request now.
    pub(crate) fn apply(
        &mut self,
        txn: &mut Txn<'_, '_>,
        name: &Name,
        request: &Request,
    ) -> Result<Reply, Trouble> {
        let reply = book::apply(txn, name, now(), request, self)?;
        self.said.extend(self.saying.drain(..).map(|(owner, message)| (name.clone(), owner, message)));
        Ok(reply)
    }

    fn pulse(&mut self, process: ProcessId) -> Pulse {
        if let Some((_, pulse)) = self.pulses.iter().find(|(known, _)| *known == process) {
            return pulse.clone();
        }
        let pulse = self.processes.pulse(process);
        self.pulses.push((process, pulse.clone()));
        pulse
    }

    fn job_runs(&mut self, holder: HolderId, pulse: &Pulse) -> Option<bool> {
        if matches!(pulse, Pulse::Here(_)) && !self.processes.has_job_here(holder) {
            return Some(false);
        }
        if let Some((_, runs)) = self.jobs.iter().find(|(known, _)| *known == holder) {
            return *runs;
        }
        let runs = self.processes.job_runs(holder);
        self.jobs.push((holder, runs));
        runs
    }

    /// Processes that were found dead and have left something.
    fn dead(&self) -> impl Iterator<Item = ProcessId> {
        self.pulses.iter().filter(|(_, pulse)| matches!(pulse, Pulse::Gone { file: true })).map(|(id, _)| *id)
    }
}

impl Witness for Eyes<'_> {
    fn sees(&mut self, owner: &Owner) -> Sight {
        let pulse = self.pulse(owner.holder.process);
        match (self.job_runs(owner.holder, &pulse), pulse) {
            (Some(false), Pulse::Gone { .. }) => Sight::Gone,
            // Without a job, the clock is right about whoever lives or cannot be asked.
            (Some(false), Pulse::Here(_) | Pulse::Alive(_) | Pulse::Unknown) => Sight::Unknown,
            (Some(true), Pulse::Here(_) | Pulse::Alive(_) | Pulse::Unknown) => Sight::Working,
            // A job that cannot be asked about may run: then the clock would be wrong.
            (Some(true), Pulse::Gone { .. }) | (None, _) => Sight::Orphaned,
        }
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let reachable = match self.pulse(owner.holder.process) {
            Pulse::Here(member) => member.hears(),
            // Who cannot be asked may well be alive: its lease will tell.
            Pulse::Alive(_) | Pulse::Unknown => true,
            Pulse::Gone { .. } => false,
        };
        if reachable {
            self.saying.push((*owner, message));
        }
        reachable
    }
}

/// Opens the database. It appears under its name when it is whole: allocated to its last block, and not empty.
fn open_tree(entered: &Entered<'_>, directory: &Directory, fence: &Fence) -> Result<(Tree, u64), Fault> {
    let path = directory.boot_path.join("store");
    let find = || statat(&directory.boot, "store", AtFlags::SYMLINK_NOFOLLOW);
    let found = match find() {
        Err(Errno::NOENT) => {
            create_tree(entered, directory, fence, &path, size_of_new_stores()?)?;
            find()
        }
        found => found,
    }
    .map_err(|error| cannot("examine", &path, error.into()))?;
    let tree = Tree::open(entered, &path, found.st_size as u64).map_err(|error| failed(&path, error))?;
    let format = tree.write(entered, |txn| {
        Ok(txn.get(FORMAT_KEY)?.and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes))
    });
    match format {
        Ok(Some(FORMAT)) => Ok((tree, found.st_ino)),
        Ok(format) => {
            let format = format.map_or("unknown".to_owned(), |format| format.to_string());
            Err(Fault::refused(format!(
                "the store {} has format {format}, this version of Tenure knows format {FORMAT}",
                path.display()
            ))
            .hint("use one version of Tenure on this host; a reboot begins a new store"))
        }
        Err(trouble) => Err(Fault::refused(format!("cannot read the store {}: {trouble:?}", path.display()))),
    }
}

fn create_tree(
    entered: &Entered<'_>,
    directory: &Directory,
    fence: &Fence,
    path: &Path,
    size: u64,
) -> Result<(), Fault> {
    let unfinished = path.with_extension("new");
    let remove = || match unlinkat(&directory.boot, "store.new", AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(cannot("remove", &unfinished, error.into())),
    };
    remove()?;
    let fill = || {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&directory.boot, "store.new", flags, PRIVATE_FILE)
            .map_err(|error| cannot("create", &unfinished, error.into()))?;
        let tree = Tree::open(entered, &unfinished, size).map_err(|error| failed(&unfinished, error))?;
        // A write to a block that the disk has no room for would kill the process.
        fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|error| {
            let error = io::Error::from(error);
            Fault::refused(format!(
                "cannot reserve the {} MiB of the store {}: {error}",
                size >> 20,
                path.display()
            ))
            .hint("free some space, set TENURE_STORE_MIB to less, or set TENURE_DIR to another disk")
            .source(error)
        })?;
        let first = tree.write(entered, |txn| {
            txn.put(FORMAT_KEY, &FORMAT.to_le_bytes())?;
            book::set_last(txn, fence.mark())
        });
        first.map_err(|trouble| {
            Fault::refused(format!("cannot fill the store {}: {trouble:?}", path.display()))
        })?;
        drop(tree);
        renameat(&directory.boot, "store.new", &directory.boot, "store")
            .map_err(|error| cannot("create", path, error.into()))
    };
    fill().inspect_err(|_| {
        let _ = remove();
    })
}

fn failed(path: &Path, error: heed::Error) -> Fault {
    Fault::refused(format!("cannot open the store {}: {error}", path.display())).source(error)
}

fn size_of_new_stores() -> Result<u64, Fault> {
    let Some(text) = std::env::var_os("TENURE_STORE_MIB") else { return Ok(STORE_MIB << 20) };
    let mib =
        text.to_str().and_then(|text| text.parse().ok()).filter(|mib| (1..=STORE_MIB_MAX).contains(mib));
    mib.map(|mib: u64| mib << 20).ok_or_else(|| {
        Fault::refused(format!("TENURE_STORE_MIB is {:?}", text.display().to_string()))
            .hint("set it to the size of a new store in MiB, from 1 to 1048576")
    })
}

#[cfg(test)]
mod differential;
#[cfg(test)]
mod tests;
