use std::env;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};
use tenure_engine::Fault;

/// What to do when a directory cannot be used.
pub(crate) const ELSEWHERE: &str = "set TENURE_DIR, or use file:/path or redis://host";

/// Where a store on disk is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// The one store of this user: the directory in the environment variable `TENURE_DIR` or, without one,
    /// `.local/state/tenure` in the home directory that the account database names. Never `HOME` or XDG variables:
    /// they differ between a login shell and cron, and two stores would not exclude each other, in silence.
    Default,
    /// This directory. It is created if its parent exists.
    Directory(PathBuf),
}

impl Location {
    /// Reads `file:` (the default), `file:/path` or `file:///path`. The path is taken as it stands: nothing is
    /// unescaped in it.
    ///
    /// ```
    /// use tenure_embedded::Location;
    /// assert_eq!(Location::from_url("file:").unwrap(), Location::Default);
    /// assert_eq!(Location::from_url("file:/srv/locks").unwrap(), Location::Directory("/srv/locks".into()));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Fault> {
        let refuse = |why: &str| {
            Err(Fault::refused(format!("the address {url:?} {why}"))
                .hint("write file: for the store of this user, or file:/path with an absolute path"))
        };
        let Some(rest) = url.strip_prefix("file:") else { return refuse("does not begin with \"file:\"") };
        let path = match rest.strip_prefix("//") {
            Some(rest) if !rest.is_empty() && !rest.starts_with('/') => {
                return refuse("names a host, but a store on disk is used by one host only");
            }
            Some(rest) => rest,
            None => rest,
        };
        if path.contains(['?', '#']) {
            return refuse("has options, but file: knows none");
        }
        if path.contains('\0') {
            return refuse("has a zero byte in its path");
        }
        match path {
            "" => Ok(Self::Default),
            path if Path::new(path).is_absolute() => Ok(Self::Directory(path.into())),
            _ => refuse("has a relative path, which would mean another store in every directory"),
        }
    }

    /// The directory, and how much of its end may be created.
    pub(crate) fn directory(&self) -> Result<(PathBuf, usize), Fault> {
        match self {
            Self::Directory(path) => absolute(path, "the path").map(|path| (path, 1)),
            Self::Default => match env::var_os("TENURE_DIR") {
                Some(path) if !path.is_empty() => {
                    absolute(Path::new(&path), "the path in TENURE_DIR").map(|path| (path, 1))
                }
                _ => Ok((home_of(Uid::effective())?.join(".local/state/tenure"), 3)),
            },
        }
    }
}

fn absolute(path: &Path, what: &str) -> Result<PathBuf, Fault> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Err(Fault::refused(format!("{what} is relative: {}", path.display()))
        .hint("a relative path would mean another store in every directory: make it absolute"))
}

fn home_of(uid: Uid) -> Result<PathBuf, Fault> {
    let user = User::from_uid(uid).map_err(|error| {
        Fault::refused(format!("cannot look up the home directory of user {uid}"))
            .hint(ELSEWHERE)
            .source(error)
    })?;
    match user {
        Some(user) if user.dir.is_dir() => Ok(user.dir),
        Some(user) => Err(Fault::refused(format!(
            "the home directory {} of user {} does not exist",
            user.dir.display(),
            user.name
        ))
        .hint(ELSEWHERE)),
        None => {
            Err(Fault::refused(format!("user {uid} has no account, and so no home directory for the store"))
                .hint(ELSEWHERE))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused_with_a_reason() {
        assert_eq!(Location::from_url("file:").unwrap(), Location::Default);
        assert_eq!(Location::from_url("file:///a b").unwrap(), Location::Directory("/a b".into()));
        for (url, why) in [
            ("redis://x", "does not begin"),
            ("file:x", "relative"),
            ("file://host/x", "host"),
            ("file:/x?shared=g", "options"),
            ("file:/\0", "zero byte"),
        ] {
            let fault = Location::from_url(url).unwrap_err().to_string();
            assert!(fault.contains(why), "{url}: {fault}");
        }
    }

    #[test]
    fn a_user_without_an_account_is_told_what_to_set() {
        let fault = home_of(Uid::from_raw(3_999_999_999)).unwrap_err().to_string();
        assert!(fault.contains("3999999999") && fault.contains("TENURE_DIR"), "{fault}");
    }

    #[test]
    fn relative_directories_are_refused() {
        let fault = Location::Directory("x".into()).directory().unwrap_err().to_string();
        assert!(fault.contains("relative"), "{fault}");
    }
}
