//! Topology and readings in, rows out.

use super::*;
use crate::inbox::LedgerEvent;
use crate::{Ledger, LedgerSettings, LiveSettings};
use model::catalog::{CollectorName, ComputeInstance, GpuInfo};
use model::sample::{Batch, BatchKey, Rows};
use model::snapshot::Snapshot;
use model::topology::fixtures::{device, machine};
use model::topology::{Link, LinkCapability, Network};

const SECOND: u64 = 1_000_000_000;
const FULL: LinkCapability = LinkCapability { generation: 5, lanes: 16 };

fn gpu() -> Gpu {
    Gpu { gpu: 0, uuid: "GPU-0".into() }
}

fn node() -> host::Topology {
    let mut node = machine(&[("0-7", &["0-7"][..]), ("8-31", &["8-15", "16-23", "24-31"])]);
    let mut gpu = device(DeviceKind::Gpu, "0000:06:00.0", Some(1), "8-31", &["0000:00:01.0"]);
    gpu.link = Some(Link { most: FULL, now: FULL });
    gpu.port = Some(FULL);
    let mut nic = device(DeviceKind::Network, "0000:07:00.0", Some(1), "8-31", &["0000:00:02.0"]);
    nic.network = Some(Network {
        interface: "ib0".into(),
        rdma: "mlx5_0".into(),
        up: Some(true),
        bytes_per_second: Some(50e9),
        was_up: true,
    });
    let mut far = device(DeviceKind::Network, "0000:01:00.0", Some(0), "0-7", &["0000:00:03.0"]);
    far.network = Some(Network {
        interface: "eth0".into(),
        rdma: "".into(),
        up: None,
        bytes_per_second: None,
        was_up: false,
    });
    node.devices = vec![far, gpu, nic];
    node
}

struct Bench(Ledger);

impl Bench {
    fn new() -> Bench {
        let mut ledger = Ledger::new(LedgerSettings {
            live: LiveSettings {
                max_series: 2000,
                off: Default::default(),
                groups: m::MetricGroup::ALL.to_vec(),
                ..LiveSettings::default()
            },
            ..LedgerSettings::default()
        });
        ledger.event(LedgerEvent::DriverUp);
        let mut bench = Bench(ledger);
        bench.visit(Tier::Identity, 1, |rows| {
            let info = GpuInfo { pci_address: "00000000:06:00.0".into(), ..GpuInfo::default() };
            rows.entity(&gpu()).info(&m::gpu_info, info);
        });
        bench
    }

    fn visit(&mut self, tier: Tier, at: u64, fill: impl FnOnce(&mut Rows)) {
        let mut rows = Rows::default();
        if tier == Tier::Normal {
            rows.entity(&gpu()).record(&m::gpu_power_watts, (), 100.0).unwrap();
        }
        fill(&mut rows);
        self.0.fold(Batch {
            part: BatchKey { collector: CollectorName::Nvml, gpu: Some(gpu()), tier },
            epoch: 1,
            taken: Mono(at * SECOND),
            nanos: 1000,
            answered: true,
            lifetime_nanos: (tier == Tier::Normal).then_some(3 * SECOND),
            rows,
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: None,
            calls: Vec::new(),
        });
    }

    fn update(&mut self, topology: host::Topology) {
        let update = TopologyUpdate {
            topology: Arc::new(topology),
            against_first_seen: Some(Vec::new()),
            against_declared: Some(vec!["1 packages, were 2".into()]),
        };
        self.0.event(LedgerEvent::Topology(update));
    }

    /// The page of a second in which the GPU answers, at work or at rest.
    fn second(&mut self, at: u64, busy: bool) -> Snapshot {
        self.visit(Tier::Normal, at, |rows| {
            rows.entity(&gpu()).record(&m::gpu_utilization_ratio, (), f64::from(u8::from(busy))).unwrap();
        });
        self.0.publish(Mono(at * SECOND), 1_795_000_000.0)
    }
}

#[test]
fn a_gpu_is_found_by_its_address_and_reported_with_its_share_and_nic() {
    let mut bench = Bench::new();
    assert!(bench.second(1, false).series(&m::gpu_host_topology_info).is_empty(), "nothing is known yet");
    bench.update(node());
    let page = bench.second(2, false);
    let info = |label| page.info(&m::gpu_host_topology_info, &gpu(), label).unwrap_or("absent").to_owned();
    assert_eq!((info("numa_node"), info("cpus"), info("package")), ("1".into(), "8-31".into(), "1".into()));
    assert_eq!(
        (info("share"), info("l3"), info("root_port")),
        ("8-31".into(), "1-3".into(), "0000:00:01.0".into())
    );
    let nic = |label| page.info(&m::gpu_host_nic_info, &gpu(), label).unwrap_or("absent").to_owned();
    assert_eq!((nic("nic"), nic("device"), nic("path")), ("mlx5_0".into(), "ib0".into(), "numa_node".into()));
    let up = page.number(&m::gpu_host_nic_up, &Node {}, (Nic("mlx5_0".into()),));
    let rate = page.number(&m::gpu_host_nic_speed_bytes_per_second, &Node {}, (Nic("mlx5_0".into()),));
    assert_eq!((up, rate), (Some(1.0), Some(50e9)));
    assert_eq!(page.series(&m::gpu_host_nic_up).len(), 1, "only NICs nearest to a GPU");
    let objects = |object| page.number(&m::gpu_host_objects, &Node {}, (object,));
    assert_eq!((objects(HostObject::Cpu), objects(HostObject::L3)), (Some(32.0), Some(4.0)));
    let matches = |against| page.number(&m::gpu_host_topology_matches, &Node {}, (against,));
    assert_eq!(matches(TopologyAgainst::FirstSeen), Some(1.0));
    assert_eq!(matches(TopologyAgainst::Declared), Some(0.0));
}

#[test]
fn the_width_must_match_and_the_driver_is_fresher_than_sysfs() {
    let mut bench = Bench::new();
    bench.update(node());
    let width = |page: Snapshot| page.number(&m::gpu_host_pcie_link_matches, &gpu(), (LinkAspect::Width,));
    assert_eq!(width(bench.second(1, false)), Some(1.0));
    bench.visit(Tier::Slow, 1, |rows| {
        rows.entity(&gpu()).record(&m::gpu_pcie_link_width_lanes, (), 8.0).unwrap()
    });
    assert_eq!(width(bench.second(2, false)), Some(0.0));
    let mut narrow = node();
    narrow.devices[1].port = Some(LinkCapability { generation: 5, lanes: 8 });
    bench.update(narrow);
    assert_eq!(width(bench.second(3, false)), Some(1.0), "the slot has no more");
    let mut silent = node();
    silent.devices[1].port = None;
    bench.update(silent);
    let page = bench.second(4, false);
    assert!(page.series(&m::gpu_host_pcie_link_matches).is_empty(), "no port is known");
    assert!(page.series(&m::gpu_host_pcie_port_max_width_lanes).is_empty());
}

#[test]
fn a_generation_that_is_lower_at_rest_is_no_mismatch() {
    let mut bench = Bench::new();
    let mut resting = node();
    resting.devices[1].link = Some(Link { most: FULL, now: LinkCapability { generation: 1, lanes: 16 } });
    bench.update(resting.clone());
    let of = |page: Snapshot| page.number(&m::gpu_host_pcie_link_matches, &gpu(), (LinkAspect::Generation,));
    for at in 1..100 {
        assert_eq!(of(bench.second(at, false)), None, "at rest it is not known");
    }
    for at in 100..150 {
        assert_eq!(of(bench.second(at, true)), None, "it was read before there was work");
    }
    assert_eq!(of(bench.second(160, false)), None);
    let look = |at| {
        bench.update(resting.clone());
        of(bench.second(at, true))
    };
    let verdicts: Vec<_> = (200..240).map(look).collect();
    assert_eq!(verdicts.iter().position(|verdicts| *verdicts == Some(0.0)), Some(30), "{verdicts:?}");
    bench.update(node());
    assert_eq!(of(bench.second(241, true)), Some(1.0));
    let mut resting = node();
    resting.devices[1].link = Some(Link { most: FULL, now: LinkCapability { generation: 1, lanes: 16 } });
    bench.update(resting.clone());
    assert_eq!(of(bench.second(250, false)), Some(1.0), "at rest again");
    // The driver's word, which is as old as its tier.
    let mut asked = |at| {
        bench.visit(Tier::Slow, at, |rows| {
            rows.entity(&gpu()).record(&m::gpu_pcie_link_generation, (), 1.0).unwrap()
        });
        (at..at + 40).map(|at| of(bench.second(at, true))).all(|verdicts| verdicts == Some(1.0))
    };
    assert!(asked(300), "it was asked before there was work");
    assert!(!asked(340), "it was asked in the midst of it");
}

#[test]
fn slices_share_the_cpus_of_their_gpu_along_caches() {
    let mut bench = Bench::new();
    bench.update(node());
    let slice = |id: u32, profile: &str| ComputeInstance {
        gpu: 0,
        uuid: gpu().uuid,
        gpu_instance: id,
        profile: profile.into(),
        compute_instance: 0,
    };
    let mut visit = |slices: &[ComputeInstance]| {
        bench.visit(Tier::Normal, 1, |rows| {
            for slice in slices {
                let mig_uuid = format!("MIG-{}", slice.gpu_instance);
                let info = MigInfo { mig_uuid, mig_profile: slice.profile.to_string(), name: String::new() };
                rows.entity(slice).info(&m::gpu_mig_info, info);
            }
        });
        let page = bench.0.publish(Mono(SECOND), 1_795_000_000.0);
        let share = |slice| page.info(&m::gpu_mig_host_topology_info, slice, "share").unwrap().to_owned();
        slices.iter().map(share).collect::<Vec<_>>()
    };
    let three = [slice(1, "2g.35gb"), slice(2, "2g.35gb"), slice(3, "2g.35gb")];
    assert_eq!(visit(&three), ["8-15", "16-23", "24-31"]);
    assert_eq!(visit(&[slice(1, "4g.71gb"), slice(2, "2g.35gb")]), ["8-23", "24-31"]);
}
