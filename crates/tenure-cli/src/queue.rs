//! The queue of deferred jobs: commands that are run later, when their lock is free.
//!
//! It is a directory of this account on this host, also where the locks are on a server: whoever can write to a shared
//! server must not be able to run commands here by that.
//!
//! Each job is one file, whose name says what is to be done with it: see [`Shelf`]. A worker locks the file (flock) for
//! as long as it has to do with the job, so no two have it at a time, and the kernel frees it when a worker dies. Every
//! change is a new file that takes the place of the old one, on disk before anybody sees it: a crash leaves the one or
//! the other. A new file that takes the place of a locked one is locked by the same process before it appears.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, fsync, openat, renameat, stat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tenure::{BadName, Fault};
use tenure_core::Name;
use tenure_embedded::Location;
use tenure_engine::{random_process, unix_ms};

use crate::files::{lock_alone, try_lock_alone};
use crate::job::Surroundings;
use crate::locks::Kind;
use crate::orders::Limits;
use crate::text::without_password;

/// The most jobs in the queue, dead ones included.
pub(crate) const JOBS_MAX: usize = 10_000;

/// The most bytes of a new job.
pub(crate) const BYTES_MAX: usize = 256 * 1024;

/// The most bytes that are read: what is noted of its tries makes a job a little longer.
const READ_MAX: u64 = BYTES_MAX as u64 + 4096;

/// The longest pause after a failure.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Of the files.
const FORMAT: u32 = 1;

/// Where the queue lies beside the stores.
const DIRECTORY: &str = "jobs";

/// The next file, until it takes its name. Only whoever has the directory locked writes it, so what a crash leaves of
/// it is written over.
const DRAFT: &str = "draft";

/// Writing takes milliseconds, on a bad disk seconds.
const WRITERS_END_WITHIN: Duration = Duration::from_secs(30);

/// What names a job: when it was deferred, and chance, so that no other job ever has the same. Sorts by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Id {
    /// In milliseconds since 1970.
    pub(crate) created_ms: u64,
    chance: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:011x}-{:08x}", self.created_ms, self.chance)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.split_once('-').and_then(|(created, chance)| {
            let created_ms = u64::from_str_radix(created, 16).ok()?;
            Some(Self { created_ms, chance: u32::from_str_radix(chance, 16).ok()? })
        });
        // One way to write each: it is the name of a file.
        id.filter(|id| id.to_string() == text)
            .ok_or_else(|| "not the ID of a job (as shown by `tenure jobs`)".to_owned())
    }
}

/// What is to be done with a job, as the end of its file's name says it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Shelf {
    /// Workers look at it.
    Live,
    /// It failed too often, and is not begun again by itself.
    Dead,
    /// It made no sense when a worker looked at it.
    Damaged,
}

impl Shelf {
    pub(crate) const ALL: [Self; 3] = [Self::Live, Self::Dead, Self::Damaged];

    fn suffix(self) -> &'static str {
        match self {
            Self::Live => ".json",
            Self::Dead => ".dead",
            Self::Damaged => ".damaged",
        }
    }

    fn file_name(self, id: Id) -> String {
        format!("{id}{}", self.suffix())
    }

    fn of_file(name: &str) -> Option<(Id, Self)> {
        let (id, shelf) =
            Self::ALL.iter().find_map(|&shelf| Some((name.strip_suffix(shelf.suffix())?, shelf)))?;
        Some((id.parse().ok()?, shelf))
    }
}

/// How often a job is begun, and how long it rests in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    /// So often, then it is dead.
    pub(crate) max_attempts: u32,
    /// After the first attempt; doubled after each further one, up to [`PAUSE_MAX`].
    pub(crate) first_pause: Duration,
}

impl Retries {
    fn pause_ms(self, attempts: u32) -> u64 {
        let times = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first_pause.saturating_mul(times).min(PAUSE_MAX).as_millis() as u64
    }
}

/// A job, and what has become of it so far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deferred {
    v: u32,
    /// The lock that it runs under.
    pub(crate) name: String,
    /// The store of that lock, without secrets.
    pub(crate) scope: String,
    /// Whose lock it is; `None`: Tenure's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Kind>,
    /// The command and its arguments.
    pub(crate) words: Vec<String>,
    /// Where it runs.
    pub(crate) surroundings: Surroundings,
    ttl_ms: u64,
    kill_after_ms: Option<u64>,
    max_hold_ms: Option<u64>,
    /// Its arguments are not shown to others.
    pub(crate) no_cmdline: bool,
    /// How often it was begun.
    pub(crate) attempts: u32,
    /// It is not begun before (milliseconds since 1970).
    pub(crate) not_before_ms: u64,
    /// How the last attempt ended; `None`: there was none, or its worker died before it could tell.
    pub(crate) last: Option<Ended>,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ended {
    /// The exit code, as `tenure run` would have had it.
    pub(crate) exit: u8,
    /// When (milliseconds since 1970).
    pub(crate) at_ms: u64,
}

impl Deferred {
    pub(crate) fn new(
        name: &str,
        scope: String,
        protocol: Option<Kind>,
        words: Vec<String>,
        surroundings: Surroundings,
        limits: &Limits,
        no_cmdline: bool,
    ) -> Self {
        let ms = |duration: Duration| duration.as_millis() as u64;
        Self {
            v: FORMAT,
            name: name.to_owned(),
            scope,
            protocol,
            words,
            surroundings,
            ttl_ms: ms(limits.ttl),
            kill_after_ms: limits.kill_after.map(ms),
            max_hold_ms: limits.max_hold.map(ms),
            no_cmdline,
            attempts: 0,
            not_before_ms: 0,
            last: None,
        }
    }

    fn read(text: &[u8]) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        struct Format {
            v: u32,
        }
        let damaged = |why: String| Unreadable::Damaged(why);
        match serde_json::from_slice::<Format>(text) {
            Ok(Format { v: FORMAT }) => {}
            Ok(Format { v }) => return Err(Unreadable::Format(v)),
            Err(error) => return Err(damaged(error.to_string())),
        }
        let job: Self = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        Name::new(&job.name).map_err(|error: BadName| damaged(error.to_string()))?;
        job.limits().check().map_err(damaged)?;
        if job.words.is_empty() {
            return Err(damaged("there is no command in it".to_owned()));
        }
        Ok(job)
    }

    /// How long it may hold its lock.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            ttl: Duration::from_millis(self.ttl_ms),
            kill_after: self.kill_after_ms.map(Duration::from_millis),
            max_hold: self.max_hold_ms.map(Duration::from_millis),
        }
    }

    /// May it be begun now?
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        // No pause is longer than that: the clock was set back meanwhile.
        let never_meant = self.not_before_ms > now_ms.saturating_add(PAUSE_MAX.as_millis() as u64);
        self.not_before_ms <= now_ms || never_meant
    }

    /// Has it been begun so often that it is not begun again?
    pub(crate) fn is_exhausted(&self, retries: Retries) -> bool {
        self.attempts >= retries.max_attempts
    }

    /// It is about to be begun. If its worker dies, that was an attempt as well, and a pause follows.
    pub(crate) fn begun(mut self, retries: Retries, now_ms: u64) -> Self {
        self.attempts = self.attempts.saturating_add(1);
        self.not_before_ms = now_ms.saturating_add(retries.pause_ms(self.attempts));
        self.last = None;
        self
    }

    /// It has failed.
    pub(crate) fn failed(mut self, exit: u8, retries: Retries, now_ms: u64) -> Self {
        self.last = Some(Ended { exit, at_ms: now_ms });
        self.not_before_ms = now_ms.saturating_add(retries.pause_ms(self.attempts));
        self
    }

    /// It was not begun, or lost its lock: that is not held against it, but is not tried again at once.
    pub(crate) fn put_off(self, exit: u8, retries: Retries, now_ms: u64) -> Self {
        let mut job = self.failed(exit, retries, now_ms);
        job.attempts = job.attempts.saturating_sub(1);
        job
    }

    /// It was stopped because its worker was: that is not held against it.
    pub(crate) fn interrupted(mut self, exit: u8, now_ms: u64) -> Self {
        self.attempts = self.attempts.saturating_sub(1);
        self.not_before_ms = 0;
        self.last = Some(Ended { exit, at_ms: now_ms });
        self
    }

    /// It is due at once, with all of its attempts before it.
    pub(crate) fn revived(mut self) -> Self {
        (self.attempts, self.not_before_ms) = (0, 0);
        self
    }

    /// Its command and arguments, as far as they may be shown, without passwords of addresses in them.
    pub(crate) fn shown_words(&self) -> impl Iterator<Item = String> {
        let shown = if self.no_cmdline { 1 } else { self.words.len() };
        self.words.iter().take(shown).map(|word| without_password(word))
    }

    /// The job as it is kept, on its way into the queue.
    pub(crate) fn draft(&self) -> Result<Draft, QueueError> {
        let text = text_of(self)?;
        if text.len() > BYTES_MAX { Err(QueueError::TooLong(text.len())) } else { Ok(Draft(text)) }
    }
}

/// A job that can be put into the queue.
pub(crate) struct Draft(Vec<u8>);

/// Why a file is not a job.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// This host cannot read it just now, whatever is in it.
    #[error("not readable just now: {0}")]
    Host(String),
    /// Its content makes no sense, or it is not what we would have written.
    #[error("damaged: {0}")]
    Damaged(String),
    /// Another version of Tenure may know it.
    #[error("format {0} is not known to this version of tenure")]
    Format(u32),
}

/// A job in the list.
pub(crate) struct Entry {
    pub(crate) id: Id,
    pub(crate) shelf: Shelf,
    pub(crate) job: Result<Deferred, Unreadable>,
}

/// Something could not be done with the queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    /// There is no safe place for it.
    #[error("no queue for jobs: {0}")]
    Place(#[from] Fault),
    /// The operating system refused.
    #[error("cannot {what} {}: {error}", path.display())]
    System { what: &'static str, path: PathBuf, error: io::Error },
    /// There are too many jobs.
    #[error(
        "{} has {JOBS_MAX} jobs already; let `tenure work` run them, or take some out: tenure jobs --remove ID",
        .0.display()
    )]
    Full(PathBuf),
    /// A job is too long.
    #[error("the job has {0} bytes and the limit is {BYTES_MAX}; put what is long into a file")]
    TooLong(usize),
    /// Something in a job is not UTF-8.
    #[error(
        "a deferred job is kept as text, and this cannot be: {0}; have a script hold it, or let the command wait"
    )]
    NotText(String),
    /// Another process has it locked.
    #[error("another process has been writing to {} for more than 30 s; see which: fuser -v {}", .0.display(), .0.display())]
    Stuck(PathBuf),
    /// There is no such job.
    #[error("there is no job {0}; see: tenure jobs")]
    NoSuchJob(Id),
    /// It cannot be begun again as it is.
    #[error("job {0} is not begun again, it is {1}")]
    Unreadable(Id, Unreadable),
    /// Its directory has another path by now, or none.
    #[error("the queue {} was deleted or moved", .0.display())]
    Gone(PathBuf),
    /// A worker has it.
    #[error("a worker is at job {0} just now; try again when it has ended")]
    Taken(Id),
}

/// The queue of this account on this host.
pub(crate) struct Queue {
    directory: OwnedFd,
    path: PathBuf,
}

impl Queue {
    /// Opens it, in the directory of `file:` whatever the locks are on. Refuses a place that others can write to.
    pub(crate) fn open() -> Result<Self, QueueError> {
        let (directory, path) = Location::Default.open_beside(DIRECTORY)?;
        Ok(Self { directory, path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a job at the end. When this returns it is on disk.
    pub(crate) fn add(&self, job: &Draft) -> Result<Id, QueueError> {
        let writing = self.write_alone()?;
        if self.files(&Shelf::ALL)?.len() >= JOBS_MAX {
            return Err(QueueError::Full(self.path.clone()));
        }
        let id = Id { created_ms: unix_ms(), chance: random_process().0 as u32 };
        writing.put(&job.0, id)?;
        Ok(id)
    }

    /// The jobs on these shelves, in the order in which they were deferred. Each is read when it is its turn.
    pub(crate) fn list(&self, shelves: &[Shelf]) -> Result<impl Iterator<Item = Entry>, QueueError> {
        self.must_be_there()?;
        Ok(self.files(shelves)?.into_iter().filter_map(|(id, shelf)| {
            // Done meanwhile, if there is none.
            let file = self.open_file(&shelf.file_name(id)).transpose()?;
            Some(Entry { id, shelf, job: file.and_then(|file| read(&file)) })
        }))
    }

    /// Has somebody taken it?
    pub(crate) fn is_taken(&self, id: Id) -> bool {
        let Ok(Some(file)) = self.open_file(&Shelf::Live.file_name(id)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    }

    /// Takes a job, so that nobody else can. `None`: it is gone, or somebody has it or, unless `patient`, just looks at
    /// it.
    pub(crate) fn take(&self, id: Id, patient: bool) -> Result<Option<Taken<'_>>, Unreadable> {
        let lock = if patient { lock_alone } else { try_lock_alone };
        let Some(file) = self.lock_file(id, Shelf::Live, lock)? else { return Ok(None) };
        Ok(Some(Taken { queue: self, id, job: read(&file)?, file }))
    }

    /// Puts a damaged file out of the way. False: it is not there any more, or makes sense by now.
    pub(crate) fn set_aside(&self, id: Id) -> Result<bool, QueueError> {
        // Nobody puts another file in its place meanwhile.
        let _writing = self.write_alone()?;
        let file = self.lock_file(id, Shelf::Live, lock_alone).transpose();
        match file.map(|file| file.and_then(|file| read(&file))) {
            Some(Err(Unreadable::Damaged(_))) => self.put_on(id, Shelf::Live, Shelf::Damaged).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Makes a job due at once, a dead one too, with all of its attempts before it.
    pub(crate) fn revive(&self, id: Id) -> Result<(), QueueError> {
        let unreadable = |why| QueueError::Unreadable(id, why);
        for shelf in Shelf::ALL {
            let Some(file) = self.lock_file(id, shelf, lock_alone).map_err(unreadable)? else { continue };
            let job = read(&file).map_err(unreadable)?;
            // In this order: a crash in between leaves a job that is dead again, and not two.
            if shelf != Shelf::Live {
                self.put_on(id, shelf, Shelf::Live)?;
            }
            let mut taken = Taken { queue: self, id, job, file };
            return taken.save(taken.job.clone().revived());
        }
        Err(self.why_not(id))
    }

    /// Takes a job out, readable or not.
    pub(crate) fn remove(&self, id: Id) -> Result<(), QueueError> {
        for shelf in Shelf::ALL {
            match self.lock_file(id, shelf, lock_alone) {
                Ok(None) => {}
                // What cannot be opened cannot be taken by anybody.
                Ok(Some(_)) | Err(_) => return self.unlink(id, shelf),
            }
        }
        Err(self.why_not(id))
    }

    /// Why a job could not be taken.
    fn why_not(&self, id: Id) -> QueueError {
        if self.is_taken(id) { QueueError::Taken(id) } else { QueueError::NoSuchJob(id) }
    }

    fn unlink(&self, id: Id, shelf: Shelf) -> Result<(), QueueError> {
        let name = shelf.file_name(id);
        match unlinkat(&self.directory, &name, AtFlags::empty()) {
            // Somebody removed it by hand: so it is gone.
            Ok(()) | Err(Errno::NOENT) => self.sync(),
            Err(error) => Err(self.refused("remove", &name, error)),
        }
    }

    fn put_on(&self, id: Id, from: Shelf, to: Shelf) -> Result<(), QueueError> {
        let name = from.file_name(id);
        renameat(&self.directory, &name, &self.directory, to.file_name(id))
            .map_err(|error| self.refused("rename", &name, error))?;
        self.sync()
    }

    /// Whoever has it open must notice that others don't find it there any more.
    fn must_be_there(&self) -> Result<(), QueueError> {
        let there = stat(&self.path).and_then(|there| Ok((there, fstat(&self.directory)?)));
        match there {
            Ok((there, ours)) if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(QueueError::Gone(self.path.clone())),
            Err(error) => Err(self.refused("examine", "", error)),
        }
    }

    fn sync(&self) -> Result<(), QueueError> {
        fsync(&self.directory).map_err(|error| self.refused("write to", "", error))
    }

    /// The jobs on these shelves, sorted.
    fn files(&self, shelves: &[Shelf]) -> Result<Vec<(Id, Shelf)>, QueueError> {
        let unread = |error| self.refused("read", "", error);
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.directory).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            let file = entry.file_name().to_str().ok().and_then(Shelf::of_file);
            files.extend(file.filter(|(_, shelf)| shelves.contains(shelf)));
        }
        files.sort_unstable();
        Ok(files)
    }

    /// `None`: there is no such file.
    fn open_file(&self, name: &str) -> Result<Option<File>, Unreadable> {
        // A pipe in its place must not keep us waiting.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => Err(not_plain()),
            Err(error) => Err(of_host(error)),
        }
    }

    /// Opens the file of a job and locks it. `None`: it is locked, gone or has just been changed.
    fn lock_file(
        &self,
        id: Id,
        shelf: Shelf,
        lock: impl FnOnce(&File) -> bool,
    ) -> Result<Option<File>, Unreadable> {
        let name = shelf.file_name(id);
        let Some(file) = self.open_file(&name)?.filter(lock) else { return Ok(None) };
        // Another one may have taken its place between the two steps.
        let (ours, there) = (fstat(&file), statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW));
        let same = ours.is_ok_and(|ours| there.is_ok_and(|there| ours.st_ino == there.st_ino));
        Ok(same.then_some(file))
    }

    /// From here on nobody else writes, until what is returned is dropped.
    fn write_alone(&self) -> Result<Writing<'_>, QueueError> {
        let begun = Instant::now();
        loop {
            match flock(&self.directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Writing { queue: self }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < WRITERS_END_WITHIN => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(QueueError::Stuck(self.path.clone())),
                Err(error) => return Err(self.refused("lock", "", error)),
            }
        }
    }

    fn refused(&self, what: &'static str, name: &str, error: Errno) -> QueueError {
        QueueError::System { what, path: self.path.join(name), error: error.into() }
    }

    fn system(&self, what: &'static str, error: io::Error) -> QueueError {
        QueueError::System { what, path: self.path.clone(), error }
    }
}

/// The right to write to the queue.
struct Writing<'q> {
    queue: &'q Queue,
}

impl Writing<'_> {
    /// Writes the file of a job. It is locked by us before anybody can see it, for as long as what is returned lives.
    fn put(&self, text: &[u8], id: Id) -> Result<File, QueueError> {
        let Queue { directory, .. } = self.queue;
        let refused = |error| self.queue.refused("write", DRAFT, error);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(directory, DRAFT, flags, Mode::RUSR | Mode::WUSR).map_err(refused)?);
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(refused)?;
        let written = file.write_all(text).and_then(|()| file.sync_all());
        written.map_err(|error| self.queue.system("write a job to", error))?;
        let name = Shelf::Live.file_name(id);
        renameat(directory, DRAFT, directory, &name)
            .map_err(|error| self.queue.refused("write", &name, error))?;
        self.queue.sync()?;
        Ok(file)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.queue.directory, FlockOperation::Unlock);
    }
}

/// A job that is ours alone for as long as this lives.
pub(crate) struct Taken<'q> {
    queue: &'q Queue,
    pub(crate) id: Id,
    pub(crate) job: Deferred,
    /// Locked.
    file: File,
}

impl Taken<'_> {
    /// Notes what has become of it. When this returns it is on disk.
    pub(crate) fn save(&mut self, job: Deferred) -> Result<(), QueueError> {
        // The old file stays locked until the new one, locked as well, is in its place.
        self.file = self.queue.write_alone()?.put(&text_of(&job)?, self.id)?;
        self.job = job;
        Ok(())
    }

    /// It is done.
    pub(crate) fn remove(self) -> Result<(), QueueError> {
        self.queue.unlink(self.id, Shelf::Live)
    }

    /// It is not begun again by itself.
    pub(crate) fn bury(self) -> Result<(), QueueError> {
        self.queue.put_on(self.id, Shelf::Live, Shelf::Dead)
    }
}

fn read(file: &File) -> Result<Deferred, Unreadable> {
    let stat = fstat(file).map_err(of_host)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_plain());
    }
    if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        return Err(Unreadable::Damaged("others may have written it".to_owned()));
    }
    let mut text = Vec::new();
    file.take(READ_MAX + 1).read_to_end(&mut text).map_err(of_host)?;
    if text.len() as u64 > READ_MAX {
        return Err(Unreadable::Damaged("it is too long".to_owned()));
    }
    Deferred::read(&text)
}

fn not_plain() -> Unreadable {
    Unreadable::Damaged("it is not a plain file".to_owned())
}

/// What the system says of a file says nothing about what is in it.
fn of_host(error: impl Into<io::Error>) -> Unreadable {
    Unreadable::Host(error.into().to_string())
}

fn text_of(job: &Deferred) -> Result<Vec<u8>, QueueError> {
    serde_json::to_vec(job).map_err(|error| QueueError::NotText(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRIES: Retries = Retries { max_attempts: 2, first_pause: Duration::from_secs(10) };

    fn job() -> Deferred {
        let surroundings = Surroundings { directory: "/".into(), umask: 0o022, variables: [].into() };
        let limits = Limits { ttl: Duration::from_secs(30), kill_after: None, max_hold: None };
        Deferred::new("x", "file:/s".to_owned(), None, vec!["true".to_owned()], surroundings, &limits, false)
    }

    #[test]
    fn a_job_reads_as_it_was_written() {
        let job = job().begun(RETRIES, 7).failed(3, RETRIES, 8);
        assert_eq!(Deferred::read(&text_of(&job).unwrap()), Ok(job));
    }

    #[test]
    fn what_is_no_job_is_told_apart() {
        let text = String::from_utf8(text_of(&job()).unwrap()).unwrap();
        let damaged = |text: &str| matches!(Deferred::read(text.as_bytes()), Err(Unreadable::Damaged(_)));
        assert!(damaged("") && damaged("{}") && damaged(&text[1..]) && damaged(&text[..text.len() - 1]));
        assert!(damaged(&text.replace(r#"["true"]"#, "[]")));
        assert!(damaged(&text.replace(r#""name":"x""#, r#""name":"""#)));
        assert!(damaged(&text.replace("30000", "1")));
        assert!(damaged(&text.replace(r#""attempts""#, r#""attempt""#)));
        let newer = text.replace(r#"{"v":1"#, r#"{"v":2,"more":0"#);
        assert_eq!(Deferred::read(newer.as_bytes()), Err(Unreadable::Format(2)));
    }

    #[test]
    fn ids_sort_by_time_and_have_one_spelling() {
        let id = |created_ms, chance| Id { created_ms, chance };
        assert!(id(9, 300) < id(10, 0) && id(10, 1) < id(10, 2));
        let text = id(1_763_750_000_000, 10).to_string();
        assert_eq!(text, "19aa7b13580-0000000a");
        assert_eq!(text.parse(), Ok(id(1_763_750_000_000, 10)));
        for bad in [
            "",
            "x",
            "19aa7b13580",
            "19aa7b13580-0000000A",
            "19aa7b13580-a",
            "9aa7b13580-0000000a",
            "../x-00000001",
            "+9aa7b13580-0000000a",
        ] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let seconds = [0, 1, 2, 3, 6, 7, 100, u32::MAX].map(|attempts| RETRIES.pause_ms(attempts) / 1000);
        assert_eq!(seconds, [10, 10, 20, 40, 320, 600, 600, 600]);
    }

    #[test]
    fn a_job_is_due_when_its_pause_is_over_and_when_the_clock_was_set_back() {
        let paused = job().begun(RETRIES, 1_000_000);
        assert!(!paused.is_due(1_000_000) && !paused.is_due(1_009_999) && paused.is_due(1_010_000));
        assert!(!paused.is_due(1_010_000 - 600_000) && paused.is_due(1_009_999 - 600_000));
        assert!(job().is_due(0));
    }

    #[test]
    fn a_job_dies_of_its_last_attempt() {
        let once = job().begun(RETRIES, 0).failed(1, RETRIES, 5);
        assert_eq!((once.attempts, once.is_exhausted(RETRIES), once.not_before_ms), (1, false, 10_005));
        let twice = once.begun(RETRIES, 2000).failed(9, RETRIES, 3000);
        assert_eq!((twice.attempts, twice.last), (2, Some(Ended { exit: 9, at_ms: 3000 })));
        assert!(twice.is_exhausted(RETRIES));
        let revived = twice.revived();
        assert!(revived.is_due(0) && !revived.is_exhausted(RETRIES));
    }

    #[test]
    fn an_attempt_whose_worker_died_counts_and_one_whose_worker_was_stopped_does_not() {
        let died = job().begun(RETRIES, 0);
        assert!(died.attempts == 1 && died.last.is_none());
        let stopped = job().begun(RETRIES, 0).interrupted(143, 1);
        assert!(stopped.is_due(1) && stopped.attempts == 0);
    }

    #[test]
    fn a_job_that_lost_its_lock_rests_but_has_lost_no_attempt() {
        let lost = job().begun(RETRIES, 0).put_off(79, RETRIES, 1);
        assert!(!lost.is_due(10_000) && lost.is_due(10_001) && lost.attempts == 0);
    }
}
