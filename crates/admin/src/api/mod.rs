//! The endpoints: paths, methods and request bodies.

mod bans;
mod breakers;
mod client;
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
use tidegate_store::StoreError;

use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;
use crate::state::AdminStateError;
use status::ReloadBody;

/// The path before the name of a client.
const CLIENTS: &str = "/v1/clients/";

/// Handles an authorized request.
pub(crate) async fn handle<R: Backend>(
    server: &AdminServer<R>,
    head: &Parts,
    body: &[u8],
) -> Result<ApiResponse, ApiError> {
    // HEAD is handled like GET; hyper leaves out the body.
    let method = if head.method == Method::HEAD { &Method::GET } else { &head.method };
    match (head.uri.path(), method.as_str()) {
        ("/healthz", "GET") => Ok(response::json(StatusCode::OK, &json!({ "status": "ok" }))),
        ("/readyz", "GET") => status::ready(server),
        ("/metrics", "GET") => {
            // Prometheus sends its scrape timeout with every request.
            let is_scraper = head.headers.contains_key("x-prometheus-scrape-timeout-seconds");
            let (text, content_type) = server.backend.metrics(is_scraper);
            Ok(response::with_body(StatusCode::OK, text, content_type))
        }
        ("/v1/status", "GET") => Ok(status::status(server).await),
        ("/v1/bans", "GET") => Ok(bans::list(server).await),
        ("/v1/bans", "POST") => bans::add(server, parse(body)?).await,
        ("/v1/bans", "DELETE") => bans::remove(server, parse(body)?).await,
        ("/v1/overrides", "GET") => Ok(overrides::list(server).await),
        ("/v1/overrides", "POST") => overrides::add(server, parse(body)?).await,
        ("/v1/overrides", "DELETE") => overrides::remove(server, parse(body)?).await,
        ("/v1/breakers", "POST") => breakers::change(server, &parse(body)?),
        ("/v1/reset", "POST") => clients::reset(server, parse(body)?).await,
        ("/v1/top", "GET") => Ok(clients::top(server)),
        (path, "GET") if path.starts_with(CLIENTS) => client::show(server, &path[CLIENTS.len()..]).await,
        (path, _) if path.starts_with(CLIENTS) => Err(ApiError::method_not_allowed("GET, HEAD")),
        ("/v1/reload", "POST") => {
            // The body is optional.
            let body = if body.is_empty() { ReloadBody::default() } else { parse(body)? };
            status::reload(server, &body).await
        }
        ("/v1/explain", "POST") => explain::explain(server, &parse(body)?).await,
        ("/v1/backup", "POST") => status::back_up(server, parse(body)?).await,
        ("/healthz" | "/readyz" | "/metrics" | "/v1/status" | "/v1/top", _) => {
            Err(ApiError::method_not_allowed("GET, HEAD"))
        }
        ("/v1/bans" | "/v1/overrides", _) => Err(ApiError::method_not_allowed("GET, HEAD, POST, DELETE")),
        ("/v1/breakers" | "/v1/reset" | "/v1/reload" | "/v1/explain" | "/v1/backup", _) => Err(ApiError::method_not_allowed("POST")),
        _ => Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", "unknown path").hint(
            "available paths: /healthz, /readyz, /metrics, and below /v1: status, bans, overrides, breakers, reset, \
             clients/NAME, top, reload, explain, backup",
        )),
    }
}

/// The error of an operation for which the store did not respond.
fn store_unavailable(error: &StoreError) -> ApiError {
    ApiError::unavailable("store_unavailable", error.to_string())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        // The message contains names of fields and types of values, never a value.
        let message = match error.classify() {
            serde_json::error::Category::Data => error.to_string(),
            _ => format!("invalid JSON: {error}"),
        };
        ApiError::invalid_field("body", message)
            .hint("docs/operations.md describes the body of every request")
    })
}

/// The end of a duration that starts now; `None` if it has no end.
fn until(text: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let span = duration(text).map_err(|error| {
        ApiError::invalid_field("for", format!("the duration {error}"))
            .hint("use a duration such as 90s, 15m, 12h or 7d")
    })?;
    if span.is_zero() {
        let error = ApiError::invalid_field("for", "the duration must be positive");
        return Err(error.hint("use a duration such as 15m, or omit it: then there is no end"));
    }
    Ok(Some(now + span))
}

/// Checks the reason that an operator gives.
fn reason(text: String) -> Result<String, ApiError> {
    const MAX_BYTES: usize = 500;
    if text.len() > MAX_BYTES || text.chars().any(char::is_control) {
        let message = format!("the reason must be one line of at most {MAX_BYTES} bytes");
        return Err(ApiError::invalid_field("reason", message));
    }
    Ok(text)
}

/// A time in Unix seconds.
fn seconds(at: Timestamp) -> u64 {
    at.as_micros() / 1_000_000
}

/// The remaining time, as text.
fn remaining(until: Timestamp, now: Timestamp) -> String {
    span_text(TimeSpan::from_secs(until.since(now).as_secs_ceil()))
}

impl From<AdminStateError> for ApiError {
    fn from(error: AdminStateError) -> Self {
        use tidegate_store::durable::DurableError;
        let message = error.to_string();
        match error {
            AdminStateError::Durable(DurableError::HandedOver) => Self::unavailable("handing_over", message),
            AdminStateError::Durable(DurableError::Ended) | AdminStateError::Ended => {
                Self::unavailable("stopping", message)
            }
            AdminStateError::Durable(DurableError::Write { .. }) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "not_written", message)
                    .hint("check the disk of `store.directory`, then retry")
            }
            AdminStateError::Full { .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "too_many_entries", message)
                    .hint("remove some; for long lists of networks use `bans.file` in the policy")
            }
            AdminStateError::Store(StoreError::TooManyLimits { .. }) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "too_many_limits", message)
            }
            AdminStateError::Store(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store_unavailable", message)
            }
        }
    }
}
