//! The rows of the guard: a few works of each benchmark, each against one peer.

/// A work and the peer that does it in the same rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The subcommand of `bench-peers`.
    pub(crate) bench: &'static str,
    /// The whole name of the work.
    pub(crate) work: &'static str,
    /// The contender that is ours.
    pub(crate) ours: &'static str,
    pub(crate) peer: &'static str,
    /// The figure in a round: a time for each piece of work.
    pub(crate) figure: Figure,
    /// The number of rounds. With these, the median varies by much less than `CHANGE_ALLOWED`.
    pub(crate) rounds: usize,
}

/// Where the benchmark's JSON has the figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    /// The round is a number.
    Number,
    /// A field of the round.
    Field(&'static str),
}

/// A row is worse if its ratio has risen by more than this.
pub(crate) const CHANGE_ALLOWED: f64 = 0.07;

const TIDEGATE: &str = "tidegate";
/// The processor time of one decision in a process.
const DECIDE: Figure = Figure::Field("processor");
/// The gateway's processor time per request.
const GATEWAY: Figure = Figure::Field("figure");
/// The service's processor time per decision.
const SERVICE: Figure = Figure::Field("cpu_micros");

/// All of them together take less than 4 minutes.
pub(crate) const ROWS: [Row; 12] = [
    Row {
        bench: "decide",
        work: "1 k keys, one by one, 1 thread",
        ours: TIDEGATE,
        peer: "governor 0.10",
        figure: DECIDE,
        rounds: 21,
    },
    Row {
        bench: "decide",
        work: "1 M keys, one by one, 1 thread",
        ours: TIDEGATE,
        peer: "governor 0.10",
        figure: DECIDE,
        rounds: 11,
    },
    Row {
        bench: "resilience",
        work: "rate limit, 1 k keys, 1 thread",
        ours: TIDEGATE,
        peer: "tower_governor",
        figure: Figure::Number,
        rounds: 21,
    },
    Row {
        bench: "resilience",
        work: "stack around a ready service, 1 thread",
        ours: TIDEGATE,
        peer: "tower-resilience",
        figure: Figure::Number,
        rounds: 21,
    },
    Row {
        bench: "gateway",
        work: "limit on, all pass",
        ours: TIDEGATE,
        peer: "nginx",
        figure: GATEWAY,
        rounds: 11,
    },
    Row { bench: "gateway", work: "refusing", ours: TIDEGATE, peer: "nginx", figure: GATEWAY, rounds: 11 },
    Row {
        bench: "service",
        work: "RESP, no pipeline, 32 connections",
        ours: TIDEGATE,
        peer: "throttlecrab-server",
        figure: SERVICE,
        rounds: 11,
    },
    Row {
        bench: "service",
        work: "RESP, pipeline of 16, 32 connections",
        ours: TIDEGATE,
        peer: "redis-server INCR",
        figure: SERVICE,
        rounds: 11,
    },
    Row {
        bench: "service",
        work: "HTTP check, 32 connections",
        ours: TIDEGATE,
        peer: "throttlecrab-server",
        figure: SERVICE,
        rounds: 11,
    },
    Row {
        bench: "service",
        work: "gRPC, 8 connections × 32 streams",
        ours: TIDEGATE,
        peer: "throttlecrab-server",
        figure: SERVICE,
        rounds: 11,
    },
    Row {
        bench: "redis",
        work: "central",
        ours: "tidegate, processor",
        peer: "classic script, processor",
        figure: Figure::Number,
        rounds: 9,
    },
    Row {
        bench: "redis",
        work: "lease",
        ours: "tidegate, processor",
        peer: "classic script, processor",
        figure: Figure::Number,
        rounds: 7,
    },
];

impl Row {
    /// Identifies the row in the record.
    pub(crate) fn name(&self) -> String {
        format!("{}: {} × {}", self.bench, self.work, self.peer)
    }

    /// The arguments of `bench-peers` that measure this row, with this number of rounds.
    pub(crate) fn arguments(&self, rounds: usize) -> Vec<String> {
        let rounds = rounds.to_string();
        let mut arguments = vec![self.bench, "--quick", "--only", self.work, "--exact", "--rounds", &rounds];
        if matches!(self.bench, "gateway" | "service") {
            arguments.extend(["--peer", self.peer]);
        }
        arguments.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::DocumentedCommand;

    #[test]
    fn row_arguments_are_those_of_a_benchmark() {
        for row in ROWS {
            let quoted: Vec<_> =
                row.arguments(row.rounds).iter().map(|argument| format!("'{argument}'")).collect();
            let line = format!("bench-peers -- {}", quoted.join(" "));
            assert_eq!(DocumentedCommand::new("rows.rs", &line).and_then(|command| command.problem()), None);
        }
    }

    #[test]
    fn row_names_are_unique() {
        let mut names = ROWS.map(|row| row.name()).to_vec();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}
