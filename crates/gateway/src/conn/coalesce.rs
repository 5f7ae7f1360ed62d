//! Small writes in one piece.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::io::AsyncWrite;

/// Up to so many bytes copying costs less than telling the system of each piece.
const SMALL: usize = 2048;

/// Writes `pieces`, joined if they are small: a head and a short body leave by the cheapest call there is.
pub(crate) fn poll_write_joined(
    stream: Pin<&mut impl AsyncWrite>,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [piece] = pieces {
        return stream.poll_write(cx, piece);
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() > SMALL {
        return stream.poll_write_vectored(cx, pieces);
    }
    let mut joined = SmallVec::<[u8; SMALL]>::new();
    for piece in pieces {
        joined.extend_from_slice(piece);
    }
    stream.poll_write(cx, &joined)
}
