//! Reads the body of a request.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tidegate_listener::ChunkError;
use tokio::time::{Sleep, sleep};

use super::error::HttpError;

/// The time in which a body must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The whole body, if it has at most `max` bytes and arrives in time. Nearly every body arrives with its head; only the others
/// need a timer.
pub(super) async fn read_body(mut body: Incoming, max: usize) -> Result<Bytes, HttpError> {
    if body.size_hint().lower() > max as u64 {
        return Err(HttpError::TooLarge { max });
    }
    let mut timeout: Option<Pin<Box<Sleep>>> = None;
    let mut first = Bytes::new();
    let mut joined: Option<BytesMut> = None;
    loop {
        let frame = {
            let mut next = pin!(body.frame());
            poll_fn(|cx| match next.as_mut().poll(cx) {
                Poll::Ready(frame) => Poll::Ready(Ok(frame)),
                Poll::Pending => {
                    let timeout = timeout.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
                    timeout.as_mut().poll(cx).map(|()| Err(HttpError::SLOW_BODY))
                }
            })
            .await?
        };
        let Some(frame) = frame else { break };
        // Trailers say nothing about a check.
        let Ok(data) = frame.map_err(|error| unreadable(&error, max))?.into_data() else { continue };
        let received = joined.as_ref().map_or(first.len(), BytesMut::len);
        if data.len() > max - received {
            return Err(HttpError::TooLarge { max });
        }
        match &mut joined {
            Some(joined) => joined.extend_from_slice(&data),
            None if first.is_empty() => first = data,
            None => {
                let mut both = BytesMut::with_capacity(first.len() + data.len());
                both.extend_from_slice(&first);
                both.extend_from_slice(&data);
                joined = Some(both);
            }
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(joined.map_or(first, BytesMut::freeze))
}

fn unreadable(error: &hyper::Error, max: usize) -> HttpError {
    match ChunkError::of(error) {
        Some(ChunkError::TooLarge) => HttpError::TooLarge { max },
        Some(ChunkError::Malformed) | None => HttpError::BAD_BODY,
    }
}
