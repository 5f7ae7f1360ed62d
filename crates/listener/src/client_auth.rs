//! The authority that issues the certificates of clients (mutual TLS).

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use thiserror::Error;

/// Verifies the certificates of clients. A client without a valid certificate cannot connect.
#[derive(Clone, Debug)]
pub struct ClientAuthority(pub(crate) Arc<dyn ClientCertVerifier>);

/// Why certificates of authorities cannot be used.
#[derive(Debug, Error)]
pub enum ClientAuthorityError {
    /// The file is not PEM.
    #[error("not valid PEM")]
    Pem(#[source] pem::Error),
    /// There is no `CERTIFICATE`.
    #[error("no certificate found")]
    NoCertificate,
    /// A certificate cannot be parsed.
    #[error("invalid certificate: {0}")]
    Certificate(#[source] rustls::Error),
    /// The certificates cannot be used for verification.
    #[error("the certificates cannot verify clients: {0}")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

impl ClientAuthority {
    /// Parses the certificates of one or more authorities, PEM.
    pub fn from_pem(certificates: &[u8]) -> Result<Self, ClientAuthorityError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(certificates) {
            roots
                .add(certificate.map_err(ClientAuthorityError::Pem)?)
                .map_err(ClientAuthorityError::Certificate)?;
        }
        if roots.is_empty() {
            return Err(ClientAuthorityError::NoCertificate);
        }
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self(verifier.map_err(ClientAuthorityError::Verifier)?))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    #[test]
    fn authority_valid_certificate_is_accepted() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        assert!(ClientAuthority::from_pem(pem.as_bytes()).is_ok());
    }

    #[test]
    fn authority_invalid_pem_is_rejected_with_the_reason() {
        let empty = ClientAuthority::from_pem(b"");
        assert!(matches!(empty, Err(ClientAuthorityError::NoCertificate)));
        let garbled = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(ClientAuthority::from_pem(garbled), Err(ClientAuthorityError::Certificate(_))));
    }
}
