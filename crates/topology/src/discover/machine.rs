//! Conversion of hwloc's topology into [`Topology`].

use std::path::Path;

use hwlocality::Topology as Hwloc;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes};
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use hwlocality::topology::export::xml::XMLExportFlags;

use super::Origin;
use model::cpus::CpuSet;
use model::pci::kernel_address;
use model::plain_file;
use model::topology::{Device, DeviceKind, L3Group, MemoryKind, Network, NumaNode, Package, Topology};

/// Maximum size of an XML file in bytes.
const MOST: usize = 16 << 20;

/// Reads the machine and, if `xml` is set, exports it as hwloc's XML. The error is a message for the user.
pub(super) fn read(origin: &Origin, xml: bool) -> Result<(Topology, Option<String>), String> {
    let hwloc = load(origin)?;
    let text = match xml {
        true => {
            let text =
                hwloc.export_xml(XMLExportFlags::empty()).map_err(|error| format!("hwloc: {error}"))?;
            Some(text.as_str().to_owned())
        }
        false => None,
    };
    Ok((topology(&hwloc), text))
}

fn load(origin: &Origin) -> Result<Hwloc, String> {
    let builder = TopologyBuilder::new();
    let builder = match origin {
        Origin::Live(_) => builder,
        // hwlocality's own file reader panics if the file does not exist.
        Origin::Xml(file) => text(file)
            .and_then(|text| builder.from_xml(&text).map_err(|error| format!("not hwloc's XML: {error}")))
            .map_err(|why| format!("{}: {why}", file.display()))?,
        Origin::Synthetic(text) => builder
            .from_synthetic(text)
            .map_err(|error| format!("hwloc does not understand `{text}`: {error}"))?,
    };
    let failed = |error: &dyn std::fmt::Display| format!("hwloc: {error}");
    builder
        // CPUs that the process's own control group may not use are still part of the machine.
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|e| failed(&e))?
        .with_io_type_filter(TypeFilter::KeepAll)
        .map_err(|e| failed(&e))?
        // This component would run on every CPU in turn to read its CPUID, including CPUs that are isolated for other
        // work.
        .without_component("x86")
        .map_err(|e| failed(&e))?
        .build()
        .map_err(|e| format!("hwloc failed to discover the topology: {e}"))
}

/// Reads an XML file that hwloc 2 wrote. The checks here exist because hwloc reports no reason when it rejects a file.
fn text(file: &Path) -> Result<String, String> {
    let bytes = plain_file::read_linked(file, MOST).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "not hwloc's XML: not text".to_owned())?;
    if text.trim().is_empty() {
        return Err("empty".into());
    }
    let start = text.split_once("<topology").and_then(|(_, rest)| rest.split_once('>'));
    let Some((attributes, _)) = start else { return Err("not hwloc's XML: no element topology".into()) };
    // Files from hwloc 1 have no version.
    let version = attributes.split_once("version=\"").and_then(|(_, rest)| rest.split_once('"'));
    let major = version.and_then(|(version, _)| version.split('.').next()?.parse::<u32>().ok());
    if let Some(newer) = major.filter(|major| *major > 2) {
        return Err(format!(
            "written by hwloc {newer}, but only the format of hwloc 2 is supported; export the file again with \
             `lstopo --export-xml-flags v2 FILE`"
        ));
    }
    if !text.trim_end().ends_with("</topology>") {
        return Err("the file is cut off: its closing </topology> is missing".into());
    }
    Ok(text)
}

fn topology(hwloc: &Hwloc) -> Topology {
    let mut notes = Vec::new();
    let l3_groups = l3_groups(hwloc);
    if l3_groups.is_empty() {
        notes.push("the machine reports no level 3 cache".to_owned());
    }
    let mut numa_nodes: Vec<NumaNode> =
        hwloc.objects_with_type(ObjectType::NUMANode).map(numa_node).collect();
    numa_nodes.retain(|node| !node.cpus.is_empty() || node.memory_bytes > 0);
    numa_nodes.sort_by_key(|node| node.index);
    each_in_one(&mut numa_nodes);
    let mut packages: Vec<Package> = hwloc.objects_with_type(ObjectType::Package).map(package).collect();
    packages.sort_by_key(|package| package.index);
    let mut devices: Vec<Device> = hwloc.pci_devices().filter_map(device).collect();
    devices.sort_by(|a, b| a.address.cmp(&b.address));
    let root = hwloc.root_object();
    let (vendor, product) = (info(root, "DMISysVendor"), info(root, "DMIProductName"));
    let name = if product.starts_with(&vendor) { product } else { format!("{vendor} {product}") };
    Topology {
        machine: name.trim().to_owned(),
        cpus: cpus(Some(root)),
        packages,
        numa_nodes,
        l3_groups,
        cores: cores(hwloc),
        devices,
        notes,
    }
}

/// Returns the CPUs of an object, or an empty set if the object has no CPU set.
fn cpus(object: Option<&TopologyObject>) -> CpuSet {
    let set = object.and_then(TopologyObject::cpuset);
    set.iter().flat_map(|set| set.iter_set()).filter_map(|cpu| u32::try_from(usize::from(cpu)).ok()).collect()
}

/// Returns the kernel's number of an object, or hwloc's own number if the kernel assigns none.
fn index(object: &TopologyObject) -> u32 {
    u32::try_from(object.os_index().unwrap_or_else(|| object.logical_index())).unwrap_or(u32::MAX)
}

fn info(object: &TopologyObject, key: &str) -> String {
    let text = object.info(key).map(|text| text.to_string_lossy().trim().to_owned());
    text.unwrap_or_default()
}

fn package(object: &TopologyObject) -> Package {
    Package { index: index(object), cpus: cpus(Some(object)), model: info(object, "CPUModel") }
}

fn numa_node(object: &TopologyObject) -> NumaNode {
    let memory_bytes = match object.attributes() {
        Some(ObjectAttributes::NUMANode(numa)) => numa.local_memory().map_or(0, u64::from),
        _ => 0,
    };
    let package = object.first_ancestor_with_type(ObjectType::Package).map(index);
    let memory_kind = memory_kind(object);
    // hwloc reports the CPUs near a GPU as the CPUs of its memory node. They belong to another node.
    let own = memory_kind != MemoryKind::Gpu;
    let cpus = if own { cpus(Some(object)) } else { CpuSet::default() };
    let gpu = Some(info(object, "PCIBusID")).filter(|address| !own && !address.is_empty());
    let gpu = gpu.map(|address| kernel_address(&address));
    NumaNode { index: index(object), cpus, memory_bytes, memory_kind, gpu, package }
}

/// Returns the kind of a node's memory from hwloc's subtype, or else from the kernel's direct access (DAX) device.
fn memory_kind(node: &TopologyObject) -> MemoryKind {
    let subtype = node.subtype().map(|subtype| subtype.to_string_lossy().into_owned()).unwrap_or_default();
    // ACPI0017 is the CXL root device of the ACPI tables.
    let parent = info(node, "DAXParent");
    let cxl = !info(node, "CXLDevice").is_empty() || parent.contains("ACPI0017") || parent.contains("cxl");
    match subtype.as_str() {
        "GPUMemory" | "CXL-GPUMemory" => MemoryKind::Gpu,
        other if cxl || other.starts_with("CXL") => MemoryKind::Cxl,
        "HBM" | "MCDRAM" => MemoryKind::Hbm,
        "NVM" => MemoryKind::Nvm,
        "DRAM" => MemoryKind::Dram,
        _ if info(node, "DAXType") == "NVM" => MemoryKind::Nvm,
        _ => MemoryKind::Unknown,
    }
}

/// Removes CPUs that are in more than one node. The kernel assigns a CPU to one node, but hwloc also reports nearby
/// CPUs for nodes that only have memory (HBM, CXL). Such a node has a different memory kind or a higher number than the
/// node that the CPUs belong to.
fn each_in_one(nodes: &mut [NumaNode]) {
    let plain = |node: &NumaNode| matches!(node.memory_kind, MemoryKind::Dram | MemoryKind::Unknown);
    let mut nodes: Vec<&mut NumaNode> = nodes.iter_mut().collect();
    nodes.sort_by_key(|node| (!plain(node), node.index));
    let mut taken = CpuSet::default();
    for node in nodes {
        if !node.cpus.and(&taken).is_empty() {
            node.cpus = CpuSet::default();
        }
        taken = taken.or(&node.cpus);
    }
}

fn l3_groups(hwloc: &Hwloc) -> Vec<L3Group> {
    let size = |object: &TopologyObject| match object.attributes() {
        Some(ObjectAttributes::Cache(cache)) => cache.size().map_or(0, u64::from),
        _ => 0,
    };
    let caches = hwloc.objects_with_type(ObjectType::L3Cache);
    let mut groups: Vec<L3Group> =
        caches.map(|l3| L3Group { index: 0, cpus: cpus(Some(l3)), size_bytes: size(l3) }).collect();
    groups.retain(|group| !group.cpus.is_empty());
    groups.sort_by_key(|group| group.cpus.iter().next());
    for (index, group) in (0..).zip(&mut groups) {
        group.index = index;
    }
    groups
}

/// Returns the cores with their hardware threads. If hwloc reports no cores, as in some guests, every CPU is a core.
fn cores(hwloc: &Hwloc) -> Vec<CpuSet> {
    let of = |kind| hwloc.objects_with_type(kind).map(|object| cpus(Some(object))).collect::<Vec<_>>();
    let mut cores = of(ObjectType::Core);
    let known = cores.iter().fold(CpuSet::default(), |all, core| all.or(core));
    cores.extend(of(ObjectType::PU).into_iter().filter(|cpu| !cpu.is_within(&known)));
    cores.sort_by_key(|core| core.iter().next());
    cores
}

fn address(pci: &PCIDeviceAttributes) -> String {
    format!("{:04x}:{:02x}:{:02x}.{:x}", pci.domain(), pci.bus_id(), pci.bus_device(), pci.function())
}

fn device(object: &TopologyObject) -> Option<Device> {
    let Some(ObjectAttributes::PCIDevice(pci)) = object.attributes() else { return None };
    // The PCI class of a DGX-2's NVSwitch does not identify it, but hwloc does so by the driver.
    let nvswitch = object.subtype().is_some_and(|subtype| subtype.to_bytes() == b"NVSwitch");
    let by_class = super::kind(pci.vendor_id().into(), pci.class_id().into());
    let kind = if nvswitch { DeviceKind::Nvswitch } else { by_class? };
    let near = object.first_non_io_ancestor();
    let mut bridges: Vec<String> = object.ancestors().filter_map(bridge).collect();
    bridges.reverse();
    let named = names(object);
    let first =
        |kind| named.iter().find(|(of, _)| *of == kind).map(|(_, name)| name.clone()).unwrap_or_default();
    let network = (kind == DeviceKind::Network).then(|| Network {
        interface: first(OSDeviceType::Network),
        rdma: first(OSDeviceType::OpenFabrics),
        up: None,
        bytes_per_second: None,
        was_up: false,
    });
    let wanted: &[OSDeviceType] = match kind {
        DeviceKind::Network => &[OSDeviceType::Network, OSDeviceType::OpenFabrics],
        DeviceKind::Storage => &[OSDeviceType::Storage],
        DeviceKind::Gpu | DeviceKind::Nvswitch => &[],
    };
    let names = named.iter().filter(|(of, _)| wanted.contains(of)).map(|(_, name)| name.clone());
    Some(Device {
        kind,
        address: address(pci),
        id: format!("{:04x}:{:04x}", pci.vendor_id(), pci.device_id()),
        names: names.collect(),
        numa_node: near.and_then(only_node),
        cpus: cpus(near),
        bridges,
        link: None,
        port: None,
        network,
    })
}

/// Returns the address of a PCI bridge, or `None` for a host bridge, which has no address.
fn bridge(object: &TopologyObject) -> Option<String> {
    let Some(ObjectAttributes::Bridge(bridge)) = object.attributes() else { return None };
    let UpstreamAttributes::PCI(pci) = bridge.upstream_attributes()?;
    Some(address(pci))
}

/// Returns the kernel's devices on a PCI device, such as `mlx5_0` or `nvme0n1`, ordered by name.
fn names(object: &TopologyObject) -> Vec<(OSDeviceType, String)> {
    let mut found = Vec::new();
    let mut open: Vec<&TopologyObject> = object.io_children().collect();
    while let Some(child) = open.pop() {
        if let (Some(ObjectAttributes::OSDevice(os)), Some(name)) = (child.attributes(), child.name()) {
            found.push((os.device_type(), name.to_string_lossy().into_owned()));
        }
        open.extend(child.io_children());
    }
    found.sort_by(|a, b| a.1.cmp(&b.1));
    found
}

/// Returns the NUMA node of an object that has exactly one. Returns `None` for the machine itself, because hwloc
/// attaches devices without a known locality to it.
fn only_node(near: &TopologyObject) -> Option<u32> {
    if near.object_type() == ObjectType::Machine {
        return None;
    }
    let nodes = near.nodeset()?;
    let mut nodes = nodes.iter_set();
    let first = nodes.next()?;
    let only = nodes.next().is_none();
    u32::try_from(usize::from(first)).ok().filter(|_| only)
}
