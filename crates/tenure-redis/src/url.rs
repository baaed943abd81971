//! Where the server is: parsing of URLs, and the words for it that may be shown.

use std::fmt;
use std::path::PathBuf;

use tenure_core::RESERVED_PREFIX;
use tenure_engine::Fault;

const FORMS: &str = "use redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:/path/to/socket?db=0; \
                     options: prefix=TEXT, ca=/file.pem";

/// The longest `prefix=`, in bytes.
const PREFIX_BYTES_MAX: usize = 120;

/// Where a server is and how to log in. Shows no password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u32,
    /// Put before every lock name.
    pub(crate) prefix: String,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: Option<Tls> },
    Unix(PathBuf),
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Certificates to trust besides the system's.
    pub(crate) ca: Option<PathBuf>,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, Fault> {
        parse(url).map_err(|what| Fault::refused(what).hint(FORMS))
    }
}

/// The address without secrets: `redis://127.0.0.1:6379/0`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port, tls } => {
                let scheme = if tls.is_some() { "rediss" } else { "redis" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}/{}", self.db)?;
            }
            Address::Unix(path) => write!(f, "unix:{}?db={}", path.display(), self.db)?,
        }
        if !self.prefix.is_empty() {
            write!(f, " (prefix {:?})", self.prefix)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Errors name the faulty part, never the whole URL: the password may be in any part of a mistyped one.
fn parse(url: &str) -> Result<Target, String> {
    let (scheme, rest) = url.split_once(':').ok_or_else(|| "the server's URL has no scheme".to_owned())?;
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let mut target = Target {
        address: Address::Unix(PathBuf::new()),
        user: None,
        password: None,
        db: 0,
        prefix: String::new(),
    };
    let mut ca = None;
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value =
            unescape(value).ok_or_else(|| format!("the URL's option {} has a bad %-escape", safe(key)))?;
        match key {
            "db" => target.db = db(&value)?,
            "prefix" => target.prefix = prefix(value)?,
            "ca" => ca = Some(PathBuf::from(value)),
            _ => return Err(format!("the URL has an unknown option {}", safe(key))),
        }
    }
    let tls = match scheme {
        "unix" | "redis+unix" => {
            if ca.is_some() {
                return Err("the URL has the option ca, but a unix socket has no TLS".to_owned());
            }
            return unix(target, rest);
        }
        "redis" => None,
        "rediss" => Some(Tls { ca: ca.take() }),
        _ => return Err("the URL's scheme is not known to the Redis engine".to_owned()),
    };
    if ca.is_some() {
        return Err("the URL has the option ca, but redis:// has no TLS; rediss:// has".to_owned());
    }
    let rest = rest.strip_prefix("//").ok_or_else(|| "the URL lacks // after the scheme".to_owned())?;
    // The password may contain @ and /: the host begins after the last @.
    let rest = match rest.rsplit_once('@') {
        Some((login, rest)) => {
            log_in(&mut target, login)?;
            rest
        }
        None => rest,
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        target.db = db(path)?;
    }
    let (host, port) = host_and_port(authority)?;
    target.address = Address::Tcp { host, port, tls };
    Ok(target)
}

fn unix(mut target: Target, rest: &str) -> Result<Target, String> {
    // unix:/path and unix:///path are the same; unix://user:password@/path logs in.
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => match rest.rsplit_once('@') {
            Some((login, path)) => {
                log_in(&mut target, login)?;
                path
            }
            None => rest,
        },
    };
    if !path.starts_with('/') {
        return Err("the URL of a unix socket needs an absolute path".to_owned());
    }
    let path = unescape(path).ok_or_else(|| "the URL's path has a bad %-escape".to_owned())?;
    target.address = Address::Unix(PathBuf::from(path));
    Ok(target)
}

fn log_in(target: &mut Target, login: &str) -> Result<(), String> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let part =
        |text: &str, what| unescape(text).ok_or_else(|| format!("the URL's {what} has a bad %-escape"));
    let Some(password) = password else {
        return Err("the URL has a user but no password (user:password@)".to_owned());
    };
    target.password = Some(part(password, "password")?);
    if !user.is_empty() {
        target.user = Some(part(user, "user")?);
    }
    Ok(())
}

fn host_and_port(authority: &str) -> Result<(String, u16), String> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) =
            rest.split_once(']').ok_or_else(|| "the URL's IPv6 address lacks its ]".to_owned())?;
        (host, after.strip_prefix(':'))
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err("the URL has no host".to_owned());
    }
    if host.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err("the URL's host contains blanks or control characters".to_owned());
    }
    let port = match port {
        None => 6379,
        Some(text) => text
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| "the URL's port is not a number from 1 to 65535".to_owned())?,
    };
    Ok((host.to_owned(), port))
}

fn db(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|db| i32::try_from(*db).is_ok())
        .ok_or_else(|| "the URL's database is not a number".to_owned())
}

fn prefix(text: String) -> Result<String, String> {
    if text.len() > PREFIX_BYTES_MAX {
        return Err(format!("the URL's prefix has {} bytes; the limit is {PREFIX_BYTES_MAX}", text.len()));
    }
    if text.contains(char::is_control) {
        return Err("the URL's prefix has a control character".to_owned());
    }
    if text.starts_with(RESERVED_PREFIX) {
        return Err(format!(
            "the URL's prefix begins with {RESERVED_PREFIX:?}, which is kept for Tenure's own keys"
        ));
    }
    Ok(text)
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |byte: u8| (byte as char).to_digit(16);
                (digit(bytes.next()?)? * 16 + digit(bytes.next()?)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// An option's name for an error text: a mistyped URL may have anything there, a password too.
fn safe(key: &str) -> String {
    let plain = !key.is_empty() && key.len() <= 16 && key.bytes().all(|byte| byte.is_ascii_lowercase());
    if plain { format!("{key:?}") } else { "(not shown)".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port, tls: None }
    }

    #[test]
    fn urls_say_where_the_server_is() {
        let target = Target::parse("redis://127.0.0.1").unwrap();
        assert!(target.address == tcp("127.0.0.1", 6379));
        assert_eq!(target.to_string(), "redis://127.0.0.1:6379/0");
        assert_eq!(Target::parse("redis://[::1]:7000/3").unwrap().to_string(), "redis://[::1]:7000/3");
        assert_eq!(Target::parse("unix:/run/r.sock?db=2").unwrap().to_string(), "unix:/run/r.sock?db=2");
        assert_eq!(Target::parse("redis+unix:///run/r.sock").unwrap().to_string(), "unix:/run/r.sock?db=0");
        assert_eq!(
            Target::parse("redis://h/?prefix=app%3A").unwrap().to_string(),
            "redis://h:6379/0 (prefix \"app:\")"
        );
        let target = Target::parse("rediss://h:1?ca=/etc/ca.pem").unwrap();
        let Address::Tcp { tls: Some(tls), .. } = &target.address else { panic!("TLS") };
        assert_eq!(tls.ca, Some(PathBuf::from("/etc/ca.pem")));
    }

    #[test]
    fn a_login_is_taken_and_never_shown() {
        let target = Target::parse("redis://ann:p%40ss/w@rd@h:1/0").unwrap();
        assert_eq!(target.user.as_deref(), Some("ann"));
        assert_eq!(target.password.as_deref(), Some("p@ss/w@rd"));
        assert!(!format!("{target} {target:?}").contains("ss"), "{target:?}");
        assert_eq!(Target::parse("redis://:secret@h").unwrap().user, None);
        let target = Target::parse("unix://:secret@/run/r.sock").unwrap();
        assert_eq!(target.password.as_deref(), Some("secret"));
    }

    #[test]
    fn a_bad_url_is_refused_without_its_password() {
        for (url, says) in [
            ("127.0.0.1", "no scheme"),
            ("http://:hunter2@h", "scheme"),
            ("redis:/:hunter2@h", "//"),
            ("redis://:hunter2@", "no host"),
            ("redis://:hunter2@h:99999", "port"),
            ("redis://:hunter2@h:0", "port"),
            ("redis://:hunter2@h/abc", "database"),
            ("redis://:hunter2%zz@h", "%-escape"),
            ("redis://:hunter2@[::1", "IPv6"),
            ("redis://hunter2@h", "no password"),
            ("redis://:hunter2@h?prefix=tenure:x", "prefix"),
            ("redis://:hunter2@h?ca=/x", "rediss"),
            ("redis://:x@h?hunter2", "unknown option"),
            ("redis://h?foo=1", "\"foo\""),
            ("unix:run/x", "absolute"),
        ] {
            let fault = Target::parse(url).expect_err(url);
            let text = format!("{fault} {fault:?}");
            assert!(text.contains(says), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }
}
