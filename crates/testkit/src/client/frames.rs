//! Raw HTTP/2 frames, valid or not, and the little HPACK that they need.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

use crate::wait::DEADLINE;

/// A frame of a body.
pub const DATA: u8 = 0;
/// A frame that begins a head.
pub const HEADERS: u8 = 1;
/// A frame that orders streams, which is obsolete.
pub const PRIORITY: u8 = 2;
/// A frame that ends a stream.
pub const RST_STREAM: u8 = 3;
/// A frame of settings, or their acknowledgement.
pub const SETTINGS: u8 = 4;
/// A frame that the peer acknowledges.
pub const PING: u8 = 6;
/// A frame that ends a connection.
pub const GOAWAY: u8 = 7;
/// A frame that allows more bytes.
pub const WINDOW_UPDATE: u8 = 8;
/// A frame that continues a head.
pub const CONTINUATION: u8 = 9;
/// A frame of a kind that does not exist.
pub const UNKNOWN: u8 = 0xf0;

/// The flag of the last frame of a message.
pub const END_STREAM: u8 = 1;
/// The flag of the last frame of a head.
pub const END_HEADERS: u8 = 4;

/// `:scheme http`, `:path /`, and `:authority test` as a literal without indexing.
const REST: &[u8] = b"\x86\x84\x01\x04test";

/// A frame with its header.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a `GET /`, as HPACK has it.
pub fn get_head() -> Vec<u8> {
    [&b"\x82"[..], REST].concat()
}

/// The head of a `POST /`.
pub fn post_head() -> Vec<u8> {
    [&b"\x83"[..], REST].concat()
}

/// A header as a literal; an `indexed` one goes into the dynamic table of both sides.
pub fn literal(name: &str, value: &str, indexed: bool) -> Vec<u8> {
    let mut bytes = vec![if indexed { 0x40 } else { 0 }];
    for text in [name, value] {
        bytes.extend(length(text.len()));
        bytes.extend(text.bytes());
    }
    bytes
}

/// An integer with a prefix of 7 bits.
fn length(mut value: usize) -> Vec<u8> {
    if value < 127 {
        return vec![u8::try_from(value).expect("less than a byte")];
    }
    let mut bytes = vec![127];
    value -= 127;
    while value >= 128 {
        bytes.push(u8::try_from(value % 128).expect("less than a byte") | 128);
        value /= 128;
    }
    bytes.push(u8::try_from(value).expect("less than a byte"));
    bytes
}

/// An HTTP/2 connection with prior knowledge.
#[derive(Debug)]
pub struct FrameClient<S = TcpStream> {
    /// The bytes below the frames.
    pub stream: S,
}

impl FrameClient {
    /// Connects, and sends the preface. Reading and writing have a deadline.
    pub fn open(address: impl ToSocketAddrs) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a live socket");
        // A flood that is no longer read has ended, too.
        stream.set_write_timeout(Some(DEADLINE)).expect("a live socket");
        Self::over(stream)
    }
}

impl<S: Read + Write> FrameClient<S> {
    /// Sends the preface and empty settings over a connected stream.
    pub fn over(mut stream: S) -> Self {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("an open connection");
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).expect("an open connection");
        Self { stream }
    }

    /// Sends one frame.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&frame(kind, flags, stream, payload))
    }

    /// The next frame: its kind, its stream, its payload.
    pub fn read(&mut self) -> io::Result<(u8, u32, Vec<u8>)> {
        self.read_frame().map(|(kind, _, stream, payload)| (kind, stream, payload))
    }

    /// The next frame: its kind, its flags, its stream, its payload.
    fn read_frame(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let mut payload = vec![0; usize::try_from(length).expect("24 bits")];
        self.stream.read_exact(&mut payload)?;
        Ok((head[3], head[4], stream, payload))
    }

    /// The payload of the response head on `stream`: it begins with the status, `0x88` for 200.
    pub fn response_head(&mut self, stream: u32) -> io::Result<Vec<u8>> {
        loop {
            let (kind, on, payload) = self.read()?;
            if kind == HEADERS && on == stream {
                return Ok(payload);
            }
        }
    }

    /// The payloads of head and body of the response on `stream`; `None` if the stream is reset.
    pub fn response(&mut self, stream: u32) -> Option<(Vec<u8>, Vec<u8>)> {
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
