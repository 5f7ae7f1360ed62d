//! Decodes `admin`: the address and token file of the admin API.

use std::net::IpAddr;

use crate::compile::{routing, scalar};
use crate::language::{ADMIN, OFF};
use crate::plan::AdminPlan;
use crate::raw::{Fields, Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;

pub(super) fn admin<'s>(node: Option<&YamlNode<'s>>, report: &mut ProblemReport<'s>) -> Option<AdminPlan> {
    let Some(node) = node else { return Some(AdminPlan::default()) };
    if !matches!(node.value, YamlValue::Mapping(_)) {
        let word = scalar::text(node, "`off`, or a mapping", report)?;
        if !OFF.contains(&word) {
            let finding = Finding::error(node, format!("invalid value {} for `admin`", quote(word)));
            let finding = finding.expected("`off`, or a mapping");
            report.push(finding.hint("write `admin: off`, or `admin: { listen: 127.0.0.1:9900 }`"));
        }
        return None;
    }
    let fields = Fields::open(node, &ADMIN, report)?;
    let token_file = fields
        .get("token_file")
        .and_then(|node| scalar::text(node, "a file name, for example `admin.token`", report))
        .map(str::to_owned);
    let listen = fields.get("listen").and_then(|node| {
        let text = scalar::text(node, "an address, for example `127.0.0.1:9900`", report)?;
        let host = routing::address(node, text, report)?;
        if !is_loopback(host) && fields.get("token_file").is_none() {
            let what = format!("{} is not a loopback address, and `token_file` is not set", quote(text));
            let finding = Finding::error(node, what).expected("a loopback address, or a `token_file`");
            report.push(finding.hint(
                "listen on `127.0.0.1:9900`, or create a token with `openssl rand -hex 32 > admin.token` and add `token_file: admin.token`",
            ));
        }
        Some(text.to_owned())
    });
    Some(AdminPlan { listen, token_file })
}

pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}
