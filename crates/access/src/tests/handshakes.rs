//! Handshakes between this server and a client of rustls.

use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{ClientCertificate, ClientChain, Handshakes};

fn pem(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(super::certificate(&format!("{name}.pem"))).unwrap()
}

fn client(certificate: Option<&str>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(pem("authority")).unwrap();
    let builder = ClientConfig::builder_with_provider(default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(super::certificate(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![pem(name)], key).unwrap()
        }
    };
    Arc::new(config)
}

/// What the server learns of a client with this certificate; else its reason to refuse, and what the client learns.
async fn shown(access: &Access, certificate: Option<&str>) -> Result<ClientCertificate, (String, String)> {
    let tls = access.current().tls.clone().unwrap();
    let (near, far) = duplex(1 << 16);
    let handshakes = Handshakes::default();
    let serve = async {
        match handshakes.accept(&tls, far).await {
            Ok((mut stream, certificate, chain)) => {
                assert_eq!(tls.judge(&chain), certificate, "the same files judge the same");
                stream.write_all(b"hello").await.unwrap();
                stream.shutdown().await.unwrap();
                Ok(certificate)
            }
            Err((error, stream)) => {
                assert!(stream.is_some(), "the stream comes back to be closed in order");
                Err(error.to_string())
            }
        }
    };
    let ask = async {
        let connector = TlsConnector::from(client(certificate));
        let mut stream = connector.connect("localhost".try_into().unwrap(), near).await?;
        let mut got = String::new();
        stream.read_to_string(&mut got).await?;
        std::io::Result::Ok(got)
    };
    let (served, got) = tokio::join!(serve, ask);
    match (served, got) {
        (Ok(certificate), Ok(got)) if got == "hello" => Ok(certificate),
        (Err(why), Err(alert)) => Err((why, alert.to_string())),
        (served, got) => panic!("{served:?}, {got:?}"),
    }
}

#[tokio::test]
async fn client_auth_types_mean_what_they_mean_in_go() {
    use ClientCertificate::{None as Nothing, Unverified, Verified};
    let known = "client_ca_file: authority.pem";
    for (kind, none, client, stranger) in [
        ("client_auth_type: NoClientCert".to_owned(), Some(Nothing), Some(Nothing), Some(Nothing)),
        ("client_auth_type: RequestClientCert".to_owned(), Some(Nothing), Some(Unverified), Some(Unverified)),
        ("client_auth_type: RequireAnyClientCert".to_owned(), None, Some(Unverified), Some(Unverified)),
        (
            format!("client_auth_type: VerifyClientCertIfGiven\n  {known}"),
            Some(Nothing),
            Some(Verified),
            None,
        ),
        ("client_auth_type: VerifyClientCertIfGiven".to_owned(), Some(Nothing), None, None),
        (format!("client_auth_type: RequireAndVerifyClientCert\n  {known}"), None, Some(Verified), None),
    ] {
        let access = Files::new(&format!("{TLS}  {kind}\n")).open().unwrap();
        assert_eq!(shown(&access, None).await.ok(), none, "{kind}");
        assert_eq!(shown(&access, Some("client")).await.ok(), client, "{kind}");
        assert_eq!(shown(&access, Some("stranger")).await.ok(), stranger, "{kind}");
    }
}

const VERIFIED: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n";

#[tokio::test]
async fn a_refused_client_and_the_log_learn_why() {
    let access = Files::new(&format!("{TLS}{VERIFIED}")).open().unwrap();
    for (certificate, why, expected) in [
        (None, "peer sent no certificates", "CertificateRequired"),
        (Some("stranger"), "UnknownIssuer", "UnknownCA"),
        (Some("expired-client"), "certificate expired", "CertificateExpired"),
        (Some("server"), "certificate does not allow extended key usage", "ertificate"),
    ] {
        let (found, alert) = shown(&access, certificate).await.unwrap_err();
        assert!(found.contains(why) && alert.contains(expected), "{certificate:?}: {found}; {alert}");
    }
}

#[tokio::test]
async fn names_in_the_certificate_are_dns_names_addresses_mail_and_uris() {
    for (sans, allowed) in [
        ("[other, prometheus]", true),
        ("[10.0.0.3]", true),
        ("['spiffe://tests/prometheus']", true),
        ("[sre@example.net]", true),
        ("[prom, 10.0.0.30]", false),
        ("[]", false),
    ] {
        let files = Files::new(&format!("{TLS}{VERIFIED}  client_allowed_sans: {sans}\n"));
        let access = files.open().unwrap();
        assert_eq!(shown(&access, Some("client")).await.is_ok(), allowed, "{sans}");
    }
}

#[tokio::test]
async fn a_certificate_named_as_its_own_authority_is_trusted_while_it_is_valid() {
    let files = Files::new(&format!("{TLS}{VERIFIED}"));
    files.copy("client.pem", "authority.pem");
    assert!(shown(&files.open().unwrap(), Some("client")).await.is_ok());
    files.copy("expired-client.pem", "authority.pem");
    assert!(shown(&files.open().unwrap(), Some("expired-client")).await.is_err());
    files.copy("server.pem", "authority.pem");
    assert!(shown(&files.open().unwrap(), Some("server")).await.is_err(), "not for clients");
}

#[tokio::test]
async fn an_authority_that_has_ended_lets_no_client_in() {
    let files = Files::new(&format!("{TLS}{VERIFIED}"));
    let both = |one: &str, other: &str| {
        let text = |name: &str| fs::read_to_string(super::certificate(name)).unwrap();
        fs::write(files.path().with_file_name("authority.pem"), text(one) + &text(other)).unwrap();
    };
    files.copy("expired-authority.pem", "authority.pem");
    let access = files.open().unwrap();
    let (why, alert) = shown(&access, Some("outlived")).await.unwrap_err();
    assert!(why.contains("certificate expired") && why.contains("not valid after 1609459200"), "{why}");
    assert!(alert.contains("CertificateExpired"), "{alert}");
    let warnings = access.warnings();
    let warning = "the authority CN=expired-authority of the tests has expired; its clients are refused";
    assert!(warnings.len() == 1 && warnings[0].contains(warning), "{warnings:?}");
    // Beside another one, which lets its own clients in and no others.
    both("expired-authority.pem", "authority.pem");
    let access = files.open().unwrap();
    assert_eq!(shown(&access, Some("client")).await.ok(), Some(ClientCertificate::Verified));
    assert!(shown(&access, Some("outlived")).await.unwrap_err().0.contains("certificate expired"));
    // Its key has another certificate that is valid.
    both("expired-authority.pem", "prolonged-authority.pem");
    let access = files.open().unwrap();
    assert_eq!(shown(&access, Some("outlived")).await.ok(), Some(ClientCertificate::Verified));
}

#[tokio::test]
async fn a_certificate_shown_to_earlier_files_is_judged_by_the_present_ones() {
    let any = Files::new(&format!("{TLS}  client_auth_type: RequireAnyClientCert\n"));
    let any = any.open().unwrap();
    for (name, expected) in [("client", ClientCertificate::Verified), ("stranger", ClientCertificate::None)] {
        let chain = ClientChain(vec![pem(name)]);
        assert_eq!(any.current().tls.as_ref().unwrap().judge(&chain), ClientCertificate::Unverified);
        let verified = Files::new(&format!("{TLS}{VERIFIED}")).open().unwrap();
        assert_eq!(verified.current().tls.as_ref().unwrap().judge(&chain), expected, "{name}");
    }
    let none = Files::new(TLS).open().unwrap();
    let chain = ClientChain(vec![pem("client")]);
    assert_eq!(none.current().tls.as_ref().unwrap().judge(&chain), ClientCertificate::None);
}

#[tokio::test]
async fn with_paths_open_to_all_the_handshake_goes_on_without_a_certificate_but_not_with_a_wrong_one() {
    let files = Files::new(&format!("{TLS}{VERIFIED}"));
    let access = Access::open(&files.path(), true).unwrap();
    assert!(access.current().requires_certificate());
    assert_eq!(shown(&access, None).await.ok(), Some(ClientCertificate::None));
    assert!(shown(&access, Some("stranger")).await.is_err());
}

#[tokio::test]
async fn a_slow_client_holds_up_no_other_handshake() {
    let access = Files::new(TLS).open().unwrap();
    let tls = access.current().tls.clone().unwrap();
    let handshakes = Handshakes::default();
    // One that never says a word, and one whose answer to the server's certificate never comes.
    let (silent, far) = duplex(1 << 16);
    let mut first = Box::pin(handshakes.accept(&tls, far));
    assert!(futures_poll(&mut first).await.is_none());
    let other = async {
        let (near, far) = duplex(1 << 16);
        let connect = TlsConnector::from(client(None));
        let (served, connected) = tokio::join!(
            handshakes.accept(&tls, far),
            connect.connect("localhost".try_into().unwrap(), near)
        );
        (served.is_ok(), connected.is_ok())
    };
    assert_eq!(other.await, (true, true));
    drop(silent);
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
