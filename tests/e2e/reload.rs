//! A new configuration while the daemon runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::health_command::without_topology;
use super::node::{Metrics, Node, Setup, get_timed, signal};

const SUCCESSFUL: &str = "gpu_exporter_config_last_reload_successful";
const SUCCESS_TIME: &str = "gpu_exporter_config_last_reload_success_timestamp_seconds";
/// Of the scrapers.
const INTERVAL: Duration = Duration::from_millis(100);

/// Puts a file in the place of another one.
fn replace(file: &Path, text: &str) {
    fs::write(file.with_extension("new"), text).unwrap();
    fs::rename(file.with_extension("new"), file).unwrap();
}

fn expected(metrics: &Metrics) -> Option<f64> {
    metrics.value("gpu_devices_declared", &[])
}

/// What one scraper saw of the counters.
#[derive(Default)]
struct Counters {
    scrapes: usize,
    slowest: Duration,
    last: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Counters {
    fn scrape(&mut self, addr: SocketAddr) {
        let (status, page, took) = get_timed(addr, "/metrics");
        assert_eq!(status, 200, "scrape {}: {page}", self.scrapes);
        self.scrapes += 1;
        self.slowest = self.slowest.max(took);
        let page = Metrics::parse(&page);
        let counters: BTreeMap<_, _> = page
            .0
            .into_iter()
            .filter(|(name, ..)| name.ends_with("_total"))
            .map(|(name, labels, value)| ((name, labels), value))
            .collect();
        for (series, before) in &self.last {
            match counters.get(series) {
                Some(now) => assert!(now >= before, "{series:?} fell from {before} to {now}"),
                None => panic!("{series:?} is gone"),
            }
        }
        self.last.extend(counters);
    }
}

#[test]
fn under_load_no_scrape_and_no_count_is_lost() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("config.toml");
    replace(&file, "[health]\nexpected_gpus = 64\n");
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with_config_file(file.clone()).start();
    node.wait_ready();
    let first = node.metrics();
    assert_eq!((first.value(SUCCESSFUL, &[]), expected(&first)), (Some(1.0), Some(64.0)));
    let over = AtomicBool::new(false);
    let (started, addr) = (Instant::now(), node.addr());
    std::thread::scope(|scope| {
        let scraper = || {
            let mut counters = Counters::default();
            let mut next = Instant::now();
            while !over.load(Ordering::Relaxed) {
                counters.scrape(addr);
                next += INTERVAL;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            counters
        };
        let scrapers: Vec<_> = (0..4).map(|_| scope.spawn(scraper)).collect();
        for n in 1..=50u32 {
            let good = n % 5 != 0;
            let expected_gpus = if good { n.to_string() } else { "'many'".to_owned() };
            // The sampler takes it over.
            let interval = n / 5 + 1;
            let text =
                format!("health.expected_gpus = {expected_gpus}\nsampler.nvlink_interval = '{interval}m'\n");
            replace(&file, &text);
            signal(node.pid(), Signal::SIGHUP);
            node.wait_metrics(&format!("reload {n}"), |m| {
                let successful = m.value(SUCCESSFUL, &[]) == Some(f64::from(u8::from(good)));
                successful && expected(m) == Some(f64::from(if good { n } else { n - 1 }))
            });
        }
        over.store(true, Ordering::Relaxed);
        for scraper in scrapers {
            let Counters { scrapes, slowest, last } = scraper.join().unwrap();
            println!(
                "{scrapes} scrapes in {:?}, slowest {slowest:?}, {} counters",
                started.elapsed(),
                last.len()
            );
            assert!(scrapes >= 10 && last.len() > 20, "{scrapes} scrapes of {} counters", last.len());
        }
    });
    let starts = node.metrics().value("gpu_exporter_sampler_starts_total", &[]).unwrap();
    assert!(starts == 1.0, "{starts} samplers");
}

/// The sampler's settings change under it: nothing that both configurations publish misses a scrape.
#[test]
fn changed_intervals_and_groups_of_metrics_leave_no_gap() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("config.toml");
    let few = "metrics.groups = []\nmetrics.exclude = ['gpu_temperature_*', 'gpu_clock_event_*', 'gpu_peer_info']\n";
    // Every tier is visited at once after a reload; until its next visit it lives for three of these.
    let intervals = |factor: u32| {
        let interval = |(tier, millis)| format!("sampler.{tier}_interval = '{}ms'\n", millis * factor);
        let often = [("fast", 100), ("normal", 500), ("samples", 500)].map(interval).concat();
        let seldom = [("slow", 3000), ("rare", 10_000), ("nvlink", 10_000)].map(interval).concat();
        format!("{often}{seldom}metrics.publish_interval = '50ms'\n")
    };
    let many = "metrics.groups = ['all']\nprocesses.per_process = true\n";
    replace(&file, &format!("{few}{}", intervals(1)));
    let node = Setup::new("tests/scenarios/reload.toml").with_all_of_file(file.clone()).start();
    node.wait_ready();
    let reads = |m: &Metrics, name| m.all(name, &[]).len() >= 2;
    let first = node.wait_metrics("each tier is read", |m| {
        let names =
            ["gpu_power_watts", "gpu_nvlink_bytes_total", "gpu_gpm_active_ratio", "gpu_ecc_mode_enabled"];
        names.into_iter().all(|name| reads(m, name)) && !reads(m, "gpu_temperature_celsius")
    });
    let sampler = node.samplers();
    let kept: BTreeSet<_> = first.0.into_iter().map(|(name, labels, _)| (name, labels)).collect();
    let (over, addr) = (AtomicBool::new(false), node.addr());
    let xids = |m: &Metrics| m.all("gpu_xid_errors_total", &[("xid", "43")]).iter().sum::<f64>();
    std::thread::scope(|scope| {
        let scraper = scope.spawn(|| {
            let mut scrapes = 0;
            while !over.load(Ordering::Relaxed) {
                let (status, page, _) = get_timed(addr, "/metrics");
                assert_eq!(status, 200, "{page}");
                let page: BTreeSet<_> =
                    Metrics::parse(&page).0.into_iter().map(|(name, labels, _)| (name, labels)).collect();
                let gone: Vec<_> = kept.difference(&page).collect();
                assert!(gone.is_empty(), "scrape {scrapes}: {gone:#?}");
                scrapes += 1;
            }
            scrapes
        });
        for n in 1..=10 {
            let wants_many = n % 2 == 1;
            replace(&file, &format!("{}{}", if wants_many { many } else { few }, intervals(n % 3 + 1)));
            signal(node.pid(), Signal::SIGHUP);
            if n == 5 {
                node.sim().open_gate("fault").unwrap();
            }
            node.wait_metrics(&format!("reload {n}"), |m| {
                let names = [
                    "gpu_temperature_celsius",
                    "gpu_temperature_margin_celsius",
                    "gpu_clock_event_seconds_total",
                ];
                names.into_iter().all(|name| reads(m, name) == wants_many)
            });
        }
        node.wait_metrics("the fault", |m| xids(m) >= 1.0);
        over.store(true, Ordering::Relaxed);
        assert!(scraper.join().unwrap() >= 10);
    });
    let last = node.metrics();
    assert_eq!(xids(&last), 1.0, "counted once");
    assert_eq!(last.value("gpu_exporter_sampler_starts_total", &[]), Some(1.0));
    assert_eq!(node.samplers(), sampler);
}

/// As Kubernetes mounts a ConfigMap: `..data` is a link to a directory, and is replaced.
#[test]
fn a_changed_file_is_loaded_without_a_signal() {
    let dir = TempDir::new().unwrap();
    let put = |version: &str, text: &str| {
        let data = dir.path().join(version);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("config.toml"), text).unwrap();
        symlink(version, dir.path().join("..new")).unwrap();
        fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
    };
    put("..1", "[node]\nrack = 'r1'\n");
    let node = Setup::new("tests/scenarios/still-1xh200.toml")
        .with_config_file(dir.path().join("..data/config.toml"))
        .start();
    let in_rack =
        |metrics: &Metrics, rack| metrics.value("gpu_up", &[("gpu", "0"), ("rack", rack)]) == Some(1.0);
    let loaded = node.wait_metrics("in its rack", |m| in_rack(m, "r1")).value(SUCCESS_TIME, &[]).unwrap();

    put(
        "..2",
        "[node]\nrack = 'r2'\n[canary]\nmode = 'off'\n[log]\nlevel = 'debug'\n[cpu]\nper_owner = true\n",
    );
    node.wait_metrics("in another rack", |m| in_rack(m, "r2"));
    node.wait_metrics("loaded later", |m| m.value(SUCCESS_TIME, &[]).is_some_and(|at| at > loaded));
    let line = node.wait_said(&["loaded the configuration"]);
    assert!(line.contains("node.rack") && line.contains("canary.mode") && !line.contains("cpu."), "{line}");
    node.wait_said(&["need a restart", "cpu.per_owner"]);
    assert!(line.contains("log.level"), "{line}");
    node.wait_metrics("no canary", |m| m.value("gpu_canary_mode", &[("mode", "off")]) == Some(1.0));

    put("..3", "[node]\nrack = 'r3'\n[log]\nlevel = 'loud'\n");
    let page = node.wait_metrics("not loaded", |m| m.value(SUCCESSFUL, &[]) == Some(0.0));
    assert!(in_rack(&page, "r2"), "the whole configuration stays");
    node.wait_said(&["log.level", "loud"]);

    put("..4", "[node]\nrack = 'r4'\n[canary]\nmode = 'idle'\n");
    node.wait_metrics("loaded again", |m| {
        let idle = m.value("gpu_canary_mode", &[("mode", "idle")]) == Some(1.0);
        m.value(SUCCESSFUL, &[]) == Some(1.0) && in_rack(m, "r4") && idle
    });
}

#[test]
fn a_listener_that_cannot_be_used_refuses_the_file() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("config.toml");
    replace(&file, "");
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with_config_file(file.clone()).start();
    node.wait_ready();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = |address| format!("[health]\nexpected_gpus = 5\n[dcgm]\nlisten = '{address}'\n");
    replace(&file, &listen(taken.local_addr().unwrap()));
    signal(node.pid(), Signal::SIGHUP);
    let page = node.wait_metrics("refused", |m| m.value(SUCCESSFUL, &[]) == Some(0.0));
    assert_eq!(expected(&page), None, "nothing of the file is in use");
    node.wait_said(&["dcgm.listen", "ddress"]);
    // So is a web configuration that a restart could not use.
    let missing = dir.path().join("web.yml");
    replace(
        &file,
        &format!("[health]\nexpected_gpus = 6\n[http]\nweb_config_file = '{}'\n", missing.display()),
    );
    signal(node.pid(), Signal::SIGHUP);
    node.wait_said(&["web.yml"]);
    node.wait_said(&["the previous one stays in use"]);
    assert_eq!(expected(&node.metrics()), None, "nothing of the file is in use");
    // One that could be used waits for a restart, and the rest applies.
    let free = taken.local_addr().unwrap();
    drop(taken);
    replace(&file, &listen(free));
    signal(node.pid(), Signal::SIGHUP);
    node.wait_metrics("loaded", |m| m.value(SUCCESSFUL, &[]) == Some(1.0) && expected(m) == Some(5.0));
    node.wait_said(&["need a restart", "dcgm.listen"]);
}

/// Files that the configuration names count as parts of it.
#[test]
fn a_changed_list_of_fields_is_served() {
    let dir = TempDir::new().unwrap();
    let (file, fields) = (dir.path().join("config.toml"), dir.path().join("fields.csv"));
    replace(&fields, "DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n");
    replace(&file, &format!("[dcgm]\nfields_file = '{}'\n", fields.display()));
    let node = Setup::new("tests/scenarios/still-1xh200.toml").with_config_file(file).start();
    let serves = |node: &Node, name| node.get("/dcgm/metrics").1.contains(name);
    node.wait_for("its fields", |node| serves(node, "DCGM_FI_DEV_GPU_TEMP{"));
    assert!(!serves(&node, "DCGM_FI_DEV_POWER_USAGE"));
    replace(&fields, "DCGM_FI_DEV_POWER_USAGE, gauge, power\n");
    node.wait_for("the other fields", |node| serves(node, "DCGM_FI_DEV_POWER_USAGE{"));
    assert!(!serves(&node, "DCGM_FI_DEV_GPU_TEMP"));
}

/// The daemon keeps its configuration, and the commands that ask it need no more than its sockets.
#[test]
fn commands_ask_the_daemon_beside_a_file_that_it_refuses() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("config.toml");
    replace(&file, "");
    let node = without_topology("tests/scenarios/still-1xh200.toml").with_config_file(file.clone()).start();
    node.wait_ready();
    let run = |args: &[&str], socket_in_file: bool| {
        let mut command = node.command(args);
        command.args([Path::new("--config"), &file]);
        if socket_in_file {
            command.env_remove("GPU_NODE_EXPORTER__CONTROL__SOCKET");
            command.env_remove("GPU_NODE_EXPORTER__HEALTH__SOCKET");
        }
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    };
    let socket = format!("control.socket = '{}'\n", node.control_socket().display());
    for (bad, problem, has_keys) in [
        (format!("{socket}health.expected_gpu = 1\n"), "health.expected_gpu (", true),
        (format!("{socket}log.level = 'loud'\n"), "log.level (", true),
        (format!("{socket}metrics.exclude = ['gpu_no_such_thing_*']\n"), "matches no metric", true),
        (format!("{socket}log.level = \n"), "not valid TOML", false),
    ] {
        replace(&file, &bad);
        signal(node.pid(), Signal::SIGHUP);
        node.wait_metrics("refused", |m| m.value(SUCCESSFUL, &[]) == Some(0.0));
        let (code, answer, warnings) = run(&["health"], has_keys);
        assert_eq!((code, answer.as_str()), (Some(0), "ok: 1 GPU, ok.\n"), "{warnings}");
        let config = file.to_str().unwrap();
        for part in [problem, config, "a running daemon keeps its previous configuration"] {
            assert!(warnings.contains(part), "{part:?}: {warnings}");
        }
        for args in [&["snapshot"][..], &["driver", "status"], &["gpm", "on"]] {
            let (code, _, said) = run(args, has_keys);
            assert_eq!(code, Some(0), "{args:?}: {said}");
        }
        let (code, findings, _) = run(&["doctor"], has_keys);
        assert_eq!(code, Some(1), "{findings}");
        assert!(findings.contains("✓ daemon") && findings.contains(problem), "{findings}");
        let case = dir.path().join("case.tar.gz");
        let (code, content, said) = run(&["doctor", "--bundle", case.to_str().unwrap()], has_keys);
        assert_eq!(code, Some(0), "{said}");
        assert!(content.contains("config-errors.txt: ") && content.contains("snapshot.json: "), "{content}");
        fs::remove_file(&case).unwrap();
        for command in ["serve", "check-config"] {
            let (code, _, said) = run(&[command], has_keys);
            assert!(code == Some(64) && said.contains(problem), "{command}: {said}");
        }
        replace(&file, "");
        signal(node.pid(), Signal::SIGHUP);
        node.wait_metrics("loaded", |m| m.value(SUCCESSFUL, &[]) == Some(1.0));
    }
}
