//! Heads that cannot be parsed get an error response like any other rejected request.

use tidegate_testkit::server::{RecordingServer, Reply};

use crate::fixture::{ResourceLimits, TestGateway, policy_before};

fn bounds() -> ResourceLimits {
    ResourceLimits { head_bytes: 8 << 10, headers: 20, ..ResourceLimits::default() }
}

/// Heads that no parser accepts, with the status and the code of the response.
fn heads() -> Vec<(String, u16, &'static str)> {
    let long = "a".repeat(20_000);
    let many = (0..21).fold(String::new(), |many, number| format!("{many}X-{number}: a\r\n"));
    vec![
        ("GARBAGE\r\n\r\n".to_owned(), 400, "bad_request"),
        ("GET /a HTTP/1.1\r\nHost: a\r\nBad Header: 1\r\n\r\n".to_owned(), 400, "bad_request"),
        ("GET /a HTTP/9.9\r\nHost: a\r\n\r\n".to_owned(), 400, "bad_request"),
        ("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n".to_owned(), 400, "bad_request"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431, "head_too_large"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431, "head_too_large"),
    ]
}

#[tokio::test]
async fn unparsable_head_gets_the_configured_error_body() {
    let upstream = RecordingServer::start().await;
    for style in ["flat", "nested", "problem"] {
        let gateway =
            TestGateway::start(&policy_before(&[&upstream], &format!("error_body: {style}")), bounds());
        for (head, status, code) in heads() {
            let mut client = gateway.client().await;
            client.send(head.as_bytes()).await;
            let responses = client.responses().await;
            let [response] = responses.as_slice() else { panic!("{responses:?} to {head:.40}") };
            assert_eq!(
                (response.status, response.header("connection")),
                (status, Some("close")),
                "{head:.40}"
            );
            assert!(response.header("date").is_some(), "{response:?}");
            let body: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
            let (matches, content_type) = match style {
                "flat" => (body["error"] == code, "application/json"),
                "nested" => (body["error"]["code"] == code.to_uppercase(), "application/json"),
                _ => (body["status"] == status, "application/problem+json"),
            };
            assert!(matches, "{style}: {body}");
            assert_eq!(response.header("content-type"), Some(content_type));
        }
    }
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn unparsable_head_of_a_head_request_gets_a_response_without_body() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    let (good, bad) =
        ("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD /a HTTP/1.1\r\nHost: a\r\nBad Header: 1\r\n\r\n");
    for bytes in [bad.to_owned(), format!("\r\n{bad}"), format!("{good}{bad}")] {
        let mut client = gateway.client().await;
        client.send(bytes.as_bytes()).await;
        let responses = String::from_utf8(client.rest().await).expect("text");
        let last = &responses[responses.rfind("HTTP/1.1 400").expect("a response")..];
        assert!(last.ends_with("\r\n\r\n"), "{last}");
        assert!(last.contains("content-length: "), "{last}");
    }
}

#[tokio::test]
async fn unparsable_head_is_counted_as_4xx() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    for (head, ..) in heads() {
        let mut client = gateway.client().await;
        client.send(head.as_bytes()).await;
        client.rest().await;
    }
    assert_eq!(
        gateway.metric("tidegate_responses_total{code=\"4xx\",protocol=\"gateway\"}"),
        heads().len() as u64
    );
}

#[tokio::test]
async fn unparsable_head_after_other_requests_gets_its_response_last() {
    let body = "a".repeat(100_000);
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let upstream = RecordingServer::scripted(move |_| Reply::Keep(response.clone())).await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    for (head, status, _) in heads() {
        let good =
            "GET /a HTTP/1.1\r\nHost: a\r\n\r\nPOST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        let mut client = gateway.client().await;
        client.send(format!("{good}{head}").as_bytes()).await;
        let responses = client.responses().await;
        let statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
        assert_eq!(statuses, [200, 200, status], "{head:.40}");
        assert!(responses[..2].iter().all(|response| response.text() == body), "{head:.40}");
        assert!(!responses[2].body.is_empty());
    }
}

#[tokio::test]
async fn upstream_response_that_looks_like_a_parser_error_is_forwarded() {
    let response = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Keep(response.clone())).await;
    let gateway = TestGateway::start(&policy_before(&[&upstream], ""), bounds());
    let response = gateway.send_raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert_eq!((response.status, response.body.as_slice()), (400, &b""[..]));
}
