//! The queue of deferred jobs: commands that are run later, when their lock is free.
//!
//! It is a directory of this account on this host, also where the locks are on a server: whoever can write to a shared
//! server must not be able to run commands here by that.
//!
//! Each job is one file, `ID.json`. A worker locks the file (flock) for as long as it has to do with the job, so no
//! two have it at a time, and the kernel frees it when a worker dies. Every change is a new file that takes the place
//! of the old one, on disk before anybody sees it: a crash leaves the one or the other. A new file that takes the
//! place of a locked one is locked by the same process before it appears.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, fsync, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tenure::{BadName, Fault};
use tenure_core::Name;
use tenure_embedded::Location;
use tenure_engine::unix_ms;

use crate::files::lock_alone;
use crate::job::Surroundings;
use crate::locks::Kind;
use crate::orders::Limits;

/// The most jobs in the queue, dead ones included.
pub(crate) const JOBS_MAX: usize = 10_000;

/// The most bytes of a new job.
pub(crate) const BYTES_MAX: usize = 256 * 1024;

/// The most bytes that are read: what is noted of its tries makes a job a little longer.
const READ_MAX: u64 = BYTES_MAX as u64 + 4096;

/// The pause after the first failure, doubled after each further one.
const BACKOFF_FIRST_MS: u64 = 1_000;
const BACKOFF_MAX_MS: u64 = 5 * 60 * 1000;

/// Of the files.
const FORMAT: u32 = 1;

/// Where the queue lies beside the stores.
const DIRECTORY: &str = "jobs";

/// The next file, until it takes its name. Only whoever has the directory locked writes it, so what a crash leaves of
/// it is written over.
const DRAFT: &str = "draft";

const JOB: &str = ".json";
const SET_ASIDE: &str = ".damaged";

/// Writing takes milliseconds.
const WRITERS_END_WITHIN: Duration = Duration::from_secs(2);

/// What names a job: when it was deferred, and which of that millisecond's it is. Sorts by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Id {
    /// In milliseconds since 1970.
    pub(crate) created_ms: u64,
    number: u16,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:011x}-{:x}", self.created_ms, self.number)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.split_once('-').and_then(|(created, number)| {
            let created_ms = u64::from_str_radix(created, 16).ok()?;
            Some(Self { created_ms, number: u16::from_str_radix(number, 16).ok()? })
        });
        // One way to write each: it is the name of a file.
        id.filter(|id| id.to_string() == text)
            .ok_or_else(|| "not the ID of a job (as shown by `tenure jobs`)".to_owned())
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
    /// It failed too often, and is not begun again by itself.
    pub(crate) dead: bool,
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
            dead: false,
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
        let never_meant = self.not_before_ms > now_ms.saturating_add(BACKOFF_MAX_MS);
        !self.dead && (self.not_before_ms <= now_ms || never_meant)
    }

    /// Has it been begun so often that it is not begun again?
    pub(crate) fn is_exhausted(&self, max_attempts: u32) -> bool {
        self.attempts >= max_attempts
    }

    /// It is about to be begun. If its worker dies, that was an attempt as well, and a pause follows.
    pub(crate) fn begun(mut self, now_ms: u64) -> Self {
        self.attempts = self.attempts.saturating_add(1);
        self.not_before_ms = now_ms.saturating_add(backoff_ms(self.attempts));
        self.last = None;
        self
    }

    /// It has failed.
    pub(crate) fn failed(mut self, exit: u8, max_attempts: u32, now_ms: u64) -> Self {
        self.last = Some(Ended { exit, at_ms: now_ms });
        self.not_before_ms = now_ms.saturating_add(backoff_ms(self.attempts));
        self.dead = self.is_exhausted(max_attempts);
        self
    }

    /// It was stopped because its worker was: that is not held against it.
    pub(crate) fn interrupted(mut self, exit: u8, now_ms: u64) -> Self {
        self.attempts = self.attempts.saturating_sub(1);
        self.not_before_ms = 0;
        self.last = Some(Ended { exit, at_ms: now_ms });
        self
    }

    /// It is not begun again by itself.
    pub(crate) fn buried(mut self) -> Self {
        self.dead = true;
        self
    }

    /// It is due at once, with all of its attempts before it.
    pub(crate) fn revived(mut self) -> Self {
        (self.dead, self.attempts, self.not_before_ms) = (false, 0, 0);
        self
    }
}

/// The pause after so many attempts.
fn backoff_ms(attempts: u32) -> u64 {
    let doubled = BACKOFF_FIRST_MS.checked_shl(attempts.saturating_sub(1)).unwrap_or(BACKOFF_MAX_MS);
    doubled.clamp(BACKOFF_FIRST_MS, BACKOFF_MAX_MS)
}

/// Why a file is not a job.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
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
    pub(crate) job: Result<Deferred, Unreadable>,
    /// Damaged, and out of the workers' way.
    pub(crate) set_aside: bool,
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
    #[error("another process has been writing to {} for more than 2 s; see which: fuser -v {}", .0.display(), .0.display())]
    Stuck(PathBuf),
    /// There is no such job.
    #[error("there is no job {0}; see: tenure jobs")]
    NoSuchJob(Id),
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

    /// Puts a job at the end. When this returns it is on disk.
    pub(crate) fn add(&self, job: &Deferred) -> Result<Id, QueueError> {
        let text = text_of(job)?;
        if text.len() > BYTES_MAX {
            return Err(QueueError::TooLong(text.len()));
        }
        let writing = self.write_alone()?;
        let taken: HashSet<Id> = self.files()?.into_iter().map(|(id, _)| id).collect();
        let created_ms = unix_ms();
        let id = (0..=u16::MAX).map(|number| Id { created_ms, number }).find(|id| !taken.contains(id));
        match id {
            Some(id) if taken.len() < JOBS_MAX => {
                writing.put(&text, id)?;
                Ok(id)
            }
            _ => Err(QueueError::Full(self.path.clone())),
        }
    }

    /// All jobs, in the order in which they were deferred. Each is read when it is its turn.
    pub(crate) fn list(&self) -> Result<impl Iterator<Item = Entry>, QueueError> {
        Ok(self.files()?.into_iter().filter_map(|(id, set_aside)| {
            let job = match self.open_file(&file_name(id, set_aside)) {
                Ok(Some(file)) => read(&file),
                // Done meanwhile.
                Ok(None) => return None,
                Err(error) => Err(Unreadable::Damaged(format!("it cannot be opened: {error}"))),
            };
            Some(Entry { id, job, set_aside })
        }))
    }

    /// Has somebody taken it?
    pub(crate) fn is_taken(&self, id: Id) -> bool {
        let Ok(Some(file)) = self.open_file(&file_name(id, false)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    }

    /// Takes a job, so that nobody else can. `None`: somebody has it, it is gone, or it cannot be read.
    pub(crate) fn take(&self, id: Id) -> Result<Option<Taken<'_>>, QueueError> {
        let Some(file) = self.lock_file(id)? else { return Ok(None) };
        Ok(read(&file).ok().map(|job| Taken { queue: self, id, job, file }))
    }

    /// Puts a damaged file out of the way. False: it was not there any more.
    pub(crate) fn set_aside(&self, id: Id) -> Result<bool, QueueError> {
        // What cannot be opened cannot be taken by anybody.
        let Some(_file) = self.lock_file(id).transpose() else { return Ok(false) };
        let (from, to) = (file_name(id, false), file_name(id, true));
        renameat(&self.directory, &from, &self.directory, &to)
            .map_err(|error| self.refused("rename", &from, error))?;
        Ok(true)
    }

    /// Makes a job due at once, a dead one too, with all of its attempts before it.
    pub(crate) fn revive(&self, id: Id) -> Result<(), QueueError> {
        let mut taken = self.take(id)?.ok_or_else(|| self.why_not(id))?;
        taken.save(taken.job.clone().revived())
    }

    /// Takes a job out, readable or not.
    pub(crate) fn remove(&self, id: Id) -> Result<(), QueueError> {
        let aside = file_name(id, true);
        match unlinkat(&self.directory, &aside, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(self.refused("remove", &aside, error)),
        }
        let _file = self.lock_file(id).transpose().ok_or_else(|| self.why_not(id))?;
        self.unlink(id)
    }

    /// Why a job could not be taken.
    fn why_not(&self, id: Id) -> QueueError {
        if self.is_taken(id) { QueueError::Taken(id) } else { QueueError::NoSuchJob(id) }
    }

    fn unlink(&self, id: Id) -> Result<(), QueueError> {
        let name = file_name(id, false);
        unlinkat(&self.directory, &name, AtFlags::empty())
            .map_err(|error| self.refused("remove", &name, error))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), QueueError> {
        fsync(&self.directory).map_err(|error| self.refused("write to", "", error))
    }

    /// The jobs in the directory, sorted, and which of them were set aside.
    fn files(&self) -> Result<Vec<(Id, bool)>, QueueError> {
        let unread = |error| self.refused("read", "", error);
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.directory).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let job = name.strip_suffix(JOB).map(|id| (id, false));
            if let Some((id, set_aside)) = job.or(name.strip_suffix(SET_ASIDE).map(|id| (id, true)))
                && let Ok(id) = id.parse()
            {
                files.push((id, set_aside));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    /// `None`: there is no such file.
    fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        // A pipe in its place must not keep us waiting.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the file of a job and locks it. `None`: it is locked, gone or has just been changed.
    fn lock_file(&self, id: Id) -> Result<Option<File>, QueueError> {
        let name = file_name(id, false);
        let file = self.open_file(&name).map_err(|error| self.system("open a job in", error))?;
        let Some(file) = file.filter(lock_alone) else { return Ok(None) };
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
        let name = file_name(id, false);
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
        self.queue.unlink(self.id)
    }
}

fn read(file: &File) -> Result<Deferred, Unreadable> {
    let damaged = |why: String| Unreadable::Damaged(why);
    let stat = fstat(file).map_err(|error| damaged(error.to_string()))?;
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !plain || stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        return Err(damaged("others may have written it".to_owned()));
    }
    let mut text = Vec::new();
    file.take(READ_MAX + 1).read_to_end(&mut text).map_err(|error| damaged(error.to_string()))?;
    if text.len() as u64 > READ_MAX {
        return Err(damaged("it is too long".to_owned()));
    }
    Deferred::read(&text)
}

fn file_name(id: Id, set_aside: bool) -> String {
    format!("{id}{}", if set_aside { SET_ASIDE } else { JOB })
}

fn text_of(job: &Deferred) -> Result<Vec<u8>, QueueError> {
    serde_json::to_vec(job).map_err(|error| QueueError::NotText(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Deferred {
        let surroundings = Surroundings { directory: "/".into(), umask: 0o022, variables: [].into() };
        let limits = Limits { ttl: Duration::from_secs(30), kill_after: None, max_hold: None };
        Deferred::new("x", "file:/s".to_owned(), None, vec!["true".to_owned()], surroundings, &limits, false)
    }

    #[test]
    fn a_job_reads_as_it_was_written() {
        let job = job().begun(7).failed(3, 5, 8);
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
        assert!(damaged(&text.replace(r#""dead""#, r#""deed""#)));
        let newer = text.replace(r#"{"v":1"#, r#"{"v":2,"more":0"#);
        assert_eq!(Deferred::read(newer.as_bytes()), Err(Unreadable::Format(2)));
    }

    #[test]
    fn ids_sort_by_time_and_have_one_spelling() {
        let id = |created_ms, number| Id { created_ms, number };
        assert!(id(9, 300) < id(10, 0) && id(10, 1) < id(10, 2));
        let text = id(1_763_750_000_000, 10).to_string();
        assert_eq!(text, "19aa7b13580-a");
        assert_eq!(text.parse(), Ok(id(1_763_750_000_000, 10)));
        for bad in [
            "",
            "x",
            "19aa7b13580",
            "19aa7b13580-A",
            "19aa7b13580-0a",
            "9aa7b13580-a",
            "../x-1",
            "+9aa7b13580-a",
        ] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let seconds = [0, 1, 2, 3, 9, 10, 100, u32::MAX].map(|attempts| backoff_ms(attempts) / 1000);
        assert_eq!(seconds, [1, 1, 2, 4, 256, 300, 300, 300]);
    }

    #[test]
    fn a_job_is_due_when_its_pause_is_over_and_when_the_clock_was_set_back() {
        let paused = job().begun(1_000_000);
        assert!(!paused.is_due(1_000_000) && !paused.is_due(1_000_999) && paused.is_due(1_001_000));
        assert!(!paused.is_due(1_001_000 - BACKOFF_MAX_MS) && paused.is_due(1_000_999 - BACKOFF_MAX_MS));
        assert!(job().is_due(0) && !job().buried().is_due(u64::MAX));
    }

    #[test]
    fn a_job_dies_of_its_last_attempt() {
        let once = job().begun(0).failed(1, 2, 5);
        assert_eq!((once.attempts, once.dead, once.not_before_ms), (1, false, 1005));
        let twice = once.begun(2000).failed(9, 2, 3000);
        assert_eq!((twice.attempts, twice.dead, twice.last), (2, true, Some(Ended { exit: 9, at_ms: 3000 })));
        let revived = twice.revived();
        assert!(revived.is_due(0) && !revived.is_exhausted(1));
    }

    #[test]
    fn an_attempt_whose_worker_died_counts_and_one_whose_worker_was_stopped_does_not() {
        let died = job().begun(0);
        assert!(died.is_exhausted(1) && died.last.is_none());
        let stopped = job().begun(0).interrupted(143, 1);
        assert!(stopped.is_due(1) && !stopped.is_exhausted(1));
    }
}
