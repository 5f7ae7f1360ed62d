//! The certificate that a listener presents. It can be replaced while connections are open.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError as Invalid, Error as RustlsError, InconsistentKeys, RootCertStore};
use thiserror::Error;
use tidegate_core::Timestamp;

/// A certificate chain with the private key of its first certificate.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    key: Arc<CertifiedKey>,
    expires_at: Timestamp,
}

/// Why a chain and a key cannot be used.
#[derive(Debug, Error)]
pub enum ServerCertificateError {
    /// The chain has no `CERTIFICATE`.
    #[error("no certificate found in the chain")]
    NoCertificate,
    /// The chain is not PEM.
    #[error("the certificate chain is not valid PEM")]
    ChainPem(#[source] pem::Error),
    /// The first certificate cannot be parsed.
    #[error("invalid certificate")]
    Chain(#[source] RustlsError),
    /// There is no unencrypted private key.
    #[error("no unencrypted private key found")]
    NoKey,
    /// The key is not PEM.
    #[error("the private key is not valid PEM")]
    KeyPem(#[source] pem::Error),
    /// The private key cannot be parsed, or its type is not supported.
    #[error("invalid private key")]
    Key(#[source] RustlsError),
    /// The private key belongs to another certificate.
    #[error("the private key does not match the certificate")]
    Mismatch,
}

impl ServerCertificate {
    /// Parses a chain, its first certificate first, and a private key, both PEM.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, ServerCertificateError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(ServerCertificateError::ChainPem)?;
        let expires_at = expiry(chain.first().ok_or(ServerCertificateError::NoCertificate)?)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => ServerCertificateError::NoKey,
            error => ServerCertificateError::KeyPem(error),
        })?;
        let key =
            default_provider().key_provider.load_private_key(key).map_err(ServerCertificateError::Key)?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) | Err(RustlsError::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(RustlsError::InconsistentKeys(_)) => return Err(ServerCertificateError::Mismatch),
            Err(error) => return Err(ServerCertificateError::Chain(error)),
        }
        Ok(Self { key: Arc::new(key), expires_at })
    }

    /// When its first certificate expires.
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// The `notAfter` of a certificate. rustls has no accessor for it, but reports it with the error for an expired
/// certificate; the validity period is the first thing that it verifies. At the end of time every certificate has
/// expired.
fn expiry(certificate: &CertificateDer<'_>) -> Result<Timestamp, ServerCertificateError> {
    let end_of_time = UnixTime::since_unix_epoch(Duration::MAX);
    let verified = ParsedCertificate::try_from(certificate).and_then(|parsed| {
        verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], end_of_time, &[])
    });
    match verified {
        Err(RustlsError::InvalidCertificate(Invalid::ExpiredContext { not_after, .. })) => {
            Ok(Timestamp::from_secs(not_after.as_secs()))
        }
        Err(error) => Err(ServerCertificateError::Chain(error)),
        Ok(()) => Err(ServerCertificateError::Chain(Invalid::BadEncoding.into())),
    }
}

/// Presents a certificate that can be replaced.
#[derive(Debug)]
pub struct CertificateResolver(ArcSwap<ServerCertificate>);

impl CertificateResolver {
    pub(crate) fn new(certificate: ServerCertificate) -> Self {
        Self(ArcSwap::from_pointee(certificate))
    }

    /// Presents `certificate` in all later handshakes. Returns whether it differs from the previous one.
    pub fn replace(&self, certificate: ServerCertificate) -> bool {
        let before = self.0.swap(Arc::new(certificate));
        before.key.cert != self.0.load().key.cert
    }

    /// When the current certificate expires.
    pub fn expires_at(&self) -> Timestamp {
        self.0.load().expires_at
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().key))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn params() -> CertificateParams {
        CertificateParams::new(["a.example".to_owned()]).unwrap()
    }

    fn generate(params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn parsed(chain: &str, key: &str) -> Result<ServerCertificate, ServerCertificateError> {
        ServerCertificate::from_pem(chain.as_bytes(), key.as_bytes())
    }

    #[test]
    fn expiry_of_a_chain_is_not_after_of_the_first_certificate() {
        // The encoding of years changes in 2050; a certificate without an end says 9999.
        for (year, seconds) in
            [(2001, 978_307_200), (2049, 2_493_072_000), (2050, 2_524_608_000), (9999, 253_370_764_800)]
        {
            let mut params = params();
            params.not_after = date_time_ymd(year, 1, 1);
            let (chain, key) = generate(&params);
            let (other, _) = generate(&self::params());
            let certificate = parsed(&format!("{chain}{other}"), &key).unwrap();
            assert_eq!(certificate.expires_at(), Timestamp::from_secs(seconds), "{year}");
        }
    }

    #[test]
    fn expiry_of_a_ca_certificate_is_found() {
        let mut params = params();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = date_time_ymd(2030, 1, 1);
        let (chain, key) = generate(&params);
        assert_eq!(parsed(&chain, &key).unwrap().expires_at(), Timestamp::from_secs(1_893_456_000));
    }

    #[test]
    fn certificate_invalid_pair_is_rejected_with_the_reason() {
        let ((chain, key), (_, other)) = (generate(&params()), generate(&params()));
        let garbled = chain.replace("MII", "AAA");
        let mut backwards = params();
        (backwards.not_before, backwards.not_after) = (date_time_ymd(2030, 1, 1), date_time_ymd(2020, 1, 1));
        let backwards = generate(&backwards);
        let broken = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(matches!(parsed(&chain, &other), Err(ServerCertificateError::Mismatch)));
        assert!(matches!(parsed(&key, &key), Err(ServerCertificateError::NoCertificate)));
        assert!(matches!(parsed(&chain, &chain), Err(ServerCertificateError::NoKey)));
        assert!(matches!(parsed(&garbled, &key), Err(ServerCertificateError::Chain(_))));
        assert!(matches!(parsed(&backwards.0, &backwards.1), Err(ServerCertificateError::Chain(_))));
        assert!(matches!(parsed(&chain, broken), Err(ServerCertificateError::Key(_))));
        assert!(matches!(
            parsed(&chain.replace("-----END", "----"), &key),
            Err(ServerCertificateError::ChainPem(_))
        ));
    }

    #[test]
    fn replace_certificate_returns_whether_it_differs() {
        let ((chain, key), (other, other_key)) = (generate(&params()), generate(&params()));
        let resolver = CertificateResolver::new(parsed(&chain, &key).unwrap());
        assert!(!resolver.replace(parsed(&chain, &key).unwrap()));
        assert!(resolver.replace(parsed(&other, &other_key).unwrap()));
    }
}
