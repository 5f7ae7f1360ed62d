//! Memory of a server that counts a million keys.

use super::contender::Contender;
use super::load::Until;
use super::programs::Programs;
use super::report::{ContenderRounds, ServiceRound};
use crate::bars::Bars;

pub(crate) const NAME: &str = "RESP, memory at a million keys";
const KEYS: usize = 1_000_000;
const BAR: f64 = 0.6;
/// MB, measured elsewhere.
const THROTTLECRAB_REFERENCE: f64 = 142.0;

/// Measures both servers, prints them and counts the bar.
pub(crate) fn run(programs: &Programs, bars: &mut Bars) -> Vec<ContenderRounds> {
    println!("\n{NAME}, MB resident");
    let all: Vec<_> =
        [Contender::Tidegate, Contender::Throttlecrab].map(|contender| measure(programs, contender)).into();
    println!(
        "  {:29} (reference figure, measured elsewhere: {THROTTLECRAB_REFERENCE} MB)",
        "throttlecrab-server"
    );
    let figure = |number: usize| all[number].median(|round: &ServiceRound| round.resident_mb);
    match (figure(0), figure(1)) {
        (Some(ours), Some(theirs)) => bars.at_most("× throttlecrab-server, MB resident", ours / theirs, BAR),
        _ => bars.without_figure("tidegate against throttlecrab-server, MB resident"),
    }
    all
}

fn measure(programs: &Programs, contender: Contender) -> ContenderRounds {
    let mut rounds = ContenderRounds::new(NAME, contender.name(), Some(contender));
    match resident(programs, contender) {
        Ok((before, after)) => {
            println!("  {:29} {after:8.1}  ({before:.1} before the first key)", contender.name());
            rounds.rounds.push(ServiceRound {
                decisions: KEYS as u64,
                resident_mb: after,
                ..ServiceRound::default()
            });
        }
        Err(error) => {
            println!("  {:29} FAILED: {error:#}", contender.name());
            rounds.failed = Some(format!("{error:#}"));
        }
    }
    rounds
}

/// MB before the first key and after the last.
#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn resident(programs: &Programs, contender: Contender) -> anyhow::Result<(f64, f64)> {
    let running = contender.start_with_lasting_keys(programs, KEYS)?;
    let megabytes = || anyhow::Ok(running.running.server.usage()?.resident_bytes as f64 / 1e6);
    let before = megabytes()?;
    let result = running.load(32, Until::EachSentOnce)?;
    anyhow::ensure!(result.rejected == 0, "{} of {KEYS} first requests were rejected", result.rejected);
    Ok((before, megabytes()?))
}
