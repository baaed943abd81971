//! The directory of a store: created, checked, opened once. Everything in it is reached through these descriptors.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, fstatfs, fsync, mkdirat, open, openat};
use rustix::process::geteuid;
use tenure_engine::Fault;

use crate::location::{ELSEWHERE, Location};

/// How many directories are made at most for a location.
const NEW_MAX: usize = 3;

const PRIVATE_DIRECTORY: Mode = Mode::RWXU;
pub(crate) const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// File systems on which locks, shared mappings or sockets do not work as on a disk of this host.
const REFUSED: [(i64, &str); 9] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
];

/// An open store directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// What the user set: `fence` lies here, across boots.
    pub(crate) root: OwnedFd,
    pub(crate) root_path: PathBuf,
    /// Of this boot, below it.
    pub(crate) boot: OwnedFd,
    pub(crate) boot_path: PathBuf,
    pub(crate) processes: OwnedFd,
    pub(crate) jobs: OwnedFd,
}

impl Directory {
    pub(crate) fn open(location: &Location) -> Result<Self, Fault> {
        let (root, root_path) = open_root(location)?;
        let boot_id = boot_id()?;
        let boot_path = root_path.join(&boot_id);
        let boot = below(&root, &boot_id, &boot_path)?;
        let processes = below(&boot, "processes", &boot_path.join("processes"))?;
        let jobs = below(&boot, "jobs", &boot_path.join("jobs"))?;
        below(&boot, "bells", &boot_path.join("bells"))?;
        Ok(Self { root, root_path, boot, boot_path, processes, jobs })
    }

    /// A name for a file below the directory of this boot that fits into a socket address, whose paths end at 108
    /// bytes.
    pub(crate) fn short_path(&self, below: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{below}", self.boot.as_raw_fd()).into()
    }

    /// What names this directory however its path is spelt.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = fstat(&self.boot)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Removes what earlier boots left. Nobody can be in there: one kernel has one boot id.
    pub(crate) fn remove_other_boots(&self) {
        let Ok(entries) = fs::read_dir(&self.root_path) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let stale = path != self.boot_path
                && entry.file_name().to_str().is_some_and(is_boot_id)
                && entry.file_type().is_ok_and(|kind| kind.is_dir());
            if stale && let Err(error) = fs::remove_dir_all(&path) {
                tracing::debug!(path = %path.display(), %error, "cannot remove the store of an earlier boot");
            }
        }
    }
}

impl Location {
    /// Opens the directory `name` beside the stores of the boots, for what has to outlive a boot: created if it is
    /// missing, on disk then, and checked like the store's own. It is ours alone to write, on a disk of this host. Also
    /// returns its path.
    ///
    /// # Errors
    /// The directory cannot be made, or others may write to it or to the one around it. The fault names it.
    pub fn open_beside(&self, name: &str) -> Result<(OwnedFd, PathBuf), Fault> {
        let (root, root_path) = open_root(self)?;
        let path = root_path.join(name);
        if make(&root, name, &path)? {
            fsync(&root).map_err(|error| cannot("write to the directory", &root_path, error.into()))?;
            // Those around it may be new as well. What cannot be opened was not made by us.
            for around in root_path.ancestors().skip(1).take(NEW_MAX) {
                let _ = fs::File::open(around).and_then(|directory| directory.sync_all());
            }
        }
        Ok((open_below(&root, name, &path)?, path))
    }
}

/// The directory of a location, created and checked.
fn open_root(location: &Location) -> Result<(OwnedFd, PathBuf), Fault> {
    let (path, may_create) = location.directory()?;
    create(&path, may_create).map_err(|error| cannot("create the directory", &path, error))?;
    // Resolved once: LMDB wants a path, and one that means the same after a chdir.
    let path = fs::canonicalize(&path).map_err(|error| cannot("use the directory", &path, error))?;
    let root = open(&path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| cannot("open the directory", &path, error.into()))?;
    check(&root, &path)?;
    Ok((root, path))
}

/// A fault of an operation on a path.
pub(crate) fn cannot(what: &str, path: &Path, error: io::Error) -> Fault {
    Fault::refused(format!("cannot {what} {}: {error}", path.display())).hint(ELSEWHERE).source(error)
}

/// Creates at most the last `depth` components.
fn create(path: &Path, depth: usize) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && depth > 1 => {
            create(path.parent().unwrap_or(path), depth - 1)?;
            create(path, 1)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn below(parent: &OwnedFd, name: &str, path: &Path) -> Result<OwnedFd, Fault> {
    make(parent, name, path)?;
    open_below(parent, name, path)
}

/// False: it was there.
fn make(parent: &OwnedFd, name: &str, path: &Path) -> Result<bool, Fault> {
    match mkdirat(parent, name, PRIVATE_DIRECTORY) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(error) => Err(cannot("create the directory", path, error.into())),
    }
}

fn open_below(parent: &OwnedFd, name: &str, path: &Path) -> Result<OwnedFd, Fault> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = openat(parent, name, flags, Mode::empty())
        .map_err(|error| cannot("open the directory", path, error.into()))?;
    check(&directory, path)?;
    Ok(directory)
}

/// Ours alone to write, on a file system that keeps its promises.
fn check(directory: &OwnedFd, path: &Path) -> Result<(), Fault> {
    let stat = fstat(directory).map_err(|error| cannot("examine the directory", path, error.into()))?;
    let (owner, us) = (stat.st_uid, geteuid().as_raw());
    if owner != us {
        return Err(Fault::refused(format!(
            "the directory {} belongs to user {owner}, but this process runs as user {us}",
            path.display()
        ))
        .hint(ELSEWHERE));
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(Fault::refused(format!(
            "others may write to the directory {} (mode {mode:04o}), and so take or free any lock in it",
            path.display()
        ))
        .hint("run chmod 700 on it, or set TENURE_DIR to a directory of your own"));
    }
    let kind =
        fstatfs(directory).map_err(|error| cannot("examine the file system of", path, error.into()))?.f_type;
    if let Some(kind) = refused(kind) {
        return Err(Fault::refused(format!(
            "the directory {} is on {kind}, where locks and shared memory do not hold between processes",
            path.display()
        ))
        .hint("set TENURE_DIR to a directory on a disk of this host, or use redis://host"));
    }
    Ok(())
}

fn refused(kind: i64) -> Option<&'static str> {
    // The kernel's word is 32 bits wide; some are sign-extended on their way here.
    REFUSED.iter().find(|(known, _)| known & 0xFFFF_FFFF == kind & 0xFFFF_FFFF).map(|(_, name)| *name)
}

fn boot_id() -> Result<String, Fault> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| {
        Fault::refused(format!("cannot read {}: {error}", path.display()))
            .hint("a store on disk needs /proc: mount it, or use redis://host")
            .source(error)
    })?;
    let id = text.trim();
    if !is_boot_id(id) {
        return Err(Fault::refused(format!("{} holds no boot id: {id:?}", path.display())));
    }
    Ok(id.to_owned())
}

fn is_boot_id(name: &str) -> bool {
    name.len() == 36
        && name.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}
