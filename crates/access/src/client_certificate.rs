//! Verification of client certificates with the rules of Go's `crypto/tls`, which the toolkit uses.

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

/// Result of the client authentication in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificate {
    #[default]
    None,
    /// A certificate that the configuration does not verify.
    Unverified,
    Verified,
}

impl ClientCertificate {
    /// Returns the result of a handshake that this kind of authentication has accepted.
    pub(crate) fn after_handshake(is_shown: bool, auth: ClientAuth) -> ClientCertificate {
        match (is_shown, auth.verifies()) {
            (false, _) => ClientCertificate::None,
            (true, false) => ClientCertificate::Unverified,
            (true, true) => ClientCertificate::Verified,
        }
    }
}

/// Certificates that a client has presented, starting with its own; empty if it has presented none.
#[derive(Clone, Debug, Default)]
pub struct ClientChain(pub(crate) Vec<CertificateDer<'static>>);

/// Validity period of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Validity {
    pub from: Duration,
    pub until: Duration,
}

impl Validity {
    /// Returns `None` if the certificate cannot be parsed.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Validity> {
        Some(validity_of(&Certificate::from_der(certificate).ok()?))
    }

    /// Returns an error if the certificate is not valid at this time.
    fn check(self, time: UnixTime) -> Result<(), CertificateError> {
        let now = Duration::from_secs(time.as_secs());
        let at = UnixTime::since_unix_epoch;
        match () {
            () if now > self.until => {
                Err(CertificateError::ExpiredContext { time, not_after: at(self.until) })
            }
            () if now < self.from => {
                Err(CertificateError::NotValidYetContext { time, not_before: at(self.from) })
            }
            () => Ok(()),
        }
    }

    /// Returns the same reason as text.
    pub fn untimely(self, now: Duration) -> Option<&'static str> {
        match self.check(UnixTime::since_unix_epoch(now)) {
            Ok(()) => None,
            Err(CertificateError::NotValidYetContext { .. }) => Some("is not yet valid"),
            Err(_) => Some("has expired"),
        }
    }
}

fn validity_of(certificate: &Certificate) -> Validity {
    let validity = certificate.tbs_certificate().validity();
    Validity { from: validity.not_before.to_unix_duration(), until: validity.not_after.to_unix_duration() }
}

/// Certificate authority from the files.
#[derive(Debug)]
struct Authority {
    certificate: CertificateDer<'static>,
    /// `None` if the certificate cannot be parsed.
    validity: Option<Validity>,
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    auth: ClientAuth,
    /// True if the handshake succeeds without a certificate that `auth` requires.
    optional: bool,
    authorities: Vec<Authority>,
    /// Verifier for these authorities; `None` without authorities.
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
        let chain = (!authorities.is_empty()).then(|| chain_of(&authorities, &provider)).transpose()?;
        let authority =
            |certificate| Authority { validity: Validity::of_certificate(&certificate), certificate };
        let authorities = authorities.into_iter().map(authority).collect();
        Ok(ClientVerifier { auth, optional, authorities, chain, allowed_sans, provider })
    }

    /// Returns true if only certificates with certain names are accepted.
    pub fn limits_names(&self) -> bool {
        self.allowed_sans.is_some()
    }

    /// Returns the authorities whose clients are refused now, with the reason.
    pub fn untimely_authorities(&self, now: Duration) -> Vec<String> {
        let untimely = |authority: &Authority| {
            let why = authority.validity?.untimely(now)?;
            let subject = Certificate::from_der(&authority.certificate).ok()?;
            Some(format!("the authority {} {why}", subject.tbs_certificate().subject()))
        };
        self.authorities.iter().filter_map(untimely).collect()
    }

    fn verify_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        // A certificate in the file is trusted even if it calls itself an authority, as self-signed ones often do.
        if self.authorities.iter().any(|authority| authority.certificate == *end_entity) {
            return pinned_is_valid(end_entity, now);
        }
        let unknown = || Error::from(CertificateError::UnknownIssuer);
        let chain = self.chain.as_ref().ok_or_else(unknown)?;
        chain.verify_client_cert(end_entity, intermediates, now)?;
        self.verify_authority(end_entity, intermediates, now)
    }

    /// Checks that the authority of a valid chain has not expired: webpki does not check the dates of trust anchors.
    fn verify_authority(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let check = |authority: &Authority| authority.validity.map_or(Ok(()), |validity| validity.check(now));
        if self.authorities.iter().all(|authority| check(authority).is_ok()) {
            return Ok(());
        }
        let mut refusal = CertificateError::UnknownIssuer;
        for authority in &self.authorities {
            let chain = chain_of(std::slice::from_ref(&authority.certificate), &self.provider);
            let chain = chain.map_err(Error::General)?;
            if chain.verify_client_cert(end_entity, intermediates, now).is_ok() {
                match check(authority) {
                    Ok(()) => return Ok(()),
                    Err(error) => refusal = error,
                }
            }
        }
        Err(refusal.into())
    }
}

/// Builds a verifier for at least one authority.
fn chain_of(
    authorities: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| error.to_string())?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| error.to_string())
}

fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

fn pinned_is_valid(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let certificate = parsed(certificate)?;
    validity_of(&certificate).check(now)?;
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

/// Checks that the certificate has one of these names as a DNS name, address, e-mail address or URI.
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
