use super::*;

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn get(lines: &[(&'static str, &'static str)], is_trusted: bool) -> Option<PlainGet> {
    let identity = [HeaderName::from_static("x-api-key")];
    let uri = Uri::from_static("http://a/b?c=d");
    let (scheme, method) = (HeaderValue::from_static("http"), Method::GET);
    let target = RequestTarget {
        method: &method,
        has_body: false,
        scheme: &scheme,
        host: Some("a"),
        path: "/b",
        uri: &uri,
    };
    PlainGet::new(target, &headers(lines), ClientHeaders { identity: &identity, is_trusted }, 0)
}

fn keyed(lines: &[(&'static str, &'static str)]) -> Box<[u8]> {
    get(lines, true).unwrap().key
}

#[test]
fn request_with_credentials_or_unusual_headers_takes_no_part() {
    for line in [
        ("authorization", "Basic YQ=="),
        ("cookie", "a=b"),
        ("range", "bytes=0-1"),
        ("if-range", "\"a\""),
        ("if-match", "\"a\""),
        ("content-length", "0"),
        ("content-type", "text/plain"),
        ("transfer-encoding", "chunked"),
        ("expect", "100-continue"),
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("connection", "keep-alive, x-api-key"),
        ("te", "trailers, deflate"),
        ("x-http-method-override", "DELETE"),
        ("x-original-url", "/admin"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-port", "1"),
        ("x-host", "evil.example"),
        ("x-auth-token", "a"),
        ("proxy-authorization", "a"),
    ] {
        assert!(get(&[line], true).is_none(), "{line:?}");
        assert!(get(&[line], false).is_none(), "{line:?}");
    }
    // The server does not see the forwarding headers of an untrusted peer.
    assert!(get(&[("x-forwarded-for", "192.0.2.1")], false).is_none());
    assert!(get(&[("user-agent", "curl/8"), ("accept", "*/*"), ("host", "a")], false).is_some());
}

#[test]
fn request_with_a_body_or_another_method_takes_no_part() {
    let uri = Uri::from_static("/");
    let scheme = HeaderValue::from_static("http");
    for (method, has_body, takes_part) in [
        (Method::GET, false, true),
        (Method::HEAD, false, true),
        (Method::GET, true, false),
        (Method::HEAD, true, false),
        (Method::POST, false, false),
        (Method::OPTIONS, false, false),
    ] {
        let target =
            RequestTarget { method: &method, has_body, scheme: &scheme, host: None, path: "/", uri: &uri };
        let clients = ClientHeaders { identity: &[], is_trusted: false };
        let get = PlainGet::new(target, &HeaderMap::new(), clients, 0);
        assert_eq!(get.is_some(), takes_part, "{method} {has_body}");
        assert_eq!(get.is_some_and(|get| get.fills), method == Method::GET && takes_part);
    }
}

#[test]
fn key_contains_all_that_tells_clients_and_representations_apart() {
    let plain = keyed(&[]);
    let all = [
        ("x-api-key", "a"),
        ("x-api-key", "b"),
        ("x-api-key", ""),
        ("accept", "text/html"),
        ("accept-encoding", "gzip"),
        ("accept-language", "de"),
        ("accept-charset", "utf-8"),
        ("origin", "https://a.example"),
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "192.0.2.1"),
    ];
    let mut keys: Vec<_> = all.iter().map(|line| keyed(&[*line])).collect();
    keys.push(plain.clone());
    keys.push(keyed(&[("x-api-key", "a"), ("x-api-key", "b")]));
    keys.push(keyed(&[("x-api-key", "b"), ("x-api-key", "a")]));
    keys.push(keyed(&[("accept", "a"), ("accept-language", "b")]));
    keys.push(keyed(&[("accept", "b"), ("accept-language", "a")]));
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count);
    let either_order = [[("accept", "a"), ("origin", "b")], [("origin", "b"), ("accept", "a")]];
    assert_eq!(keyed(&either_order[0]), keyed(&either_order[1]));
    for neutral in [("referer", "a"), ("x-request-id", "a"), ("sec-fetch-mode", "cors")] {
        assert_eq!(keyed(&[neutral]), plain, "{neutral:?}");
    }
}

#[test]
fn resource_is_host_path_and_query_without_ambiguity() {
    let resource = |host, path, uri: &str| {
        let (scheme, method, uri) = (HeaderValue::from_static("http"), Method::GET, uri.parse().unwrap());
        RequestTarget { method: &method, has_body: false, scheme: &scheme, host: Some(host), path, uri: &uri }
            .resource()
    };
    let all = [
        resource("a", "/b", "/b"),
        resource("a", "/b", "/b?"),
        resource("a", "/b", "/b?c"),
        resource("a", "/b", "/b?C"),
        resource("a", "/bc", "/bc"),
        resource("a/b", "/c", "/c"),
    ];
    for (index, one) in all.iter().enumerate() {
        assert_eq!(all.iter().filter(|other| *other == one).count(), 1, "{index}");
    }
}

#[test]
fn directives_of_the_request_bound_the_age() {
    for (lines, max_age) in [
        (&[][..], Some(TimeSpan::MAX)),
        (&[("cache-control", "max-age=5")], Some(TimeSpan::from_secs(5))),
        (&[("cache-control", "Max-Age=5, max-age=3")], Some(TimeSpan::from_secs(3))),
        (&[("cache-control", "max-age=0")], Some(TimeSpan::ZERO)),
        (&[("cache-control", "only-if-cached, max-stale=10")], Some(TimeSpan::MAX)),
        (&[("cache-control", "no-cache")], None),
        (&[("cache-control", "No-Store")], None),
        (&[("cache-control", "min-fresh=5")], None),
        (&[("cache-control", "max-age=a")], None),
        (&[("cache-control", "max-age")], None),
        (&[("cache-control", "max-age=5"), ("cache-control", "no-cache")], None),
        (&[("pragma", "no-cache")], None),
    ] {
        assert_eq!(get(lines, false).unwrap().max_age, max_age, "{lines:?}");
    }
}

#[test]
fn value_that_a_service_may_repeat_does_not_fill_the_memory() {
    for (line, fills) in [
        (("referer", "https://evil.example"), false),
        (("if-none-match", "\"evil\""), false),
        (("tracestate", "a=b"), false),
        (("x-request-id", "<script>"), false),
        (("x-request-id", "6f1c2a52-9d0b-4c43-8f3e-0a6f0b7a2f11"), true),
        (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), true),
        (("cache-control", "max-age=0, evil=\"<b>\""), false),
        (("cache-control", "max-age=0"), true),
        (("sec-fetch-mode", "cors"), true),
        (("priority", "u=1, i"), true),
        (("connection", "Keep-Alive"), true),
    ] {
        assert_eq!(get(&[line], false).map(|get| get.fills), Some(fills), "{line:?}");
    }
}
