//! The time of Redis, as far as this node knows it.

use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::Timestamp;

/// No reply has told the server's time yet.
const UNKNOWN: i64 = i64::MIN;

/// Converts between the clock of this node and that of the server, by the difference that was seen last. Nodes with different
/// clocks agree in the server's time, even while they cannot reach it.
#[derive(Debug)]
pub(crate) struct ServerTime {
    /// The server's time minus the node's, in microseconds.
    offset: AtomicI64,
}

impl ServerTime {
    /// The offset is not known yet; until then both clocks are taken for equal.
    pub(crate) fn unknown() -> Self {
        Self { offset: AtomicI64::new(UNKNOWN) }
    }

    /// Both clocks are the same.
    pub(crate) fn equal() -> Self {
        Self { offset: AtomicI64::new(0) }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.offset.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Learns that the server's time is `server` when the node's is `node`.
    pub(crate) fn observe(&self, server: Timestamp, node: Timestamp) {
        let offset = i128::from(server.as_micros()) - i128::from(node.as_micros());
        self.offset.store(i64::try_from(offset).unwrap_or(0), Ordering::Relaxed);
    }

    /// The server's time at the node's time `node`. What never happens stays so.
    pub(crate) fn at_server(&self, node: Timestamp) -> Timestamp {
        shifted(node, self.offset())
    }

    /// The node's time at the server's time `server`. What never happens stays so.
    pub(crate) fn at_node(&self, server: Timestamp) -> Timestamp {
        shifted(server, self.offset().saturating_neg())
    }

    fn offset(&self) -> i64 {
        match self.offset.load(Ordering::Relaxed) {
            UNKNOWN => 0,
            offset => offset,
        }
    }
}

fn shifted(at: Timestamp, offset: i64) -> Timestamp {
    if at == Timestamp::MAX {
        at
    } else {
        Timestamp::from_micros(at.as_micros().saturating_add_signed(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_by_the_offset_that_was_seen_last() {
        let time = ServerTime::unknown();
        let at = Timestamp::from_secs;
        assert_eq!((time.at_server(at(7)), time.is_known()), (at(7), false));
        for (server, node) in [(100, 90), (90, 100)] {
            time.observe(at(server), at(node));
            assert_eq!((time.at_server(at(node)), time.at_node(at(server))), (at(server), at(node)));
            assert_eq!(
                (time.at_server(Timestamp::MAX), time.at_node(Timestamp::MAX)),
                (Timestamp::MAX, Timestamp::MAX)
            );
        }
        assert_eq!(time.at_server(Timestamp::ZERO), Timestamp::ZERO);
    }
}
