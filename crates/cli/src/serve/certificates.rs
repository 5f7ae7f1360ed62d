//! The certificates of listeners that run: replaced at a reload, reported before they expire.

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_gateway::{CertificateResolver, Listener};
use tidegate_policy::Plan;
use tidegate_telemetry::{Exposition, MetricKind};

use super::listeners::{self, ListenerConfig, ListenerConfigError};
use crate::certificate::{Expiry, date};

/// The certificates that are presented to clients.
pub(crate) struct Certificates {
    /// The address of `--listen`.
    listen_option: Option<String>,
    /// The addresses of the policy at the start, and whether each uses TLS. They stay until the next start.
    at_start: Vec<(String, bool)>,
    presented: Vec<Presented>,
}

struct Presented {
    /// The address as it was configured.
    configured: String,
    /// The address that is listened at.
    listener: String,
    resolver: Arc<CertificateResolver>,
}

impl Certificates {
    /// The certificates of `listeners`, which were made from `configs` in this order.
    pub(crate) fn new(
        listen_option: Option<&str>,
        plan: &Plan,
        configs: &[ListenerConfig],
        listeners: &[Listener],
    ) -> Self {
        let presented = configs.iter().zip(listeners).filter_map(|(config, listener)| {
            Some(Presented {
                configured: config.address.clone(),
                listener: listener.address().to_string(),
                resolver: Arc::clone(listener.certificate()?),
            })
        });
        Self {
            listen_option: listen_option.map(str::to_owned),
            at_start: addresses(plan),
            presented: presented.collect(),
        }
    }

    /// What a reload to `plan` would present. Changes nothing.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Vec<ListenerConfig>, ListenerConfigError> {
        listeners::configs(self.listen_option.as_deref(), plan)
    }

    /// Presents the certificates of `configs` from now on. Returns a sentence for each one that is different.
    pub(crate) fn replace(&self, configs: Vec<ListenerConfig>) -> Vec<String> {
        let mut changes = Vec::new();
        for ListenerConfig { address, certificate } in configs {
            let presented = self.presented.iter().find(|presented| presented.configured == address);
            let (Some(Presented { listener, resolver, .. }), Some(certificate)) = (presented, certificate)
            else {
                continue;
            };
            let expires = date(certificate.expires_at());
            if resolver.replace(certificate) {
                changes.push(format!("certificate of {listener} replaced; the new one expires at {expires}"));
            }
        }
        changes
    }

    /// Whether `plan` has other addresses than at the start, or other ones with TLS.
    pub(crate) fn needs_restart(&self, plan: &Plan) -> bool {
        addresses(plan) != self.at_start
    }

    /// Logs which certificates have expired or soon will. Returns the messages.
    pub(crate) fn warn(&self, now: Timestamp) -> Vec<String> {
        let mut messages = Vec::new();
        for Presented { listener, resolver, .. } in &self.presented {
            let Some(expiry) = Expiry::at(resolver.expires_at(), now) else { continue };
            let event = if expiry.has_expired { "certificate_expired" } else { "certificate_expiring" };
            let message = expiry.describe(&format!("the certificate of {listener}"));
            tracing::warn!(event, listener, "{message}");
            messages.push(message);
        }
        messages
    }

    /// Writes when each certificate expires.
    pub(crate) fn write(&self, page: &mut Exposition) {
        if self.presented.is_empty() {
            return;
        }
        let name = "tidegate_certificate_expiry_timestamp_seconds";
        let help = "When the certificate of a listener expires, in Unix time.";
        let mut family = page.family(name, MetricKind::Gauge, help);
        for Presented { listener, resolver, .. } in &self.presented {
            family.sample(&[("listener", listener)], resolver.expires_at().as_micros() / 1_000_000);
        }
    }
}

fn addresses(plan: &Plan) -> Vec<(String, bool)> {
    plan.listen.iter().map(|listen| (listen.address.clone(), listen.tls.is_some())).collect()
}
