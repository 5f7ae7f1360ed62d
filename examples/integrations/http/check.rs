//! A check with hyper. Any other HTTP client can do the same.

use std::error::Error;

use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Asks Tidegate at `server`; returns the decision. A program that asks often keeps `sender` and its connection.
pub async fn check(server: &str, rule: &str, client: &str) -> Result<Value, Box<dyn Error>> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = json!({ "rule": rule, "client": client, "cost": 1 }).to_string();
    let request = Request::post("/v1/check")
        .header("host", server)
        .header("content-type", "application/json")
        .body(Full::new(body.into_bytes().into()))?;
    let request: Request<Full<hyper::body::Bytes>> = request;
    let response = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&response)?)
}
