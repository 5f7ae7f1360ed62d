//! wrk: the load that it sends, and the results that it reports.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};

use super::process::{Core, bounded};

/// What one run of wrk asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) path: &'static str,
    pub(crate) connections: usize,
    pub(crate) tls: bool,
    /// A new connection for each request.
    pub(crate) close: bool,
}

/// What wrk reports.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    /// Answers that were neither 2xx nor 3xx.
    pub(crate) refused: u64,
    /// Connections refused, reads and writes that failed, answers that took too long.
    pub(crate) errors: u64,
    pub(crate) p99_micros: f64,
    /// Status, body size and number of answers, where they were counted.
    pub(crate) answers: Vec<(u16, usize, u64)>,
}

impl Load {
    /// Runs for so many seconds; counting answers by kind costs the generator more than sending.
    pub(crate) fn run(&self, dir: &Path, port: u16, seconds: u64, count: bool) -> anyhow::Result<Outcome> {
        let scheme = if self.tls { "https" } else { "http" };
        let mut command = bounded(Core::Rest, &(seconds + 5).to_string(), Path::new("wrk"));
        command
            .args(["--threads", "1", "--latency", "--timeout", "4s", "--script"])
            .arg(dir.join("load.lua"));
        command.args(["--connections", &self.connections.to_string(), "--duration", &seconds.to_string()]);
        command.args([&format!("{scheme}://127.0.0.1:{port}"), "--", self.path]);
        command.args(self.close.then_some("close")).args(count.then_some("count"));
        let output = command.stderr(Stdio::piped()).output().context("cannot start setpriv")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let outcome = outcome(&text).with_context(|| {
            format!("wrk ({}) said: {text} {}", output.status, String::from_utf8_lossy(&output.stderr))
        })?;
        ensure!(outcome.requests > 0, "nothing was answered, {} errors", outcome.errors);
        Ok(outcome)
    }
}

/// Reads wrk's report. Zeros go unmentioned in it.
fn outcome(text: &str) -> Option<Outcome> {
    let mut outcome = Outcome::default();
    let mut complete = false;
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [requests, "requests", "in", ..] => {
                outcome.requests = requests.parse().ok()?;
                complete = true;
            }
            ["Non-2xx", .., refused] => outcome.refused = refused.parse().ok()?,
            ["Socket", "errors:", ..] => {
                let numbers = words.iter().filter_map(|word| word.trim_end_matches(',').parse::<u64>().ok());
                outcome.errors = numbers.sum();
            }
            ["99%", time] => outcome.p99_micros = micros(time)?,
            ["answers", status, size, count] => {
                outcome.answers.push((status.parse().ok()?, size.parse().ok()?, count.parse().ok()?));
            }
            _ => {}
        }
    }
    complete.then_some(outcome)
}

/// `188.00us`, `1.21ms` or `2.00s`.
fn micros(time: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7)];
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((time.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = "
  Latency Distribution
     50%    1.05ms
     99%    2.50ms
  43947 requests in 1.00s, 6.75MB read
  Socket errors: connect 1, read 2, write 3, timeout 4
  Non-2xx or 3xx responses: 12
Requests/sec:  43864.88
answers 200 13 43935
answers 429 0 12";
        let outcome = outcome(text).unwrap();
        assert_eq!((outcome.requests, outcome.refused, outcome.errors), (43947, 12, 10));
        assert!((outcome.p99_micros - 2500.0).abs() < 1e-6);
        assert_eq!(outcome.answers, [(200, 13, 43935), (429, 0, 12)]);
    }

    #[test]
    fn a_report_without_requests_is_none() {
        assert!(outcome("unable to connect").is_none());
    }
}
