//! What `/api/v1` serves, as JSON.

pub mod events;
pub mod health;
pub mod owners;
pub mod snapshot;

use serde::Serialize;

use model::catalog::{self as m, WindowKind};
use model::snapshot::Snapshot;
use model::topology::divide::{self, CpuShare};
use model::topology::place::GpuPlacement;
use model::topology::{Topology, TopologyUpdate};
use model::window;

/// Appends the document and a newline.
pub fn append(document: &impl Serialize, out: &mut String) {
    let mut bytes = std::mem::take(out).into_bytes();
    // Neither step can fail: a vector takes everything, no key is anything but text, JSON is UTF-8.
    let written = serde_json::to_writer(&mut bytes, document);
    bytes.push(b'\n');
    match (written, String::from_utf8(bytes)) {
        (Ok(()), Ok(text)) => *out = text,
        (written, text) => tracing::error!(?written, utf8 = text.is_ok(), "JSON document is lost"),
    }
}

/// Windows of planned work as a JSON document, served at `/api/v1/windows`.
///
/// ```text
/// taken_unix_seconds  when the list was made
/// windows[]           name, kind (maintenance or training), reason, start and end (RFC 3339), start_unix_seconds,
///                     end_unix_seconds, state (open, coming or ended), cut (whether the file says longer than
///                     windows.max_duration), expected_gpus (GPUs that the node should have from then on; null: as
///                     many as before)
/// ```
///
/// Those that are open, to come, or ended within the last hour.
pub fn windows(snapshot: &Snapshot, out: &mut String) {
    #[derive(Serialize)]
    struct WindowsDocument<'a> {
        taken_unix_seconds: f64,
        windows: Vec<WindowEntry<'a>>,
    }
    #[derive(Serialize)]
    struct WindowEntry<'a> {
        name: &'a str,
        kind: WindowKind,
        reason: &'a str,
        start: String,
        end: String,
        start_unix_seconds: f64,
        end_unix_seconds: f64,
        state: &'static str,
        cut: bool,
        expected_gpus: Option<u32>,
    }
    let now = snapshot.unix_seconds;
    let windows = snapshot.windows.iter().map(|window| WindowEntry {
        name: &window.name,
        kind: window.kind,
        reason: &window.reason,
        start: window::write(window.start),
        end: window::write(window.end),
        start_unix_seconds: window.start,
        end_unix_seconds: window.end,
        state: match () {
            () if window.is_open(now) => "open",
            () if now < window.start => "coming",
            () => "ended",
        },
        cut: window.cut,
        expected_gpus: window.expected_gpus,
    });
    append(&WindowsDocument { taken_unix_seconds: now, windows: windows.collect() }, out);
}

/// The machine around the GPUs as one JSON document, served at `/api/v1/topology`.
///
/// ```text
/// topology             what was found: see `topology::model::Topology`; fit for `topology.expected_file`
/// gpus[]               gpu, uuid, place (where it sits), share (its fair share of CPUs and memory nodes)
/// against_first_seen[] what differs from the first look at this machine, as text; null: not compared
/// against_declared[]   what differs from the declared topology; null: none is declared
/// ```
///
/// `null` while nothing was found.
pub fn topology(snapshot: &Snapshot, out: &mut String) {
    #[derive(Serialize)]
    struct TopologyDocument<'a> {
        topology: &'a Topology,
        gpus: Vec<PlacedGpu<'a>>,
        against_first_seen: &'a Option<Vec<String>>,
        against_declared: &'a Option<Vec<String>>,
    }
    #[derive(Serialize)]
    struct PlacedGpu<'a> {
        #[serde(flatten)]
        gpu: &'a m::Gpu,
        place: &'a GpuPlacement,
        share: &'a CpuShare,
    }
    let Some(update) = &snapshot.topology else { return append(&(), out) };
    let TopologyUpdate { topology, against_first_seen, against_declared } = &**update;
    let places = divide::placed(topology);
    let gpus = snapshot.gpus.iter().filter_map(|view| {
        let device = topology.gpu(snapshot.info(&m::gpu_info, &view.gpu, "pci_address")?)?;
        let (place, share) = places.iter().find(|(place, _)| place.address == device.address)?;
        Some(PlacedGpu { gpu: &view.gpu, place, share })
    });
    let gpus = gpus.collect();
    append(&TopologyDocument { topology, gpus, against_first_seen, against_declared }, out);
}
