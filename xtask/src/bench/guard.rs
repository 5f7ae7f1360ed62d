//! Compares the rows with the recorded ratios, and records them.
//!
//! Ratios within a round vary little, but a shared machine has bad minutes. Therefore a row that looks worse is measured again, up
//! to twice, and two of three runs decide.

use std::collections::BTreeMap;
use std::process::ExitCode;

use super::baseline::{self, Baseline, FILE, Recorded};
use super::measurement::{measure, median, prepare};
use super::progress::{Progress, machine_load};
use super::rows::{CHANGE_ALLOWED, ROWS, Row};

/// Runs of each row when ratios are recorded.
const RECORDED_RUNS: usize = 3;
/// More runs of a row whose first ones differ.
const MORE_RUNS: usize = 2;
/// Exit code of a run that compared nothing, or not all rows, and found no other problem. 2 is a wrong command line.
const NOT_RECORDED: u8 = 3;

/// What the runs of a row show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Worse,
    /// Another run decides.
    Undecided,
}

/// A row after its last run.
#[derive(Debug)]
enum Outcome {
    Good { change: f64 },
    Worse { recorded: f64, runs: Vec<f64> },
    NotRecorded { ratio: f64 },
    Failed(anyhow::Error),
}

/// Measures the rows and compares them with what is recorded for this processor.
pub(crate) fn compare(rows: &[Row]) -> anyhow::Result<ExitCode> {
    let (baseline, processor) = (Baseline::load()?, baseline::processor()?);
    prepare()?;
    let mut progress = Progress::start(rows.len());
    println!("{processor}; {}", machine_load());
    println!("Ratio: time of Tidegate / time of the peer, median of rounds; lower is better.\n");
    let mut outcomes = Vec::new();
    for row in rows {
        progress.next(&row.name());
        let recorded = baseline.ratio(&processor, &row.name());
        let outcome = compare_row(row, recorded, &progress).unwrap_or_else(|error| {
            println!("        FAILED: {error:#}");
            Outcome::Failed(error)
        });
        outcomes.push((row.name(), outcome));
    }
    println!("\n{} rows in {}; {}", rows.len(), progress.elapsed(), machine_load());
    Ok(report(&outcomes, &baseline, &processor))
}

fn compare_row(row: &Row, recorded: Option<f64>, progress: &Progress) -> anyhow::Result<Outcome> {
    let mut runs = Vec::new();
    loop {
        let measurement = measure(row)?;
        let ratio = measurement.ratio;
        runs.push(ratio);
        let Some(recorded) = recorded else {
            println!("        {measurement}, not recorded");
            return Ok(Outcome::NotRecorded { ratio });
        };
        println!("        {measurement}, recorded {recorded:.4}: {}", percent(ratio / recorded - 1.0));
        match verdict(recorded, &runs) {
            Verdict::Good => return Ok(Outcome::Good { change: median(runs) / recorded - 1.0 }),
            Verdict::Worse => return Ok(Outcome::Worse { recorded, runs }),
            Verdict::Undecided => {
                println!(
                    "        {} looks worse; the machine may be busy, so it runs again",
                    progress.elapsed()
                );
            }
        }
    }
}

/// The first good run settles it; after a bad one, two of three runs do.
fn verdict(recorded: f64, runs: &[f64]) -> Verdict {
    let worse = runs.iter().filter(|ratio| **ratio > recorded * (1.0 + CHANGE_ALLOWED)).count();
    match (worse, runs.len() - worse) {
        (0, 1..) | (_, 2..) => Verdict::Good,
        (2.., _) => Verdict::Worse,
        _ => Verdict::Undecided,
    }
}

/// Prints what to do; the exit code.
fn report(outcomes: &[(String, Outcome)], baseline: &Baseline, processor: &str) -> ExitCode {
    let (mut failed, mut not_recorded) = (0, false);
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Good { change } if *change < -CHANGE_ALLOWED => {
                println!("BETTER  {name}: {}. Record it, so that it stays.", percent(*change));
            }
            Outcome::Good { .. } => {}
            Outcome::Worse { recorded, runs } => {
                failed += 1;
                let measured = median(runs.clone());
                let shown: Vec<_> = runs.iter().map(|ratio| format!("{ratio:.4}")).collect();
                let (commit, date) = baseline.origin(processor, name).unwrap_or_default();
                println!(
                    "WORSE   {name}: recorded {recorded:.4} ({commit}, {date}), measured {measured:.4} ({}), {}",
                    shown.join(", "),
                    percent(measured / recorded - 1.0)
                );
            }
            Outcome::NotRecorded { ratio } => {
                not_recorded = true;
                println!("NEW     {name}: {ratio:.4}");
            }
            Outcome::Failed(error) => {
                failed += 1;
                println!("FAILED  {name}: {error:#}");
            }
        }
    }
    if not_recorded {
        println!("{}", not_recorded_message(baseline, processor));
    }
    let limit = 100.0 * CHANGE_ALLOWED;
    if failed > 0 {
        println!(
            "{failed} of {} rows failed or are more than {limit:.0} % worse than recorded",
            outcomes.len()
        );
        ExitCode::FAILURE
    } else if not_recorded {
        ExitCode::from(NOT_RECORDED)
    } else {
        println!("no row is more than {limit:.0} % worse than recorded");
        ExitCode::SUCCESS
    }
}

fn not_recorded_message(baseline: &Baseline, processor: &str) -> String {
    let known = baseline.processors();
    let what = if known.contains(&processor) {
        format!("{FILE} lacks these rows of this processor ({processor})")
    } else {
        let known = if known.is_empty() { "none".to_owned() } else { known.join("; ") };
        format!("{FILE} has no ratios of this processor ({processor}); it has: {known}")
    };
    format!(
        "{what}. They were not compared. `cargo xtask bench --record` records them; do so on the commit to compare with, on an \
         idle machine."
    )
}

/// Measures the rows several times and records the medians for this processor.
pub(crate) fn record(rows: &[Row]) -> anyhow::Result<ExitCode> {
    let (mut baseline, processor, origin) = (Baseline::load()?, baseline::processor()?, baseline::origin()?);
    prepare()?;
    let mut progress = Progress::start(rows.len() * RECORDED_RUNS);
    println!("{processor}; {}\n", machine_load());
    // Row after row, several times: runs of one row are minutes apart.
    let mut runs: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for _ in 0..RECORDED_RUNS {
        for (number, row) in rows.iter().enumerate() {
            progress.next(&row.name());
            run_once(row, runs.entry(number).or_default());
        }
    }
    let mut unstable = 0;
    println!();
    for (number, row) in rows.iter().enumerate() {
        let runs = runs.entry(number).or_default();
        for _ in 0..MORE_RUNS {
            if stable(runs).is_none() {
                println!("{}  again, its runs differ: {}", progress.elapsed(), row.name());
                run_once(row, runs);
            }
        }
        if let Some(recorded) = stable(runs) {
            let Recorded { ratio, lowest, highest } = recorded;
            println!("{ratio:.4} ({lowest:.4} to {highest:.4})  {}", row.name());
            baseline.record(&processor, &row.name(), recorded, (&origin.0, &origin.1));
        } else {
            unstable += 1;
            println!("NOT RECORDED, runs differ too much: {runs:.4?}  {}", row.name());
        }
    }
    baseline.retain(&processor, &ROWS.map(|row| row.name()));
    baseline.save()?;
    println!("\nwrote {FILE} in {}, commit {}; {}", progress.elapsed(), origin.0, machine_load());
    if unstable > 0 {
        println!(
            "{unstable} rows were not recorded: run `cargo xtask bench --record --only NAME` on an idle machine"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn run_once(row: &Row, runs: &mut Vec<f64>) {
    match measure(row) {
        Ok(measurement) => {
            println!("        {measurement}");
            runs.push(measurement.ratio);
        }
        Err(error) => println!("        FAILED: {error:#}"),
    }
}

/// The median of enough runs. They may differ by as much as a row may become worse, in the middle three of five, if there are five.
fn stable(runs: &[f64]) -> Option<Recorded> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let outliers = sorted.len().saturating_sub(RECORDED_RUNS) / 2;
    let middle = sorted.get(outliers..sorted.len() - outliers).filter(|runs| runs.len() >= RECORDED_RUNS)?;
    let (lowest, highest) = (*middle.first()?, *middle.last()?);
    let ratio = median(sorted.clone());
    ((highest - lowest) / ratio <= CHANGE_ALLOWED).then_some(Recorded { ratio, lowest, highest })
}

fn percent(change: f64) -> String {
    format!("{:+.1} %", 100.0 * change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_within_the_allowed_change_needs_one_run() {
        assert_eq!(verdict(1.0, &[1.069]), Verdict::Good);
        assert_eq!(verdict(1.0, &[0.5]), Verdict::Good);
    }

    #[test]
    fn row_that_looks_worse_is_decided_by_two_of_three_runs() {
        assert_eq!(verdict(1.0, &[1.08]), Verdict::Undecided);
        assert_eq!(verdict(1.0, &[1.08, 1.09]), Verdict::Worse);
        assert_eq!(verdict(1.0, &[1.08, 1.0]), Verdict::Undecided);
        assert_eq!(verdict(1.0, &[1.08, 1.0, 1.1]), Verdict::Worse);
        assert_eq!(verdict(1.0, &[1.08, 1.0, 1.01]), Verdict::Good);
    }

    #[test]
    fn runs_that_differ_by_more_than_the_allowed_change_are_not_recorded() {
        let recorded = |runs: &[f64]| stable(runs).map(|recorded| recorded.ratio);
        assert_eq!(recorded(&[1.0, 1.02]), None);
        assert_eq!(recorded(&[1.04, 1.0, 1.02]), Some(1.02));
        assert_eq!(recorded(&[1.0, 1.02, 1.1]), None);
        assert_eq!(recorded(&[1.0, 1.02, 1.1, 1.01]), None);
        assert_eq!(recorded(&[1.0, 1.02, 1.1, 1.01, 0.9]), Some(1.01));
    }

    #[test]
    fn unknown_processor_is_reported_with_the_command_that_records_it() {
        let mut baseline = Baseline::default();
        let recorded = Recorded { ratio: 1.0, lowest: 1.0, highest: 1.0 };
        baseline.record("known", "row", recorded, ("abc", "2026-01-02"));
        let message = not_recorded_message(&baseline, "new");
        assert!(message.contains("no ratios of this processor (new); it has: known"), "{message}");
        assert!(message.contains("cargo xtask bench --record"), "{message}");
        assert!(not_recorded_message(&baseline, "known").contains("lacks these rows"));
    }
}
