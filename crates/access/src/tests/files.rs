//! What web configuration files say.

use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use super::*;
use crate::RateLimit;
use crate::web_config::{ClientAuth, Pem};

#[test]
fn all_keys_of_the_toolkit_are_read() {
    let config = parse(
        r#"
tls_server_config:
  cert_file: server.crt
  key: |
    -----BEGIN PRIVATE KEY-----
  client_ca_file: /etc/ca.pem
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus, 10.0.0.3]
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP384, X25519]
http_server_config:
  http2: false
  headers:
    X-Frame-Options: deny
    X-XSS-Protection: 1
    Strict-Transport-Security: max-age=31536000; includeSubDomains
rate_limit:
  interval: "1m30s"
  burst: 20
basic_auth_users:
  alice: $2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW
  7: $2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW
"#,
    );
    let config = config.unwrap();
    let tls = config.tls.unwrap();
    let Pem::File("cert_file", path) = &tls.certificates else { panic!("{:?}", tls.certificates) };
    assert_eq!(path, Path::new("/etc/exporter/server.crt"), "relative to the file's folder");
    let Pem::Inline("key", key) = &tls.key else { panic!("{:?}", tls.key) };
    assert!(key.starts_with("-----BEGIN"));
    let Some(Pem::File("client_ca_file", path)) = &tls.client_ca else { panic!("{:?}", tls.client_ca) };
    assert_eq!(path, Path::new("/etc/ca.pem"));
    assert_eq!(tls.client_auth, ClientAuth::RequireAndVerify);
    assert_eq!(tls.client_allowed_sans.unwrap(), ["prometheus", "10.0.0.3"]);
    assert_eq!(tls.versions, [&TLS12]);
    let suites: Vec<String> = tls.cipher_suites.iter().map(|suite| format!("{:?}", suite.suite())).collect();
    assert_eq!(suites[0], "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
    assert!(suites[1..].iter().all(|suite| suite.starts_with("TLS13_")) && suites.len() == 4, "{suites:?}");
    let curves: Vec<String> = tls.curves.iter().map(|curve| format!("{:?}", curve.name())).collect();
    assert_eq!(curves, ["secp384r1", "X25519"]);
    assert_eq!(config.rate_limit, Some(RateLimit { interval: Duration::from_secs(90), burst: 20 }));
    assert_eq!(config.users.keys().collect::<Vec<_>>(), ["7", "alice"]);
    let headers: Vec<_> = config.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert!(headers.contains(&("X-XSS-Protection", "1")) && headers.len() == 3, "{headers:?}");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn defaults_are_the_toolkits() {
    for empty in [
        "",
        "# nothing\n",
        "tls_server_config:\nbasic_auth_users: {}\n",
        "rate_limit: {interval: 0, burst: 0}",
    ] {
        let config = parse(empty).unwrap();
        assert!(config.tls.is_none() && config.users.is_empty() && config.rate_limit.is_none(), "{empty}");
    }
    let tls = parse(TLS).unwrap().tls.unwrap();
    assert_eq!((tls.client_auth, tls.versions), (ClientAuth::No, vec![&TLS13, &TLS12]));
    assert_eq!((tls.cipher_suites.len(), tls.curves.len()), (9, 3));
}

#[test]
fn one_reading_names_all_errors() {
    let problems = parse(
        r"
tls_server_config:
  cert_filse: server.crt
  key_file: [a]
  client_auth_type: Please
  min_version: TLS11
  max_version: TLS14
  cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]
  curve_preferences: X25519
http_server_config:
  http2: perhaps
  http3: true
  headers: { Content-Type: foo, X-Frame-Options: foo }
rate_limit: { interval: often, burst: -1 }
basic_auth_users: { john: doe }
web: 1
",
    );
    assert_eq!(
        problems.unwrap_err(),
        [
            "tls_server_config.key_file: must be a string",
            "tls_server_config: missing one of cert or cert_file",
            "tls_server_config: missing one of key or key_file",
            "tls_server_config.client_auth_type: invalid value \"Please\"",
            "tls_server_config.min_version: TLS11 is not supported; use TLS12 or TLS13",
            "tls_server_config.max_version: unknown TLS version \"TLS14\"; use TLS12 or TLS13",
            "tls_server_config.cipher_suites: unknown cipher suite \"TLS_RSA_WITH_AES_128_CBC_SHA\"",
            "tls_server_config.curve_preferences: must be a list of strings",
            "tls_server_config.cert_filse: unknown key",
            "http_server_config.http2: must be true or false",
            "http_server_config.headers.X-Frame-Options: \"foo\" is not permitted; use deny or sameorigin",
            "http_server_config.headers.Content-Type: unknown key",
            "http_server_config.http3: unknown key",
            "rate_limit.interval: \"often\" is not a duration, such as \"1s\"",
            "rate_limit.burst: must be a whole number",
            "basic_auth_users.john: must be a bcrypt hash of a password, such as \"$2y$10$...\"",
            "web: unknown key",
        ]
    );
    for bad in ["hello", "[1]", "a: 1\na: 2", "tls_server_config: {", "\u{0}"] {
        assert_eq!(parse(bad).unwrap_err().len(), 1, "{bad}");
    }
}

#[test]
fn what_this_tls_lacks_is_left_out_of_a_list_and_refused_where_nothing_is_left() {
    let lacking = "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n  \
                   curve_preferences: [CurveP521, X25519]\n";
    let config = parse(&format!("{TLS}{lacking}")).unwrap();
    assert_eq!(
        config.warnings,
        [
            "tls_server_config.cipher_suites: TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA is not supported and is ignored",
            "tls_server_config.curve_preferences: CurveP521 is not supported and is ignored",
        ]
    );
    // TLS 1.3 has suites of its own.
    let only = parse(&format!("{TLS}  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]\n")).unwrap();
    assert_eq!(only.tls.unwrap().versions, [&TLS13]);
    for (lines, error) in [
        (
            "max_version: TLS12\n  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]",
            "cipher_suites: contains no supported suite",
        ),
        ("curve_preferences: [CurveP521]", "curve_preferences: contains no supported curve"),
        ("min_version: TLS13\n  max_version: TLS12", "min_version: is higher than max_version"),
        ("min_version: TLS10", "min_version: TLS10 is not supported"),
        ("client_ca_file: a.pem", "client_auth_type: client CAs are configured"),
        ("client_auth_type: RequireAndVerifyClientCert", "client_auth_type: needs client_ca"),
    ] {
        let problems = parse(&format!("{TLS}  {lines}\n")).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(error), "{lines}: {problems:?}");
    }
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_key() {
    let cut = |lines: &str| Files::new(lines);
    assert!(cut("a: b").error().starts_with("web.yml: a: unknown key"));
    let missing = cut("tls_server_config: { cert_file: none.pem, key_file: server.key }");
    assert_eq!(
        missing.error(),
        "web.yml: tls_server_config.cert_file (none.pem): No such file or directory (os error 2)"
    );
    let mismatched = cut(TLS);
    mismatched.copy("renewed.key", "server.key");
    assert_eq!(
        mismatched.error(),
        "web.yml: tls_server_config.key_file (server.key): is not the key of the certificate in cert or cert_file"
    );
    let no_key = cut(TLS);
    no_key.copy("server.pem", "server.key");
    assert!(
        no_key.error().contains("key_file (server.key): contains no private key in PEM"),
        "{}",
        no_key.error()
    );
    let no_certificate = cut(TLS);
    no_certificate.copy("server.key", "server.pem");
    assert!(no_certificate.error().contains("cert_file (server.pem): contains no certificate in PEM"));
    let auth = "  client_auth_type: RequireAndVerifyClientCert\n";
    let no_authority = cut(&format!("{TLS}{auth}  client_ca_file: /dev/null\n"));
    assert!(no_authority.error().contains("client_ca_file (/dev/null): is a device"));
    let both = cut("tls_server_config: { cert_file: none.pem, key_file: none.key }").open().unwrap_err();
    assert_eq!(both.len(), 2, "{both:?}");
}

#[test]
fn an_expired_certificate_is_served_at_the_start_with_a_warning() {
    let files = Files::new(TLS);
    files.copy("expired.pem", "server.pem");
    files.copy("expired.key", "server.key");
    let access = files.open().unwrap();
    let warnings = access.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("the certificate has expired"), "{warnings:?}");
    assert_eq!(access.current().tls.as_ref().unwrap().expires(), Some(1_609_459_200.0));
    let plain =
        Files::new("basic_auth_users:\n  a: $2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n");
    assert!(plain.open().unwrap().warnings()[0].contains("plain text"));
}
