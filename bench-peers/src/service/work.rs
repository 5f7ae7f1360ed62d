//! The works, their contenders and their bars.

use super::contender::{Contender, Transport};

/// A contender's figures on another machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReferenceFigure {
    /// Thousand decisions per second.
    pub(crate) thousands: f64,
    /// CPU µs per decision.
    pub(crate) micros: f64,
}

/// One block of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceWork {
    pub(crate) name: &'static str,
    pub(crate) transport: Transport,
    pub(crate) connections: usize,
    pub(crate) contenders: &'static [(Contender, Option<ReferenceFigure>)],
    /// How many times as fast as another contender Tidegate must be.
    pub(crate) bars: &'static [(Contender, f64)],
}

/// Measured elsewhere.
const fn elsewhere(thousands: f64, micros: f64) -> ReferenceFigure {
    ReferenceFigure { thousands, micros }
}

pub(crate) const WORKS: [ServiceWork; 6] = [
    ServiceWork {
        name: "RESP, no pipeline, 32 connections",
        transport: Transport::Resp { depth: 1 },
        connections: 32,
        contenders: &[
            (Contender::Tidegate, None),
            (Contender::Throttlecrab, Some(elsewhere(111.0, 8.9))),
            (Contender::RedisIncr, Some(elsewhere(144.0, 6.9))),
        ],
        bars: &[(Contender::Throttlecrab, 1.3), (Contender::RedisIncr, 1.1)],
    },
    ServiceWork {
        name: "RESP, pipeline of 16, 32 connections",
        transport: Transport::Resp { depth: 16 },
        connections: 32,
        contenders: &[
            (Contender::Tidegate, None),
            (Contender::TidegateAdmitting, None),
            (Contender::RedisIncr, None),
            (Contender::RedisClassic, Some(elsewhere(117.0, 8.6))),
        ],
        bars: &[(Contender::RedisIncr, 1.5), (Contender::RedisClassic, 10.0)],
    },
    ServiceWork {
        name: "RESP, pipeline of 64, 32 connections",
        transport: Transport::Resp { depth: 64 },
        connections: 32,
        contenders: &[
            (Contender::Tidegate, None),
            (Contender::TidegateAdmitting, None),
            (Contender::RedisIncr, Some(elsewhere(1450.0, 0.7))),
            (Contender::RedisClassic, Some(elsewhere(124.0, 8.1))),
        ],
        bars: &[(Contender::RedisIncr, 1.5), (Contender::RedisClassic, 10.0)],
    },
    ServiceWork {
        name: "HTTP check, 32 connections",
        transport: Transport::Http,
        connections: 32,
        contenders: &[(Contender::Tidegate, None), (Contender::Throttlecrab, Some(elsewhere(88.0, 11.2)))],
        bars: &[(Contender::Throttlecrab, 1.3)],
    },
    ServiceWork {
        name: "gRPC, 32 connections × 1 stream",
        transport: Transport::Grpc { streams: 1 },
        connections: 32,
        contenders: &[
            (Contender::Tidegate, None),
            (Contender::Limitador, Some(elsewhere(51.0, 19.7))),
            (Contender::Throttlecrab, Some(elsewhere(59.0, 16.8))),
        ],
        bars: &[(Contender::Limitador, 1.3), (Contender::Throttlecrab, 1.0)],
    },
    ServiceWork {
        name: "gRPC, 8 connections × 32 streams",
        transport: Transport::Grpc { streams: 32 },
        connections: 8,
        contenders: &[
            (Contender::Tidegate, None),
            (Contender::Limitador, Some(elsewhere(87.0, 11.5))),
            (Contender::Throttlecrab, Some(elsewhere(118.0, 8.5))),
        ],
        bars: &[(Contender::Limitador, 1.3), (Contender::Throttlecrab, 1.0)],
    },
];
