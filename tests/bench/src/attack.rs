//! What scrapes and probes see, and the daemon's memory, while clients hold connections and read little or nothing.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};

use super::cost;
use super::daemon::{Daemon, Scraper, wait};

/// What to attack with.
#[derive(clap::Parser)]
pub struct Options {
    /// Idle connections, one run each
    #[arg(long, value_delimiter = ',', default_value = "0,128,1000,10000")]
    idle: Vec<usize>,
    /// Clients beside them that ask for /metrics and read a byte now and then
    #[arg(long, default_value_t = 128)]
    slow_readers: usize,
    /// Clients beside them that ask for a stream of events
    #[arg(long, default_value_t = 200)]
    streams: usize,
    /// Connections a second that the attacker opens again after the server closed them
    #[arg(long, default_value_t = 1000)]
    reopen: usize,
    /// Clients of a document that never read, in runs of their own
    #[arg(long, default_value_t = 120)]
    never_read: usize,
    /// Events in the list
    #[arg(long, default_value_t = 500)]
    events: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Scenario of the simulated node
    #[arg(long, default_value = "tests/scenarios/node-8xh200.toml")]
    scenario: PathBuf,
    /// The program to attack
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Between two scrapes, two probes, and two looks at the attacker's connections.
const STEP: Duration = Duration::from_millis(100);
/// The timeout of a kubelet's probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let descriptors = options.idle.iter().max().unwrap_or(&0) + options.slow_readers + options.streams + 256;
    raise_descriptors(descriptors as u64)?;
    println!(
        "attack: {} slow readers of /metrics, {} event streams, {} connections opened again a second, {} s, {}",
        options.slow_readers,
        options.streams,
        options.reopen,
        options.seconds,
        options.scenario.display()
    );
    println!("  idle   scrapes failed  p50 ms  p99 ms  max ms   probes failed  RSS MiB       PSS MiB");
    for idle in &options.idle {
        hold(options, *idle)?;
    }
    println!("{} clients that never read, {} events:", options.never_read, options.events);
    println!("  path                       RSS MiB       PSS MiB       scrapes failed  p99 ms");
    for path in ["/api/v1/events", "/api/v1/events?limit=400", "/api/v1/snapshot"] {
        never_read(options, path)?;
    }
    Ok(())
}

fn hold(options: &Options, idle: usize) -> Result<(), Box<dyn Error>> {
    let target = Target::start(options)?;
    let (rss, pss) = target.memory()?;
    let requests = [(idle, ""), (options.slow_readers, "/metrics"), (options.streams, STREAM)];
    let seen = target.under(options, &requests)?;
    println!(
        "  {idle:5}  {:7} {:6}  {:6.3}  {:6.3}  {:6.3}  {:7} {:6}  {rss:5.1} {:5.1}   {pss:5.1} {:5.1}",
        seen.scrapes.len(),
        seen.failed_scrapes,
        cost::percentile(&seen.scrapes, 0.5) * 1e3,
        cost::percentile(&seen.scrapes, 0.99) * 1e3,
        cost::percentile(&seen.scrapes, 1.0) * 1e3,
        seen.probes,
        seen.failed_probes,
        seen.memory.0,
        seen.memory.1,
    );
    Ok(())
}

fn never_read(options: &Options, path: &str) -> Result<(), Box<dyn Error>> {
    let target = Target::start(options)?;
    let (rss, pss) = target.memory()?;
    let seen = target.under(options, &[(options.never_read, path)])?;
    println!(
        "  {path:<25}  {rss:5.1} {:5.1}   {pss:5.1} {:5.1}   {:7} {:6}  {:6.3}",
        seen.memory.0,
        seen.memory.1,
        seen.scrapes.len(),
        seen.failed_scrapes,
        cost::percentile(&seen.scrapes, 0.99) * 1e3,
    );
    Ok(())
}

/// Marks a client that asks for the stream of events.
const STREAM: &str = "stream";

/// A daemon with events, and scrapers and probes of it.
struct Target {
    daemon: Daemon,
    _root: tempfile::TempDir,
}

/// What scrapers, probes and /proc saw under an attack.
#[derive(Default)]
struct Seen {
    /// Seconds, sorted.
    scrapes: Vec<f64>,
    failed_scrapes: usize,
    probes: usize,
    failed_probes: usize,
    /// The most resident and proportional memory, in MiB.
    memory: (f64, f64),
}

impl Target {
    fn start(options: &Options) -> Result<Target, Box<dyn Error>> {
        let root = tempfile::tempdir()?;
        simgpu::host::log_faults(root.path(), options.events)?;
        let settings = [
            ("HOST__ROOT", root.path().to_str().ok_or("the path is no text")?),
            ("EVENTS__KERNEL_LOG", "true"),
            ("EVENTS__HISTORY_SIZE", &options.events.clamp(10, 10_000).to_string()),
        ];
        let daemon = Daemon::start_with(&options.scenario, options.binary.as_ref(), &settings)?;
        let target = Target { daemon, _root: root };
        let mut scraper = Scraper::connect(target.daemon.addr)?;
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let (_, events) = scraper.get("/api/v1/events", "")?;
            let listed = String::from_utf8(events)?.matches("\"meaning\"").count();
            if listed >= options.events.min(500) {
                break;
            }
            if Instant::now() > until {
                return Err(format!("{listed} events are listed").into());
            }
            wait(STEP);
        }
        // Each path once, so that growth is the attack's.
        for path in ["/livez", "/readyz", "/metrics", "/api/v1/snapshot"] {
            scraper.get(path, "")?;
        }
        scraper.scrape()?;
        wait(Duration::from_secs(2));
        Ok(target)
    }

    /// Resident and proportional memory of the daemon, in MiB.
    fn memory(&self) -> Result<(f64, f64), Box<dyn Error>> {
        let pid = self.daemon.pid()?;
        Ok((cost::rss_mib(pid)?, cost::pss_mib(pid)?))
    }

    fn under(&self, options: &Options, attack: &[(usize, &str)]) -> Result<Seen, Box<dyn Error>> {
        let addr = self.daemon.addr;
        let (begun, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let attacker = scope.spawn(|| attack_until(addr, options.reopen, attack, &begun, &ended));
            while begun.load(Ordering::Relaxed) == 0 && !attacker.is_finished() {
                wait(STEP / 10);
            }
            let until = Instant::now() + Duration::from_secs(options.seconds);
            let kept = scope.spawn(move || scrape_until(addr, until, true));
            let fresh = scope.spawn(move || scrape_until(addr, until, false));
            let probes = scope.spawn(move || probe_until(addr, until));
            let mut seen = Seen::default();
            while Instant::now() < until {
                let (rss, pss) = self.memory()?;
                seen.memory = (seen.memory.0.max(rss), seen.memory.1.max(pss));
                wait(STEP * 5);
            }
            let panicked = |_| "a thread panicked";
            for thread in [kept, fresh] {
                let (times, failed) = thread.join().map_err(panicked)?;
                seen.scrapes.extend(times);
                seen.failed_scrapes += failed;
            }
            (seen.probes, seen.failed_probes) = probes.join().map_err(panicked)?;
            ended.store(true, Ordering::Relaxed);
            attacker.join().map_err(panicked)??;
            seen.scrapes.sort_by(f64::total_cmp);
            Ok(seen)
        })
    }
}

fn raise_descriptors(wanted: u64) -> Result<(), Box<dyn Error>> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if wanted > hard {
        return Err(format!("{wanted} descriptors are needed and {hard} allowed (ulimit -Hn)").into());
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard)?)
}

/// A connection of the attacker's.
struct Held {
    request: String,
    stream: TcpStream,
}

impl Held {
    fn open(addr: SocketAddr, request: String) -> std::io::Result<Held> {
        let mut stream = TcpStream::connect(addr)?;
        setsockopt(&stream, sockopt::RcvBuf, &4096)?;
        stream.set_nonblocking(true)?;
        // The server may have closed already.
        let _ = stream.write_all(request.as_bytes());
        Ok(Held { request, stream })
    }

    /// Whether the server has closed the connection; reads a byte where one was asked for.
    fn is_closed(&mut self, reads: bool) -> bool {
        let result = if reads { self.stream.read(&mut [0]) } else { self.stream.peek(&mut [0]) };
        !matches!(result, Ok(1..)) && !matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// Opens the connections of an attack and holds them; `begun` grows once all are open.
fn attack_until(
    addr: SocketAddr,
    reopen: usize,
    attack: &[(usize, &str)],
    begun: &AtomicUsize,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    let mut held = Vec::new();
    for (count, path) in attack {
        for _ in 0..*count {
            let request = match *path {
                "" => String::new(),
                STREAM => {
                    "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".into()
                }
                path => format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
            };
            held.push(Held::open(addr, request)?);
        }
    }
    begun.store(1, Ordering::Relaxed);
    let step = reopen * STEP.as_millis() as usize / 1000;
    // Where the last round ended, so that each is opened again at some time.
    let mut at = 0;
    while !ended.load(Ordering::Relaxed) {
        let mut opened = 0;
        for _ in 0..held.len() {
            at = (at + 1) % held.len();
            let reads = held[at].request.contains("/metrics");
            if opened < step && held[at].is_closed(reads) {
                held[at] = Held::open(addr, std::mem::take(&mut held[at].request))?;
                opened += 1;
            }
        }
        wait(STEP);
    }
    Ok(())
}

/// Scrapes on a kept connection or on one for each; a kept one that the server closed is opened again once, as
/// Prometheus does.
fn scrape_until(addr: SocketAddr, until: Instant, keeps: bool) -> (Vec<f64>, usize) {
    let (mut times, mut failed) = (Vec::new(), 0);
    let mut kept = None;
    while Instant::now() < until {
        let started = Instant::now();
        let mut scraped = kept.as_mut().is_some_and(|scraper: &mut Scraper| scraper.scrape().is_ok());
        if !scraped {
            kept = Scraper::connect(addr).ok();
            scraped = kept.as_mut().is_some_and(|scraper| scraper.scrape().is_ok());
        }
        if scraped {
            times.push(started.elapsed().as_secs_f64());
        } else {
            failed += 1;
        }
        kept = kept.filter(|_| keeps && scraped);
        wait(STEP);
    }
    (times, failed)
}

fn probe_until(addr: SocketAddr, until: Instant) -> (usize, usize) {
    let (mut probes, mut failed) = (0, 0);
    while Instant::now() < until {
        for path in ["/livez", "/readyz"] {
            let started = Instant::now();
            let answer = Scraper::connect(addr).and_then(|mut scraper| scraper.get(path, ""));
            probes += 1;
            failed += usize::from(answer.is_err() || started.elapsed() > PROBE_TIMEOUT);
        }
        wait(STEP);
    }
    (probes, failed)
}
