//! Clients.

mod blocking;
mod collected;
mod frames;
mod http;
mod raw;
mod steady_load;
mod tls;

pub use blocking::{Connection, content_length, get, read_head, request, try_request};
pub use collected::CollectedResponse;
pub use frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM,
    SETTINGS, UNKNOWN, WINDOW_UPDATE, frame, get_head, literal, post_head,
};
pub use http::{http1, http2, http2_over, http2_streams};
pub use raw::RawClient;
pub use steady_load::{LoadClock, LoadPlan, LoadSample, SteadyLoad};
pub use tls::{BlockingTls, connect_tls, roots, tls_config};
