//! NCCL's RAS socket: what a job answers there, and what else may listen on its port.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::machine::Machine;
use super::node::{Metrics, Node, Setup};

const WEDGED: &str = include_str!("../data/nccl/wedged.json");

/// What listens on the port.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Listener {
    /// NCCL 2.28.9 with the recorded answer.
    Nccl,
    /// NCCL before 2.28.7, which knows no JSON.
    Old,
    /// Never says a word.
    Hangs,
    /// Greets as NCCL, and answers without end.
    Endless,
    /// Another program.
    Garbage,
    /// Ends within the answer.
    Half,
}

/// A listener, and each line that a client has said, by connection.
struct Fake {
    port: u16,
    said: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Fake {
    fn start(listener: Listener) -> Fake {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let said: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let log = Arc::clone(&said);
        std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                log.lock().unwrap().push(Vec::new());
                // The client may leave at any time.
                let _ = talk(listener, stream, &log);
            }
        });
        Fake { port, said }
    }

    fn said(&self) -> Vec<Vec<String>> {
        self.said.lock().unwrap().clone()
    }
}

fn talk(listener: Listener, mut stream: TcpStream, log: &Mutex<Vec<Vec<String>>>) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    for line in lines {
        let line = line?;
        log.lock().unwrap().last_mut().unwrap().push(line.clone());
        let answer = WEDGED.replace("192.0.2.2", "127.0.0.1");
        match (listener, line.as_str()) {
            (Listener::Hangs, _) => {}
            (Listener::Garbage, _) => stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
            (_, "CLIENT PROTOCOL 2") => stream.write_all(b"SERVER PROTOCOL 2\n")?,
            (Listener::Old, "SET FORMAT json") => {
                stream.write_all(b"ERROR: Unknown command SET FORMAT json\n")?;
            }
            (_, "TIMEOUT 2" | "SET FORMAT json") => stream.write_all(b"OK\n")?,
            (Listener::Endless, _) => loop {
                stream.write_all(&[b'['; 1 << 16])?;
            },
            (Listener::Half, _) => return stream.write_all(&answer.as_bytes()[..answer.len() / 2]),
            _ => return stream.write_all(answer.as_bytes()),
        }
    }
    Ok(())
}

/// Two ranks of one job, in a container with PID and without network namespace of its own; the scenario's load of each GPU.
fn machine(load: &str) -> Machine {
    let mut machine = Machine::new();
    for (pid, own) in [(5_000_001, 631), (5_000_002, 632)] {
        machine.process(pid, "0::/system.slice/train.service\n");
        let status = format!("Uid:\t1000\t0\t0\t0\nCpus_allowed_list:\t0-3\nNSpid:\t{pid}\t{own}\n");
        machine.write(&format!("proc/{pid}/status"), status);
        machine.gpu_with(&format!("model = \"H200\"\nload = {load:?}"), [pid]);
    }
    machine
}

fn setup(machine: &Machine, port: u16, settings: &[(&str, &str)]) -> Setup {
    let port = port.to_string();
    let setup = machine.setup().with("OWNERS__NCCL_RAS_PORT", &port).with("OWNERS__NCCL_RAS_AFTER", "10s");
    settings.iter().fold(setup, |setup, (key, value)| setup.with(key, value))
}

/// A daemon, ready.
fn start(setup: Setup) -> Node {
    let node = setup.start();
    node.wait_ready();
    node
}

/// No program listens here, and none that a test starts can.
const CLOSED: u16 = 1;

const ON: (&str, &str) = ("OWNERS__NCCL_RAS", "true");

fn questions(m: &Metrics, outcome: &str) -> Option<f64> {
    m.value("gpu_exporter_nccl_ras_requests_total", &[("outcome", outcome)])
}

fn of_ranks(m: &Metrics) -> usize {
    m.all("gpu_owner_nccl_rank", &[]).len() + m.all("gpu_owner_nccl_collectives_total", &[]).len()
}

#[test]
fn ranks_and_their_collectives_are_on_the_page_where_that_is_switched_on() {
    let [unasked, unsure, fake] = [(); 3].map(|()| Fake::start(Listener::Nccl));
    let (machine, rests) = (machine("steps"), machine("idle"));
    let off = start(setup(&machine, unasked.port, &[]));
    let rests = start(setup(&rests, unsure.port, &[ON]));
    rests.wait_metrics("owners", |m| m.all("gpu_owner_info", &[]).len() == 2);
    off.wait_metrics("owners", |m| m.all("gpu_owner_info", &[]).len() == 2);
    let node = start(setup(&machine, fake.port, &[ON]));
    node.wait_metrics("the counter at 0", |m| questions(m, "answered") == Some(0.0));
    let m = node.wait_metrics("an answer", |m| questions(m, "answered") == Some(1.0) && of_ranks(m) == 4);
    for (gpu, rank, collectives) in [("0", 0.0, 109.0), ("1", 1.0, 107.0)] {
        let labels = [("gpu", gpu), ("owner", "unit/train.service")];
        assert_eq!(m.value("gpu_owner_nccl_rank", &labels), Some(rank));
        assert_eq!(m.value("gpu_owner_nccl_collectives_total", &labels), Some(collectives));
    }
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nccl")]), Some(1.0));
    let lines = ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"];
    assert_eq!(fake.said(), [lines.map(str::to_owned).to_vec()], "one question");
    let m = off.metrics();
    assert_eq!((questions(&m, "answered"), of_ranks(&m)), (None, 0));
    assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nccl")]), None);
    assert!(unasked.said().is_empty(), "it had longer");
    assert!(unsure.said().is_empty(), "so had this, and does not compute");
}

#[test]
fn what_is_no_answer_is_counted_and_changes_nothing_else() {
    let machine = machine("steps");
    let listeners = [
        (Listener::Hangs, "late"),
        (Listener::Endless, "too_large"),
        (Listener::Garbage, "malformed"),
        (Listener::Half, "malformed"),
        (Listener::Old, "old"),
    ];
    let fakes = listeners.map(|(listener, outcome)| (Fake::start(listener), outcome));
    let ports = fakes.iter().map(|(fake, outcome)| (fake.port, *outcome)).chain([(CLOSED, "no_socket")]);
    // Each writes the scenario, so before any daemon reads it.
    let setups: Vec<_> = ports.map(|(port, outcome)| (setup(&machine, port, &[ON]), outcome)).collect();
    // At the same time: each needs 10 s until the first question.
    let nodes: Vec<(Node, &str)> = std::thread::scope(|scope| {
        let starts: Vec<_> =
            setups.into_iter().map(|(setup, outcome)| scope.spawn(move || (start(setup), outcome))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    for (node, outcome) in &nodes {
        let m = node.wait_metrics(outcome, |m| questions(m, outcome) >= Some(1.0));
        let all = m.all("gpu_exporter_nccl_ras_requests_total", &[]);
        assert_eq!(Some(all.iter().sum::<f64>()), questions(&m, outcome), "{outcome}");
        assert_eq!((of_ranks(&m), m.all("gpu_owner_info", &[]).len()), (0, 2), "{outcome}");
        assert_eq!(m.value("gpu_exporter_collector_up", &[("collector", "nccl")]), Some(1.0), "{outcome}");
        let allocated = |m: &Metrics| m.all("gpu_owner_allocated_seconds_total", &[]).iter().sum::<f64>();
        node.wait_metrics("the accounts go on", |later| allocated(later) > allocated(&m));
    }
    let [.., (old, _)] = &fakes;
    let greetings = ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json"];
    assert_eq!(old.said(), [greetings.map(str::to_owned)], "never made to collect");
}
