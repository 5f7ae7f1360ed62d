//! The work for every request does not allocate.
//!
//! The allocator counts per thread, so the other tests of this binary do not interfere.

#![expect(unsafe_code, reason = "counting allocations needs a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use http::header::{COOKIE, FORWARDED, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Uri, Version};
use tidegate_core::Timestamp;
use tidegate_policy::{
    Admission, ClientKind, CookieName, Directory, EndpointPattern, Endpoints, Facts, Fingerprint,
    HeaderTraits, Identities, IdentitySource, IdentitySpec, Matcher, NoFiles, ReadOptions, RequestHead,
    Scratch, compile, normalize, normalize_host,
};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator, counting the allocations of each thread.
struct CountingAllocator;

// SAFETY: every call is forwarded unchanged to the system allocator, which meets the contract. The counter is a
// thread-local `Cell` without a destructor, so accessing it neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller meets the contract of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the contract of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller meets the contract of the system allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations<R>(work: impl FnOnce() -> R) -> usize {
    let before = ALLOCATIONS.get();
    black_box(work());
    ALLOCATIONS.get() - before
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations(|| black_box(Box::new(1))), 1);
    assert_eq!(allocations(|| normalize("/a//b").is_ok()), 1);
}

#[test]
fn normalizing_a_normalised_path_does_not_allocate() {
    for path in ["/", "/api/v1/orders/4711/", "/.well-known/x", "/caf%C3%A9/a%2Fb", "*"] {
        assert_eq!(allocations(|| normalize(black_box(path)).is_ok()), 0, "{path}");
    }
}

#[test]
fn normalizing_a_lowercase_host_does_not_allocate() {
    for host in ["api.example.org", "api.example.org.:443", "[2001:db8::1]:80", "192.0.2.1", ""] {
        assert_eq!(allocations(|| normalize_host(black_box(host)).is_some()), 0, "{host}");
    }
    assert_eq!(allocations(|| normalize_host("API.example.org").is_some()), 1);
}

#[test]
fn finding_an_endpoint_does_not_allocate() {
    let mut endpoints = Endpoints::default();
    for pattern in ["/**", "/api/{version}/orders", "POST /api/v1/orders", "/api/v1/orders/*/items/**"] {
        endpoints.insert(&EndpointPattern::parse(pattern).unwrap(), pattern).unwrap();
    }
    for path in ["/", "/api/v1/orders", "/api/v2/orders/", "/api/v1/orders/7/items/8/9", "/a/b/c/d/e/f"] {
        assert_eq!(allocations(|| endpoints.find("GET", black_box(path))), 0, "{path}");
    }
}

#[test]
fn identifying_a_client_does_not_allocate() {
    let header = |name: &'static str| HeaderName::from_static(name);
    let headers: HeaderMap = [
        (header("x-api-key"), "k1"),
        (header("x-user"), "alice"),
        (header("x-tenant"), "acme"),
        (header("x-forwarded-for"), "198.51.100.1, [2001:db8::7]:80, 10.1.1.1"),
        (FORWARDED, "for=198.51.100.1, for=\"[2001:db8::7]:80\";proto=https, for=10.1.1.1"),
        (COOKIE, "a=1; session=s1"),
        (USER_AGENT, "curl/8"),
    ]
    .into_iter()
    .map(|(name, value)| (name, value.parse().unwrap()))
    .collect();
    let spec = IdentitySpec::default();
    let identities = Identities::new(IdentitySpec {
        user: Some(IdentitySource::Header(header("x-user"))),
        tenant: Some(IdentitySource::Header(header("x-tenant"))),
        addresses: spec.addresses.clone().with_trusted_proxies(["10.0.0.0/8".parse().unwrap()]),
        fingerprint: Some(Fingerprint::new(vec![USER_AGENT]).unwrap()),
        cookie: Some(CookieName::new("session").unwrap()),
        ..spec
    })
    .unwrap();
    let directory = Directory::from_csv(b"k1,free\n", &["free"]).unwrap();
    let peer = [10, 0, 0, 1].into();
    let facts = Facts {
        method: "GET",
        host: Some("example.org"),
        path: "/",
        headers: &headers,
        peer,
        body: tidegate_policy::BodyFacts::Unknown,
    };
    let mut key = Vec::with_capacity(256);
    for kind in ClientKind::NAMED.into_iter().chain([ClientKind::Anonymous]) {
        let count = allocations(|| {
            key.clear();
            let identity = identities.identify(&facts, Some(&directory), Timestamp::from_secs(1_800_000_000));
            assert!(identity.append(kind, &mut key));
            identity.kind()
        });
        assert_eq!(count, 0, "{}", kind.name());
    }
}

#[test]
fn looking_up_an_api_key_does_not_allocate() {
    let directory = Directory::from_csv(b"k1,free,acme\n", &["free"]).unwrap();
    assert_eq!(allocations(|| directory.get(black_box(b"k1")).is_some()), 0);
    assert_eq!(allocations(|| directory.get(black_box(b"k2")).is_some()), 0);
}

#[test]
fn matching_a_request_with_grown_scratch_does_not_allocate() {
    let policy = b"
clients: { user: { header: X-User }, tenant: { header: X-Tenant }, ip: { trusted_proxies: [10.0.0.0/8] } }
rate_limits:
  global: { requests: 9, window: 1 }
  tenant: { requests: 9, window: 1 }
  default: { requests: 9, window: 1 }
  rules:
    - { name: combined, match: { path: '/api/**' }, per: [ip, user], requests: 9, window: 1 }
    - { name: each, match: { method: GET, header: { X-User: alice } }, per_each: [ip, user], requests: 9, window: 1 }
    - { name: costly, cost: { header: X-Cost }, requests: 9, window: 1 }
  endpoints: { '/api/{version}/orders': { requests: 9, window: 1 } }
bans: { networks: [203.0.113.0/24] }
";
    let matcher = Matcher::new(compile("policy.yaml", policy, &NoFiles).unwrap().plan);
    let headers: HeaderMap =
        [("x-api-key", "k1"), ("x-user", "alice"), ("x-tenant", "acme"), ("x-cost", "3")]
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
    let peer = [10, 0, 0, 1].into();
    let facts = Facts {
        method: "GET",
        host: Some("example.org"),
        path: "/api/v1/orders",
        headers: &headers,
        peer,
        body: tidegate_policy::BodyFacts::Unknown,
    };
    let mut scratch = Scratch::default();
    let mut count = || match matcher.admit(&facts, None, Timestamp::ZERO, &mut scratch) {
        Admission::Checked(matched_request) => matched_request.checks().len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(), 8);
    assert_eq!(allocations(&mut count), 0);
}

#[test]
fn reading_a_request_does_not_allocate() {
    let policy = b"
clients: { user: { header: X-User }, ip: { trusted_proxies: [10.0.0.0/8] } }
upstreams: { api: { servers: [http://127.0.0.1:3000] } }
routes: [{ path: '/api/**', upstream: api }]
";
    let matcher = Matcher::new(compile("policy.yaml", policy, &NoFiles).unwrap().plan);
    let mut headers: HeaderMap = [("host", "example.org:80"), ("x-api-key", "k1"), ("connection", "close")]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
    let (uri, peer) = (Uri::from_static("/api/v1/orders"), [192, 0, 2, 1].into());
    let count = allocations(|| {
        let traits = HeaderTraits::trim_and_scan(&mut headers);
        let (version, headers) = (Some(Version::HTTP_11), &mut headers);
        let head = RequestHead { method: "GET", uri: &uri, version, headers, traits, peer };
        let options = ReadOptions { directory: None, needs_route: true, removes_headers: true };
        let read = matcher.read(head, options, || Timestamp::ZERO).unwrap();
        assert_eq!(read.facts().host, Some("example.org"));
        read.is_trusted
    });
    assert_eq!(count, 0);
}

#[test]
fn matching_a_path_with_several_readings_and_grown_scratch_does_not_allocate() {
    let policy = b"
rate_limits:
  rules: [{ name: rule, match: { path: '/Api/**' }, requests: 9, window: 1 }]
  endpoints: { '/api/{version}/orders': { requests: 9, window: 1 }, '/API/v1/caf%C3%A9': { requests: 9, window: 1 } }
";
    let matcher = Matcher::new(compile("policy.yaml", policy, &NoFiles).unwrap().plan);
    let headers = HeaderMap::new();
    let mut scratch = Scratch::default();
    let mut count = |path: &str| {
        let path = normalize(path).unwrap();
        let facts = Facts {
            method: "GET",
            host: Some("example.org"),
            path: &path,
            headers: &headers,
            peer: [10, 0, 0, 1].into(),
            body: tidegate_policy::BodyFacts::Unknown,
        };
        match matcher.admit(&facts, None, Timestamp::ZERO, &mut scratch) {
            Admission::Checked(matched_request) => matched_request.checks().len(),
            other => panic!("{other:?}"),
        }
    };
    for path in ["/API/V1/Orders;v=1", "/api/V1/CAF%C3%89", "/api/v1/orders"] {
        assert_eq!(count(path), 2, "{path}");
        assert_eq!(allocations(|| count(path)), 0, "{path}");
    }
}
