//! Replies of reflection to a client that does not read them.

use h2::server;

use super::super::reflection::send_as_read;
use super::*;

const PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Asks for the file of the rate limit service.
fn question() -> Bytes {
    let symbol = b"envoy.service.ratelimit.v3.RateLimitService";
    let length = u8::try_from(symbol.len()).unwrap();
    Bytes::from([&[0, 0, 0, 0, length + 2, 0x22, length][..], symbol].concat())
}

#[tokio::test]
async fn reflection_has_two_calls_at_once_and_frees_their_places() {
    let service = LoopbackService::start("rate_limits: {}", "domain: d");
    let single = service.connect().await.call(PATH, question()).await;
    assert_eq!(single.status, 0);
    assert!(single.body.len() < 16 << 10, "a reply has {} bytes", single.body.len());

    // No byte of a reply can be sent before the windows are opened.
    let mut builder = Builder::new();
    builder.initial_window_size(0);
    let caller = service.connect_with(&builder).await;
    let questions = Bytes::from(question().repeat(64));
    let mut calls = Vec::new();
    for _ in 0..16 {
        let (response, mut stream) = caller.begin(PATH, &HeaderMap::new()).await;
        stream.send_data(questions.clone(), true).unwrap();
        calls.push(response);
    }
    let mut waiting = Vec::new();
    for response in calls {
        let (parts, incoming) = within("a head", response).await.unwrap().into_parts();
        match parts.headers.get("grpc-status") {
            Some(status) => assert_eq!(status, "8"),
            None => waiting.push(incoming),
        }
    }
    assert_eq!(waiting.len(), 2);
    // Their places are free after they were cancelled.
    drop(waiting);
    tidegate_testkit::wait::soon(async {
        loop {
            let (response, mut stream) = caller.begin(PATH, &HeaderMap::new()).await;
            stream.send_data(question(), true).unwrap();
            if response.await.unwrap().headers().get("grpc-status").is_none() {
                break;
            }
        }
    })
    .await;
}

/// The two ends of a stream, with a window of `window` bytes for the reply.
async fn stream_pair(window: u32) -> (SendStream<Bytes>, RecvStream, SendRequest<Bytes>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    let mut builder = Builder::new();
    builder.initial_window_size(window);
    let serving = async {
        let mut connection = server::handshake(server).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        tokio::spawn(async move { while connection.accept().await.is_some() {} });
        respond.send_response(http::Response::new(()), false).unwrap()
    };
    let asking = async {
        let (mut requests, connection) = builder.handshake::<_, Bytes>(client).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://test/").body(()).unwrap();
        let (response, _) = requests.send_request(request, true).unwrap();
        (response.await.unwrap().into_body(), requests)
    };
    let (stream, (incoming, requests)) = tokio::join!(serving, asking);
    (stream, incoming, requests)
}

#[tokio::test]
async fn reflection_reply_that_is_not_read_is_the_only_one_in_memory() {
    let (mut stream, mut incoming, _requests) = stream_pair(1_000).await;
    let sending = tokio::spawn(async move {
        let sent = send_as_read(&mut stream, Bytes::from(vec![1; 5_000])).await;
        (sent, stream)
    });
    let mut received = 0;
    while received < 1_000 {
        received += incoming.data().await.unwrap().unwrap().len();
    }
    assert!(!sending.is_finished(), "4,000 bytes wait for the client, so the next question is not read");
    let flow = incoming.flow_control();
    flow.release_capacity(received).unwrap();
    while received < 5_000 {
        let length = incoming.data().await.unwrap().unwrap().len();
        received += length;
        incoming.flow_control().release_capacity(length).unwrap();
    }
    let (sent, _stream) = within("the end of the reply", sending).await.unwrap();
    assert_eq!((sent, received), (Ok(()), 5_000));
}

#[tokio::test(start_paused = true)]
async fn reflection_call_of_a_client_that_never_reads_ends() {
    let (mut stream, _incoming, _requests) = stream_pair(0).await;
    // Time passes at once when nothing else can happen.
    let sent = send_as_read(&mut stream, Bytes::from_static(b"reply")).await;
    assert_eq!(sent, Err(h2::Reason::ENHANCE_YOUR_CALM));
}
