//! Configures listeners (addresses and certificates) and binds their sockets.

use std::io::ErrorKind;

use anyhow::anyhow;
use rustix::io::Errno;
use tidegate_listener::{ClientAuthority, ListenError, Listener, ServerCertificate};
use tidegate_policy::{CertificatePlan, Plan, Problems};
use tidegate_telemetry::Protocol;

use crate::certificate;

/// An address to listen on and its certificates.
pub(crate) struct ListenerConfig {
    pub(crate) address: String,
    /// `None` for a listener without TLS.
    pub(crate) certificate: Option<ServerCertificate>,
    /// Issues the certificates that clients need, if they need one.
    pub(crate) client_authority: Option<ClientAuthority>,
}

/// Why the listeners of a policy are invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenerConfigError {
    #[error(
        "--listen {address} cannot replace `listen` of the policy, because its entries use different certificates \
         ({files}); remove --listen, or use the same certificate in all entries"
    )]
    SeveralCertificates { address: String, files: String },
    #[error("{0}")]
    InvalidCertificates(Problems),
}

/// Returns the listeners of `plan`. The address of `--listen` replaces all of them and uses their certificate.
pub(crate) fn configs(
    listen_option: Option<&str>,
    plan: &Plan,
) -> Result<Vec<ListenerConfig>, ListenerConfigError> {
    let entries: Vec<(&str, Option<&CertificatePlan>)> = match listen_option {
        Some(address) => vec![(address, only_certificate(address, plan)?)],
        None => plan.listen.iter().map(|listen| (&*listen.address, listen.tls.as_ref())).collect(),
    };
    let (mut configs, mut problems) = (Vec::new(), Problems::default());
    for (address, tls) in entries {
        match tls.map(certificate::parse).transpose() {
            Ok(certificate) => configs.push(ListenerConfig {
                address: address.to_owned(),
                certificate,
                client_authority: None,
            }),
            Err(problem) => problems.extend([*problem]),
        }
    }
    if problems.is_empty() { Ok(configs) } else { Err(ListenerConfigError::InvalidCertificates(problems)) }
}

/// Returns the listeners of the decision service of `plan`, with their protocols.
pub(crate) fn service_configs(plan: &Plan) -> Result<Vec<(Protocol, ListenerConfig)>, ListenerConfigError> {
    let (mut configs, mut problems) = (Vec::new(), Problems::default());
    for (key, listener) in plan.service.listeners() {
        let certificate = listener.tls.as_ref().map(certificate::parse).transpose();
        let authority = listener.client_ca.as_ref().map(certificate::parse_authority).transpose();
        match (certificate, authority) {
            (Ok(certificate), Ok(client_authority)) => {
                let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name() == key);
                let address = listener.address.clone();
                let config = ListenerConfig { address, certificate, client_authority };
                configs.extend(protocol.map(|protocol| (protocol, config)));
            }
            (certificate, authority) => {
                problems.extend(
                    [certificate.err(), authority.err()].into_iter().flatten().map(|problem| *problem),
                );
            }
        }
    }
    if problems.is_empty() { Ok(configs) } else { Err(ListenerConfigError::InvalidCertificates(problems)) }
}

/// Returns the only certificate of `plan`, or `None` if no listener uses TLS.
fn only_certificate<'p>(
    address: &str,
    plan: &'p Plan,
) -> Result<Option<&'p CertificatePlan>, ListenerConfigError> {
    let mut certificates = plan.listen.iter().filter_map(|listen| listen.tls.as_ref());
    let Some(first) = certificates.next() else { return Ok(None) };
    let is_other = |other: &&CertificatePlan| (&other.chain, &other.key) != (&first.chain, &first.key);
    match certificates.find(is_other) {
        None => Ok(Some(first)),
        Some(other) => Err(ListenerConfigError::SeveralCertificates {
            address: address.to_owned(),
            files: format!("{}, {}", first.chain_file, other.chain_file),
        }),
    }
}

/// Binds the sockets that `inherited` does not provide.
pub(crate) fn bind<'c>(
    configs: impl IntoIterator<Item = &'c ListenerConfig>,
    cores: usize,
    inherited: &mut dyn FnMut(&str) -> anyhow::Result<Option<Listener>>,
) -> anyhow::Result<Vec<Listener>> {
    configs
        .into_iter()
        .map(|ListenerConfig { address, certificate, client_authority }| {
            let listener = match inherited(address)? {
                Some(listener) => listener,
                None => Listener::bind(address, cores).map_err(|error| describe_error(&error, address))?,
            };
            Ok(match certificate {
                Some(certificate) => {
                    listener.with_mutual_tls(certificate.clone(), client_authority.clone())?
                }
                None => listener,
            })
        })
        .collect()
}

/// Describes why `address` cannot be used, and how to fix it.
fn describe_error(error: &ListenError, address: &str) -> anyhow::Error {
    let ListenError::Bind { source, .. } = error else {
        return anyhow!(
            "cannot listen on {address}: invalid address or unknown host name; expected HOST:PORT, such as 127.0.0.1:8080 or localhost:8080"
        );
    };
    let (reason, hint) = match source.kind() {
        ErrorKind::AddrInUse => (
            "the address is in use".to_owned(),
            "stop the process that uses it, or choose another address; port 0 picks a free port",
        ),
        ErrorKind::PermissionDenied => {
            ("permission denied".to_owned(), "choose a port of 1024 or higher, or grant CAP_NET_BIND_SERVICE")
        }
        ErrorKind::AddrNotAvailable => {
            ("this machine does not have that address".to_owned(), "choose another address")
        }
        _ if source.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => (
            "too many open files".to_owned(),
            "raise the limit with `ulimit -n`, or use fewer --cores: each listens on its own socket",
        ),
        _ => (source.to_string(), "choose another address"),
    };
    anyhow!("cannot listen on {address}: {reason}; {hint}")
}
