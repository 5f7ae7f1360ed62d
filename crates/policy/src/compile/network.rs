//! Decodes networks, in the policy and in files.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::compile::{CompileContext, files, scalar};
use crate::raw::{Fields, Finding, NodeRef, ProblemReport, YamlNode};
use crate::render::quote;

const EXPECTED: &str = "an address with a prefix length, for example 10.0.0.0/8 or 2001:db8::/32";

/// Why a network is invalid, and how to fix it.
pub(crate) struct NetworkProblem {
    pub(crate) what: String,
    pub(crate) hint: String,
}

/// Decodes one or several networks, each with its node.
pub(super) fn networks(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Vec<(IpNet, NodeRef)> {
    let mut found = Vec::new();
    for item in scalar::one_or_many(node, "network", report) {
        let Some(text) = scalar::text(item, "a network, for example `10.0.0.0/8`", report) else { continue };
        match network(text) {
            Ok(network) => found.push((network, NodeRef::from(item))),
            Err(NetworkProblem { what, hint }) => {
                report.push(Finding::error(item, what).expected(EXPECTED).hint(hint));
            }
        }
    }
    found
}

pub(crate) fn network(text: &str) -> Result<IpNet, NetworkProblem> {
    let problem = |what: String, hint: String| Err(NetworkProblem { what, hint });
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        let hint = if address.contains("..") || address.contains('-') {
            "write ranges with a prefix length: `10.0.0.0/24`"
        } else if address.contains('.') && address.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            "write all four parts of the address"
        } else {
            "write an IP address; host names are not resolved"
        };
        return problem(format!("invalid network {}", quote(text)), hint.to_owned());
    };
    let longest: u8 = if address.is_ipv4() { 32 } else { 128 };
    let Some(prefix) = prefix else { return Ok(IpNet::from(address)) };
    let Some(prefix) = prefix.parse::<u8>().ok().filter(|prefix| *prefix <= longest) else {
        let what = format!("invalid network {}: the prefix length must be 0 to {longest}", quote(text));
        return problem(what, format!("for a single address write `{address}/{longest}`"));
    };
    match IpNet::new(address, prefix) {
        Ok(network) if network.addr() == network.network() => Ok(network),
        // Host bits are more often a typo than intended.
        Ok(network) => problem(
            format!("{} has host bits set", quote(text)),
            format!(
                "write `{}` for the network, or `{address}/{longest}` for the single address",
                network.trunc()
            ),
        ),
        Err(_) => problem(format!("invalid network {}", quote(text)), String::new()),
    }
}

/// Decodes `bans`: the networks of the policy and of the file.
pub(super) fn bans(fields: &Fields<'_, '_>, context: &mut CompileContext<'_, '_>) -> Vec<IpNet> {
    let mut banned: Vec<IpNet> = Vec::new();
    if let Some(node) = fields.get("networks") {
        banned.extend(networks(node, &mut context.report).into_iter().map(|(network, _)| network));
    }
    if let Some(node) = fields.get("file")
        && let Some(file) = files::read_file(node, context)
    {
        let mut invalid = Vec::new();
        for (number, line) in files::lines(&file.bytes) {
            let text = String::from_utf8_lossy(line);
            match network(&text) {
                Ok(network) => banned.push(network),
                Err(NetworkProblem { what, .. }) => invalid.push((number, what)),
            }
        }
        files::report_invalid_lines(node, &file.name, &invalid, EXPECTED, context);
    }
    banned.sort();
    banned.dedup();
    banned
}
