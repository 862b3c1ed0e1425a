//! Makes the files of the simulated node's host in a folder: its machine, the vendor's services, and the processes that the busy GPUs of
//! `tests/scenarios/node-8xh200.toml` have, each with an owner.
//!
//! `simhost FOLDER UPTIME_SECONDS`

use std::error::Error;
use std::{env, fs};

use simgpu::host::{Host, HostProcess};

/// Ticks of the kernel's clock in a second.
const TICKS: f64 = 100.0;

/// A pod of a control group's name and of the kubelet's logs.
struct Pod {
    namespace: &'static str,
    pod: &'static str,
    container: &'static str,
    uid: &'static str,
    id: &'static str,
}

const INFERENCE: [Pod; 3] = [
    Pod {
        namespace: "inference",
        pod: "chat-7d9c6b5f4-x2kqp",
        container: "server",
        uid: "2c48913c-b29f-11e7-9350-020968147796",
        id: "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
    },
    Pod {
        namespace: "inference",
        pod: "embed-5b8d7c9f6d-7hs2v",
        container: "server",
        uid: "3d59a24d-c3a0-4f8e-8461-131a79258807",
        id: "1f0e2d3c4b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0",
    },
    Pod {
        namespace: "notebooks",
        pod: "lab-0",
        container: "notebook",
        uid: "4e6ab35e-d4b1-4a9f-9572-242b8a369918",
        id: "ab01cd23ef45678990a1b2c3d4e5f60718293a4b5c6d7e8f9001122334455667",
    },
];

const TRAINING: Pod = Pod {
    namespace: "training",
    pod: "llm-0",
    container: "trainer",
    uid: "608cd570-f6d3-4cb1-b794-464dac58bb3a",
    id: "0a1b2c3d4e5f60718293a4b5c6d7e8f9000102030405060708090a0b0c0d0e0f",
};

const RANKER: Pod = Pod {
    namespace: "search",
    pod: "ranker-6f7c5d8b9-qm4zt",
    container: "ranker",
    uid: "5f7bc46f-e5c2-4ba0-a683-353c9b47aa29",
    id: "77889900aabbccddeeff00112233445566778899aabbccddeeff001122334455",
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, uptime] = arguments.as_slice() else { return Err("simhost FOLDER UPTIME_SECONDS".into()) };
    let host = Host::make(folder)?;
    host.write(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\ntrainer:x:1000:1000::/home/trainer:/bin/bash",
    )?;
    // Both enabled and running.
    host.write("etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service", "")?;
    host.service(4_100_000, "nv-fabricmanager")?;
    host.service(4_100_001, "nvidia-persistenced")?;
    let now = (uptime.parse::<f64>()? * TICKS) as u64;
    let process = |gpu: u32, n: u32, name, cgroup: &str, cpus, memory| {
        let started_ticks = now.saturating_sub(60 * TICKS as u64);
        let pid = 4_200_000 + gpu * 16 + n;
        host.process(&HostProcess { pid, name, cgroup, cpus, uid: 1000, memory, started_ticks })
    };
    const GIB: u64 = 1 << 30;
    // One pod on three GPUs.
    let training = pod(&host, &TRAINING)?;
    for gpu in 0..3 {
        process(gpu, 0, "python3", &training, "0-15", [48 * GIB, 0])?;
    }
    // Far from home: its CPUs and memory are those of the other package.
    let docker =
        "/system.slice/docker-4be1f3f5c0a9d8e7766554433221100ffeeddccbbaa998877665544332211000.scope";
    process(3, 0, "python3", docker, "16-31", [GIB, 30 * GIB])?;
    process(5, 0, "ranker", &pod(&host, &RANKER)?, "16-31", [0, 12 * GIB])?;
    process(6, 0, "jupyter", "/system.slice/jupyter.service", "0-31", [2 * GIB, 2 * GIB])?;
    for (n, one) in INFERENCE.iter().enumerate() {
        process(7, n as u32, "server", &pod(&host, one)?, "16-31", [0, 4 * GIB])?;
    }
    Ok(())
}

/// Makes a pod's logs, which hold its name; returns its control group.
fn pod(host: &Host, pod: &Pod) -> Result<String, Box<dyn Error>> {
    let Pod { namespace, pod, container, uid, id } = pod;
    fs::create_dir_all(host.path(&format!("var/log/pods/{namespace}_{pod}_{uid}/{container}")))?;
    host.write(&format!("var/log/containers/{pod}_{namespace}_{container}-{id}.log"), "")?;
    let slice = uid.replace('-', "_");
    Ok(format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{id}.scope"))
}
