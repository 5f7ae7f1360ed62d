//! A small gRPC client with its own definition of the messages.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use prost::Message;
use tidegate_testkit::wait::within;
use tokio::net::TcpStream;

pub(crate) const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RlsRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RlsDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
    /// A field that the server does not know.
    #[prost(string, tag = "99")]
    pub(crate) unknown: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RlsDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<RlsEntry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RlsOverride>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RlsEntry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RlsOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RlsResponse {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<RlsStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) headers: Vec<RlsEntry>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RlsStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<RlsLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<RlsDuration>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RlsLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RlsDuration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// A descriptor with these entries.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RlsDescriptor {
    let entry = |(key, value): &(&str, &str)| RlsEntry { key: (*key).to_owned(), value: (*value).to_owned() };
    RlsDescriptor { entries: entries.iter().map(entry).collect(), limit: None, hits_addend: None }
}

/// A request with these descriptors.
pub(crate) fn request(domain: &str, descriptors: Vec<RlsDescriptor>) -> RlsRequest {
    RlsRequest { domain: domain.to_owned(), descriptors, hits_addend: 0, unknown: "ignored".to_owned() }
}

/// The response to a call.
#[derive(Debug)]
pub(crate) struct GrpcReply {
    pub(crate) status: StatusCode,
    /// The headers, or the trailers if there are any.
    pub(crate) trailers: HeaderMap,
    pub(crate) body: Bytes,
}

impl GrpcReply {
    /// The gRPC status code.
    pub(crate) fn code(&self) -> u16 {
        self.trailers["grpc-status"].to_str().unwrap().parse().unwrap()
    }

    /// The only message of the body.
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.code(), 0, "{self:?}");
        M::decode(&self.body[5..]).expect("a message")
    }
}

/// A connection to a gRPC server.
pub(crate) struct GrpcClient {
    requests: SendRequest<Bytes>,
    pub(crate) connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl GrpcClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        Self { requests, connection }
    }

    /// A client of the same connection, for calls at the same time.
    pub(crate) fn concurrent(&self) -> Self {
        Self { requests: self.requests.clone(), connection: tokio::spawn(async { Ok(()) }) }
    }

    /// Asks the rate limit service.
    pub(crate) async fn should_rate_limit(&mut self, request: &RlsRequest) -> RlsResponse {
        self.call(RLS, &[], message(request)).await.message()
    }

    /// Begins a call with a part of its body.
    pub(crate) async fn begin(&mut self, part: Bytes) -> SendStream<Bytes> {
        let request = Request::post(format!("http://test{RLS}")).header("content-type", "application/grpc");
        let mut requests = within("a stream", self.requests.clone().ready()).await.unwrap();
        let (_, mut stream) = requests.send_request(request.body(()).unwrap(), false).unwrap();
        stream.send_data(part, false).unwrap();
        stream
    }

    /// Sends a call with a complete body.
    pub(crate) async fn call(&mut self, path: &str, headers: &[(&str, &str)], body: Bytes) -> GrpcReply {
        self.send("POST", path, headers, body).await
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> GrpcReply {
        let mut request = Request::builder().method(method).uri(format!("http://test{path}"));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        within("a response", async {
            let mut requests = self.requests.clone().ready().await.unwrap();
            let (response, mut stream) = requests.send_request(request.body(()).unwrap(), false).unwrap();
            // The server may answer before it has the body.
            let _ = stream.send_data(body, true);
            let response = response.await.unwrap();
            let (parts, mut incoming) = response.into_parts();
            let mut body = BytesMut::new();
            while let Some(Ok(data)) = incoming.data().await {
                let _ = incoming.flow_control().release_capacity(data.len());
                body.extend_from_slice(&data);
            }
            let trailers = incoming.trailers().await.ok().flatten();
            GrpcReply {
                status: parts.status,
                trailers: trailers.unwrap_or(parts.headers),
                body: body.freeze(),
            }
        })
        .await
    }
}

/// A message with its prefix.
pub(crate) fn message(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}
