//! Decodes networks, in the policy and in files.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::compile::{CompileContext, files, scalar};
use crate::networks::embedded_ipv4;
use crate::plan::Clients;
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
    parse_all(node, network, report)
}

fn parse_all(
    node: &YamlNode<'_>,
    parse: impl Fn(&str) -> Result<IpNet, NetworkProblem>,
    report: &mut ProblemReport<'_>,
) -> Vec<(IpNet, NodeRef)> {
    let mut found = Vec::new();
    for item in scalar::one_or_many(node, "network", report) {
        let Some(text) = scalar::text(item, "a network, for example `10.0.0.0/8`", report) else { continue };
        match parse(text) {
            Ok(network) => found.push((network, NodeRef::from(item))),
            Err(NetworkProblem { what, hint }) => {
                report.push(Finding::error(item, what).expected(EXPECTED).hint(hint));
            }
        }
    }
    found
}

/// Parses a network to ban. An IPv6 address without a prefix length means its network of `ipv6_prefix` bits, because one client
/// usually has the whole network; if there is an IPv4 address in it, which is the client, it means that address.
pub(crate) fn banned_network(text: &str, ipv6_prefix: u8) -> Result<IpNet, NetworkProblem> {
    let found = network(text)?;
    match found {
        IpNet::V6(network) if !text.contains('/') => {
            if let Some(address) = embedded_ipv4(network.addr()) {
                return Ok(IpNet::from(IpAddr::from(address)));
            }
            Ok(IpNet::new(found.addr(), ipv6_prefix).map_or(found, |network| network.trunc()))
        }
        _ => Ok(found),
    }
}

/// Parses a network. IPv4 addresses that are written as IPv6 (`::ffff:192.0.2.1`) become IPv4, as those of clients do.
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
    let is_mapped = address.is_ipv6() && address.to_canonical().is_ipv4();
    let address = address.to_canonical();
    let longest: u8 = if address.is_ipv4() { 32 } else { 128 };
    let Some(prefix) = prefix else { return Ok(IpNet::from(address)) };
    // The prefix length of a mapped address counts the 96 bits that are the same for all of them.
    let common = if is_mapped { 96 } else { 0 };
    let prefix = prefix.parse::<u8>().ok().and_then(|prefix| prefix.checked_sub(common));
    let Some(prefix) = prefix.filter(|prefix| *prefix <= longest) else {
        let range = format!("{common} to {}", common + longest);
        let what = format!("invalid network {}: the prefix length must be {range}", quote(text));
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
pub(super) fn bans(
    fields: &Fields<'_, '_>,
    clients: Option<&Clients>,
    context: &mut CompileContext<'_, '_>,
) -> Vec<IpNet> {
    let ipv6_prefix = clients.unwrap_or(&Clients::default()).ipv6_prefix;
    let parse = |text: &str| banned_network(text, ipv6_prefix);
    let mut banned: Vec<IpNet> = Vec::new();
    if let Some(node) = fields.get("networks") {
        banned.extend(parse_all(node, parse, &mut context.report).into_iter().map(|(network, _)| network));
    }
    if let Some(node) = fields.get("file") {
        context.file_bans = sorted(read_networks(node, parse, context));
    }
    banned.extend(&context.file_bans);
    sorted(banned)
}

/// Decodes `allow`: the networks of the policy and of the file. A single IPv6 address means only this address.
pub(super) fn allow(
    node: &YamlNode<'_>,
    fields: &Fields<'_, '_>,
    context: &mut CompileContext<'_, '_>,
) -> Vec<IpNet> {
    let mut allowed: Vec<IpNet> = Vec::new();
    if let Some(node) = fields.get("networks") {
        allowed.extend(networks(node, &mut context.report).into_iter().map(|(network, _)| network));
    }
    match fields.get("file") {
        Some(node) => allowed.extend(read_networks(node, network, context)),
        None if fields.get("networks").is_none() => {
            let finding = Finding::error(node, "`allow` has neither `networks` nor `file`");
            let finding = finding.expected("`networks` or `file`");
            context.report.push(finding.hint("add one of them, or remove `allow` to serve all networks"));
        }
        None => {}
    }
    sorted(allowed)
}

/// Reads a file of networks, one per line.
fn read_networks(
    node: &YamlNode<'_>,
    parse: impl Fn(&str) -> Result<IpNet, NetworkProblem>,
    context: &mut CompileContext<'_, '_>,
) -> Vec<IpNet> {
    let Some(file) = files::read_file(node, context) else { return Vec::new() };
    let (mut found, mut invalid) = (Vec::new(), Vec::new());
    for (number, line) in files::lines(&file.bytes) {
        match parse(&String::from_utf8_lossy(line)) {
            Ok(network) => found.push(network),
            Err(NetworkProblem { what, .. }) => invalid.push((number, what)),
        }
    }
    files::report_invalid_lines(node, &file.shown, &invalid, EXPECTED, context);
    found
}

fn sorted(mut networks: Vec<IpNet>) -> Vec<IpNet> {
    networks.sort();
    networks.dedup();
    networks
}
