//! The JSON documents of `/api/v1`.

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

/// Appends a document as JSON, followed by a newline.
pub fn append(document: &impl Serialize, out: &mut String) {
    let mut bytes = std::mem::take(out).into_bytes();
    // Neither step can fail, because writing to a vector always succeeds, every key is a string, and JSON is UTF-8.
    let written = serde_json::to_writer(&mut bytes, document);
    bytes.push(b'\n');
    let error = match (written, String::from_utf8(bytes)) {
        (Ok(()), Ok(text)) => {
            *out = text;
            return;
        }
        (Err(error), _) => error.to_string(),
        (_, Err(error)) => error.to_string(),
    };
    tracing::error!("failed to encode a JSON document: {error}; the response is empty");
}

/// Windows of planned work as a JSON document, served at `/api/v1/windows`.
///
/// ```text
/// taken_unix_seconds  time at which the list was created
/// windows[]           name, kind (maintenance or training), reason, start and end (RFC 3339), start_unix_seconds,
///                     end_unix_seconds, state (open, coming or ended), cut (true if the file defines a longer
///                     window than windows.max_duration), expected_gpus (number of GPUs that the node should have
///                     from then on; null: unchanged)
/// ```
///
/// The list contains open and future windows, and windows that ended within the last hour.
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
/// topology             the detected topology, see `topology::model::Topology`; usable as `topology.expected_file`
/// gpus[]               gpu, uuid, place (its position), share (its fair share of CPUs and memory nodes)
/// against_first_seen[] differences from the topology that was first detected on this machine, as text; null: not
///                      compared
/// against_declared[]   differences from the declared topology, as text; null: no topology is declared
/// ```
///
/// The document is `null` until a topology has been detected.
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
