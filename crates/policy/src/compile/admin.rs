//! Decodes `admin`: the address and token file of the admin API.

use std::net::IpAddr;

use crate::compile::{routing, scalar};
use crate::language::{ADMIN, OFF, POLICY, STORE};
use crate::plan::AdminPlan;
use crate::problem::Problems;
use crate::raw::{self, Fields, Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;

/// Where the admin API of a policy and its token are, for programs that call it.
#[derive(Clone, Debug)]
pub struct AdminLocation {
    /// The admin API; `None` if the policy disables it.
    pub admin: Option<AdminPlan>,
    /// `store.directory`.
    pub directory: Option<String>,
    /// Syntax errors. What follows the first one was not read.
    pub syntax: Problems,
}

/// Finds the admin API of the policy `bytes`, which may be invalid: only `admin` and `store.directory` are read. Fails if these
/// are.
pub fn locate_admin(file: &str, bytes: &[u8]) -> Result<AdminLocation, Problems> {
    let text = super::text(file, bytes).map_err(|problems| *problems)?;
    let mut syntax = ProblemReport::new(file, text);
    let root = raw::parse_prefix(text, &mut syntax);
    let mut report = ProblemReport::new(file, text);
    // What else is wrong with the sections that contain them.
    let mut ignored = ProblemReport::new(file, text);
    let fields = root.as_ref().and_then(|root| Fields::open(root, &POLICY, &mut ignored));
    let section = |key| fields.as_ref().and_then(|fields| fields.get(key));
    let admin = admin(section("admin"), &mut report);
    let store = section("store").and_then(|node| Fields::open(node, &STORE, &mut ignored));
    let directory = store.and_then(|store| directory(&store, &mut report));
    if report.failed() {
        return Err(report.finish(root.as_ref()));
    }
    Ok(AdminLocation { admin, directory, syntax: syntax.finish(root.as_ref()) })
}

/// Decodes `store.directory`.
pub(super) fn directory<'s>(store: &Fields<'_, 's>, report: &mut ProblemReport<'s>) -> Option<String> {
    let text = scalar::text(store.get("directory")?, "a directory, for example `/var/lib/tidegate`", report)?;
    Some(text.to_owned())
}

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
