use super::*;

const NOW: Timestamp = Timestamp::ZERO;

fn response(headers: &[(&'static str, &str)]) -> Response<()> {
    let mut response = Response::builder();
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap()
}

fn request(headers: &[(&'static str, &'static str)]) -> Request<()> {
    let headers =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    normal_request(Uri::from_static("/a"), headers.collect())
}

fn shared(headers: &[(&'static str, &str)]) -> Option<SharedUse> {
    SharedUse::of(&request(&[]), &response(headers), NOW)
}

#[test]
fn response_that_may_be_personal_is_never_shared() {
    for (name, value) in [
        ("cache-control", "private"),
        ("cache-control", "max-age=60, Private"),
        ("cache-control", "private=\"x-user\", max-age=60"),
        ("cache-control", "NO-STORE"),
        ("cache-control", "no-cache"),
        ("cache-control", "max-age=60, no-cache=\"set-cookie\""),
        ("cache-control", "max-age=\"60, no-store"),
        ("cache-control", "must-understand, no-store, max-age=60"),
        ("pragma", "No-Cache"),
        ("set-cookie", "a=b"),
        ("vary", "*"),
        ("vary", "accept, *"),
        ("content-range", "bytes 0-1/2"),
        ("trailer", "x-checksum"),
    ] {
        assert_eq!(shared(&[(name, value)]), None, "{name}: {value}");
        assert_eq!(
            shared(&[("cache-control", "public, max-age=60"), (name, value)]),
            None,
            "{name}: {value}"
        );
    }
    let public = response(&[("cache-control", "public, max-age=60")]);
    for sent in [("authorization", "Bearer a"), ("cookie", "a=b"), ("cache-control", "no-store")] {
        assert_eq!(SharedUse::of(&request(&[sent]), &public, NOW), None, "{sent:?}");
    }
    for status in [StatusCode::PARTIAL_CONTENT, StatusCode::NOT_FOUND, StatusCode::MOVED_PERMANENTLY] {
        let mut other = response(&[("cache-control", "public, max-age=60")]);
        *other.status_mut() = status;
        assert_eq!(SharedUse::of(&request(&[]), &other, NOW), None, "{status}");
    }
}

#[test]
fn shared_response_is_fresh_as_long_as_it_says_and_then_stale_unless_it_forbids_that() {
    let seconds = Duration::from_secs;
    for (headers, fresh_for, allows_stale) in [
        (&[][..], 0, true),
        (&[("cache-control", "max-age=60")], 60, true),
        (&[("cache-control", "max-age=60, s-maxage=10")], 10, false),
        (&[("cache-control", "Max-Age=60, Must-Revalidate")], 60, false),
        (&[("cache-control", "max-age=60"), ("cache-control", "proxy-revalidate")], 0, false),
        (&[("cache-control", "max-age=60, stale-while-revalidate=5")], 60, true),
        (&[("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT")], 0, true),
    ] {
        let expected = SharedUse { age: Duration::ZERO, fresh_for: seconds(fresh_for), allows_stale };
        assert_eq!(shared(headers), Some(expected), "{headers:?}");
    }
    let aged = shared(&[("cache-control", "max-age=60"), ("age", "20, 1")]).unwrap();
    assert_eq!((aged.age, aged.fresh_for), (seconds(20), seconds(40)));
    let ancient = shared(&[("cache-control", "max-age=60"), ("age", "99999999999999999999999")]).unwrap();
    assert_eq!((ancient.age, ancient.fresh_for), (seconds(OLDEST), Duration::ZERO));
}

#[test]
fn varying_headers_are_all_names_of_all_lines() {
    let named = |headers| {
        varying_headers(response(headers).headers())
            .map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(named(&[]), Some(vec![]));
    assert_eq!(
        named(&[("vary", "Accept ,, x-a"), ("vary", "origin")]),
        Some(vec!["accept".into(), "x-a".into(), "origin".into()])
    );
    assert_eq!(named(&[("vary", "a b")]), None);
}
