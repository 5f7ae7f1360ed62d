//! The same probes sent to nginx, and where its results differ.

use tidegate_testkit::process::Nginx;

use super::deviations::DEVIATIONS;
use super::{Abandoned, LIMIT, Outcome, all, send, upstream};
use crate::fixture::{ResourceLimits, TestGateway};

/// The probes that have different results, as lines of a table; those that no deviation lists are marked.
struct Differences {
    lines: Vec<String>,
    unlisted: usize,
    probes: Vec<String>,
}

impl Differences {
    fn add(&mut self, probe: String, nginx: &Outcome, gateway: &Outcome) {
        let is_listed = DEVIATIONS.iter().any(|deviation| deviation.probes.contains(&probe.as_str()));
        self.unlisted += usize::from(!is_listed);
        let mark = if is_listed { ' ' } else { '!' };
        self.lines.push(format!("{mark} {probe:60} {:50} {}", show(nginx), show(gateway)));
        self.probes.push(probe);
    }

    /// Probes of deviations that have the same result after all.
    fn stale(&self) -> Vec<&str> {
        let listed = DEVIATIONS.iter().flat_map(|deviation| deviation.probes).copied();
        listed.filter(|listed| !self.probes.iter().any(|probe| probe == listed)).collect()
    }
}

fn show(outcome: &Outcome) -> String {
    let forwarded = outcome.forwarded.iter().map(|target| format!("-> {target:.60}"));
    let statuses = outcome.statuses.iter().map(u16::to_string);
    let all: Vec<_> = forwarded.chain(statuses).collect();
    if all.is_empty() { "closed".to_owned() } else { all.join(" ") }
}

#[tokio::test]
#[ignore = "needs nginx: cargo xtask scorecard probes"]
async fn long_probes_differ_from_nginx_only_as_documented() {
    let probes = all();
    let (behind_nginx, behind_gateway) = (upstream().await, upstream().await);
    let nginx = Nginx::start(include_str!("nginx.conf"), behind_nginx.address);
    let gateway = TestGateway::with_limit(&[&behind_gateway], LIMIT, ResourceLimits::default());
    let mut differences = Differences { lines: Vec::new(), unlisted: 0, probes: Vec::new() };
    let count = probes.len();
    for probe in probes {
        let (mut nginx_outcome, _) = send(nginx.address, &behind_nginx, &probe).await;
        nginx_outcome.forwarded.extend(behind_nginx.take_malformed());
        let (mut gateway_outcome, _) = send(gateway.address, &behind_gateway, &probe).await;
        gateway_outcome.forwarded.extend(behind_gateway.take_malformed());
        // How much of an abandoned request is forwarded is a matter of time.
        if !matches!(probe.expected, Abandoned(_)) && nginx_outcome != gateway_outcome {
            differences.add(probe.name, &nginx_outcome, &gateway_outcome);
        }
    }
    println!("  {:60} {:50} tidegate", "probe", "nginx");
    println!("{}", differences.lines.join("\n"));
    for probe in differences.stale() {
        println!("note: `{probe}` is listed as a deviation, but has the same result");
    }
    let Differences { lines, unlisted, .. } = differences;
    println!(
        "{count} probes, {} different results, {unlisted} of them not listed as deviations",
        lines.len()
    );
    assert_eq!(unlisted, 0, "the lines marked with ! are no deviations of docs/gateway.md");
}
