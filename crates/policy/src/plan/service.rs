//! The listeners of the decision service.

use ipnet::IpNet;

use crate::plan::{CertificatePlan, SecretFile};

/// The decision service: which protocols it serves, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// Envoy's rate limit service over gRPC.
    pub grpc: Option<ServiceListenerPlan>,
    /// The HTTP interface.
    pub http: Option<ServiceListenerPlan>,
    /// The Redis protocol.
    pub resp: Option<ServiceListenerPlan>,
    /// The proxies whose requests to `/v1/authorize` state the original request, in addition to loopback addresses.
    pub trusted_peers: Vec<IpNet>,
}

impl ServicePlan {
    /// Whether no protocol is served.
    pub fn is_empty(&self) -> bool {
        self.listeners().next().is_none()
    }

    /// The listeners with their keys in the policy.
    pub fn listeners(&self) -> impl Iterator<Item = (&'static str, &ServiceListenerPlan)> {
        let all = [("grpc", &self.grpc), ("http", &self.http), ("resp", &self.resp)];
        all.into_iter().filter_map(|(key, listener)| Some((key, listener.as_ref()?)))
    }

    /// The settings by key, without secrets.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        for (key, ServiceListenerPlan { address, tls, client_ca, token }) in self.listeners() {
            settings.push((format!("service.{key}"), address.clone()));
            let mut file = |name: &str, file: Option<&str>| {
                settings.extend(file.map(|file| (format!("service.{key}.{name}"), file.to_owned())));
            };
            file("tls.cert", tls.as_ref().map(|tls| tls.chain_file.as_str()));
            file("tls.client_ca", client_ca.as_ref().map(|ca| ca.file.as_str()));
            file("token_file", token.as_ref().map(|token| token.file.as_str()));
        }
        if !self.trusted_peers.is_empty() {
            let networks: Vec<_> = self.trusted_peers.iter().map(ToString::to_string).collect();
            settings.push(("service.trusted_peers".to_owned(), networks.join(", ")));
        }
        settings
    }
}

/// A listener of the decision service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceListenerPlan {
    /// `host:port`.
    pub address: String,
    /// The certificate, if the listener uses TLS.
    pub tls: Option<CertificatePlan>,
    /// The authorities whose certificates clients need, if any.
    pub client_ca: Option<ClientCaPlan>,
    /// The token that clients need, if any.
    pub token: Option<SecretFile>,
}

/// The certificates of the authorities that issue certificates of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCaPlan {
    /// The certificates, PEM.
    pub pem: Vec<u8>,
    /// The file name, as in the policy.
    pub file: String,
}
