//! Certificates of clients, judged as Go's `crypto/tls` does for the toolkit.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc5280::{ANY_EXTENDED_KEY_USAGE, ID_KP_CLIENT_AUTH};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{ExtendedKeyUsage, SubjectAltName};

use crate::web_config::ClientAuth;

/// When a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validity {
    pub from: Duration,
    pub until: Duration,
}

impl Validity {
    /// `None` if the certificate cannot be read so far.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Validity> {
        Some(validity_of(&Certificate::from_der(certificate).ok()?))
    }

    fn includes(self, now: Duration) -> bool {
        (self.from..=self.until).contains(&now)
    }
}

fn validity_of(certificate: &Certificate) -> Validity {
    let validity = certificate.tbs_certificate().validity();
    Validity { from: validity.not_before.to_unix_duration(), until: validity.not_after.to_unix_duration() }
}

/// Judges the certificate that a client sends.
#[derive(Debug)]
pub struct ClientVerifier {
    auth: ClientAuth,
    /// Whether the handshake goes on without a certificate that `auth` requires.
    optional: bool,
    authorities: Vec<CertificateDer<'static>>,
    /// By those authorities; `None` without any.
    chain: Option<Arc<dyn ClientCertVerifier>>,
    allowed_sans: Option<Vec<String>>,
    provider: Arc<CryptoProvider>,
}

impl ClientVerifier {
    pub fn new(
        auth: ClientAuth,
        optional: bool,
        authorities: Vec<CertificateDer<'static>>,
        allowed_sans: Option<Vec<String>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<ClientVerifier, String> {
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots.add(authority.clone()).map_err(|error| error.to_string())?;
        }
        let chain = match authorities.is_empty() {
            true => None,
            false => Some(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                    .build()
                    .map_err(|error| error.to_string())?,
            ),
        };
        Ok(ClientVerifier { auth, optional, authorities, chain, allowed_sans, provider })
    }

    fn verify_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        // One that is named itself is trusted, also if it calls itself an authority: self-signed ones often do.
        if self.authorities.contains(end_entity) {
            return pinned_is_valid(end_entity, Duration::from_secs(now.as_secs()));
        }
        let unknown = || Error::from(CertificateError::UnknownIssuer);
        let chain = self.chain.as_ref().ok_or_else(unknown)?;
        chain.verify_client_cert(end_entity, intermediates, now).map(drop)
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

fn pinned_is_valid(certificate: &CertificateDer<'_>, now: Duration) -> Result<(), Error> {
    let certificate = parsed(certificate)?;
    if !validity_of(&certificate).includes(now) {
        return Err(CertificateError::Expired.into());
    }
    let usage = certificate.tbs_certificate().get_extension::<ExtendedKeyUsage>();
    match usage.map_err(|_| CertificateError::BadEncoding)? {
        Some((_, ExtendedKeyUsage(usages)))
            if ![ID_KP_CLIENT_AUTH, ANY_EXTENDED_KEY_USAGE].iter().any(|usage| usages.contains(usage)) =>
        {
            Err(CertificateError::InvalidPurpose.into())
        }
        _ => Ok(()),
    }
}

/// Whether the certificate names one of these, as a DNS name, address, e-mail address or URI.
fn has_allowed_san(certificate: &CertificateDer<'_>, allowed: &[String]) -> Result<(), Error> {
    let certificate = parsed(certificate)?;
    let names = certificate.tbs_certificate().get_extension::<SubjectAltName>();
    let names = names.map_err(|_| CertificateError::BadEncoding)?.map(|(_, SubjectAltName(names))| names);
    let is_allowed = |name: &GeneralName| match name {
        GeneralName::DnsName(text)
        | GeneralName::Rfc822Name(text)
        | GeneralName::UniformResourceIdentifier(text) => allowed.iter().any(|one| one == text.as_str()),
        GeneralName::IpAddress(bytes) => {
            address(bytes.as_bytes()).is_some_and(|address| allowed.contains(&address.to_string()))
        }
        _ => false,
    };
    match names.into_iter().flatten().any(|name| is_allowed(&name)) {
        true => Ok(()),
        false => Err(CertificateError::ApplicationVerificationFailure.into()),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.auth.requires() && !self.optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.as_ref().map(|chain| chain.root_hint_subjects()).unwrap_or_default()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.auth.verifies() {
            self.verify_chain(end_entity, intermediates, now)?;
        }
        if let Some(allowed) = &self.allowed_sans {
            has_allowed_san(end_entity, allowed)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
