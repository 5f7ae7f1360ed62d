//! Certificates, made when a test needs them.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A self-signed certificate and its private key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate as rustls knows it.
    pub der: CertificateDer<'static>,
    /// The certificate as a PEM file has it.
    pub chain: String,
    /// The private key as a PEM file has it.
    pub key: String,
}

impl Certificate {
    /// Valid for `name`, for a very long time.
    pub fn for_name(name: &str) -> Self {
        Self::from_params(&params_for(name))
    }

    /// Valid for `name` until these Unix seconds.
    pub fn expiring(name: &str, not_after: u64) -> Self {
        let mut params = params_for(name);
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(not_after);
        Self::from_params(&params)
    }

    fn from_params(params: &CertificateParams) -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { der: certificate.der().clone(), chain: certificate.pem(), key: key.serialize_pem() }
    }
}

/// What a certificate for `name` says, to be changed and signed.
pub fn params_for(name: &str) -> CertificateParams {
    CertificateParams::new([name.to_owned()]).expect("a name")
}

/// The validity of a certificate, from one year to another.
pub fn valid_between(params: &mut CertificateParams, first: i32, last: i32) {
    (params.not_before, params.not_after) = (date_time_ymd(first, 1, 1), date_time_ymd(last, 1, 1));
}

/// An authority that signs certificates of servers.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// An authority of this name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("an authority") }
    }

    /// Its certificate, as a PEM file that a machine trusts.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A server with a certificate of this authority that speaks `protocols` (ALPN).
    pub fn server_config(&self, params: &CertificateParams, protocols: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let chain = vec![params.signed_by(&key, &self.issuer).expect("a certificate").der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocol versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate");
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
