//! The lines, word by word.

use super::*;
use crate::map::{DriverGpu, DriverMigDevice};
use model::topology::fixtures::{device, machine, threaded};
use model::topology::{DeviceKind, Topology};

fn known(index: u32, address: &str, slices: &[&str]) -> DriverGpu {
    let slice = |uuid: &&str| DriverMigDevice {
        uuid: (*uuid).into(),
        profile: "2g.35gb".into(),
        ..DriverMigDevice::default()
    };
    DriverGpu {
        index,
        uuid: format!("GPU-0000-{index}"),
        model: "NVIDIA H200".into(),
        pci_address: address.into(),
        minor: Some(index),
        slices: slices.iter().map(slice).collect(),
    }
}

/// The lines without comments and empty ones.
fn said(map: &Map, binder: Binder) -> Vec<String> {
    let all = lines(map, binder);
    all.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn mig() -> Map {
    let mut topology = machine(&[("0-23", &["0-7", "8-15", "16-23"])]);
    topology.devices = vec![device(DeviceKind::Gpu, "0000:06:00.0", Some(0), "0-23", &[])];
    Map::new(topology, &[known(0, "00000000:06:00.0", &["MIG-a", "MIG-b", "MIG-c"])])
}

/// Two sockets whose CPUs take turns, two threads a core: cores 0,4 2,6 and 1,5 3,7.
fn pair() -> Map {
    let mut topology =
        threaded(&[("0,2,4,6", &["0,2,4,6"]), ("1,3,5,7", &["1,3,5,7"])], &|cpu| vec![cpu % 4, cpu % 4 + 4]);
    topology.devices = vec![
        device(DeviceKind::Gpu, "0000:06:00.0", Some(0), "0,2,4,6", &[]),
        device(DeviceKind::Gpu, "0000:86:00.0", Some(1), "1,3,5,7", &[]),
    ];
    Map::new(topology, &[known(0, "0:06:00.0", &[]), known(1, "0:86:00.0", &[])])
}

#[test]
fn docker_names_the_uuid() {
    assert_eq!(
        said(&mig(), Binder::Docker),
        [
            r#"docker run --gpus '"device=MIG-a"' --cpuset-cpus=0-7 --cpuset-mems=0 IMAGE"#,
            r#"docker run --gpus '"device=MIG-b"' --cpuset-cpus=8-15 --cpuset-mems=0 IMAGE"#,
            r#"docker run --gpus '"device=MIG-c"' --cpuset-cpus=16-23 --cpuset-mems=0 IMAGE"#,
        ]
    );
}

#[test]
fn numactl_and_systemd_take_the_kernels_numbers() {
    assert_eq!(
        said(&pair(), Binder::Numactl),
        [
            "numactl --physcpubind=0,2,4,6 --membind=0 env CUDA_VISIBLE_DEVICES=GPU-0000-0 COMMAND",
            "numactl --physcpubind=1,3,5,7 --membind=1 env CUDA_VISIBLE_DEVICES=GPU-0000-1 COMMAND",
        ]
    );
    assert_eq!(
        said(&pair(), Binder::Systemd)[7..],
        [
            "[Service]",
            "Environment=CUDA_VISIBLE_DEVICES=GPU-0000-1",
            "CPUAffinity=1,3,5,7",
            "AllowedCPUs=1,3,5,7",
            "NUMAPolicy=bind",
            "NUMAMask=1",
            "AllowedMemoryNodes=1",
        ]
    );
}

#[test]
fn slurm_counts_cores_by_socket() {
    assert_eq!(
        said(&pair(), Binder::Slurm),
        ["Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-1", "Name=gpu Type=h200 File=/dev/nvidia1 Cores=2-3"]
    );
    assert_eq!(said(&mig(), Binder::Slurm), ["AutoDetect=nvml"]);
}

#[test]
fn kubernetes_gets_the_settings_that_it_has() {
    let text = lines(&pair(), Binder::Kubernetes);
    for part in [
        "\ncpuManagerPolicy: static\n",
        "\ntopologyManagerPolicy: single-numa-node\n",
        "\nreservedSystemCPUs: \"0,4\"\n",
        "{ nvidia.com/gpu: 1, cpu: 2 }",
        "{ nvidia.com/gpu: 1, cpu: 4 }",
        "has no setting for which CPUs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // GPUs on one socket alone: the other one is not kept from pods.
    let mut topology = pair().topology;
    topology.devices.remove(0);
    let text = lines(&Map::new(topology, &[]), Binder::Kubernetes);
    assert!(text.contains("\nreservedSystemCPUs: \"0,4\"\n") && text.contains("cpu: 4 }"), "{text}");
    let text = lines(&mig(), Binder::Kubernetes);
    assert!(
        text.contains("topologyManagerPolicy: best-effort") && text.contains("nvidia.com/mig-2g.35gb: 1"),
        "{text}"
    );
}

#[test]
fn nothing_hostile_gets_into_a_line() {
    let mut topology = machine(&[("0-3", &["0-3"])]);
    topology.devices = vec![device(DeviceKind::Gpu, "0000:06:00.0", None, "0-3", &[])];
    let hostile = DriverGpu {
        uuid: "GPU-1\"; rm -rf / #".into(),
        model: "H200\nrm -rf /\n".into(),
        ..known(0, "0000:06:00.0", &[])
    };
    let map = Map::new(topology, &[hostile]);
    for binder in [Binder::Docker, Binder::Systemd, Binder::Numactl] {
        assert!(said(&map, binder).is_empty(), "{}", lines(&map, binder));
    }
    assert_eq!(said(&map, Binder::Slurm), ["Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-3"]);
    let empty = Map::new(Topology::default(), &[]);
    assert_eq!(lines(&empty, Binder::Slurm), "# no GPU was found: there is nothing to bind\n");
    let unknown = Map::new(Topology::default(), &[known(0, "0000:06:00.0", &[])]);
    assert!(said(&unknown, Binder::Docker).is_empty(), "without CPUs nothing is bound");
}
