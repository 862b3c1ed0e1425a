//! What a look at the machine around the GPUs finds.

use super::report::{Finding, Verdict};
use host::child::Stderr;
use host::stop::Stop;
use model::topology::{DeviceKind, Topology};
use settings::Config;
use topology::ask::{AskError, Asker};
use topology::discover::Origin;

const TOPIC: &str = "topology";

/// Looks, in a process of its own.
pub fn look(config: &Config) -> Finding {
    if !config.topology.enabled {
        return Finding::new(TOPIC, Verdict::Note, "switched off (topology.enabled)".into());
    }
    let origin = Origin::Live(config.host.root.clone());
    match Asker::new(Stderr::Null, std::sync::Arc::default()).all(&origin, false, &Stop::default()) {
        Ok(all) => found(&all.topology),
        // A container without the host's files, as a rule.
        Err(error @ AskError::NotFound(_)) => Finding::new(TOPIC, Verdict::Note, error.to_string()),
        Err(error) => Finding::new(TOPIC, Verdict::Wrong, error.to_string()),
    }
}

fn found(topology: &Topology) -> Finding {
    let devices = |kind| topology.devices.iter().filter(move |device| device.kind == kind);
    let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let mut parts = vec![
        count(topology.packages.len(), "package"),
        count(topology.numa_nodes.len(), "NUMA node"),
        count(topology.l3_groups.len(), "L3 group"),
        count(topology.cores.len(), "core"),
        count(devices(DeviceKind::Gpu).count(), "GPU"),
        count(devices(DeviceKind::Network).count(), "network device"),
    ];
    let unlinked = devices(DeviceKind::Gpu).filter(|gpu| gpu.link.is_none() || gpu.port.is_none()).count();
    if unlinked > 0 {
        parts.push(format!("no PCIe port above {} is known", count(unlinked, "GPU")));
    }
    parts.extend(topology.notes.iter().cloned());
    let verdict = if unlinked > 0 || !topology.notes.is_empty() { Verdict::Note } else { Verdict::Well };
    Finding::new(TOPIC, verdict, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::LinkCapability;
    use model::topology::fixtures::{device, machine};

    #[test]
    fn what_is_unknown_is_a_note() {
        let mut topology = machine(&[("0-3", &["0-3"])]);
        assert_eq!(found(&topology).verdict, Verdict::Well);
        let mut gpu = device(DeviceKind::Gpu, "0000:06:00.0", None, "0-3", &[]);
        gpu.port = Some(LinkCapability { generation: 5, lanes: 16 });
        topology.devices.push(gpu);
        let finding = found(&topology);
        assert_eq!(finding.verdict, Verdict::Note);
        let text = "1 package, 1 NUMA node, 1 L3 group, 4 cores, 1 GPU, 0 network devices, no PCIe port above 1 GPU \
                    is known";
        assert_eq!(finding.text, text);
    }
}
