//! A server without scripts that knows the compare commands of newer versions, made of the one that is there: it
//! stands before it and translates.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use redis::Cmd;

use crate::resp::frame_bytes;

/// `SET key token IFEQ token PX ms`.
const SET_IF: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) else return false end";

/// `DELEX key IFEQ token`, `DELIFEQ key token`.
const DEL_IF: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Which commands it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Newer {
    /// `DELEX key IFEQ token`, `SET .. IFEQ`.
    Redis84,
    /// `DELIFEQ key token`, `SET .. IFEQ`.
    Valkey9,
    /// `SET .. IFEQ` alone.
    Valkey81,
    /// None of them.
    Neither,
}

impl Newer {
    /// Stands before the server on `port`, on a port of its own, which is returned. Ends with the process.
    ///
    /// # Panics
    /// When there is no port.
    pub fn before(self, port: u16) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let own = listener.local_addr().expect("its address").port();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // An end of either side ends both.
                thread::spawn(move || self.serve(client, TcpStream::connect((Ipv4Addr::LOCALHOST, port))?));
            }
        });
        own
    }

    fn serve(self, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        loop {
            let asked = frame(&mut client, &mut asked)?;
            let words = words(&asked);
            match self.translate(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
                Some(Ok(eval)) => server.write_all(&Cmd::new().arg(eval).get_packed_command())?,
                Some(Err(refusal)) => {
                    client.write_all(refusal.as_bytes())?;
                    continue;
                }
                None => server.write_all(&asked)?,
            }
            client.write_all(&frame(&mut server, &mut answered)?)?;
        }
    }

    /// What is sent instead, or the error that is answered; `None`: as it is.
    fn translate<'a>(self, words: &[&'a str]) -> Option<Result<Vec<&'a str>, String>> {
        let known = |has: bool, eval| {
            Some(if has { Ok(eval) } else { Err(format!("-ERR unknown command '{}'\r\n", words[0])) })
        };
        match *words {
            ["EVAL" | "EVALSHA" | "SCRIPT", ..] => known(false, Vec::new()),
            ["DELEX", key, "IFEQ", token] => {
                known(self == Self::Redis84, vec!["EVAL", DEL_IF, "1", key, token])
            }
            ["DELIFEQ", key, token] => known(self == Self::Valkey9, vec!["EVAL", DEL_IF, "1", key, token]),
            ["SET", key, token, "IFEQ", _, "PX", ms] if self != Self::Neither => {
                known(true, vec!["EVAL", SET_IF, "1", key, token, ms])
            }
            _ => None,
        }
    }
}

fn frame(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    loop {
        if let Some(bytes) = frame_bytes(buffer) {
            return Ok(buffer.drain(..bytes).collect());
        }
        let mut more = [0; 4096];
        match stream.read(&mut more)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => buffer.extend_from_slice(&more[..read]),
        }
    }
}

/// The words of a request: every second line, since none of ours has a line feed in it but scripts, which are refused.
fn words(request: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(request);
    text.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect()
}
