//! A cascade on virtual time: three tiers of which the bottom one hangs, with the stack on and off.
//!
//! Half of the requests to the top tier need the middle one, which needs the bottom one. The other half needs neither and must
//! not notice anything.

mod caller;
mod clock;
mod load;
mod report;
mod tier;

use anyhow::ensure;

use self::caller::Stack;
use self::report::CascadeReport;

/// Runs the cascade with the stack off and on, and prints both.
pub(crate) fn run() -> anyhow::Result<()> {
    let reports = [load::run(Stack::Off)?, load::run(Stack::On)?];
    println!(
        "three tiers, {} requests per second, half of them need the bottom tier; it hangs from {} s to {} s (seed {})",
        load::REQUESTS_PER_SECOND,
        load::HANG.start,
        load::HANG.end,
        load::SEED
    );
    println!("goodput: responses with 200 within {} s\n", load::CLIENT_TIMEOUT.as_secs());
    for report in &reports {
        report.print();
    }
    check(&reports)?;
    println!("target met");
    Ok(())
}

/// With the stack, the top stays responsive and recovers; without it, neither.
fn check([off, on]: &[CascadeReport; 2]) -> anyhow::Result<()> {
    let goodput = on.independent_goodput_percent();
    ensure!(goodput >= 99.0, "with the stack, goodput of independent requests was {goodput:.1} %");
    ensure!(on.recovered_after().is_some_and(|seconds| seconds <= 5), "no recovery with the stack");
    let goodput = off.independent_goodput_percent();
    ensure!(goodput < 50.0, "without the stack, goodput of independent requests was {goodput:.1} %");
    ensure!(off.recovered_after().is_none_or(|seconds| seconds > 5), "recovery without the stack");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cascade_with_stack_stays_responsive_and_recovers_and_without_does_neither() {
        check(&[load::run(Stack::Off).unwrap(), load::run(Stack::On).unwrap()]).unwrap();
    }
}
