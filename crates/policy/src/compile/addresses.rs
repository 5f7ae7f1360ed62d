//! Reports addresses that two listeners use. The system would let both listen, and give each a part of the connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use crate::host::split_port;
use crate::plan::{AdminPlan, ListenerPlan, ServicePlan};
use crate::raw::{Fields, Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;

/// The listeners of a policy.
pub(super) struct AllListeners<'p> {
    pub(super) gateway: &'p [ListenerPlan],
    /// `None` if the admin API is off.
    pub(super) admin: Option<&'p AdminPlan>,
    pub(super) service: &'p ServicePlan,
}

impl AllListeners<'_> {
    /// Without those of the gateway, if the caller chooses other addresses for it.
    pub(super) fn without_gateway_if(self, is_replaced: bool) -> Self {
        if is_replaced { Self { gateway: &[], ..self } } else { self }
    }
}

/// Reports every listener whose address another one has too.
pub(super) fn check<'s>(
    root: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    AllListeners { gateway, admin, service }: AllListeners<'_>,
    report: &mut ProblemReport<'s>,
) {
    let (listen, in_admin) =
        (fields.get("listen"), fields.get("admin").and_then(|node| child(node, "listen")));
    let gateway = gateway.iter().map(|listener| ("listen".to_owned(), listener.address.as_str(), listen));
    let admin = admin.into_iter().map(|admin| ("admin.listen".to_owned(), admin.address(), in_admin));
    let service = service.listeners().map(|(key, listener)| {
        let node = fields.get("service").and_then(|node| child(node, key));
        (format!("service.{key}"), listener.address.as_str(), node)
    });
    let mut known = HashMap::new();
    for (key, address, node) in gateway.chain(admin).chain(service) {
        let Some(endpoint) = endpoint(address) else { continue };
        // A listener of the service without a node is one of the command line.
        let is_default = node.is_none() && !key.starts_with("service");
        let name = format!("{}{}", quote(&key), if is_default { " (its default)" } else { "" });
        match known.entry(endpoint) {
            Entry::Vacant(entry) => {
                entry.insert((name, node));
            }
            Entry::Occupied(entry) => {
                let (other, other_node) = entry.get();
                let what = format!("{name} has the address of {other}: {}", quote(address));
                let finding = Finding::error(node.or(*other_node).unwrap_or(root), what);
                report
                    .push(finding.expected("an address of its own").hint("use another port for one of them"));
            }
        }
    }
}

/// The value of `key`, if `node` is a mapping that has it.
fn child<'n, 's>(node: &'n YamlNode<'s>, key: &str) -> Option<&'n YamlNode<'s>> {
    let YamlValue::Mapping(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key.text == key).map(|entry| &entry.value)
}

/// The host and the port of an address in one spelling; `None` if the system chooses the port.
fn endpoint(address: &str) -> Option<(String, u16)> {
    let (host, port) = split_port(address);
    let port = port?.parse().ok().filter(|port| *port != 0)?;
    let host = host.to_ascii_lowercase();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let host = match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) if bare == "localhost" => "127.0.0.1".to_owned(),
        Err(_) => bare.to_owned(),
    };
    Some((host, port))
}
