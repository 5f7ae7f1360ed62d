//! Server reflection, `v1` and `v1alpha`, which have the same messages. Tools such as grpcurl need no `.proto` files then.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use prost::Message;

use super::call::begin_reply;
use super::frame::{self, MessageReader};
use super::schema;
use super::status::{GrpcCode, GrpcError, ok_trailers};

const METHODS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// A client that asks nothing, or reads nothing of a reply, for this long is not waited for.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// The largest number of questions of one call.
const MAX_QUESTIONS: usize = 64;

/// `ServerReflectionRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionRequest {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "ReflectionQuestion", tags = "3, 4, 5, 6, 7")]
    question: Option<ReflectionQuestion>,
}

/// What a client asks for.
#[derive(Clone, PartialEq, prost::Oneof)]
enum ReflectionQuestion {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionQuestion),
    #[prost(string, tag = "6")]
    AllExtensionNumbers(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

/// `ExtensionRequest`. There are no extensions.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ExtensionQuestion {}

/// `ServerReflectionResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionResponse {
    #[prost(string, tag = "1")]
    valid_host: String,
    #[prost(message, optional, tag = "2")]
    original_request: Option<ReflectionRequest>,
    #[prost(oneof = "ReflectionAnswer", tags = "4, 6, 7")]
    answer: Option<ReflectionAnswer>,
}

/// The answer to a question.
#[derive(Clone, PartialEq, prost::Oneof)]
enum ReflectionAnswer {
    #[prost(message, tag = "4")]
    Files(FileAnswer),
    #[prost(message, tag = "6")]
    Services(ServiceList),
    #[prost(message, tag = "7")]
    Failed(ReflectionFailure),
}

/// `FileDescriptorResponse`: files as encoded messages.
#[derive(Clone, PartialEq, prost::Message)]
struct FileAnswer {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

/// `ListServiceResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct ServiceList {
    #[prost(message, repeated, tag = "1")]
    services: Vec<ListedService>,
}

/// `ServiceResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct ListedService {
    #[prost(string, tag = "1")]
    name: String,
}

/// `ErrorResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionFailure {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Whether `path` is a method of reflection.
pub(super) fn is_served(path: &str) -> bool {
    METHODS.contains(&path)
}

/// Answers the questions of a call, in order. A question is read when the reply to the one before it is on its way, so that a
/// client that reads nothing keeps one reply in memory.
pub(super) async fn serve(
    mut messages: MessageReader,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), GrpcError> {
    let mut stream = None;
    for _ in 0..MAX_QUESTIONS {
        let question = match tokio::time::timeout(IDLE_TIMEOUT, messages.next()).await {
            Ok(Ok(Some(question))) => frame::decode::<ReflectionRequest>(question),
            Ok(Ok(None)) | Err(_) => break,
            Ok(Err(error)) => Err(error),
        };
        // The error of a later question ends the stream, whose head has been sent.
        let reply = match (question, &mut stream) {
            (Ok(question), _) => frame::encode(&answer(question)),
            (Err(error), None) => return Err(error),
            (Err(error), Some(stream)) => {
                let stream: &mut SendStream<Bytes> = stream;
                let _ = stream.send_trailers(error.trailers());
                return Ok(());
            }
        };
        if stream.is_none() {
            stream = begin_reply(respond).ok();
        }
        let Some(stream) = &mut stream else { return Ok(()) };
        if let Err(reason) = send_as_read(stream, reply).await {
            stream.send_reset(reason);
            return Ok(());
        }
    }
    let stream = match stream {
        Some(stream) => Some(stream),
        None => begin_reply(respond).ok(),
    };
    if let Some(mut stream) = stream {
        let _ = stream.send_trailers(ok_trailers());
    }
    Ok(())
}

/// Sends a reply as fast as the client reads. What h2 keeps of it is bounded by the windows and by its send buffer. Returns why the
/// rest of the call cannot be sent.
pub(super) async fn send_as_read(stream: &mut SendStream<Bytes>, mut reply: Bytes) -> Result<(), h2::Reason> {
    while !reply.is_empty() {
        stream.reserve_capacity(reply.len());
        let capacity = match stream.capacity() {
            0 => match tokio::time::timeout(IDLE_TIMEOUT, poll_fn(|context| stream.poll_capacity(context)))
                .await
            {
                Ok(Some(Ok(capacity))) => capacity,
                // The client has gone.
                Ok(Some(Err(_)) | None) => return Err(h2::Reason::CANCEL),
                Err(_) => return Err(h2::Reason::ENHANCE_YOUR_CALM),
            },
            capacity => capacity,
        };
        let part = reply.split_to(capacity.min(reply.len()));
        if !part.is_empty() {
            stream.send_data(part, false).map_err(|_| h2::Reason::CANCEL)?;
        }
    }
    Ok(())
}

fn answer(request: ReflectionRequest) -> ReflectionResponse {
    let answer = match &request.question {
        Some(ReflectionQuestion::ListServices(_)) => {
            let services = schema::services().map(|name| ListedService { name }).collect();
            ReflectionAnswer::Services(ServiceList { services })
        }
        Some(ReflectionQuestion::FileByFilename(name)) => files(schema::file(name)),
        Some(ReflectionQuestion::FileContainingSymbol(symbol)) => files(schema::file_of(symbol)),
        Some(ReflectionQuestion::FileContainingExtension(_) | ReflectionQuestion::AllExtensionNumbers(_)) => {
            failed(GrpcCode::NotFound, "there are no extensions")
        }
        None => failed(GrpcCode::InvalidArgument, "the request asks nothing"),
    };
    let valid_host = request.host.clone();
    ReflectionResponse { valid_host, original_request: Some(request), answer: Some(answer) }
}

fn files(found: Option<&prost_types::FileDescriptorProto>) -> ReflectionAnswer {
    match found {
        Some(file) => {
            // The files that it imports follow, so that the client need not ask for them.
            let imported = schema::imports_of(file);
            let files = std::iter::once(file).chain(imported).map(Message::encode_to_vec);
            ReflectionAnswer::Files(FileAnswer { files: files.collect() })
        }
        None => failed(GrpcCode::NotFound, "unknown file or symbol"),
    }
}

fn failed(code: GrpcCode, message: &str) -> ReflectionAnswer {
    ReflectionAnswer::Failed(ReflectionFailure { code: code as i32, message: message.to_owned() })
}
