//! HTTP/2 by hand: whatever frames a client likes to send.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::process::DEADLINE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const UNKNOWN: u8 = 0xf0;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `:scheme http`, `:path /`, and `:authority test` as a literal that nobody needs to remember.
const REST: &[u8] = b"\x86\x84\x01\x04test";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a `GET /`, as HPACK has it.
pub(crate) fn get() -> Vec<u8> {
    [&b"\x82"[..], REST].concat()
}

/// The head of a `POST /`.
pub(crate) fn post() -> Vec<u8> {
    [&b"\x83"[..], REST].concat()
}

/// A header of its own; `remembered` ones go into the table that both sides keep.
pub(crate) fn literal(name: &str, value: &str, remembered: bool) -> Vec<u8> {
    let mut bytes = vec![if remembered { 0x40 } else { 0 }];
    for text in [name, value] {
        bytes.extend(length(text.len()));
        bytes.extend(text.bytes());
    }
    bytes
}

/// An integer with a prefix of 7 bits.
fn length(mut value: usize) -> Vec<u8> {
    if value < 127 {
        return vec![u8::try_from(value).unwrap()];
    }
    let mut bytes = vec![127];
    value -= 127;
    while value >= 128 {
        bytes.push(u8::try_from(value % 128).unwrap() | 128);
        value /= 128;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// A connection that speaks HTTP/2 from the first byte.
pub(crate) struct Http2<S = TcpStream> {
    pub(crate) stream: S,
}

impl Http2 {
    pub(crate) fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        // A flood that is no longer taken has ended, too.
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self::over(stream)
    }
}

impl<S: Read + Write> Http2<S> {
    pub(crate) fn over(mut stream: S) -> Self {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        Self { stream }
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&frame(kind, flags, stream, payload))
    }

    /// The next frame: its kind, its stream, its payload.
    pub(crate) fn read(&mut self) -> io::Result<(u8, u32, Vec<u8>)> {
        self.read_frame().map(|(kind, _, stream, payload)| (kind, stream, payload))
    }

    /// The next frame: its kind, its flags, its stream, its payload.
    fn read_frame(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload)?;
        Ok((head[3], head[4], stream, payload))
    }

    /// The payload of the head that answers on `stream`: it begins with the status, `0x88` for 200.
    pub(crate) fn answer(&mut self, stream: u32) -> io::Result<Vec<u8>> {
        loop {
            let (kind, on, payload) = self.read()?;
            if kind == HEADERS && on == stream {
                return Ok(payload);
            }
        }
    }

    /// The payloads of the head and the body that answer on `stream`; `None` if the stream is reset.
    pub(crate) fn response(&mut self, stream: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        let (mut head, mut body) = (Vec::new(), Vec::new());
        loop {
            let (kind, flags, on, payload) = self.read_frame().ok()?;
            match kind {
                HEADERS if on == stream => head.extend(payload),
                DATA if on == stream => body.extend(payload),
                RST_STREAM if on == stream => return None,
                _ => continue,
            }
            if flags & END_STREAM != 0 {
                return Some((head, body));
            }
        }
    }
}
