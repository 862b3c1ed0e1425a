//! Counters of the network devices nearest to the GPUs: bytes, errors and link flaps, read from sysfs. InfiniBand
//! counters come from the adapter itself, and a faulty adapter may not answer, so every device is read with a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Context, Turns, put_node_row};
use crate::views::View;
use host::Host;
use host::reader::{DeadlineReader, MAX_ABANDONED, ReadFailure};
use model::catalog::{self as m, CollectorName, Direction, NetworkError, NetworkPort, Nic};
use model::clock::Mono;
use model::plain_file;
use model::sample::Rows;
use model::topology::{Device, Topology, place};

/// Maximum time to read all counters of a device.
const DEADLINE: Duration = Duration::from_secs(1);
/// Maximum time between two checks for new devices.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum length of a file. All files contain a number or a word.
const MOST: usize = 64;
/// Maximum number of ports per device.
const MAX_PORTS: usize = 8;
/// Unit of InfiniBand's data counters in bytes.
const WORD: u64 = 4;

pub(crate) fn run(context: Context, topology: View<Option<Arc<Topology>>>) {
    if !context.config().network.enabled {
        return context.switched_off(CollectorName::Network, "network.enabled");
    }
    if !context.config().topology.enabled {
        return context.switched_off(CollectorName::Network, "topology.enabled");
    }
    let mut turns = Turns::new(&context);
    let host = Host::new(&context.config().host.root);
    let reader = DeadlineReader::new("network-read", DEADLINE, Arc::clone(&context.stop));
    let mut collector = NetworkCollector { reader, late: BTreeMap::new() };
    let (mut known, mut nics) = (None::<Arc<Topology>>, Vec::new());
    let mut unavailable = None;
    while !context.stop.stopped() {
        let mut due = turns.is_due(|config| config.network.interval);
        if let Some(now) = topology.current()
            && known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &now))
        {
            let found = nics_of_gpus(&now);
            due |= found != nics;
            nics = found;
            known = Some(now);
        }
        if due {
            let taken = Mono::now();
            let root = host.clone();
            let (rows, why) = collector.visit(&nics, move |nic| read(&root, nic));
            context.send(CollectorName::Network, taken, turns.config.network.interval, rows);
            if why != unavailable {
                if let Some(why) = &why {
                    tracing::warn!("failed to read network devices: {why}");
                }
                context.unavailable(CollectorName::Network, why.clone());
                unavailable = why;
            }
        }
        turns.wait_until(turns.next().min(Mono::now() + LOOK));
    }
}

/// Names of a network device that a GPU uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NicNames {
    /// Label of the series.
    nic: Arc<str>,
    /// RDMA device; empty if there is none.
    rdma: String,
    /// Network interface; empty if there is none.
    interface: String,
}

/// Returns the devices nearest to the GPUs, without duplicates.
fn nics_of_gpus(topology: &Topology) -> Vec<NicNames> {
    let names = |device: &Device| {
        let network = device.network.as_ref()?;
        let (rdma, interface) = (network.rdma.clone(), network.interface.clone());
        Some(NicNames { nic: device.network_name().into(), rdma, interface })
    };
    let nearest = place::gpus(topology).into_iter().filter_map(|gpu| gpu.nic);
    let found = nearest
        .filter_map(|near| names(topology.devices.iter().find(|device| device.address == near.address)?));
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Counters of a port. Counters that the kernel does not provide are absent.
#[derive(Clone, Debug, Default, PartialEq)]
struct PortCounters {
    port: String,
    bytes: Vec<(Direction, u64)>,
    errors: Vec<(NetworkError, u64)>,
    flaps: Option<u64>,
}

struct NetworkCollector {
    reader: DeadlineReader,
    /// Devices whose read timed out, with the helper thread that still reads. A device is not read again until its
    /// helper has returned.
    late: BTreeMap<Arc<str>, JoinHandle<()>>,
}

impl NetworkCollector {
    /// Reads all devices. Returns the rows, and the reasons for missing ones.
    fn visit(
        &mut self,
        nics: &[NicNames],
        read: impl Fn(&NicNames) -> Vec<PortCounters> + Clone + Send + 'static,
    ) -> (Rows, Option<String>) {
        self.late.retain(|_, helper| !helper.is_finished());
        let mut rows = Rows::default();
        for nic in nics {
            if self.late.contains_key(&nic.nic) {
                continue;
            }
            let (one, read) = (nic.clone(), read.clone());
            match self.reader.read(MAX_ABANDONED, move || read(&one)) {
                Ok(ports) => ports.iter().for_each(|port| put_port(&mut rows, &nic.nic, port)),
                Err(ReadFailure::Late) => {
                    let helper = self.reader.take_abandoned();
                    self.late.extend(helper.map(|helper| (Arc::clone(&nic.nic), helper)));
                }
                // The daemon stops, or no thread could be started. The device is not at fault.
                Err(ReadFailure::NotTried) => {}
            }
        }
        let late: Vec<&str> = self.late.keys().map(|nic| &**nic).collect();
        let why = format!("no counters from {} within {} s", late.join(", "), DEADLINE.as_secs());
        (rows, (!late.is_empty()).then_some(why))
    }
}

fn put_port(rows: &mut Rows, nic: &Arc<str>, port: &PortCounters) {
    let name = || (Nic(Arc::clone(nic)), NetworkPort(port.port.as_str().into()));
    for (direction, bytes) in &port.bytes {
        let (nic, port) = name();
        put_node_row(rows, &m::gpu_host_network_bytes_total, (nic, port, *direction), *bytes as f64);
    }
    for (error, count) in &port.errors {
        let (nic, port) = name();
        put_node_row(rows, &m::gpu_host_network_errors_total, (nic, port, *error), *count as f64);
    }
    if let Some(flaps) = port.flaps {
        put_node_row(rows, &m::gpu_host_network_flaps_total, name(), flaps as f64);
    }
}

/// Reads all ports of a device. On InfiniBand the RDMA ports count all traffic. On Ethernet they count the bytes that
/// bypass the kernel, and the interface counts the rest.
fn read(host: &Host, nic: &NicNames) -> Vec<PortCounters> {
    let mut ports = Vec::new();
    let mut infiniband = false;
    let folder = host.path("/sys/class/infiniband").join(&nic.rdma).join("ports");
    for port in children(&folder).into_iter().filter(|_| !nic.rdma.is_empty()).take(MAX_PORTS) {
        let folder = folder.join(&port);
        let is_infiniband = word(&folder.join("link_layer")).is_some_and(|layer| layer == "InfiniBand");
        infiniband |= is_infiniband;
        ports.push(rdma_port(port, &folder.join("counters"), is_infiniband));
    }
    if !infiniband && !nic.interface.is_empty() {
        let folder = host.path("/sys/class/net").join(&nic.interface);
        ports.push(interface(nic.interface.clone(), &folder));
    }
    ports
}

fn rdma_port(port: String, counters: &Path, infiniband: bool) -> PortCounters {
    use NetworkError::*;
    let count = |name: &str| number(&counters.join(name));
    let bytes = |name| count(name).map(|words| words.saturating_mul(WORD));
    let bytes = [(Direction::Tx, bytes("port_xmit_data")), (Direction::Rx, bytes("port_rcv_data"))];
    let mut found = PortCounters { port, bytes: present(bytes), ..PortCounters::default() };
    if infiniband {
        found.errors = present([
            (Receive, count("port_rcv_errors")),
            (Transmit, count("port_xmit_discards")),
            (Symbol, count("symbol_error")),
            (Recovery, count("link_error_recovery")),
        ]);
        found.flaps = count("link_downed");
    }
    found
}

fn interface(port: String, folder: &Path) -> PortCounters {
    let count = |name: &str| number(&folder.join("statistics").join(name));
    // Old kernels count losses and returns of the carrier together.
    let flaps = number(&folder.join("carrier_down_count"));
    let flaps = flaps.or_else(|| number(&folder.join("carrier_changes")).map(|changes| changes / 2));
    PortCounters {
        port,
        bytes: present([(Direction::Tx, count("tx_bytes")), (Direction::Rx, count("rx_bytes"))]),
        errors: present([
            (NetworkError::Receive, count("rx_errors")),
            (NetworkError::Transmit, count("tx_errors")),
        ]),
        flaps,
    }
}

fn present<L, const N: usize>(counts: [(L, Option<u64>); N]) -> Vec<(L, u64)> {
    counts.into_iter().filter_map(|(label, count)| Some((label, count?))).collect()
}

/// Returns the sorted entries of a directory; empty if it is unreadable.
fn children(folder: &PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn word(path: &Path) -> Option<String> {
    let text = String::from_utf8(plain_file::read_linked(path, MOST).ok()?).ok()?;
    Some(text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    word(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use model::catalog::schema::KnownLabel;

    fn write_file(root: &Path, path: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(path)).unwrap();
        for (file, text) in files {
            fs::write(root.join(path).join(file), format!("{text}\n")).unwrap();
        }
    }

    fn nic(rdma: &str, interface: &str) -> NicNames {
        let nic = if rdma.is_empty() { interface } else { rdma };
        NicNames { nic: nic.into(), rdma: rdma.into(), interface: interface.into() }
    }

    fn text(port: &PortCounters) -> String {
        let mut text = port.port.clone();
        for (direction, bytes) in &port.bytes {
            text += &format!(" {} {bytes}", direction.known());
        }
        for (error, count) in &port.errors {
            text += &format!(" {} {count}", error.known());
        }
        text + &port.flaps.map(|flaps| format!(" flaps {flaps}")).unwrap_or_default()
    }

    #[test]
    fn each_kind_of_link_has_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path(), Host::new(dir.path()));
        let said = |nic: &NicNames| read(&host, nic).iter().map(text).collect::<Vec<_>>();
        write_file(root, "sys/class/infiniband/mlx5_0/ports/1", &[("link_layer", "InfiniBand")]);
        let words = [("port_xmit_data", "1000"), ("port_rcv_data", "2000")];
        write_file(root, "sys/class/infiniband/mlx5_0/ports/1/counters", &words);
        let errors = [("symbol_error", "7"), ("link_error_recovery", "2"), ("link_downed", "3")];
        write_file(root, "sys/class/infiniband/mlx5_0/ports/1/counters", &errors);
        write_file(root, "sys/class/net/ib0/statistics", &[("tx_bytes", "5")]);
        assert_eq!(said(&nic("mlx5_0", "ib0")), ["1 tx 4000 rx 8000 symbol 7 recovery 2 flaps 3"]);
        write_file(root, "sys/class/infiniband/mlx5_1/ports/1", &[("link_layer", "Ethernet")]);
        write_file(root, "sys/class/infiniband/mlx5_1/ports/1/counters", &words);
        write_file(root, "sys/class/infiniband/mlx5_1/ports/1/counters", &errors);
        write_file(root, "sys/class/net/eth1", &[("carrier_changes", "9"), ("carrier_down_count", "4")]);
        write_file(
            root,
            "sys/class/net/eth1/statistics",
            &[("tx_bytes", "5"), ("rx_bytes", "6"), ("rx_errors", "1")],
        );
        let ethernet = "eth1 tx 5 rx 6 receive 1 flaps 4";
        assert_eq!(said(&nic("mlx5_1", "eth1")), ["1 tx 4000 rx 8000", ethernet]);
        assert_eq!(said(&nic("", "eth1")), [ethernet]);
        write_file(root, "sys/class/net/old", &[("carrier_changes", "9")]);
        assert_eq!(said(&nic("", "old")), ["old flaps 4"]);
        write_file(root, "sys/class/net/odd", &[("carrier_changes", "-1"), ("carrier_down_count", "x")]);
        assert_eq!(said(&nic("", "odd")), ["odd"]);
        assert!(said(&nic("", "")).is_empty() && said(&nic("mlx5_9", "")).is_empty());
    }

    /// Waits until the late read of this device has returned.
    fn wait_back(collector: &NetworkCollector, nic: &str) {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !collector.late[nic].is_finished() {
            assert!(std::time::Instant::now() < deadline, "the helper comes back");
            std::thread::yield_now();
        }
    }

    #[test]
    fn however_many_devices_are_dead_the_others_and_those_that_come_back_are_read() {
        let reader = DeadlineReader::new("network-read", Duration::from_millis(200), Arc::default());
        let mut collector = NetworkCollector { reader, late: BTreeMap::new() };
        let names: Vec<String> = (0..=MAX_ABANDONED).map(|n| format!("dead{n}")).collect();
        let (releases, waits): (Vec<_>, Vec<_>) =
            names.iter().map(|_| channel::<()>()).map(|(s, r)| (s, Mutex::new(r))).unzip();
        let (waits, of) = (Arc::new(waits), names.clone());
        let read = move |nic: &NicNames| {
            if let Some(n) = of.iter().position(|name| *name == nic.interface) {
                // Ends with the sender.
                let _ = waits[n].lock().unwrap().recv();
            }
            vec![PortCounters { port: "1".into(), flaps: Some(1), ..PortCounters::default() }]
        };
        let mut nics: Vec<NicNames> = names.iter().map(|name| nic("", name)).collect();
        nics.push(nic("", "well"));
        let rows = |rows: &Rows| rows.groups().iter().map(|(_, rows)| rows.len()).sum::<usize>();
        let (read_rows, why) = collector.visit(&nics, read.clone());
        assert_eq!(rows(&read_rows), 1, "the one that is well");
        assert_eq!(why, Some(format!("no counters from {} within 1 s", names.join(", "))));
        let mut releases = releases.into_iter();
        drop(releases.next());
        wait_back(&collector, "dead0");
        let (read_rows, why) = collector.visit(&nics, read);
        assert_eq!(rows(&read_rows), 2, "and the one that is back");
        assert_eq!(why, Some(format!("no counters from {} within 1 s", names[1..].join(", "))));
    }

    #[test]
    fn a_device_that_does_not_answer_costs_its_own_counters_alone() {
        let stop = Arc::default();
        let reader = DeadlineReader::new("network-read", Duration::from_millis(500), stop);
        let mut collector = NetworkCollector { reader, late: BTreeMap::new() };
        let (release, wait) = channel::<()>();
        let wait: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(wait));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let read = move |nic: &NicNames| {
            log.lock().unwrap().push(nic.interface.clone());
            if nic.interface == "sick" {
                // Ends with the sender.
                let _ = wait.lock().unwrap().recv();
            }
            vec![PortCounters { port: "1".into(), flaps: Some(1), ..PortCounters::default() }]
        };
        let nics = [nic("", "sick"), nic("", "well")];
        for _ in 0..2 {
            let (rows, why) = collector.visit(&nics, read.clone());
            assert_eq!(rows.groups().iter().map(|(_, rows)| rows.len()).sum::<usize>(), 1);
            assert_eq!(why.as_deref(), Some("no counters from sick within 1 s"));
        }
        assert_eq!(*asked.lock().unwrap(), ["sick", "well", "well"], "not asked again");
        drop(release);
        wait_back(&collector, "sick");
        let (rows, why) = collector.visit(&nics, read);
        assert_eq!((rows.groups().iter().map(|(_, rows)| rows.len()).sum::<usize>(), why), (2, None));
    }
}
