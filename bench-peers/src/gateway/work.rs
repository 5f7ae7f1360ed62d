//! The work of every proxy, and its bars.

use super::load::Load;
use super::proxy::{Limit, Proxy};

/// A large body.
pub(crate) const LARGE: usize = 64 * 1024;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// CPU time of the proxy, all its processes, per request.
    CpuMicros,
    /// The latency that one request in a hundred exceeds.
    P99Micros,
}

/// What Tidegate's figure must hold, against another's in the same rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// At most so many times it.
    Times(Proxy, f64),
    /// At most so many microseconds more.
    More(Proxy, f64),
}

/// One block of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) limit: Limit,
    pub(crate) load: Load,
    pub(crate) figure: Figure,
    /// The proxies that take part, and their figures from another machine; × is a ratio to nginx.
    pub(crate) proxies: &'static [(Proxy, &'static str)],
    pub(crate) bars: &'static [Bar],
}

const SMALL: Load = Load { path: "/small", connections: 64, tls: false, close: false };

pub(crate) const WORKS: [Work; 6] = [
    Work {
        name: "limit on, all pass",
        limit: Limit::PassesAll,
        load: SMALL,
        figure: Figure::CpuMicros,
        proxies: &[
            (Proxy::Nginx, "16.4"),
            (Proxy::Haproxy, "16.7"),
            (Proxy::Envoy, "50.2"),
            (Proxy::Tidegate, "–"),
            (Proxy::TidegateUnlimited, "–"),
        ],
        bars: &[
            Bar::Times(Proxy::Nginx, 1.15),
            Bar::Times(Proxy::Envoy, 0.4),
            Bar::More(Proxy::TidegateUnlimited, 1.5),
        ],
    },
    Work {
        name: "refusing",
        limit: Limit::RefusesAll,
        load: SMALL,
        figure: Figure::CpuMicros,
        proxies: &[
            (Proxy::Nginx, "7.8"),
            (Proxy::Haproxy, "8.9"),
            (Proxy::Envoy, "21.2"),
            (Proxy::Tidegate, "–"),
        ],
        bars: &[Bar::Times(Proxy::Nginx, 1.15), Bar::Times(Proxy::Envoy, 0.45)],
    },
    Work {
        name: "64 KiB bodies",
        limit: Limit::PassesAll,
        load: Load { path: "/large", ..SMALL },
        figure: Figure::CpuMicros,
        proxies: &[
            (Proxy::Nginx, "37.2"),
            (Proxy::Haproxy, "45.0"),
            (Proxy::Envoy, "76.9"),
            (Proxy::Tidegate, "–"),
        ],
        bars: &[Bar::Times(Proxy::Nginx, 1.1)],
    },
    Work {
        name: "TLS, keep-alive",
        limit: Limit::PassesAll,
        load: Load { tls: true, ..SMALL },
        figure: Figure::CpuMicros,
        proxies: &[
            (Proxy::Nginx, "1 ×"),
            (Proxy::Haproxy, "1.04 ×"),
            (Proxy::Envoy, "2.44 ×"),
            (Proxy::Tidegate, "–"),
        ],
        bars: &[Bar::Times(Proxy::Nginx, 1.0)],
    },
    // wrk offers the session it had before, and every proxy may resume it, as they all do by default: nginx logs all
    // but the first handshake of each connection as reused, and ours sends a certificate as rarely. Were it forbidden
    // to some, one that resumes would win by that.
    Work {
        name: "TLS, a new connection each",
        limit: Limit::PassesAll,
        load: Load { tls: true, close: true, ..SMALL },
        figure: Figure::CpuMicros,
        proxies: &[
            (Proxy::Nginx, "1 ×"),
            (Proxy::Haproxy, "1.11 ×"),
            (Proxy::Envoy, "0.90 ×"),
            (Proxy::Tidegate, "–"),
        ],
        bars: &[Bar::Times(Proxy::Nginx, 0.75)],
    },
    Work {
        name: "p99 with one connection",
        limit: Limit::PassesAll,
        load: Load { connections: 1, ..SMALL },
        figure: Figure::P99Micros,
        proxies: &[
            (Proxy::Nginx, "188"),
            (Proxy::Haproxy, "229"),
            (Proxy::Envoy, "368"),
            (Proxy::Tidegate, "–"),
        ],
        bars: &[Bar::Times(Proxy::Nginx, 1.5)],
    },
];
