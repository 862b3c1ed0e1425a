//! GPUs that fell off the bus: the Xid and the driver's line without a code say the same.

use std::collections::HashMap;
use std::time::Duration;

use super::{MAX_GPUS, WINDOW};
use crate::events::EventList;
use model::clock::Mono;
use model::snapshot::{Event, EventKind};

/// The Xid of a GPU that fell off the bus.
const FALLEN: u32 = 79;

/// GPUs that fell off the bus, by UUID, or by PCI address while the GPU is not known.
#[derive(Debug, Default)]
pub(crate) struct Falls(HashMap<String, Fallen>);

/// A GPU that fell off the bus.
#[derive(Debug)]
struct Fallen {
    /// In seconds since 1970, as its source says: what is old is heard all at once.
    unix_seconds: f64,
    /// The entry of the driver's line without a code, until an Xid says the same.
    line: Option<u64>,
}

impl Falls {
    /// Whether the event repeats what an Xid has said.
    pub fn repeats_xid(&self, event: &Event) -> bool {
        self.known(event).is_some_and(|known| known.line.is_none())
    }

    /// When this GPU fell off the bus, if the event says the same once more.
    fn known(&self, event: &Event) -> Option<&Fallen> {
        let is_near =
            |known: &&Fallen| (event.unix_seconds - known.unix_seconds).abs() <= WINDOW.as_secs_f64();
        is_fall(event).then(|| self.0.get(&place(event)).filter(is_near)).flatten()
    }

    /// Lists a fault; gives the id of its entry. A GPU that fell off the bus did so once, also where the driver's line
    /// without a code came before the Xid: then the Xid takes the place of that line.
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

/// Whether an event says that a GPU fell off the bus.
fn is_fall(event: &Event) -> bool {
    event.kind == EventKind::FallenOffBus
        || event.kind == EventKind::Xid && event.code == Some(u64::from(FALLEN))
}

/// UUID of an event's GPU, or its PCI address.
fn place(event: &Event) -> String {
    let uuid = event.gpu.as_ref().map(|gpu| gpu.uuid.to_string());
    uuid.or_else(|| event.pci.clone()).unwrap_or_default()
}
