//! The certificates of running listeners: replaces them at a reload and warns before they expire.

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_listener::{CertificateResolver, Listener};
use tidegate_policy::{Plan, ServicePlan};
use tidegate_telemetry::Exposition;

use super::listeners::{self, ListenerConfig, ListenerConfigError};
use crate::certificate::{Expiry, format_time};

/// The certificates of all listeners with TLS.
pub(crate) struct Certificates {
    /// The address of `--listen`.
    listen_option: Option<String>,
    /// The addresses of the policy at the start, and whether each uses TLS. Changing them requires a restart.
    at_start: Vec<(String, bool)>,
    /// The decision service at the start.
    service_at_start: ServicePlan,
    entries: Vec<ListenerCertificate>,
}

/// The certificate of one listener.
struct ListenerCertificate {
    /// The configured address.
    configured: String,
    /// The bound address.
    listener: String,
    resolver: Arc<CertificateResolver>,
}

impl Certificates {
    /// The certificates of `listeners` with their configurations.
    pub(crate) fn new<'l>(
        listen_option: Option<&str>,
        plan: &Plan,
        listeners: impl Iterator<Item = (&'l ListenerConfig, &'l Listener)>,
    ) -> Self {
        let entries = listeners.filter_map(|(config, listener)| {
            Some(ListenerCertificate {
                configured: config.address.clone(),
                listener: listener.address().to_string(),
                resolver: Arc::clone(listener.certificate()?),
            })
        });
        Self {
            listen_option: listen_option.map(str::to_owned),
            at_start: addresses(plan),
            service_at_start: plan.service.clone(),
            entries: entries.collect(),
        }
    }

    /// Validates the listeners of a new `plan`. Changes nothing.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Vec<ListenerConfig>, ListenerConfigError> {
        let mut configs = listeners::configs(self.listen_option.as_deref(), plan)?;
        configs.extend(listeners::service_configs(plan)?.into_iter().map(|(_, config)| config));
        Ok(configs)
    }

    /// Replaces the certificates by those of `configs`. Describes each one that has changed.
    pub(crate) fn replace(&self, configs: Vec<ListenerConfig>) -> Vec<String> {
        let mut changes = Vec::new();
        for ListenerConfig { address, certificate, .. } in configs {
            let current = self.entries.iter().find(|current| current.configured == address);
            let (Some(ListenerCertificate { listener, resolver, .. }), Some(certificate)) =
                (current, certificate)
            else {
                continue;
            };
            let expires = format_time(certificate.expires_at());
            if resolver.replace(certificate) {
                changes.push(format!("certificate of {listener} replaced; it expires at {expires}"));
            }
        }
        changes
    }

    /// Whether the addresses of `plan`, or their use of TLS, differ from those at the start.
    pub(crate) fn needs_restart(&self, plan: &Plan) -> bool {
        addresses(plan) != self.at_start
    }

    /// The decision service at the start.
    pub(crate) fn service_at_start(&self) -> &ServicePlan {
        &self.service_at_start
    }

    /// Logs certificates that have expired or expire soon. Returns the messages.
    pub(crate) fn warn(&self, now: Timestamp) -> Vec<String> {
        let mut messages = Vec::new();
        for ListenerCertificate { listener, resolver, .. } in &self.entries {
            let Some(expiry) = Expiry::at(resolver.expires_at(), now) else { continue };
            let event = if expiry.has_expired { "certificate_expired" } else { "certificate_expiring" };
            let message = expiry.describe(&format!("the certificate of {listener}"));
            tracing::warn!(event, listener, "{message}");
            messages.push(message);
        }
        messages
    }

    /// Writes the expiry time of each certificate as a metric.
    pub(crate) fn write(&self, page: &mut Exposition) {
        if self.entries.is_empty() {
            return;
        }
        let help = "Expiry time of the certificate of a listener, as Unix time.";
        let mut family = page.gauge("tidegate_certificate_expiry_timestamp_seconds", help);
        for ListenerCertificate { listener, resolver, .. } in &self.entries {
            family.sample(&[("listener", listener)], resolver.expires_at().as_micros() / 1_000_000);
        }
    }
}

fn addresses(plan: &Plan) -> Vec<(String, bool)> {
    plan.listen.iter().map(|listen| (listen.address.clone(), listen.tls.is_some())).collect()
}
