//! TLS, client certificates and passwords by a web configuration file, asked with curl and scraped by Prometheus.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::canary_daemon;
use super::faults::pci;
use super::machine::Machine;
use super::node::{Node, Setup};
use super::podresources::{Kubelet, devices, pod};
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
    let line = node.wait_said(&["serving dcgm-exporter's page at http"]);
    line.split_once("://").unwrap().1.split('/').next().unwrap().parse().unwrap()
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
    assert_eq!((status, answer.as_str()), (400, "This port requires HTTPS: use https://.\n"));
    node.wait_said(&["no access", "the client uses plain HTTP"]);
    for version in ["--tls-max=1.2", "--tlsv1.3"] {
        assert_eq!(
            curl(&format!("https://{}/metrics", node.addr()), &version.split('=').collect::<Vec<_>>()).0,
            200
        );
    }
    let plain = Setup::new("tests/scenarios/still-1xh200.toml").start();
    let (status, why) = curl(&format!("https://{}/metrics", plain.addr()), &[]);
    assert!(status == 0 && why.contains("wrong version number"), "{why}");
    plain.wait_said(&["no access", "the client uses TLS, but this port does not (http.web_config_file)"]);
    assert_eq!(plain.get("/metrics").0, 200);
}

#[test]
fn prometheus_scrapes_over_mutual_tls_while_certificates_change() {
    let files = Files::new(&format!("{TLS}{VERIFIED}  client_allowed_sans: [prometheus]\n{USER}"));
    let node = files.setup().start();
    let file = |name: &str| certificate(name).display().to_string();
    let server = Server::scraping(&format!(
        "  - job_name: gpu-node-exporter\n    scrape_interval: 3s\n    scrape_timeout: 3s\n    scheme: https\n    basic_auth: {{ username: alice, password: secret }}\n    \
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
    server.wait_number("count_over_time(up[5m]) >= 4");
    assert_eq!(server.wait_number("min_over_time(up[5m])"), 1.0, "{}", server.failed_scrapes());
}

/// A node on whose GPU 1 a pod and a user work, and whose GPU 0 a canary gave up for another pod, after an Xid that names a
/// process: every document that can name them does.
struct Named {
    node: Node,
    dcgm: SocketAddr,
    _kubelet: Kubelet,
    _files: Files,
    _machine: Machine,
}

/// Of the process of the pod, and of the user's. No number of a page has seven such digits by chance.
const PIDS: [u32; 2] = [4_139_711, 4_139_712];
const CONTAINER: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";
const POD_UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
/// What a document without names has none of.
const NAMES: [&str; 10] = [
    "hush-worker",
    "hush-later",
    "hush-program",
    "pod/ml",
    "user/alice",
    "\"alice\"",
    "4139711",
    "4139712",
    CONTAINER,
    POD_UID,
];

impl Named {
    fn start(open_paths: &str) -> Named {
        let mut machine = Machine::new();
        let slice = format!("kubepods-burstable-pod{}.slice", POD_UID.replace('-', "_"));
        let scope =
            format!("/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{CONTAINER}.scope");
        machine.process(PIDS[0], format!("0::{scope}\n"));
        machine.write(&format!("var/log/containers/hush-worker_ml_main-{CONTAINER}.log"), "");
        machine.process(PIDS[1], "0::/user.slice/user-1000.slice/session-1.scope\n");
        machine.write("dev/kmsg", "");
        machine.gpu([]);
        machine.gpu(PIDS);
        machine.step("gate = \"slow\"\ngpu = 0\nfunction = \"cuLaunchKernel\"\nslow = \"100ms\"\n");
        let kubelet = Kubelet::start(&machine.root(), Vec::new(), Vec::new());
        let files = Files::new(USER);
        let setup = files.protect(canary_daemon::often(machine.setup())).with("DCGM__LISTEN", "127.0.0.1:0");
        let node = setup
            .with("PROCESSES__PER_PROCESS", "true")
            .with("EVENTS__KERNEL_LOG", "true")
            .with("HTTP__HIDE_OWNERS", "unauthenticated")
            .with("HTTP__OPEN_PATHS", open_paths)
            .start();
        let dcgm = dcgm(&node);
        node.wait_ready();
        let gpus = node.wait_metrics("two GPUs", |m| m.all("gpu_info", &[]).len() == 2);
        let give = |gpu: &str, name: &str| {
            let info = gpus.0.iter().find(|(name, labels, _)| name == "gpu_info" && labels["gpu"] == gpu);
            let claim = devices("nvidia.com/gpu", [info.unwrap().1["uuid"].clone()]);
            kubelet.now(|script| script.pods.pod_resources.push(pod(name, vec![claim])));
        };
        give("1", "hush-worker");
        canary_daemon::long_run(&node);
        give("0", "hush-later");
        let at = pci(&gpus, "1");
        let micros =
            nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap().tv_sec() * 1_000_000;
        let line =
            format!("NVRM: Xid (PCI:{at}): 13, pid={}, name=hush-program, Graphics Exception", PIDS[0]);
        machine.write("dev/kmsg", format!("4,1,{micros},-;{line}\n"));
        Named { node, dcgm, _kubelet: kubelet, _files: files, _machine: machine }
    }

    /// Status and body of `curl` arguments and a path; a path that begins with a colon is the other listener's.
    fn get(&self, path: &str, arguments: &[&str]) -> (u16, String) {
        let url = match path.strip_prefix(':') {
            Some(path) => format!("http://{}{path}", self.dcgm),
            None => format!("http://{}{path}", self.node.addr()),
        };
        curl(&url, arguments)
    }
}

#[test]
fn names_of_owners_are_for_the_authenticated() {
    const OPEN: &str = "/,/page/updates,/page/history,/metrics,/dcgm/metrics,/livez,/readyz,/health,\
        /api/v1/snapshot,/api/v1/events,/api/v1/topology,/api/v1/windows,/api/v1/owners";
    const OPENMETRICS: &[&str] = &["--header", "Accept: application/openmetrics-text"];
    // A stream has no end.
    const STREAM: &[&str] = &["--header", "Accept: text/event-stream", "--max-time", "2"];
    let worker = "pod=\"hush-worker\"";
    // What each document has for the authenticated; none: no name is in it.
    let documents: [(&str, &[&str], &[&str]); 20] = [
        ("/", &[], &["hush-worker", "user/alice"]),
        ("/page/updates", STREAM, &[]),
        ("/page/history", &[], &[]),
        ("/metrics", &[], &[worker, "owner=\"user/alice\"", "pid=\"4139711\""]),
        ("/metrics", OPENMETRICS, &[worker]),
        ("/dcgm/metrics", &[], &[worker]),
        (":/metrics", &[], &[worker]),
        (":/", &[], &[]),
        (":/health", &[], &[]),
        ("/livez", &[], &[]),
        ("/readyz", &[], &[]),
        ("/api/v1/snapshot", &[], &["hush-worker", "the GPU is given to pod ml/hush-later, container main"]),
        ("/api/v1/events", &[], &["\"hush-program\"", "name=hush-program"]),
        ("/api/v1/events?limit=3", &[], &["hush-program"]),
        ("/api/v1/events?since_revision=0", &[], &["hush-program"]),
        ("/api/v1/events", STREAM, &["hush-program"]),
        ("/api/v1/owners", &[], &["\"hush-worker\"", CONTAINER, POD_UID]),
        ("/api/v1/owners?limit=3", &[], &["user/alice"]),
        ("/api/v1/owners?owner=user/alice", &[], &["user/alice"]),
        ("/api/v1/windows", &[], &[]),
    ];
    let named = Named::start(OPEN);
    let alice: &[&str] = &["--user", "alice:secret"];
    let list = named.get("/none", alice).1;
    for path in list.lines().skip(1).filter_map(|line| line.split(' ').next()) {
        // Below the folders are files of the program.
        let is_known = documents.iter().any(|(known, ..)| *known == path) || path == "/api/v1/topology";
        assert!(is_known || path.ends_with('/'), "{path}");
    }
    // The page, once it is there; of a stream at least one event.
    let get = |path: &str, arguments: &[&str], more: &[&str], parts: &[&str]| {
        let (arguments, begun) =
            ([arguments, more].concat(), if arguments == STREAM { "data: " } else { "" });
        let found = RefCell::new(String::new());
        named.node.wait_for(&format!("{path} {arguments:?} has {parts:?}"), |_| {
            let (status, page) = named.get(path, &arguments);
            let is_there =
                status == 200 && page.contains(begun) && parts.iter().all(|part| page.contains(part));
            found.replace(page);
            is_there
        });
        found.into_inner()
    };
    for (path, arguments, names) in documents {
        get(path, arguments, alice, names);
    }
    for (path, arguments, _) in documents {
        let page = get(path, arguments, &[], &[]);
        for name in NAMES {
            assert!(!page.contains(name), "{path} {arguments:?} has {name}: {page}");
        }
        assert_eq!(named.get(path, &["--user", "alice:wrong"]).0, 401, "{path}");
    }
    // The host of this test has none, and who may not read names learns no more of that.
    assert_eq!(named.get("/api/v1/topology", &[]), named.get("/api/v1/topology", alice));
    get("/metrics", &[], &[], &["gpu_up{"]);
    get("/api/v1/events", &[], &[], &["\"code\":13"]);
    assert_eq!(named.get("/alerts/", &[]).0, 401, "not in the list");
}

#[test]
fn names_of_owners_are_for_verified_certificates_unless_there_are_passwords() {
    let mut machine = Machine::new();
    machine.process(PIDS[0], "0::/user.slice/user-1000.slice/session-1.scope\n");
    machine.gpu([PIDS[0]]);
    let start = |config: &str| {
        let files = Files::new(config);
        let setup = files.protect(machine.setup()).with("HTTP__OPEN_PATHS", "/metrics");
        (setup.with("HTTP__HIDE_OWNERS", "unauthenticated").start(), files)
    };
    let has_name = |node: &Node, arguments: &[&str]| {
        let (status, page) = curl(&format!("https://{}/metrics", node.addr()), arguments);
        assert_eq!(status, 200, "{page}");
        page.contains("user/alice")
    };
    let certificate = shown("client");
    let certificate = certificate.each_ref().map(String::as_str);
    let (node, _files) = start(&format!("{TLS}{VERIFIED}"));
    node.wait_for("the name", |node| has_name(node, &certificate));
    assert!(!has_name(&node, &[]));
    let (node, _files) = start(&format!("{TLS}{VERIFIED}{USER}"));
    let both = [&certificate[..], &["--user", "alice:secret"]].concat();
    node.wait_for("the name", |node| has_name(node, &both));
    assert!(!has_name(&node, &certificate), "a password is asked for as well");
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
