//! Requests that clients may send to evade limits, and ordinary ones.

use std::net::Ipv4Addr;

use http::{HeaderMap, HeaderName, HeaderValue};

/// A request as a client, or a trusted proxy, sends it.
#[derive(Debug)]
pub(super) struct GeneratedRequest {
    pub(super) method: &'static str,
    /// The authority of an absolute target.
    pub(super) authority: Option<&'static str>,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) is_trusted: bool,
    /// Some interfaces cannot express one.
    pub(super) body: Option<&'static str>,
}

impl GeneratedRequest {
    /// The address at the other end of the connection. The policy trusts the second one.
    pub(super) fn peer(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 0, if self.is_trusted { 9 } else { 2 })
    }

    /// The target of the request line.
    pub(super) fn target(&self) -> String {
        self.authority
            .map_or_else(|| self.path.clone(), |authority| format!("http://{authority}{}", self.path))
    }

    pub(super) fn values(&self, name: &str) -> Vec<&'static str> {
        self.headers
            .iter()
            .filter(|(sent, _)| sent.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
            .collect()
    }

    pub(super) fn header_map(&self) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
            (name.parse().unwrap(), HeaderValue::from_str(value.trim_matches([' ', '\t'])).unwrap())
        };
        self.headers.iter().map(line).collect()
    }
}

/// Chooses requests by a generator of pseudo-random numbers (`SplitMix64`).
pub(super) struct Generator(u64);

const METHODS: [&str; 8] = ["GET", "POST", "GET", "PUT", "OPTIONS", "M-SEARCH", "get", "Post"];
const AUTHORITIES: [&str; 6] =
    ["a.example", "A.Example.:80", "b.example", "c.example", "u@a.example", "[2001:DB8:0::1]:80"];
const HOSTS: [&str; 13] = [
    "a.example",
    "a.example",
    "a.example",
    "A.EXAMPLE.:8080",
    "b.example",
    "c.example",
    "[2001:DB8:0::1]",
    "",
    "a..example",
    "x@a.example",
    "a.example:b",
    "%61.example",
    " a.example\t",
];
const SEGMENTS: [&str; 24] = [
    "login",
    "LOGIN",
    "%6cogin",
    "api",
    "v1",
    "..",
    ".",
    "",
    "search;x=1",
    "..;",
    "%2e%2e",
    "a%2Fb",
    "a%5cb",
    "%zz",
    "%00",
    "a%0ab",
    "%E9",
    "caf%c3%a9",
    "caf%C3%89",
    "{x}",
    "a+b",
    "%7Euser",
    "login%20",
    "reports",
];
const ANN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.bEGG8OMd_-YkBpH_J2dpzewP_9Ddj9fLOAdkj0pjUdc";
const BODIES: [&str; 16] = [
    "username=bob&password=1",
    "{\"username\": \"bob\"}",
    "username=Bob+",
    "{\"user\\u006eame\":\"B\u{f6}b\"}",
    "a=1",
    "{\"user\": {\"username\": \"eve\"}}",
    "username=bob&username=eve",
    "username[]=bob",
    "USERNAME=bob&a=%zz",
    "username=%e9",
    "{\"username\":\"a\",\"USERNAME\":\"b\"}",
    "{\"username\":[\"bob\"]}",
    "{\"username\":7}",
    "{\"username\":\"bob\"",
    "a;username=bob",
    "\u{feff}{}",
];
const HEADERS: [(&str, &[&str]); 28] = [
    ("X-API-Key", &["k1", "k2", "unknown", "a,b", " k1 ", ""]),
    ("x_api_key", &["k2"]),
    ("x.api.key", &["k2"]),
    ("X-User", &["bob", "eve"]),
    ("x_user", &["bob"]),
    ("X-Tenant", &["acme"]),
    ("X-Plan", &["paid", "free", "gold", " paid ", "paid,free", ""]),
    ("x_plan", &["paid"]),
    (
        "Authorization",
        &[
            // ann, ben, ann but expired, ann but signed by another key
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.bEGG8OMd_-YkBpH_J2dpzewP_9Ddj9fLOAdkj0pjUdc",
            "bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJiZW4iLCJleHAiOjQxMDI0NDQ4MDB9.A4hzikXF_ae60UqKE4rxeT5cepcy3GsQVaUP0u7fHrA",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjEwMDB9.r75Mb2w3mXgvj51VmTk589SbqCfK8eYBRPKG8NXAapg",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9._X3crwFmX6Gom_f77r8fNkMp6h9b0psyDJYSJZNrbCo",
            "Bearer opaque",
            "Basic YTpi",
            ANN,
            // ann with the plans paid, gold and [paid], with paid but expired, with paid but unsigned, with two plans
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsInBsYW4iOiJwYWlkIn0.quITZlcihsp-SI187Vhb_Px8x26SofLe6eDfuIbyuHs",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsInBsYW4iOiJnb2xkIn0.UBK5oG9vGBVF7A-p5QZt6xZGCoO9KpdoE_7bFMT4yHY",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsInBsYW4iOlsicGFpZCJdfQ.HDTZTnhIuTqHIO5FdEBHgMq3aEf7isavJhgesyasgEA",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjEwMDksInBsYW4iOiJwYWlkIn0.nRC9njzxIUxJYjOOpz4bL2Gj-1gJuDmzl9CdaYO9Iy4",
            "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsInBsYW4iOiJwYWlkIn0.",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsInBsYW4iOiJwYWlkIn0.quITZlcihsp-SI187Vhb_Px8x26SofLe6eDfuIbyuHs, eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsInBsYW4iOiJmcmVlIn0.vJvl9lHxUoADJNGZt89lBLrhOtJkaC-fLIpcTQGlFxw",
        ],
    ),
    ("Cookie", &["session=abc", "a=b; session=\"d e\"", "session=x; session=y", "other=1"]),
    (
        "X-Forwarded-For",
        &[
            "192.0.2.7",
            "192.0.2.7, 198.51.100.1",
            "garbage",
            "192.0.2.8, 127.0.0.9",
            "203.0.113.5",
            "10.9.9.9",
            "64:ff9b::192.0.2.7",
        ],
    ),
    ("Forwarded", &["for=192.0.2.7", "for=198.51.100.1;proto=https", "for=\"_x\""]),
    ("X-Forwarded-Proto", &["https"]),
    ("X-Forwarded-Host", &["admin.example", "a.example"]),
    ("X-Forwarded-Port", &["8443"]),
    ("X-Real-IP", &["192.0.2.7"]),
    ("X-Original-URL", &["/admin"]),
    ("X-Rewrite-URL", &["/admin"]),
    ("X-Criticality", &["critical"]),
    (
        "Connection",
        &["keep-alive", "x-api-key", "keep-alive, X-Forwarded-For", "X-Plan", "te", "cookie", "x-other"],
    ),
    ("X-Cost", &["3", "many", "0"]),
    ("x_cost", &["7"]),
    ("User-Agent", &["curl", "bot"]),
    ("X-Other", &["1", "  2"]),
    (
        "Content-Type",
        &[
            "application/x-www-form-urlencoded",
            "application/json",
            "application/json; charset=utf-8",
            "text/plain",
            "multipart/form-data; boundary=x",
            "application/json; charset=utf-16",
            "",
        ],
    ),
    ("Content-Encoding", &["identity", "gzip", "identity, gzip"]),
    ("X-Match", &["a", "b"]),
    ("x_match", &["a"]),
];

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ bits >> 31) % bound as u64).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// The next request.
    pub(super) fn next(&mut self) -> GeneratedRequest {
        let is_odd = self.one_in(2);
        let method = if is_odd { self.choose(&METHODS) } else { self.choose(&METHODS[..3]) };
        let authority = self.one_in(12).then(|| self.choose(&AUTHORITIES));
        let mut headers = Vec::new();
        let hosts = if is_odd && self.one_in(8) { self.below(3) } else { 1 };
        for _ in 0..hosts {
            let host = if is_odd { self.choose(&HOSTS) } else { self.choose(&HOSTS[..5]) };
            headers.push(("Host", host));
        }
        for _ in 0..self.below(5) {
            let (name, values) = self.choose(&HEADERS);
            // The first values are ordinary.
            let value = if is_odd { self.choose(values) } else { values[0] };
            headers.push((name, value));
            if is_odd && self.one_in(10) {
                headers.push((name, self.choose(values)));
            }
        }
        let (path, is_trusted) = (self.path(is_odd), self.one_in(2));
        let body = self.one_in(3).then(|| self.choose(&BODIES));
        if body.is_some() && self.one_in(2) {
            headers.push((
                "Content-Type",
                self.choose(&["application/x-www-form-urlencoded", "application/json"]),
            ));
        }
        let path = if body.is_some() && self.one_in(2) { "/login".to_owned() } else { path };
        GeneratedRequest { method, authority, path, headers, is_trusted, body }
    }

    fn path(&mut self, is_odd: bool) -> String {
        if is_odd && self.one_in(40) {
            return "*".to_owned();
        }
        let mut path = String::new();
        for _ in 0..self.below(4) {
            path.push('/');
            path.push_str(if is_odd { self.choose(&SEGMENTS) } else { self.choose(&SEGMENTS[..5]) });
        }
        if path.is_empty() {
            path.push('/');
        }
        if self.one_in(6) {
            path.push_str("?q=1&x=%2F");
        }
        path
    }
}
