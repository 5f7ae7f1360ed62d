//! One row, measured: `bench-peers` runs it, and its rounds become a ratio.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::rows::{Figure, Row};
use crate::run::{self, cargo, root};
use crate::setup;

const MANIFEST: &str = "bench-peers/Cargo.toml";
/// Lines of a benchmark's output in an error.
const LINES: usize = 8;
/// On an idle machine other processes use less of a core.
const BUSY: f64 = 0.1;

/// Builds everything and installs what is missing, so that no row includes it.
pub(crate) fn prepare() -> anyhow::Result<()> {
    setup::peers()?;
    run::run(bench_peers().arg("prepare"))
}

/// A run of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement {
    /// The time of Tidegate for a piece of work, divided by that of the peer: the median of the rounds.
    pub(crate) ratio: f64,
    /// The share of the server's core that other processes used, where the benchmark knows it.
    others: Option<f64>,
}

impl Display for Measurement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ratio {:.4}", self.ratio)?;
        match self.others {
            Some(others) if others > BUSY => {
                write!(f, " (BUSY: other processes used {:.0} % of the server's core)", 100.0 * others)
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn measure(row: &Row) -> anyhow::Result<Measurement> {
    let json = json_file()?;
    let mut command = bench_peers();
    command.args(row.arguments(row.rounds)).arg("--json").arg(&json);
    let output = command.output().context("cannot start cargo")?;
    let shown = [output.stdout, output.stderr].concat();
    // The benchmark fails if a bar is missed, too. Only one without figures has not worked.
    let figures = fs::read_to_string(&json).ok().with_context(|| last_lines(&shown))?;
    let figures = serde_json::from_str(&figures)?;
    let others = rounds(row, row.ours, Figure::Field("others"), &figures).ok().map(median);
    Ok(Measurement { ratio: ratio(row, &figures)?, others })
}

/// A file in target/ for the figures of a benchmark, which does not exist.
pub(crate) fn json_file() -> anyhow::Result<PathBuf> {
    let folder = root().join("target/bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("figures.json");
    if path.exists() {
        fs::remove_file(&path)?;
    }
    Ok(path)
}

/// The median ratio in the figures that a benchmark wrote.
pub(crate) fn ratio(row: &Row, figures: &Value) -> anyhow::Result<f64> {
    let (ours, theirs) =
        (rounds(row, row.ours, row.figure, figures)?, rounds(row, row.peer, row.figure, figures)?);
    ensure!(
        !ours.is_empty() && ours.len() == theirs.len(),
        "{} has {} rounds, {} has {}",
        row.ours,
        ours.len(),
        row.peer,
        theirs.len()
    );
    let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
    ensure!(ratio.is_normal(), "a contender had no processor time in most rounds: the machine is too busy");
    Ok(ratio)
}

/// A figure of each round of a contender.
fn rounds(row: &Row, contender: &str, figure: Figure, figures: &Value) -> anyhow::Result<Vec<f64>> {
    let measurements = figures.as_array().context("the figures are no list")?;
    let is_wanted = |one: &&Value| one["work"] == row.work && one["contender"] == contender;
    let measurement = measurements
        .iter()
        .find(is_wanted)
        .with_context(|| format!("no figures of {contender} at `{}`", row.work))?;
    if let Some(reason) = measurement["failed"].as_str() {
        bail!("{contender} failed: {reason}");
    }
    let rounds = measurement["rounds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = |round: &Value| match figure {
        Figure::Number => round.as_f64(),
        Figure::Field(name) => round[name].as_f64(),
    };
    rounds.iter().map(|round| number(round).context("a round without a figure")).collect()
}

/// NaN without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

fn bench_peers() -> Command {
    let mut command = cargo("run --quiet --release --manifest-path");
    command.args([MANIFEST, "--"]);
    command
}

fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    format!("the benchmark wrote no figures:\n{}", lines[lines.len().saturating_sub(LINES)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROW: Row = Row {
        bench: "service",
        work: "check",
        ours: "tidegate",
        peer: "other",
        figure: Figure::Field("cpu_micros"),
        rounds: 3,
    };

    #[test]
    fn ratio_is_the_median_of_the_ratios_within_rounds() {
        let rounds = |figures: [f64; 3]| figures.map(|micros| json!({ "cpu_micros": micros, "busy": 1 }));
        let figures = json!([
            { "work": "check", "contender": "other", "rounds": rounds([2.0, 20.0, 4.0]), "failed": null },
            { "work": "check", "contender": "third", "rounds": [] },
            { "work": "check", "contender": "tidegate", "rounds": rounds([1.0, 10.0, 5.0]), "failed": null },
        ]);
        assert!((ratio(&ROW, &figures).unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn rounds_may_be_numbers() {
        let row = Row { figure: Figure::Number, ..ROW };
        let figures = json!([
            { "work": "check", "contender": "other", "rounds": [2.0, 4.0] },
            { "work": "check", "contender": "tidegate", "rounds": [1.0, 1.0] },
        ]);
        assert!((ratio(&row, &figures).unwrap() - 0.375).abs() < 1e-9);
    }

    #[test]
    fn rounds_without_processor_time_are_an_error() {
        let row = Row { figure: Figure::Number, ..ROW };
        for (ours, theirs) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)] {
            let figures = json!([
                { "work": "check", "contender": "other", "rounds": [theirs, theirs] },
                { "work": "check", "contender": "tidegate", "rounds": [ours, ours] },
            ]);
            assert!(ratio(&row, &figures).unwrap_err().to_string().contains("too busy"));
        }
    }

    #[test]
    fn contender_that_failed_is_an_error_with_its_reason() {
        let figures = json!([
            { "work": "check", "contender": "other", "rounds": [], "failed": "it ended at once" },
            { "work": "check", "contender": "tidegate", "rounds": [], "failed": null },
        ]);
        let row = Row { ours: "other", peer: "tidegate", ..ROW };
        assert!(ratio(&row, &figures).unwrap_err().to_string().contains("it ended at once"));
        assert!(ratio(&ROW, &json!([])).unwrap_err().to_string().contains("no figures of tidegate"));
    }
}
