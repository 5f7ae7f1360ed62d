//! The endpoints: which path takes which method, and what a body may say.

mod bans;
mod clients;
mod explain;
mod overrides;
mod status;

use http::request::Parts;
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::json;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_policy::{duration, span_text};

use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;
use crate::state::AdminStateError;

/// What somebody who was let in is answered.
pub(crate) async fn answer<R: Backend>(
    server: &AdminServer<R>,
    head: &Parts,
    body: &[u8],
) -> Result<ApiResponse, ApiError> {
    // A head is asked for as the whole is; what sends it leaves the rest out.
    let method = if head.method == Method::HEAD { &Method::GET } else { &head.method };
    match (head.uri.path(), method.as_str()) {
        ("/healthz", "GET") => Ok(response::json(StatusCode::OK, &json!({ "status": "ok" }))),
        ("/readyz", "GET") => status::ready(server),
        ("/metrics", "GET") => {
            // Every scraper says so: it is how Prometheus tells its patience.
            let remembers = head.headers.contains_key("x-prometheus-scrape-timeout-seconds");
            let (text, content_type) = server.backend.metrics(remembers);
            Ok(response::with(StatusCode::OK, text, content_type))
        }
        ("/v1/status", "GET") => Ok(status::status(server).await),
        ("/v1/bans", "GET") => Ok(bans::list(server).await),
        ("/v1/bans", "POST") => bans::add(server, parse(body)?).await,
        ("/v1/bans", "DELETE") => bans::remove(server, parse(body)?).await,
        ("/v1/overrides", "GET") => Ok(overrides::list(server).await),
        ("/v1/overrides", "POST") => overrides::add(server, parse(body)?).await,
        ("/v1/overrides", "DELETE") => overrides::remove(server, parse(body)?).await,
        ("/v1/reset", "POST") => clients::reset(server, parse(body)?).await,
        ("/v1/top", "GET") => Ok(clients::top(server)),
        ("/v1/reload", "POST") => status::reload(server).await,
        ("/v1/explain", "POST") => explain::explain(server, &parse(body)?),
        ("/v1/backup", "POST") => status::back_up(server, parse(body)?).await,
        ("/healthz" | "/readyz" | "/metrics" | "/v1/status" | "/v1/top", _) => {
            Err(ApiError::method("GET, HEAD"))
        }
        ("/v1/bans" | "/v1/overrides", _) => Err(ApiError::method("GET, HEAD, POST, DELETE")),
        ("/v1/reset" | "/v1/reload" | "/v1/explain" | "/v1/backup", _) => Err(ApiError::method("POST")),
        _ => Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here").hint(
            "there are /healthz, /readyz, /metrics and, below /v1, status, bans, overrides, reset, top, reload, \
             explain and backup",
        )),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        // The message repeats names of fields and kinds of values, never a value.
        let what = match error.classify() {
            serde_json::error::Category::Data => error.to_string(),
            _ => format!("the body is no JSON: {error}"),
        };
        ApiError::bad("body", what).hint("docs/operations.md shows every body")
    })
}

/// How long, from now; `None` without end.
fn until(text: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let span = duration(text).map_err(|error| {
        ApiError::bad("for", format!("the duration {error}")).hint("write it as 90s, 15m, 12h or 7d")
    })?;
    if span.is_zero() {
        let refusal = ApiError::bad("for", "that is over at once");
        return Err(refusal.hint("write it as 15m, or leave it out for a ban without end"));
    }
    Ok(Some(now + span))
}

/// What an operator says of something, in one line.
fn reason(text: String) -> Result<String, ApiError> {
    const LONGEST: usize = 500;
    if text.len() > LONGEST || text.chars().any(char::is_control) {
        return Err(ApiError::bad("reason", format!("it is not one line of at most {LONGEST} bytes")));
    }
    Ok(text)
}

/// An instant as Unix seconds.
fn seconds(at: Timestamp) -> u64 {
    at.as_micros() / 1_000_000
}

/// How long it still is, in words.
fn left(until: Timestamp, now: Timestamp) -> String {
    span_text(TimeSpan::from_secs(until.since(now).as_secs_ceil()))
}

impl From<AdminStateError> for ApiError {
    fn from(error: AdminStateError) -> Self {
        use tidegate_store::StoreError;
        use tidegate_store::durable::DurableError;
        let what = error.to_string();
        match error {
            AdminStateError::Durable(DurableError::HandedOver) => Self::unavailable("handing_over", what),
            AdminStateError::Durable(DurableError::Ended) | AdminStateError::Ended => {
                Self::unavailable("ending", what)
            }
            AdminStateError::Durable(DurableError::Write { .. }) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "not_written", what)
                    .hint("see to the disk that holds `store.directory`; after that, ask again")
            }
            AdminStateError::Full { .. } => Self::new(StatusCode::INSUFFICIENT_STORAGE, "full", what)
                .hint("take some back; many networks fit the `bans.file` of the policy better"),
            AdminStateError::Store(StoreError::TooManyLimits { .. }) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "too_many_limits", what)
            }
            AdminStateError::Store(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", what),
        }
    }
}
