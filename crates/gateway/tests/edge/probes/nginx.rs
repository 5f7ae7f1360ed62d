//! The same probes sent to nginx, and where its results differ.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tidegate_gateway::ResourceLimits;

use super::deviations::DEVIATIONS;
use super::{Abandoned, LIMIT, Outcome, all, send, upstream};
use crate::support::{Served, Upstream, until};

/// An nginx that forwards everything to one upstream, as its documentation shows it.
struct Nginx {
    process: Child,
    folder: PathBuf,
    address: SocketAddr,
}

impl Nginx {
    async fn before(upstream: &Upstream) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nginx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let configuration = include_str!("nginx.conf")
            .replace("FOLDER", &folder.to_string_lossy())
            .replace("ADDRESS", &address.to_string())
            .replace("UPSTREAM", &upstream.address.to_string());
        let file = folder.join("nginx.conf");
        std::fs::write(&file, configuration).expect("a file");
        let mut command = Command::new("nginx");
        // Debian keeps servers where users do not look for programs.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        command.env("PATH", path).arg("-c").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("nginx is installed: cargo xtask scorecard probes");
        until("nginx listens", || std::net::TcpStream::connect(address).is_ok()).await;
        Self { process, folder, address }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

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
    let nginx = Nginx::before(&behind_nginx).await;
    let served = Served::before(&[&behind_gateway], LIMIT, ResourceLimits::default());
    let mut differences = Differences { lines: Vec::new(), unlisted: 0, probes: Vec::new() };
    let count = probes.len();
    for probe in probes {
        let (mut theirs, _) = send(nginx.address, &behind_nginx, &probe).await;
        theirs.forwarded.extend(behind_nginx.take_malformed());
        let (mut ours, _) = send(served.address, &behind_gateway, &probe).await;
        ours.forwarded.extend(behind_gateway.take_malformed());
        // How much of an abandoned request is forwarded is a matter of time.
        if !matches!(probe.expected, Abandoned(_)) && theirs != ours {
            differences.add(probe.name, &theirs, &ours);
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
