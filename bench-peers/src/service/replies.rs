//! Counting replies. Replies of the Redis protocol are counted by their lines, those of HTTP by their heads and lengths; the
//! first reply to each write must be a decision.

use anyhow::{Context, bail, ensure};
use memchr::{memchr_iter, memmem};

/// How replies of a server look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyFormat {
    pub(crate) framing: Framing,
    /// What an admission contains (HTTP) or begins with (Redis protocol).
    pub(crate) admitted: &'static [u8],
    pub(crate) rejected: &'static [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The Redis protocol: every reply has this many lines.
    Lines(usize),
    /// HTTP/1.1 with `Content-Length`.
    Http,
}

/// Five integers, the first of which is 1 if the request is limited.
pub(crate) const REDIS_CELL: ReplyFormat =
    ReplyFormat { framing: Framing::Lines(6), admitted: b"*5\r\n:0\r", rejected: b"*5\r\n:1\r" };
/// Five integers, the first of which is 1 if the request is allowed.
pub(crate) const THROTTLE: ReplyFormat =
    ReplyFormat { framing: Framing::Lines(6), admitted: b"*5\r\n:1\r", rejected: b"*5\r\n:0\r" };
/// An integer. It never rejects.
pub(crate) const INCR: ReplyFormat =
    ReplyFormat { framing: Framing::Lines(1), admitted: b":", rejected: b"never" };
/// Of the classic script: 1 if admitted, and the remaining tokens as text.
pub(crate) const CLASSIC: ReplyFormat =
    ReplyFormat { framing: Framing::Lines(4), admitted: b"*2\r\n:1\r", rejected: b"*2\r\n:0\r" };
pub(crate) const CHECK: ReplyFormat =
    ReplyFormat { framing: Framing::Http, admitted: b"\"admitted\":true", rejected: b"\"admitted\":false" };
pub(crate) const THROTTLE_JSON: ReplyFormat =
    ReplyFormat { framing: Framing::Http, admitted: b"\"allowed\":true", rejected: b"\"allowed\":false" };
/// By the status alone.
pub(crate) const STATUS: ReplyFormat =
    ReplyFormat { framing: Framing::Http, admitted: b"HTTP/1.1 200 ", rejected: b"HTTP/1.1 429 " };

/// What a reply decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    Rejected,
}

/// Counts the replies on one connection.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    format: ReplyFormat,
    expected: usize,
    /// Complete replies (HTTP) or lines (Redis protocol) of the current batch.
    counted: usize,
    /// The beginning of the batch's replies, until the first is judged; with HTTP, the incomplete reply.
    inbox: Vec<u8>,
    is_judged: bool,
    verdict: Option<Verdict>,
}

impl ReplyReader {
    pub(crate) fn new(format: ReplyFormat) -> Self {
        Self { format, expected: 0, counted: 0, inbox: Vec::new(), is_judged: false, verdict: None }
    }

    /// Starts to wait for this many replies.
    pub(crate) fn expect(&mut self, replies: usize) {
        self.expected = replies;
        self.counted = 0;
        self.inbox.clear();
        self.is_judged = false;
    }

    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// The verdict of the first reply, once.
    pub(crate) fn take_verdict(&mut self) -> Option<Verdict> {
        self.verdict.take()
    }

    /// Takes in what has arrived. Returns whether all replies are complete.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        let due = match self.format.framing {
            Framing::Lines(lines) => {
                self.receive_lines(bytes)?;
                self.expected * lines
            }
            Framing::Http => {
                self.receive_http(bytes)?;
                self.expected
            }
        };
        ensure!(self.counted <= due, "more replies than requests: {}", excerpt(bytes));
        Ok(self.counted == due)
    }

    fn receive_lines(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.counted += memchr_iter(b'\n', bytes).count();
        if self.is_judged {
            return Ok(());
        }
        let length = self.format.admitted.len();
        let is_short = bytes.len() < length || !self.inbox.is_empty();
        if is_short {
            self.inbox.extend_from_slice(bytes);
        }
        let start = if is_short { &self.inbox } else { bytes };
        if start.len() < length && !start.starts_with(b"-") {
            return Ok(());
        }
        let verdict = if start.starts_with(self.format.admitted) {
            Verdict::Admitted
        } else if start.starts_with(self.format.rejected) {
            Verdict::Rejected
        } else {
            bail!("not a decision: {}", excerpt(start));
        };
        self.verdict = Some(verdict);
        self.is_judged = true;
        Ok(())
    }

    fn receive_http(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.inbox.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = http_length(&self.inbox[start..])? {
            let reply = &self.inbox[start..start + length];
            if !self.is_judged {
                let contains = |text: &[u8]| memmem::find(reply, text).is_some();
                self.verdict = if contains(self.format.admitted) {
                    Some(Verdict::Admitted)
                } else if contains(self.format.rejected) {
                    Some(Verdict::Rejected)
                } else {
                    bail!("not a decision: {}", excerpt(reply));
                };
                self.is_judged = true;
            }
            self.counted += 1;
            start += length;
        }
        self.inbox.drain(..start);
        Ok(())
    }
}

/// The length of the first reply with its body, if it is complete.
fn http_length(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    const NAME: &[u8] = b"content-length:";
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| {
        let is_length = line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME);
        is_length.then(|| line[NAME.len()..].trim_ascii())
    });
    let value = value.with_context(|| format!("a reply without Content-Length: {}", excerpt(bytes)))?;
    let length: usize = str::from_utf8(value)?.parse()?;
    let whole = end + 4 + length;
    Ok((bytes.len() >= whole).then_some(whole))
}

fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_replies_split_anywhere_are_counted_and_judged() {
        let replies = b"*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:32\r\n*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";
        for cut in 1..replies.len() {
            let mut reader = ReplyReader::new(REDIS_CELL);
            reader.expect(2);
            assert!(!reader.receive(&replies[..cut]).unwrap());
            assert!(reader.receive(&replies[cut..]).unwrap());
            assert_eq!(reader.take_verdict(), Some(Verdict::Rejected));
        }
    }

    #[test]
    fn redis_error_is_not_a_decision() {
        let mut reader = ReplyReader::new(REDIS_CELL);
        reader.expect(1);
        assert!(reader.receive(b"-ERR unknown command\r\n").is_err());
    }

    #[test]
    fn http_replies_split_anywhere_are_counted_and_judged() {
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"allowed\":true}";
        for cut in 1..reply.len() {
            let mut reader = ReplyReader::new(THROTTLE_JSON);
            reader.expect(1);
            assert!(!reader.receive(&reply[..cut]).unwrap());
            assert!(reader.receive(&reply[cut..]).unwrap());
            assert_eq!(reader.take_verdict(), Some(Verdict::Admitted));
        }
    }

    #[test]
    fn http_error_is_not_a_decision() {
        let mut reader = ReplyReader::new(CHECK);
        reader.expect(1);
        assert!(reader.receive(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
