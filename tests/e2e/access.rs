//! TLS, client certificates and passwords by a web configuration file, asked with curl and scraped by Prometheus.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::machine::Machine;
use super::node::{Node, Setup};
use super::prometheus::Server;

/// Of "secret".
const USER: &str =
    "basic_auth_users:\n  alice: $2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";
const VERIFIED: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n";

fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

/// A folder with a web configuration and the certificates that it names.
struct Files(TempDir);

impl Files {
    fn new(config: &str) -> Files {
        let files = Files(TempDir::new().unwrap());
        for name in ["server.pem", "server.key", "authority.pem"] {
            files.copy(name, name);
        }
        fs::write(files.path(), config).unwrap();
        files
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("web.yml")
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(certificate(from), self.0.path().join(to)).unwrap();
    }

    fn protect(&self, setup: Setup) -> Setup {
        setup.with("HTTP__WEB_CONFIG_FILE", self.path().to_str().unwrap())
    }

    fn setup(&self) -> Setup {
        self.protect(Setup::new("tests/scenarios/still-1xh200.toml"))
    }
}

/// What curl got: the status (0: none), and the body or curl's error.
fn curl(url: &str, arguments: &[&str]) -> (u16, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}", "--cacert"])
        .arg(certificate("authority.pem"))
        .args(arguments)
        .arg(url)
        .output()
        .expect("curl starts");
    let out = String::from_utf8(output.stdout).unwrap();
    let (body, status) = out.rsplit_once('\n').unwrap();
    match status.parse().unwrap() {
        0 => (0, String::from_utf8(output.stderr).unwrap()),
        status => (status, body.to_owned()),
    }
}

/// The arguments that show a certificate.
fn shown(name: &str) -> [String; 4] {
    let file = |kind: &str| certificate(&format!("{name}.{kind}")).to_str().unwrap().to_owned();
    ["--cert".into(), file("pem"), "--key".into(), file("key")]
}

fn with_certificate(url: &str, name: &str) -> (u16, String) {
    let arguments = shown(name);
    curl(url, &arguments.each_ref().map(String::as_str))
}

fn dcgm(node: &Node) -> SocketAddr {
    let line = node.wait_said(&["serving dcgm-exporter's page at https://"]);
    line.split_once("https://").unwrap().1.split('/').next().unwrap().parse().unwrap()
}

#[test]
fn a_password_is_asked_for_at_both_listeners_but_for_open_paths() {
    let files =
        Files::new(&format!("{TLS}{USER}http_server_config: {{ headers: {{ X-Frame-Options: deny }} }}\n"));
    let node = files.setup().with("DCGM__LISTEN", "127.0.0.1:0").start();
    for (address, open, closed) in [
        (node.addr(), "livez", ["metrics", "api/v1/owners", ""]),
        (dcgm(&node), "health", ["metrics", "", "livez/"]),
    ] {
        let url = |path: &str| format!("https://{address}/{path}");
        assert_eq!(curl(&url(open), &[]).0, 200, "{open}");
        for path in closed {
            assert_eq!(
                curl(&url(path), &[]),
                (401, "This path needs a user and a password.\n".into()),
                "{path}"
            );
            assert_eq!(curl(&url(path), &["--user", "alice:Secret"]).0, 401, "{path}");
            assert_eq!(curl(&url(path), &["--user", "bob:secret"]).0, 401, "{path}");
        }
        assert_eq!(curl(&url("metrics"), &["--user", "alice:secret"]).0, 200);
    }
    let url = format!("https://{}/metrics", node.addr());
    let (_, headers) = curl(&url, &["--head", "--http2", "--user", "alice:secret"]);
    assert!(headers.starts_with("HTTP/1.1 200 ") && headers.contains("x-frame-options: deny"), "{headers}");
    let (_, headers) = curl(&url, &["--head"]);
    assert!(
        headers.contains("www-authenticate: Basic realm=") && headers.contains("x-frame-options"),
        "{headers}"
    );
    node.wait_said(&["no access", "client=127.0.0.1", "no password"]);
}

#[test]
fn without_a_verified_certificate_nothing_but_open_paths_is_read() {
    let files = Files::new(&format!("{TLS}{VERIFIED}"));
    let node = files.setup().start();
    let url = |path: &str| format!("https://{}/{path}", node.addr());
    assert_eq!(with_certificate(&url("metrics"), "client").0, 200);
    assert_eq!(curl(&url("metrics"), &[]), (403, "This path needs a client certificate.\n".into()));
    assert_eq!(curl(&url("livez"), &[]).0, 200);
    for (name, alert) in [("stranger", "unknown ca"), ("expired-client", "certificate expired")] {
        for path in ["metrics", "livez"] {
            let (status, why) = with_certificate(&url(path), name);
            assert!(status == 0 && why.contains(alert), "{name}: {status} {why}");
        }
    }
    node.wait_said(&["no access", "client=127.0.0.1", "no client certificate"]);
    let strict = files.setup().with("HTTP__OPEN_PATHS", "").start();
    let (status, why) = curl(&format!("https://{}/livez", strict.addr()), &[]);
    assert!(status == 0 && why.contains("certificate required"), "{why}");
    strict.wait_said(&["no access", "TLS handshake", "peer sent no certificates"]);
}

#[test]
fn each_protocol_at_the_others_port_gets_a_plain_answer() {
    let files = Files::new(TLS);
    let node = files.setup().start();
    let (status, answer) = curl(&format!("http://{}/metrics", node.addr()), &[]);
    assert_eq!((status, answer.as_str()), (400, "This port speaks HTTPS: use https://.\n"));
    node.wait_said(&["no access", "the client speaks plain HTTP"]);
    for version in ["--tls-max=1.2", "--tlsv1.3"] {
        assert_eq!(
            curl(&format!("https://{}/metrics", node.addr()), &version.split('=').collect::<Vec<_>>()).0,
            200
        );
    }
    let plain = Setup::new("tests/scenarios/still-1xh200.toml").start();
    let (status, why) = curl(&format!("https://{}/metrics", plain.addr()), &[]);
    assert!(status == 0 && why.contains("wrong version number"), "{why}");
    plain.wait_said(&["no access", "speaks TLS to a port without (http.web_config_file)"]);
    assert_eq!(plain.get("/metrics").0, 200);
}

#[test]
fn prometheus_scrapes_over_mutual_tls_while_certificates_change() {
    let files = Files::new(&format!("{TLS}{VERIFIED}  client_allowed_sans: [prometheus]\n{USER}"));
    let node = files.setup().start();
    let file = |name: &str| certificate(name).display().to_string();
    let server = Server::scraping(&format!(
        "  - job_name: gpu-node-exporter\n    scheme: https\n    basic_auth: {{ username: alice, password: secret }}\n    \
         tls_config: {{ ca_file: '{}', cert_file: '{}', key_file: '{}' }}\n    \
         static_configs: [{{ targets: ['{}'] }}]\n",
        file("authority.pem"),
        file("client.pem"),
        file("client.key"),
        node.addr(),
    ));
    let expiry = "gpu_exporter_certificate_expiry_timestamp_seconds";
    let first = server.wait_number(expiry);
    server.wait_number("gpu_exporter_web_config_last_reload_successful == 1");
    // In two steps, as a person does. In between the earlier certificate stays in use.
    files.copy("renewed.pem", "server.pem");
    node.wait_said(&["tls_server_config.key_file", "is not the key of the certificate", "stays in use"]);
    server.wait_number("gpu_exporter_web_config_last_reload_successful == 0");
    let handshake = || {
        let (_, said) =
            curl(&format!("https://{}/livez", node.addr()), &["--write-out", "%{certs}\n%{http_code}"]);
        said
    };
    let before = handshake();
    files.copy("renewed.key", "server.key");
    let after = handshake();
    assert!(before.contains("alive") && after.contains("alive"), "{before} {after}");
    let said = |output: &str| output.lines().find(|line| line.starts_with("Expire date:")).map(str::to_owned);
    assert_ne!(said(&before), said(&after), "the next handshake has the new certificate");
    server.wait_number(&format!("{expiry} > {first}"));
    server.wait_number("gpu_exporter_web_config_last_reload_successful == 1");
    assert_eq!(server.wait_number("min_over_time(up[5m])"), 1.0, "no scrape was lost");
    assert!(server.wait_number("count_over_time(up[5m])") >= 4.0);
}

#[test]
fn names_of_owners_are_for_the_authenticated() {
    // No number of a page has seven such digits by chance.
    const PID: u32 = 4_139_711;
    let mut machine = Machine::new();
    machine.process(PID, "0::/user.slice/user-1000.slice/session-1.scope\n");
    machine.gpu([PID]);
    let open = "/metrics,/dcgm/metrics,/api/v1/owners,/api/v1/snapshot,/api/v1/events,/,/readyz";
    let files = Files::new(&format!("{TLS}{USER}"));
    let setup = files.protect(machine.setup()).with("PROCESSES__PER_PROCESS", "true");
    let node = setup.with("HTTP__HIDE_OWNERS", "unauthenticated").with("HTTP__OPEN_PATHS", open).start();
    let url = |path: &str| format!("https://{}{path}", node.addr());
    let named = |path: &str| curl(&url(path), &["--user", "alice:secret"]).1.contains("user/alice");
    node.wait_for("names for the authenticated", |_| {
        ["/metrics", "/api/v1/owners", "/api/v1/snapshot", "/"].into_iter().all(named)
    });
    for path in open.split(',') {
        let (status, page) = curl(&url(path), &[]);
        assert_eq!(status, 200, "{path}: {page}");
        for name in ["user/alice", "\"alice\"", &PID.to_string()] {
            assert!(!page.contains(name), "{path} has {name}: {page}");
        }
        assert_eq!(curl(&url(path), &["--user", "alice:wrong"]).0, 401, "{path}");
    }
    assert!(curl(&url("/metrics"), &[]).1.contains("gpu_up{"), "what is not an owner's stays");
    assert_eq!(curl(&url("/livez"), &[]).0, 401, "not in the list");
    // Where no client is authenticated, none gets names.
    let plain = machine.setup().with("HTTP__HIDE_OWNERS", "unauthenticated").start();
    plain.wait_ready();
    assert!(!plain.get("/metrics").1.contains("owner="));
}

#[test]
fn a_bad_web_configuration_is_refused_with_all_that_is_wrong() {
    let files = Files::new("tls_server_config: { cert_filse: a }\nbasic_auth_users: { john: doe }\nweb: 1\n");
    for command in ["check-config", "serve"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_gpu-node-exporter"));
        let program = program.arg(command).env("GPU_NODE_EXPORTER__HTTP__WEB_CONFIG_FILE", files.path());
        let output = program.env("GPU_NODE_EXPORTER__HTTP__LISTEN", "127.0.0.1:0").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        for part in
            ["cert_filse: unknown key", "missing one of cert", "basic_auth_users.john", "web: unknown key"]
        {
            assert!(said.contains(part) && said.contains("web.yml"), "{part}: {said}");
        }
    }
}

#[test]
fn state_changes_through_the_local_socket_alone() {
    let files = Files::new(&format!("{TLS}{USER}"));
    let node = files.setup().start();
    let orders =
        ["driver/release", "driver%20release", "gpm/off", "canary/clear", "nvswitch/clear", "api/v1/windows"];
    for path in orders.into_iter().chain(["", "metrics", "livez", "api/v1/events"]) {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let url = format!("https://{}/{path}", node.addr());
            let (status, answer) =
                curl(&url, &["--user", "alice:secret", "--request", method, "--data", "off"]);
            assert!([404, 405].contains(&status), "{method} /{path}: {status} {answer}");
        }
    }
    let said = |args: &[&str]| String::from_utf8(node.command(args).output().unwrap().stdout).unwrap();
    assert!(!said(&["driver", "status"]).contains("released"), "{}", said(&["driver", "status"]));
    assert!(
        said(&["driver", "release"]).contains("released") && said(&["driver", "status"]).contains("released")
    );
}
