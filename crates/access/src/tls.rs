//! TLS server configuration from the section of a web configuration file and the files that it names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::clock::unix_seconds;
use model::plain_file;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::client_certificate::{ClientCertificate, ClientChain, ClientVerifier, Validity};
use crate::web_config::{ClientAuth, Pem, TlsSection};

/// Maximum file size in bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// TLS configuration from one state of the files.
#[derive(Debug)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) client_auth: ClientAuth,
    /// `None` if clients are not asked for a certificate.
    pub(crate) verifier: Option<Arc<ClientVerifier>>,
    /// Validity of the server certificate that expires first; `None` if a certificate cannot be parsed.
    validity: Option<Validity>,
}

impl Tls {
    /// Returns the time at which the first server certificate expires, in seconds since 1970.
    pub fn expires(&self) -> Option<f64> {
        self.validity.map(|validity| validity.until.as_secs_f64())
    }

    /// Returns the reason why clients refuse the certificates now, if any.
    pub(crate) fn untimely(&self) -> Option<&'static str> {
        self.validity?.untimely(now())
    }

    /// Returns the authorities whose clients are refused now, with the reason.
    pub(crate) fn untimely_authorities(&self) -> Vec<String> {
        self.verifier.as_ref().map(|verifier| verifier.untimely_authorities(now())).unwrap_or_default()
    }

    /// Verifies certificates that were presented under earlier files. Returns `None` if a handshake would refuse them
    /// now.
    pub fn judge(&self, ClientChain(shown): &ClientChain) -> ClientCertificate {
        let (Some(verifier), [own, intermediates @ ..]) = (&self.verifier, shown.as_slice()) else {
            return ClientCertificate::None;
        };
        match verifier.verify_client_cert(own, intermediates, UnixTime::now()) {
            Ok(_) => ClientCertificate::after_handshake(true, self.client_auth),
            Err(_) => ClientCertificate::None,
        }
    }
}

fn now() -> Duration {
    Duration::try_from_secs_f64(unix_seconds()).unwrap_or_default()
}

impl Pem {
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Pem::File(_, path) => Some(path),
            Pem::Inline(..) => None,
        }
    }

    fn named(&self, text: impl std::fmt::Display) -> String {
        match self {
            Pem::File(key, path) => format!("tls_server_config.{key} ({}): {text}", path.display()),
            Pem::Inline(key, _) => format!("tls_server_config.{key}: {text}"),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        match self {
            Pem::File(_, path) => {
                plain_file::read_linked(path, MAX_BYTES).map_err(|error| self.named(explained(&error, path)))
            }
            Pem::Inline(_, text) => Ok(text.clone().into_bytes()),
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let bytes = self.bytes()?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.named("contains no certificate in PEM format")),
            found => found.map_err(|error| self.named(error)),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.bytes()?)
            .map_err(|_| self.named("contains no private key in PEM format, or the key is encrypted"))
    }
}

/// Returns the text of a file error, with the fix for the most frequent one.
pub(crate) fn explained(error: &std::io::Error, path: &Path) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!(
                "{error}; make it readable for the exporter's user or group, such as with \
                 `chgrp gpu-node-exporter {}`",
                path.display()
            )
        }
        _ => error.to_string(),
    }
}

/// Builds the TLS configuration. With `optional_certificates`, a handshake succeeds without the client certificate that
/// the section requires.
pub fn build(section: TlsSection, optional_certificates: bool) -> Result<Tls, Vec<String>> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: section.cipher_suites,
        kx_groups: section.curves,
        ..ring::default_provider()
    });
    let mut problems = Vec::new();
    let mut keep = |problem: String| problems.push(problem);
    let certificates = section.certificates.certificates().map_err(&mut keep).ok();
    let key = section.key.key().map_err(&mut keep).ok();
    let authorities = match &section.client_ca {
        Some(pem) => pem.certificates().map_err(&mut keep).ok(),
        None => Some(Vec::new()),
    };
    let (Some(certificates), Some(key), Some(authorities)) = (certificates, key, authorities) else {
        return Err(problems);
    };
    let all_validities = certificates.iter().map(Validity::of_certificate).collect::<Option<Vec<_>>>();
    let validity = all_validities.and_then(|all| all.into_iter().min_by_key(|validity| validity.until));
    let certified = CertifiedKey::from_der(certificates, key, &provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            vec![section.key.named("is not the key of the certificate in cert or cert_file")]
        }
        error => vec![section.certificates.named(error)],
    })?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&section.versions)
        .map_err(|error| vec![format!("tls_server_config: {error}")])?;
    let verifier = match section.client_auth {
        ClientAuth::No => None,
        auth => {
            let sans = section.client_allowed_sans;
            let verifier = ClientVerifier::new(auth, optional_certificates, authorities, sans, provider);
            let named = |text| match &section.client_ca {
                Some(pem) => vec![pem.named(text)],
                None => vec![text],
            };
            Some(Arc::new(verifier.map_err(named)?))
        }
    };
    let builder = match &verifier {
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier) as _),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Clients present their certificate on every connection: no session continues under the rules of earlier files.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Tls { config: Arc::new(config), client_auth: section.client_auth, verifier, validity })
}
