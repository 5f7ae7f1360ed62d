//! Decodes `listen`, `upstreams` and `routes`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use tidegate_core::TimeSpan;

use crate::compile::files::ReferencedFile;
use crate::compile::resilience::{self, FallbackReference};
use crate::compile::{CompileContext, files, http, scalar};
use crate::endpoints::EndpointPattern;
use crate::host::{normalize_host, split_port};
use crate::language::{HEALTH, LISTEN, ROUTE, TLS, UPSTREAM};
use crate::plan::{
    Balance, CertificatePlan, HealthCheckPlan, HostPattern, HttpOptions, ListenerPlan, Route, Secret,
    UpstreamPlan,
};
use crate::raw::{Fields, Finding, NodeRef, ProblemReport, YamlNode, YamlValue, nearest};
use crate::render::quote;

/// The number of names that a message lists.
const MAX_LISTED_NAMES: usize = 12;
/// Among more names than this no similar name is searched.
const MAX_COMPARED: usize = 1_000;

pub(super) fn listen<'s>(
    node: Option<&YamlNode<'s>>,
    context: &mut CompileContext<'s, '_>,
) -> Vec<ListenerPlan> {
    let Some(node) = node else {
        return vec![ListenerPlan { address: "127.0.0.1:8080".to_owned(), tls: None }];
    };
    let mut listeners: Vec<ListenerPlan> = Vec::new();
    let mut seen = HashSet::new();
    // A single listener may be a mapping instead of a list.
    let items = match &node.value {
        YamlValue::Mapping(_) => std::slice::from_ref(node),
        _ => scalar::one_or_many(node, "address", &mut context.report),
    };
    for item in items {
        let (item, tls) = match &item.value {
            YamlValue::Mapping(_) => {
                let Some(fields) = Fields::open(item, &LISTEN, &mut context.report) else { continue };
                let tls = fields.get("tls").and_then(|node| certificate(node, context));
                let Some(address) = fields.require("address", &mut context.report) else { continue };
                (address, tls)
            }
            _ => (item, None),
        };
        let report = &mut context.report;
        let Some(text) = scalar::text(item, "an address, for example `0.0.0.0:8080`", report) else {
            continue;
        };
        if address(item, text, report).is_none() {
            continue;
        }
        if seen.insert(text.to_owned()) {
            listeners.push(ListenerPlan { address: text.to_owned(), tls });
        } else {
            let finding = Finding::error(item, format!("duplicate address {}", quote(text)));
            report.push(finding.hint("remove one of them"));
        }
    }
    listeners
}

/// Checks an address to listen on and returns its host.
pub(super) fn address<'n>(
    node: &YamlNode<'_>,
    text: &'n str,
    report: &mut ProblemReport<'_>,
) -> Option<&'n str> {
    let (host, port) = split_port(text);
    if port.is_some_and(|port| port.parse::<u16>().is_ok()) && is_host(host) {
        return Some(host);
    }
    let finding = Finding::error(node, format!("invalid listen address {}", quote(text)));
    let hint = match text.parse::<u16>() {
        Ok(port) => format!("add the host: `127.0.0.1:{port}`, or `0.0.0.0:{port}` for all interfaces"),
        Err(_) if text.contains("://") => "remove the scheme".to_owned(),
        Err(_) => "for example `0.0.0.0:8080` or `[::]:8080`".to_owned(),
    };
    report.push(finding.expected("host and port").hint(hint));
    None
}

fn certificate<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<CertificatePlan> {
    let fields = Fields::open(node, &TLS, &mut context.report)?;
    certificate_files(&fields, context)
}

/// Reads the files of `cert` and `key`.
pub(super) fn certificate_files<'s>(
    fields: &Fields<'_, 's>,
    context: &mut CompileContext<'s, '_>,
) -> Option<CertificatePlan> {
    let mut pem = |key: &str| pem_file(fields.require(key, &mut context.report)?, context);
    let (chain, key) = (pem("cert"), pem("key"));
    let (chain, key) = (chain?, key?);
    Some(CertificatePlan {
        chain: chain.bytes,
        key: Secret::new(&key.bytes),
        chain_file: chain.name,
        key_file: key.name,
    })
}

/// Reads a PEM file; reports another format.
pub(super) fn pem_file(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<ReferencedFile> {
    let file = files::read_file(node, context)?;
    let is_pem = file.bytes.windows(11).any(|window| window == b"-----BEGIN ");
    if !is_pem {
        let finding = Finding::error(node, format!("{} is not a PEM file", quote(&file.shown)));
        context.report.push(
            finding.expected("a file that contains `-----BEGIN`").hint("convert it to PEM with openssl"),
        );
    }
    is_pem.then_some(file)
}

/// A host name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inner.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    host.len() <= 253 && host.split('.').all(label)
}

pub(super) fn upstreams<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Vec<UpstreamPlan> {
    let YamlValue::Mapping(entries) = &node.value else {
        let finding = Finding::error(node, format!("`upstreams` must be a mapping, not {}", node.describe()));
        context
            .report
            .push(finding.hint("write each upstream as `NAME: { servers: [http://10.0.0.1:3000] }`"));
        return Vec::new();
    };
    let mut upstreams = Vec::new();
    let mut fallbacks = Vec::new();
    for entry in entries {
        let report = &mut context.report;
        let fields = Fields::open(&entry.value, &UPSTREAM, report);
        let servers = fields.as_ref().and_then(|fields| fields.require("servers", report));
        let servers = servers.map(|node| decode_servers(node, report)).unwrap_or_default();
        let balance = fields.as_ref().and_then(|fields| fields.get("balance"));
        let balance =
            balance.and_then(|node| scalar::choice(node, "balance", &Balance::NAMES, &Balance::ALL, report));
        let health = fields.as_ref().and_then(|fields| fields.get("health"));
        let health = health.and_then(|node| decode_health(node, report));
        let name = entry.key.text.clone().into_owned();
        let balance = balance.unwrap_or_default();
        let (resilience, fallback) =
            fields.map(|fields| resilience::resilience(&fields, &servers, context)).unwrap_or_default();
        fallbacks.extend(fallback.map(|name| FallbackReference { from: upstreams.len(), name }));
        upstreams.push(UpstreamPlan { name, servers, balance, health, resilience });
    }
    resilience::resolve_fallbacks(&mut upstreams, &fallbacks, &mut context.report);
    upstreams
}

fn decode_health<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> Option<HealthCheckPlan> {
    const EVERY: TimeSpan = TimeSpan::from_secs(5);
    let fields = Fields::open(node, &HEALTH, report)?;
    let every = fields.get_or("every", EVERY, |node| scalar::duration(node, report));
    let node = fields.require("path", report)?;
    let path = scalar::text(node, "a path, for example `/healthz`", report)?;
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        let finding = Finding::error(node, format!("invalid path {}", quote(path)));
        report.push(finding.expected("a path that begins with `/`").hint("for example `/healthz`"));
        return None;
    }
    Some(HealthCheckPlan { path: path.to_owned(), every: every? })
}

fn decode_servers(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Vec<String> {
    let mut servers = Vec::new();
    for item in scalar::one_or_many(node, "server", report) {
        let Some(text) = scalar::text(item, "a URL, for example `http://10.0.0.1:3000`", report) else {
            continue;
        };
        match server_problem(text) {
            None => servers.push(text.trim_end_matches('/').to_owned()),
            Some(hint) => {
                let finding = Finding::error(item, format!("invalid server URL {}", quote(text)));
                report.push(
                    finding.expected("http://, https:// or h2c://, a host, and optionally a port").hint(hint),
                );
            }
        }
    }
    servers
}

/// Returns how to fix a server URL; `None` if it is valid.
fn server_problem(text: &str) -> Option<String> {
    let rest = ["http://", "https://", "h2c://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let Some(rest) = rest else {
        return Some(match text.split_once("://") {
            Some((scheme, _)) => format!(
                "replace `{}://` with http://, https:// or h2c://",
                scheme.chars().take(20).map(crate::render::visible).collect::<String>()
            ),
            None => format!(
                "add the scheme: `http://{}`",
                text.chars().take(60).map(crate::render::visible).collect::<String>()
            ),
        });
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) {
        return Some("remove path, query and user name; the path of the request is forwarded".to_owned());
    }
    let (host, port) = split_port(rest);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    (!is_host(host) || !port.is_none_or(is_port)).then(|| "for example `http://10.0.0.1:3000`".to_owned())
}

/// All upstreams, with their names.
struct UpstreamNames<'a> {
    plans: &'a [UpstreamPlan],
    index: HashMap<&'a str, usize>,
    names: Vec<&'a str>,
}

pub(super) fn routes<'s>(
    node: Option<&YamlNode<'s>>,
    upstreams: &[UpstreamPlan],
    http: HttpOptions,
    context: &mut CompileContext<'s, '_>,
) -> Vec<Route> {
    let Some(node) = node else { return Vec::new() };
    let names: Vec<_> = upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    let index = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let known = UpstreamNames { plans: upstreams, index, names };
    let mut seen: HashMap<(HostPattern, EndpointPattern), u32> = HashMap::new();
    let mut routes = Vec::new();
    for item in scalar::list(node, "routes", &mut context.report) {
        let Some(route) = route(item, &known, http, &mut context.report) else { continue };
        let line = item.position.line;
        if let Some(first) = seen.insert((route.host.clone(), route.path.clone()), line) {
            let finding = Finding::error(item, "an earlier route matches the same requests");
            context.report.push(finding.hint(format!("first defined on line {first}; remove one of them")));
        }
        routes.push(route);
        context.targets.routes.push(NodeRef::from(item));
    }
    routes
}

fn route<'s>(
    item: &YamlNode<'s>,
    upstreams: &UpstreamNames<'_>,
    inherited: HttpOptions,
    report: &mut ProblemReport<'s>,
) -> Option<Route> {
    let fields = Fields::open(item, &ROUTE, report)?;
    let host = fields.get_or("host", HostPattern::Any, |node| host(node, report));
    let path = fields.get_or("path", EndpointPattern::everything(), |node| path(node, report));
    let http = http::options(fields.get("http"), inherited, report);
    let upstream = fields.require("upstream", report).and_then(|node| {
        let name = scalar::text(node, "the name of an upstream, for example `api`", report)?;
        let upstream = upstreams.index.get(name).copied();
        if upstream.is_none() {
            report_unknown_upstream(node, name, &upstreams.names, report);
        }
        upstream
    });
    let target = upstream.and_then(|upstream| upstreams.plans.get(upstream));
    let bulkhead = fields.get("bulkhead").and_then(|node| resilience::route_bulkhead(node, target, report));
    Some(Route { host: host?, path: path?, upstream: upstream?, http, bulkhead })
}

pub(super) fn report_unknown_upstream(
    node: &YamlNode<'_>,
    name: &str,
    known: &[&str],
    report: &mut ProblemReport<'_>,
) {
    let finding = Finding::error(node, format!("unknown upstream {}", quote(name)));
    if report.is_full() {
        report.push(finding);
        return;
    }
    let near = if known.len() > MAX_COMPARED { None } else { nearest(name, known.iter().copied()) };
    report.push(match near {
        Some(near) => finding.hint(format!("did you mean `{near}`?")),
        None if known.is_empty() => {
            finding.hint("add it: `upstreams: { NAME: { servers: [http://10.0.0.1:3000] } }`")
        }
        None => {
            let some = known
                .get(..MAX_LISTED_NAMES)
                .map_or_else(|| known.join(", "), |some| some.join(", ") + ", …");
            let finding = finding.expected(format!("one of {some}"));
            finding.hint("correct the name, or add it to `upstreams`")
        }
    });
}

fn host(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<HostPattern> {
    let text = scalar::text(node, "a host, for example `api.example.com`", report)?;
    let name = text.to_ascii_lowercase();
    match name.strip_prefix('*') {
        Some("") => return Some(HostPattern::Any),
        Some(below) if below.strip_prefix('.').is_some_and(is_host) => {
            return Some(HostPattern::Below(below.to_owned()));
        }
        // Normalise the name like the host of a request.
        None if is_host(&name) => {
            let name = normalize_host(&name).map_or_else(|| name.clone(), Cow::into_owned);
            return Some(HostPattern::Exact(name));
        }
        _ => {}
    }
    let finding = Finding::error(node, format!("invalid host {}", quote(text)));
    let finding = finding.expected("a host name, `*.` and a host name, or `*`");
    report.push(finding.hint("remove scheme, port and path, for example `api.example.com`"));
    None
}

/// Decodes a path pattern.
pub(super) fn path(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<EndpointPattern> {
    const EXPECTED: &str = "a path pattern";
    let text = scalar::text(node, "a path, for example `/api/**`", report)?;
    match EndpointPattern::parse(text) {
        Ok(pattern) if pattern.method().is_none() => return Some(pattern),
        Ok(_) => {
            let finding = Finding::error(node, format!("{} contains a method", quote(text)));
            report.push(finding.expected(EXPECTED).hint("remove the method; a rule sets it with `method`"));
        }
        Err(error) => {
            report.push(Finding::error(node, error.to_string()).expected(EXPECTED).hint(error.hint()));
        }
    }
    None
}
