//! Listeners: at which addresses, with which certificates, and their sockets.

use std::io::ErrorKind;

use tidegate_gateway::{ListenError, Listener, ServerCertificate};
use tidegate_policy::{CertificatePlan, Plan, Problems};

use crate::certificate;

/// An address to listen at, and the certificate to present there.
pub(crate) struct ListenerConfig {
    pub(crate) address: String,
    /// `None`: nothing is encrypted.
    pub(crate) certificate: Option<ServerCertificate>,
}

/// Why a policy has no usable listeners.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenerConfigError {
    #[error(
        "--listen {address} cannot replace the `listen` of the policy: its entries have different certificates \
         ({files}), and one address presents one certificate; remove --listen, or give all entries of `listen` the \
         same certificate"
    )]
    SeveralCertificates { address: String, files: String },
    #[error("{0}")]
    Unusable(Problems),
}

/// The listeners of `plan`. If `--listen` gives an address, it replaces those of the plan, with their certificate.
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
            Ok(certificate) => configs.push(ListenerConfig { address: address.to_owned(), certificate }),
            Err(problem) => problems.extend([*problem]),
        }
    }
    if problems.is_empty() { Ok(configs) } else { Err(ListenerConfigError::Unusable(problems)) }
}

/// The one certificate of all listeners of `plan` that use TLS; `None` if none of them does.
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

/// Binds the sockets, unless `inherited` has them.
pub(crate) fn bind(
    configs: &[ListenerConfig],
    cores: usize,
    inherited: &mut dyn FnMut(&str) -> anyhow::Result<Option<Listener>>,
) -> anyhow::Result<Vec<Listener>> {
    configs
        .iter()
        .map(|ListenerConfig { address, certificate }| {
            let listener = match inherited(address)? {
                Some(listener) => listener,
                None => Listener::bind(address, cores).map_err(|error| explain(error, address))?,
            };
            Ok(match certificate {
                Some(certificate) => listener.with_certificate(certificate.clone())?,
                None => listener,
            })
        })
        .collect()
}

fn explain(error: ListenError, address: &str) -> anyhow::Error {
    let hint = match &error {
        ListenError::Bind { source, .. } => match source.kind() {
            ErrorKind::AddrInUse => {
                "stop what holds it, or choose another with --listen; port 0 takes a free one"
            }
            ErrorKind::PermissionDenied => "choose a port from 1024 on, or give the right to lower ones",
            ErrorKind::AddrNotAvailable => "that address is not this machine's",
            _ => "tidegate serve --help shows the form",
        },
        _ => "write it as 127.0.0.1:8080 or localhost:8080",
    };
    anyhow::Error::from(error).context(format!("cannot listen on {address} ({hint})"))
}
