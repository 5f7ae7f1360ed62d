//! Decodes `service`: the listeners of the decision service.

use crate::compile::{CompileContext, admin, files, network, routing, scalar};
use crate::language::{SERVICE, SERVICE_LISTENER, SERVICE_TLS};
use crate::plan::{CertificatePlan, ClientCaPlan, Secret, SecretFile, ServiceListenerPlan, ServicePlan};
use crate::raw::{Fields, Finding, YamlNode, YamlValue};
use crate::render::quote;

/// The minimum length of a token in bytes; shorter ones can be guessed.
const MIN_TOKEN_LENGTH: usize = 16;

/// Addresses that replace those of `service`, or add listeners.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceAddresses<'o> {
    /// Replaces `service.grpc`.
    pub grpc: Option<&'o str>,
    /// Replaces `service.http`.
    pub http: Option<&'o str>,
    /// Replaces `service.resp`.
    pub resp: Option<&'o str>,
}

pub(super) fn service<'s>(
    root: &YamlNode<'s>,
    node: Option<&YamlNode<'s>>,
    addresses: ServiceAddresses<'_>,
    context: &mut CompileContext<'s, '_>,
) -> ServicePlan {
    let fields = node.and_then(|node| Fields::open(node, &SERVICE, &mut context.report));
    let mut listener = |key: &str, replacement: Option<&str>| {
        let node = fields.as_ref().and_then(|fields| fields.get(key));
        let planned = node.and_then(|node| listener(node, replacement.is_some(), context));
        let Some(address) = replacement else { return planned };
        let mut planned = planned.unwrap_or(ServiceListenerPlan {
            address: String::new(),
            tls: None,
            client_ca: None,
            token: None,
        });
        address.clone_into(&mut planned.address);
        check_address(node.unwrap_or(root), &planned, context);
        Some(planned)
    };
    let (grpc, http, resp) = (
        listener("grpc", addresses.grpc),
        listener("http", addresses.http),
        listener("resp", addresses.resp),
    );
    let trusted_peers = fields.as_ref().and_then(|fields| fields.get("trusted_peers"));
    let networks = trusted_peers.map(|node| network::networks(node, &mut context.report)).unwrap_or_default();
    let trusted_peers = networks.into_iter().map(|(network, _)| network).collect();
    ServicePlan { grpc, http, resp, trusted_peers }
}

/// Decodes a listener. If `is_replaced`, another address is used.
fn listener<'s>(
    node: &YamlNode<'s>,
    is_replaced: bool,
    context: &mut CompileContext<'s, '_>,
) -> Option<ServiceListenerPlan> {
    let (at, tls, token) = if matches!(node.value, YamlValue::Mapping(_)) {
        let fields = Fields::open(node, &SERVICE_LISTENER, &mut context.report)?;
        let tls = fields.get("tls").map(|node| certificate(node, context));
        let token = fields.get("token_file").map(|node| token(node, context));
        let address = fields.require("address", &mut context.report);
        (address?, tls, token)
    } else {
        (node, None, None)
    };
    let text = scalar::text(at, "an address, for example `127.0.0.1:8082`", &mut context.report)?;
    // What cannot be read is reported; a missing token must not be reported in addition.
    let is_complete = !matches!(tls, Some(None)) && !matches!(token, Some(None));
    let (tls, client_ca) = tls.flatten().unzip();
    let plan = ServiceListenerPlan {
        address: text.to_owned(),
        tls,
        client_ca: client_ca.flatten(),
        token: token.flatten(),
    };
    if is_complete && !is_replaced {
        check_address(at, &plan, context);
    }
    Some(plan)
}

/// Reports an invalid address, and an address that other machines can reach without authentication.
fn check_address(node: &YamlNode<'_>, plan: &ServiceListenerPlan, context: &mut CompileContext<'_, '_>) {
    let Some(host) = routing::address(node, &plan.address, &mut context.report) else { return };
    if !admin::is_loopback(host) && plan.token.is_none() && plan.client_ca.is_none() {
        let what = format!("{} is not a loopback address, and clients need no token", quote(&plan.address));
        let finding =
            Finding::error(node, what).expected("a loopback address, a `token_file` or a `client_ca`");
        context.report.push(finding.hint(
            "listen on `127.0.0.1`, or create a token with `openssl rand -hex 32 > service.token` and add `token_file: service.token`",
        ));
    }
}

fn certificate<'s>(
    node: &YamlNode<'s>,
    context: &mut CompileContext<'s, '_>,
) -> Option<(CertificatePlan, Option<ClientCaPlan>)> {
    let fields = Fields::open(node, &SERVICE_TLS, &mut context.report)?;
    let certificate = routing::certificate_files(&fields, context);
    let client_ca = fields.get("client_ca").map(|node| routing::pem_file(node, context));
    let client_ca = match client_ca {
        Some(file) => file.map(|file| Some(ClientCaPlan { pem: file.bytes, file: file.name }))?,
        None => None,
    };
    Some((certificate?, client_ca))
}

fn token(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<SecretFile> {
    let file = files::read_file(node, context)?;
    let token = file.bytes.trim_ascii();
    let is_valid = token.iter().all(u8::is_ascii_graphic);
    if token.len() >= MIN_TOKEN_LENGTH && is_valid {
        return Some(SecretFile { secret: Secret::new(token), file: file.name });
    }
    let what = if is_valid {
        format!("the token in {} is too short: {} bytes", quote(&file.shown), token.len())
    } else {
        format!("the token in {} is not one word of ASCII characters", quote(&file.shown))
    };
    let finding =
        Finding::error(node, what).expected(format!("one word of at least {MIN_TOKEN_LENGTH} bytes"));
    context.report.push(finding.hint("create one with `openssl rand -hex 32 > service.token`"));
    None
}
