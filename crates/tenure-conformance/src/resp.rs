//! As much of the Redis protocol as the proxy needs: where a frame ends, how many words it has, and its first word.

/// The largest frame that is put together. Tenure's are below 4 kB; a script is loaded with less than 16 kB.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;

/// How deep frames may lie in each other.
const DEPTH_MAX: u32 = 8;

/// The length of the first frame in `bytes`; `None`: it is not complete yet.
///
/// # Panics
/// On what is no RESP at all: the proxy is used between Tenure and Redis only.
pub(crate) fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    end(bytes, 0, 0)
}

fn end(bytes: &[u8], at: usize, depth: u32) -> Option<usize> {
    assert!(depth <= DEPTH_MAX, "frames lie in each other at most {DEPTH_MAX} deep");
    let kind = *bytes.get(at)?;
    let line = bytes[at..].windows(2).position(|pair| pair == b"\r\n")?;
    let after = at + line + 2;
    let number = || number(&bytes[at + 1..at + line]);
    let members = match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => 0,
        b'$' | b'=' | b'!' => {
            let end = number().map_or(after, |bytes| after + bytes + 2);
            return (end <= bytes.len()).then_some(end);
        }
        b'*' | b'~' | b'>' => number().unwrap_or(0),
        b'%' | b'|' => 2 * number().unwrap_or(0),
        other => panic!("a frame begins with byte {other:#x}"),
    };
    (0..members).try_fold(after, |at, _| end(bytes, at, depth + 1))
}

/// A length; `None` for the -1 of nothing.
fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// How many words a request has.
pub(crate) fn words(request: &[u8]) -> usize {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.strip_prefix(b"*").and_then(number).unwrap_or(1)
}

/// A message that nobody asked for.
pub(crate) fn is_push(reply: &[u8]) -> bool {
    reply.starts_with(b">")
}

/// Requests about channels are answered by pushes.
pub(crate) fn is_answered_by_a_push(request: &[u8]) -> bool {
    let word = request.split(|byte| *byte == b'\n').nth(2).unwrap_or_default();
    let word = word.strip_suffix(b"\r").unwrap_or(word).to_ascii_uppercase();
    [&b"SUBSCRIBE"[..], b"UNSUBSCRIBE", b"SSUBSCRIBE", b"SUNSUBSCRIBE", b"PSUBSCRIBE", b"PUNSUBSCRIBE"]
        .contains(&&word[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_end_where_the_protocol_says() {
        for frame in [
            "+OK\r\n",
            "$5\r\na\r\nbc\r\n",
            "$-1\r\n",
            "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
            "*-1\r\n",
            ">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            "%1\r\n+a\r\n*2\r\n:1\r\n_\r\n",
        ] {
            let two = format!("{frame}{frame}");
            assert_eq!(frame_bytes(two.as_bytes()), Some(frame.len()), "{frame}");
            for cut in 0..frame.len() {
                assert_eq!(frame_bytes(&frame.as_bytes()[..cut]), None, "{frame} cut at {cut}");
            }
        }
    }

    #[test]
    fn requests_are_told_apart_by_words_and_verb() {
        let get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        assert_eq!((words(get), is_answered_by_a_push(get)), (2, false));
        assert!(is_answered_by_a_push(b"*2\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n"));
    }
}
