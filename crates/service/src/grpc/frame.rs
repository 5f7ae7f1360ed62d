//! Messages within the body of a call: a flag, the length in four bytes, the message.

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use prost::Message;

use super::status::{GrpcCode, GrpcError};

/// The largest message that is accepted, in bytes. A request of Envoy has a few hundred. Its client can send headers of 60 KiB, and
/// several descriptors may contain them.
pub(super) const MAX_MESSAGE: usize = 256 << 10;
/// The largest message of other methods, in bytes. Clients without a token may send it, too.
pub(super) const MAX_OTHER_MESSAGE: usize = 1 << 10;
/// The flag and the length before each message.
const PREFIX: usize = 5;

/// The bytes of all messages of a connection that have arrived in part.
///
/// They keep their part of the connection's window. If they filled it, none of them could be completed, and no other call could be
/// sent. A message that would make them too many is therefore rejected.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialBytes(Rc<Cell<usize>>);

impl PartialBytes {
    /// The largest number of bytes: half of the window.
    const MAX: usize = 512 << 10;

    fn replace(&self, old: usize, new: usize) {
        self.0.set(self.0.get().saturating_sub(old).saturating_add(new));
    }

    fn are_too_many(&self) -> bool {
        self.0.get() > Self::MAX
    }
}

/// The messages of a request body.
///
/// A message keeps its part of the flow-control windows until the next one is read or the reader is dropped. The window of the
/// connection therefore bounds the bytes of all messages that wait or are being decided, however many calls there are.
#[derive(Debug)]
pub(super) struct MessageReader {
    body: RecvStream,
    /// The largest message that is accepted, in bytes.
    max: usize,
    buffer: BytesMut,
    /// The bytes that were read and are still part of the windows.
    held: usize,
    /// The bytes of a message that has arrived in part, which `all_partial` includes.
    partial: usize,
    all_partial: PartialBytes,
}

impl MessageReader {
    pub(super) fn new(body: RecvStream, max: usize, all_partial: PartialBytes) -> Self {
        Self { body, max, buffer: BytesMut::new(), held: 0, partial: 0, all_partial }
    }

    /// The next message; `None` at the end of the body.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, GrpcError> {
        self.release_earlier();
        loop {
            if let Some(message) = take_message(&mut self.buffer, self.max)? {
                self.set_partial(0);
                return Ok(Some(message));
            }
            self.set_partial(self.buffer.len());
            if self.partial > 0 && self.all_partial.are_too_many() {
                let message = "too many long messages at once on this connection";
                return Err(GrpcError::new(GrpcCode::ResourceExhausted, message));
            }
            let Some(data) = self.data().await? else {
                return if self.buffer.is_empty() { Ok(None) } else { Err(incomplete()) };
            };
            self.append(data);
        }
    }

    /// The only message of a body.
    pub(super) async fn single(&mut self) -> Result<Bytes, GrpcError> {
        let message = self.next().await?.ok_or_else(incomplete)?;
        // Waiting for the end of the body avoids a reset of the stream, which some clients report as an error.
        let mut has_more = !self.buffer.is_empty();
        while let Some(data) = self.data().await? {
            has_more |= !data.is_empty();
            if has_more {
                break;
            }
        }
        if has_more {
            return Err(GrpcError::new(GrpcCode::Internal, "the call has more than one message"));
        }
        Ok(message)
    }

    async fn data(&mut self) -> Result<Option<Bytes>, GrpcError> {
        if self.body.is_end_stream() {
            return Ok(None);
        }
        let Some(data) = self.body.data().await else { return Ok(None) };
        let data = data.map_err(|_| incomplete())?;
        self.held += data.len();
        Ok(Some(data))
    }

    fn set_partial(&mut self, bytes: usize) {
        self.all_partial.replace(self.partial, bytes);
        self.partial = bytes;
    }

    /// Opens the windows by the bytes of the messages before the one that is read next. The last one is released when the
    /// stream is dropped.
    fn release_earlier(&mut self) {
        let earlier = self.held.saturating_sub(self.buffer.len());
        if earlier > 0 {
            self.held -= earlier;
            // The stream has ended if this fails; its bytes are released with it.
            let _ = self.body.flow_control().release_capacity(earlier);
        }
    }

    fn append(&mut self, data: Bytes) {
        if self.buffer.is_empty() {
            // A whole message usually arrives in one frame, whose memory is then used without a copy.
            self.buffer = data.try_into_mut().unwrap_or_else(|data| BytesMut::from(&*data));
        } else {
            self.buffer.extend_from_slice(&data);
        }
    }
}

impl Drop for MessageReader {
    fn drop(&mut self) {
        self.set_partial(0);
    }
}

fn incomplete() -> GrpcError {
    GrpcError::new(GrpcCode::Internal, "the body ends within a message")
}

/// Takes a message from the start of `buffer`; `None` if it is not complete. Fails as soon as the prefix shows that the
/// message is not acceptable.
fn take_message(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, GrpcError> {
    let Some((&[flag, ref length @ ..], _)) = buffer.split_first_chunk::<PREFIX>() else { return Ok(None) };
    if flag != 0 {
        return Err(GrpcError::new(GrpcCode::Unimplemented, "compressed messages are not supported"));
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > max {
        let message = format!("the message has {length} bytes; at most {max} are allowed");
        return Err(GrpcError::new(GrpcCode::ResourceExhausted, message));
    }
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Writes `message` with its prefix.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(PREFIX + length);
    buffer.put_u8(0);
    // A response is far shorter than 4 GiB: requests are limited.
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer has room for the message.
    let _ = message.encode(&mut buffer);
    buffer.freeze()
}

/// Reads `message`.
pub(super) fn decode<M: Message + Default>(message: Bytes) -> Result<M, GrpcError> {
    M::decode(message)
        .map_err(|error| GrpcError::new(GrpcCode::Internal, format!("invalid message: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_in_parts_is_taken_when_it_is_complete() {
        let mut buffer = BytesMut::new();
        for byte in [0, 0, 0, 0, 2, 7] {
            buffer.put_u8(byte);
            assert_eq!(take_message(&mut buffer, MAX_MESSAGE), Ok(None));
        }
        buffer.extend_from_slice(&[8, 0]);
        assert_eq!(take_message(&mut buffer, MAX_MESSAGE), Ok(Some(Bytes::from_static(&[7, 8]))));
        assert_eq!(&buffer[..], [0]);
    }

    #[test]
    fn message_compressed_or_too_large_is_rejected_by_its_prefix() {
        let code =
            |bytes: &[u8]| take_message(&mut BytesMut::from(bytes), MAX_MESSAGE).map_err(|error| error.code);
        assert_eq!(code(&[1, 0, 0, 0, 0]), Err(GrpcCode::Unimplemented));
        assert_eq!(code(&[0, 0, 4, 0, 1]), Err(GrpcCode::ResourceExhausted));
        assert_eq!(code(&[0, 0, 4, 0, 0]), Ok(None));
    }
}
