use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::VARY;
use http::{HeaderName, HeaderValue, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use http_cache_semantics::CachePolicy;

use super::table::{CacheEntry, CacheKey, CacheTable};
use crate::tests::{Script, TestServer, URL, respond, respond_with, secs};
use crate::{Client, ClientRequest};

fn cached(script: impl Fn(usize) -> Script + Send + Sync + 'static) -> (Client, Arc<TestServer>) {
    let server = TestServer::new(move |number, _| script(number));
    (server.client(Client::builder().cache(1 << 20)), server)
}

fn body(text: &'static str, headers: &[(&'static str, &str)]) -> Script {
    match respond_with(200, headers) {
        Script::Respond(status, headers, _) => Script::Respond(status, headers, text),
        other => other,
    }
}

/// Sends a request and reads its body. Returns how many times it was sent.
async fn read(request: ClientRequest) -> u32 {
    let response = request.send().await.unwrap();
    let attempts = response.attempts();
    response.bytes().await.unwrap();
    attempts
}

#[tokio::test(start_paused = true)]
async fn fresh_response_is_served_without_a_request() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    for attempts in [1, 0, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(response.attempts(), attempts);
        assert_eq!(response.text().await.unwrap(), "one");
    }
    tokio::time::sleep(secs(61)).await;
    read(client.get(URL)).await;
    assert_eq!(server.count(), 2, "a stale response is requested again");
}

#[tokio::test(start_paused = true)]
async fn stale_response_that_has_not_changed_is_served_again() {
    let (client, server) = cached(|number| match number {
        0 => body("one", &[("cache-control", "max-age=1"), ("etag", "\"a\"")]),
        _ => respond_with(304, &[("cache-control", "max-age=60"), ("etag", "\"a\"")]),
    });
    read(client.get(URL)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for attempts in [1, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.attempts()), (200, attempts));
        assert_eq!(response.text().await.unwrap(), "one");
    }
    assert_eq!(server.received()[1].headers["if-none-match"], "\"a\"");
}

#[tokio::test(start_paused = true)]
async fn validation_that_confirms_another_response_is_requested_again_without_conditions() {
    let (client, server) = cached(|number| match number {
        0 => body("one", &[("cache-control", "max-age=1"), ("etag", "\"a\"")]),
        1 => respond_with(304, &[("cache-control", "max-age=60"), ("etag", "\"b\"")]),
        _ => body("two", &[("cache-control", "max-age=60"), ("etag", "\"b\"")]),
    });
    read(client.get(URL)).await;
    tokio::time::sleep(secs(2)).await;
    for attempts in [2, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.attempts()), (200, attempts));
        assert_eq!(response.text().await.unwrap(), "two");
    }
    let received = server.received();
    assert!(received[1].headers.contains_key("if-none-match"));
    assert!(!received[2].headers.contains_key("if-none-match"));
}

#[tokio::test(start_paused = true)]
async fn responses_are_kept_for_each_value_of_a_header_that_may_identify_a_user() {
    for name in ["authorization", "cookie", "x-api-key", "x-tenant"] {
        let (client, server) = cached(|_| body("mine", &[("cache-control", "private, max-age=60")]));
        let get = async |value| read(client.get(URL).header(name, value)).await;
        for attempts in [1, 0] {
            assert_eq!((get("a").await, get("b").await), (attempts, attempts), "{name}");
        }
        assert_eq!(read(client.get(URL)).await, 1, "{name}: nobody's");
        assert_eq!(server.count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn headers_that_identify_nobody_share_a_response_unless_it_varies() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    for (number, attempts) in [("1", 1), ("2", 0)] {
        let request = client.get(URL).header("x-request-id", number).header("user-agent", number);
        assert_eq!(read(request.header("accept", number)).await, attempts);
    }
    assert_eq!(server.count(), 1);
    let (client, _) = cached(|_| body("one", &[("cache-control", "max-age=60"), ("vary", "accept")]));
    for number in ["1", "2"] {
        assert_eq!(read(client.get(URL).header("accept", number)).await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn response_with_only_a_date_of_change_is_validated_each_time() {
    let modified = ("last-modified", "Tue, 14 Nov 2000 22:13:00 GMT");
    let (client, server) = cached(move |number| match number {
        0 => body("one", &[modified]),
        _ => respond_with(304, &[modified]),
    });
    for _ in 0..3 {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(response.attempts(), 1);
        assert_eq!(response.text().await.unwrap(), "one");
    }
    assert_eq!(server.received()[2].headers["if-modified-since"], modified.1);
}

#[tokio::test(start_paused = true)]
async fn directives_in_any_case_and_beside_any_bytes_are_obeyed() {
    let expires = HeaderValue::from_static("Fri, 31 Dec 9999 23:59:59 GMT");
    for (directives, vary, attempts) in [
        (&b"max-age=600, No-Store"[..], None, 1),
        (b"NO-CACHE, max-age=600", None, 1),
        (b"no-store, x=\xe9", None, 1),
        (b"max-age=600", Some("accept, *"), 1),
        (b"max-age=600", Some("*"), 1),
        (b"Max-Age=600", None, 0),
    ] {
        let (directives, expires) = (HeaderValue::from_bytes(directives).unwrap(), expires.clone());
        let case = format!("{directives:?} {vary:?}");
        let (client, _) = cached(move |_| {
            let mut response =
                Response::new(Full::from("one").map_err(|never| match never {}).boxed_unsync());
            response.headers_mut().insert("cache-control", directives.clone());
            response.headers_mut().insert("expires", expires.clone());
            response.headers_mut().extend(vary.map(|vary| (VARY, HeaderValue::from_static(vary))));
            Script::Custom(response)
        });
        read(client.get(URL)).await;
        assert_eq!(read(client.get(URL)).await, attempts, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_with_a_body_bypass_the_cache() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    for query in ["a", "b"] {
        assert_eq!(read(client.get(URL).body(query)).await, 1);
    }
    assert_eq!((read(client.get(URL)).await, server.count()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn spellings_of_one_host_share_their_responses() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    for url in ["http://localhost/a", "http://LOCALHOST/a", "http://localhost:80/a", "HTTP://LocalHost:/a"] {
        read(client.get(url)).await;
    }
    assert_eq!(server.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_headers_of_a_response_are_all_served() {
    let (client, server) = cached(|number| match number {
        0 => {
            let headers = [("cache-control", "max-age=60"), ("link", "</a>"), ("link", "</b>")];
            body("one", &[headers[0], headers[1], headers[2], ("etag", "\"a\"")])
        }
        _ => respond_with(304, &[("etag", "\"a\"")]),
    });
    for later in [0, 1, 60] {
        tokio::time::sleep(secs(later)).await;
        let response = client.get(URL).header("x-a", "1").send().await.unwrap();
        assert_eq!(response.headers().get_all("link").iter().count(), 2);
        response.text().await.unwrap();
    }
    assert_eq!(server.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn headers_of_an_absurd_age_are_survived() {
    for age in ["18446744073709551615", "-1", "x"] {
        let (client, _) =
            cached(move |_| body("one", &[("cache-control", "max-age=18446744073709551615"), ("age", age)]));
        for _ in 0..2 {
            read(client.get(URL)).await;
            tokio::time::sleep(secs(2)).await;
        }
    }
}

/// Memory that a response refers to.
struct ReadBuffer {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[tokio::test(start_paused = true)]
async fn stored_response_does_not_keep_the_buffers_it_was_read_into() {
    let alive = Arc::new(());
    let shared = Arc::clone(&alive);
    let server = TestServer::new(move |_, _| {
        let mut text = b"max-age=60 x-own body".to_vec();
        text.resize(400_000, b'.');
        let buffer = Bytes::from_owner(ReadBuffer { bytes: text, _alive: Arc::clone(&shared) });
        let value = HeaderValue::from_maybe_shared(buffer.slice(..10)).unwrap();
        let own = HeaderName::from_bytes(&buffer.slice(11..16)).unwrap();
        let response = Response::builder().header("cache-control", value.clone()).header(own, value);
        let body = Full::new(buffer.slice(17..21)).map_err(|never| match never {});
        Script::Custom(response.body(body.boxed_unsync()).unwrap())
    });
    let client = server.client(Client::builder().cache(4 << 20));
    for attempts in [1, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(
            (response.attempts(), response.headers()["x-own"].as_bytes()),
            (attempts, &b"max-age=60"[..])
        );
        assert_eq!(response.text().await.unwrap(), "body");
        assert_eq!(Arc::strong_count(&alive), 2, "only the server has it");
    }
}

/// A body of several frames and unknown length.
fn chunked(frames: &'static [&'static str], headers: &[(&'static str, &'static str)]) -> Script {
    let frames = frames.iter().map(|text| Frame::data(Bytes::from_static(text.as_bytes()))).collect();
    let mut response = Response::builder();
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Script::Custom(response.body(ChunkedBody(frames).boxed_unsync()).unwrap())
}

struct ChunkedBody(VecDeque<Frame<Bytes>>);

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = crate::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, crate::BoxError>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[tokio::test(start_paused = true)]
async fn response_of_unknown_length_is_stored_once_it_was_read() {
    let (client, server) = cached(|_| chunked(&["one", " ", "two"], &[("cache-control", "max-age=60")]));
    for attempts in [1, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(response.attempts(), attempts);
        assert_eq!(response.text().await.unwrap(), "one two");
    }
    assert_eq!(server.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn response_that_is_not_read_to_its_end_or_too_long_is_not_stored() {
    const LONG: &str = match str::from_utf8(&[b'x'; 2_000]) {
        Ok(text) => text,
        Err(_) => "",
    };
    let server = TestServer::new(|_, _| chunked(&["one", LONG], &[("cache-control", "max-age=60")]));
    let large = server.client(Client::builder().cache(1 << 20));
    let mut unread = large.get(URL).send().await.unwrap().into_body();
    assert_eq!(unread.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    drop(unread);
    assert_eq!((read(large.get(URL)).await, read(large.get(URL)).await), (1, 0));
    let small = server.client(Client::builder().cache(16 << 10));
    assert_eq!((read(small.get(URL)).await, read(small.get(URL)).await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn response_that_is_overtaken_by_a_change_is_not_stored() {
    let (client, server) = cached(|_| body("old", &[("cache-control", "max-age=60")]));
    let old = client.get(URL).send().await.unwrap();
    client.put(URL).body("new").send().await.unwrap();
    assert_eq!(old.text().await.unwrap(), "old");
    assert_eq!((read(client.get(URL)).await, server.count()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn change_of_a_resource_removes_its_response_and_errors_are_not_stored() {
    let (client, server) = cached(|number| match number {
        0 => respond(404),
        _ => body("one", &[("cache-control", "max-age=60")]),
    });
    for _ in 0..3 {
        read(client.get(URL)).await;
    }
    assert_eq!(server.count(), 2, "only the 404 was requested again");
    client.put(URL).body("two").send().await.unwrap();
    client.get(URL).send().await.unwrap();
    assert_eq!(server.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn cache_that_is_full_removes_the_least_recently_used() {
    let server = TestServer::new(|_, _| body("x", &[("cache-control", "max-age=3600")]));
    let client = server.client(Client::builder().cache(32 << 10));
    let get = async |path: &str| read(client.get(format!("{URL}/{path}"))).await;
    for path in ["a", "b"] {
        get(path).await;
    }
    for number in 0..20 {
        get("a").await;
        get(&number.to_string()).await;
    }
    assert_eq!((get("a").await, get("19").await, get("b").await), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn cache_counts_the_headers_of_responses() {
    let server = TestServer::new(|_, received| {
        let long = "x".repeat(if received.path.ends_with("long") { 200_000 } else { 100_000 });
        body("x", &[("cache-control", "max-age=3600"), ("x-long", &long)])
    });
    let client = server.client(Client::builder().cache(1 << 20));
    let get = async |path: &str| read(client.get(format!("{URL}/{path}"))).await;
    for number in 0..20 {
        get(&number.to_string()).await;
    }
    assert_eq!((get("19").await, get("11").await, get("0").await), (0, 0, 1), "ten fit");
    get("long").await;
    assert_eq!(get("long").await, 1, "more than an eighth of the cache");
}

#[tokio::test(start_paused = true)]
async fn partitions_have_responses_of_their_own_and_a_change_removes_all() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    let get = async |partition| read(client.get(URL).partition(partition)).await;
    for attempts in [1, 0] {
        assert_eq!((get("").await, get("a").await, get("b").await), (attempts, attempts, attempts));
    }
    client.put(URL).partition("a").send().await.unwrap();
    assert_eq!((get("").await, get("a").await, get("b").await), (1, 1, 1));
    assert_eq!(server.count(), 7);
}

#[test]
fn table_never_holds_more_than_its_bound_and_bodies_being_read_count() {
    let mut table = CacheTable::default();
    let entry = CacheEntry {
        policy: Arc::new(CachePolicy::new(&http::Request::new(()), &Response::new(()))),
        status: http::StatusCode::OK,
        headers: http::HeaderMap::new(),
        body: Bytes::new(),
        size: 100,
        last_use: 0,
    };
    let key = |url: &str| CacheKey { url: url.into(), partition: "".into(), user: "".into() };
    for number in 0..20 {
        table.insert(key(&number.to_string()), entry.clone());
        table.shrink_to(1_000);
    }
    assert!(table.get(&key("10")).is_some() && table.get(&key("9")).is_none(), "ten fit");
    assert!(table.reserve(850, 1_000));
    assert!(table.get(&key("10")).is_some() && table.get(&key("19")).is_none(), "the last used one is left");
    assert!(!table.reserve(151, 1_000), "nothing else can be removed");
    assert!(table.reserve(150, 1_000));
    table.release(1_000);
    assert!(table.reserve(1_000, 1_000));
}

#[tokio::test(start_paused = true)]
async fn change_that_its_caller_does_not_wait_for_removes_the_response() {
    let (client, server) = cached(|number| match number {
        1 => Script::Hang,
        _ => body("one", &[("cache-control", "max-age=60")]),
    });
    read(client.get(URL)).await;
    assert!(tokio::time::timeout(secs(1), client.put(URL).body("two").send()).await.is_err());
    assert_eq!((read(client.get(URL)).await, server.count()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn validated_response_is_as_old_as_its_confirmation() {
    let fresh = [("cache-control", "max-age=60"), ("etag", "\"a\"")];
    let (client, server) = cached(move |number| match number {
        0 => body("one", &[fresh[0], fresh[1], ("age", "60")]),
        _ => respond_with(304, &fresh),
    });
    for attempts in [1, 1, 0, 0] {
        assert_eq!(read(client.get(URL)).await, attempts);
        tokio::time::sleep(secs(10)).await;
    }
    assert_eq!(server.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn response_that_varies_by_a_header_of_several_lines_depends_on_all_of_them() {
    let (client, _) =
        cached(|number| body(["one", "two"][number], &[("cache-control", "max-age=60"), ("vary", "accept")]));
    for (second, attempts) in [("text/html", 1), ("text/html", 0), ("application/json", 1)] {
        let request = http::Request::get(URL).header("accept", "text/plain").header("accept", second);
        assert_eq!(read(client.request(request.body("").unwrap())).await, attempts, "{second}");
    }
}

#[tokio::test(start_paused = true)]
async fn response_that_must_be_validated_is_not_served_to_requests_that_accept_stale_ones() {
    for (name, value) in [("cache-control", "no-cache"), ("pragma", "no-cache")] {
        let (client, server) = cached(move |_| body("one", &[(name, value), ("etag", "\"a\"")]));
        for _ in 0..2 {
            assert_eq!(read(client.get(URL).header("cache-control", "max-stale")).await, 1, "{name}");
        }
        assert_eq!(server.received()[1].headers["if-none-match"], "\"a\"");
    }
}

#[tokio::test(start_paused = true)]
async fn response_that_may_no_longer_be_stored_is_removed() {
    for status in [200, 304] {
        let (client, _) = cached(move |number| match number {
            0 => body("one", &[("cache-control", "max-age=1"), ("etag", "\"a\"")]),
            1 => respond_with(status, &[("cache-control", "no-store"), ("etag", "\"a\"")]),
            _ => body("two", &[("cache-control", "no-store")]),
        });
        for _ in 0..2 {
            read(client.get(URL)).await;
            tokio::time::sleep(secs(2)).await;
        }
        let response = client.get(URL).header("cache-control", "max-stale").send().await.unwrap();
        assert_eq!(response.text().await.unwrap(), "two", "after {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn age_that_is_a_list_or_beyond_the_range_counts() {
    for (age, attempts) in [("99999999999999999999999", 1), ("61, 0", 1), ("1, 61", 0), ("-61", 0)] {
        let (client, _) = cached(move |_| body("one", &[("cache-control", "max-age=60"), ("age", age)]));
        read(client.get(URL)).await;
        assert_eq!(read(client.get(URL)).await, attempts, "{age}");
    }
}
