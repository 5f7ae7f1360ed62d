use proptest::prelude::{Strategy, prop, prop_assert_eq, prop_oneof, proptest};

use super::{EndpointPattern, Endpoints, Segment};

fn endpoints<'a>(patterns: &[&'a str]) -> Endpoints<&'a str> {
    let mut endpoints = Endpoints::default();
    for pattern in patterns {
        endpoints.insert(&EndpointPattern::parse(pattern).unwrap(), *pattern).unwrap();
    }
    endpoints
}

#[test]
fn find_returns_the_most_specific_pattern() {
    let endpoints = endpoints(&[
        "/**",
        "/api/**",
        "/api/*/users",
        "/api/v1/{thing}",
        "/api/v1/users",
        "/api/v1/users/**",
        "/{a}/v1/orders",
    ]);
    let find = |path| endpoints.find("GET", path).copied();
    assert_eq!(find("/"), Some("/**"));
    assert_eq!(find("/other/deep/path"), Some("/**"));
    assert_eq!(find("/api"), Some("/api/**"));
    assert_eq!(find("/api/v1/users"), Some("/api/v1/users"));
    assert_eq!(find("/api/v1/users/"), Some("/api/v1/users"));
    assert_eq!(find("/api/v1/users/7"), Some("/api/v1/users/**"));
    assert_eq!(find("/api/v1/orders"), Some("/api/v1/{thing}"));
    assert_eq!(find("/api/v2/users"), Some("/api/*/users"));
    assert_eq!(find("/api/v2/orders"), Some("/api/**"));
    assert_eq!(find("/x/v1/orders"), Some("/{a}/v1/orders"));
    assert_eq!(find("/Api/v1/users"), Some("/**"), "paths are case-sensitive");
}

#[test]
fn pattern_with_method_wins_only_on_the_same_path() {
    let endpoints = endpoints(&["/orders", "POST /orders", "PUT /orders/*", "/**", "DELETE /**"]);
    assert_eq!(endpoints.find("POST", "/orders"), Some(&"POST /orders"));
    assert_eq!(endpoints.find("GET", "/orders"), Some(&"/orders"));
    assert_eq!(endpoints.find("DELETE", "/orders"), Some(&"/orders"), "the path takes precedence");
    assert_eq!(endpoints.find("PUT", "/orders/7"), Some(&"PUT /orders/*"));
    assert_eq!(endpoints.find("GET", "/orders/7"), Some(&"/**"), "falls back if the method does not match");
    assert_eq!(endpoints.find("DELETE", "/orders/7"), Some(&"DELETE /**"));
}

#[test]
fn head_matches_get_unless_head_is_given() {
    let endpoints = endpoints(&["GET /a", "/a", "GET /b", "HEAD /b", "POST /c"]);
    assert_eq!(endpoints.find("HEAD", "/a"), Some(&"GET /a"));
    assert_eq!(endpoints.find("HEAD", "/b"), Some(&"HEAD /b"));
    assert_eq!(endpoints.find("GET", "/b"), Some(&"GET /b"));
    assert_eq!(endpoints.find("HEAD", "/c"), None);
}

#[test]
fn wildcard_matches_exactly_one_segment() {
    let endpoints = endpoints(&["/a/*", "/b/{x}/c"]);
    assert_eq!(endpoints.find("GET", "/a"), None);
    assert_eq!(endpoints.find("GET", "/a/"), None);
    assert_eq!(endpoints.find("GET", "/a/b"), Some(&"/a/*"));
    assert_eq!(endpoints.find("GET", "/a/b/c"), None);
    assert_eq!(endpoints.find("GET", "/a/b%2Fc"), Some(&"/a/*"));
    assert_eq!(endpoints.find("GET", "/b/c"), None);
    assert_eq!(endpoints.find("OPTIONS", "*"), None);
}

#[test]
fn pattern_that_matches_the_same_requests_is_a_duplicate() {
    let mut endpoints = endpoints(&["/a/{x}", "GET /a/{x}"]);
    for pattern in ["/a/*", "/a/{y}/", "GET /a/*"] {
        let duplicate = endpoints.insert(&EndpointPattern::parse(pattern).unwrap(), "");
        assert!(duplicate.is_err_and(|error| error.to_string().contains("/a/")), "{pattern}");
    }
    assert_eq!(endpoints.find("GET", "/a/b"), Some(&"GET /a/{x}"));
    assert_eq!(endpoints.find("PUT", "/a/b"), Some(&"/a/{x}"));
}

/// The specificity by segment, then by method. Smaller is more specific.
fn rank(pattern: &EndpointPattern, segments: &[&str], method: &str) -> Option<Vec<u8>> {
    const END: u8 = 0;
    let mut rank = Vec::new();
    let mut left = segments;
    let mut open = false;
    for segment in pattern.segments() {
        rank.push(match segment {
            Segment::Literal(text) if left.first() == Some(&&**text) => 0,
            Segment::One(_) if !left.is_empty() => 1,
            Segment::Rest => {
                open = true;
                2
            }
            _ => return None,
        });
        left = left.get(1..).unwrap_or_default();
    }
    if !open {
        if !left.is_empty() {
            return None;
        }
        rank.push(END);
    }
    rank.push(match pattern.method() {
        Some(wanted) if wanted == method => 0,
        Some("GET") if method == "HEAD" => 1,
        Some(_) => return None,
        None => 2,
    });
    Some(rank)
}

fn segment() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => prop::sample::select(vec!["a", "b", "c"]), 1 => prop::sample::select(vec!["*", "{p}"])]
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    let method = prop::sample::select(vec!["", "", "GET ", "POST ", "HEAD "]);
    let pattern = (method, prop::collection::vec(segment(), 0..5), prop::bool::weighted(0.3)).prop_map(
        |(method, segments, rest)| {
            let mut named = 0;
            let path: String = segments
                .iter()
                .map(|segment| {
                    named += 1;
                    if *segment == "{p}" { format!("/{{p{named}}}") } else { format!("/{segment}") }
                })
                .chain(rest.then(|| "/**".to_owned()))
                .collect();
            format!("{method}{}", if path.is_empty() { "/" } else { &path })
        },
    );
    prop::collection::vec(pattern, 0..30)
}

proptest! {
    #[test]
    fn find_equals_exhaustive_search(
        patterns in patterns(),
        path in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d"]), 0..6),
        slash in prop::bool::ANY,
        method in prop::sample::select(vec!["GET", "POST", "PUT", "HEAD"]),
    ) {
        let mut endpoints = Endpoints::default();
        let mut kept = Vec::new();
        for text in &patterns {
            let pattern = EndpointPattern::parse(text).unwrap();
            let is_new = !kept.contains(&pattern);
            prop_assert_eq!(endpoints.insert(&pattern, pattern.clone()).is_ok(), is_new);
            if is_new {
                kept.push(pattern);
            }
        }
        let slash = if slash && !path.is_empty() { "/" } else { "" };
        let text = format!("/{}{slash}", path.join("/"));
        let ranked = kept.iter().filter_map(|pattern| Some((rank(pattern, &path, method)?, pattern)));
        let expected = ranked.min_by(|one, other| one.0.cmp(&other.0)).map(|(_, pattern)| pattern);
        prop_assert_eq!(endpoints.find(method, &text), expected, "{}", text);
    }
}
