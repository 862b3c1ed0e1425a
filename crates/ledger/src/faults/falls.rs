//! GPUs that fell off the bus. The Xid and the driver's line without a code report the same fall.

use std::collections::HashMap;
use std::time::Duration;

use super::{MAX_GPUS, WINDOW};
use crate::events::EventList;
use model::clock::Mono;
use model::snapshot::{Event, EventKind};

/// Xid of a GPU that fell off the bus.
const FALLEN: u32 = 79;

/// GPUs that fell off the bus, by UUID, or by PCI address if the GPU is unknown.
#[derive(Default)]
pub(crate) struct Falls(HashMap<String, Fallen>);

struct Fallen {
    /// Time according to its source, in seconds since 1970. Old lines are all received at once.
    unix_seconds: f64,
    /// Entry of the driver's line without a code, until an Xid reports the same fall.
    line: Option<u64>,
}

impl Falls {
    /// Returns true if an Xid has already reported this fall.
    pub fn repeats_xid(&self, event: &Event) -> bool {
        self.known(event).is_some_and(|known| known.line.is_none())
    }

    /// Returns the fall that the event repeats.
    fn known(&self, event: &Event) -> Option<&Fallen> {
        let is_near =
            |known: &&Fallen| (event.unix_seconds - known.unix_seconds).abs() <= WINDOW.as_secs_f64();
        is_fall(event).then(|| self.0.get(&place(event)).filter(is_near)).flatten()
    }

    /// Lists a fault, and returns the id of its entry. A fall is listed once: if the driver's line without a code
    /// came before the Xid, the Xid replaces it.
    pub fn list(&mut self, events: &mut EventList, event: Event, at: Mono, wait: Duration) -> u64 {
        if !is_fall(&event) {
            return events.record(event, at, wait);
        }
        let (place, unix_seconds) = (place(&event), event.unix_seconds);
        let is_xid = event.kind == EventKind::Xid;
        let line = self.known(&event).and_then(|known| known.line).filter(|_| is_xid);
        let id = line
            .and_then(|line| events.supersede(line, event.clone(), at, wait))
            .unwrap_or_else(|| events.record(event, at, wait));
        if self.0.len() < MAX_GPUS || self.0.contains_key(&place) {
            self.0.insert(place, Fallen { unix_seconds, line: (!is_xid).then_some(id) });
        }
        id
    }
}

/// Returns true if an event reports that a GPU fell off the bus.
fn is_fall(event: &Event) -> bool {
    event.kind == EventKind::FallenOffBus
        || event.kind == EventKind::Xid && event.code == Some(u64::from(FALLEN))
}

/// Returns the UUID of an event's GPU, or its PCI address.
fn place(event: &Event) -> String {
    let uuid = event.gpu.as_ref().map(|gpu| gpu.uuid.to_string());
    uuid.or_else(|| event.pci.clone()).unwrap_or_default()
}
