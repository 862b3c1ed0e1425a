//! Faults of one GPU until its reset.

use super::WINDOW;
use super::units::Units;
use model::catalog::{DriverEvent, Severity};
use model::clock::Mono;
use model::persisted::FaultyGpu;
use model::xid::{self, Xid};

/// Faults of one GPU since its last reset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FaultState {
    /// Time of the newest Xid, in seconds since 1970, and its code.
    pub(super) last_xid: Option<(f64, u32)>,
    /// Whether a fault occurred after which the GPU needs a reset.
    pub fatal: bool,
    uncontained: bool,
    contained: Option<Mono>,
    memory_error: Option<Mono>,
    /// Origins of faults in programs.
    pub(super) units: Units,
    /// Time of the last reset, in seconds since 1970.
    pub(super) reset: Option<f64>,
}

impl FaultState {
    /// Returns true if there was a memory error that is not known to be contained.
    pub fn uncontained(&self, now: Mono) -> bool {
        self.uncontained || self.memory_error.is_some_and(|at| now.since(at) > WINDOW)
    }

    pub(super) fn note(&mut self, row: &Xid, heard: Mono) {
        match row.code {
            94 => {
                self.contained = Some(heard);
                self.memory_error = self.memory_error.filter(|at| heard.since(*at) > WINDOW);
            }
            95 => self.uncontained = true,
            code if xid::is_memory_error(code) => {
                let contained = self.contained.is_some_and(|at| heard.since(at) <= WINDOW);
                if !contained && self.memory_error.is_none() {
                    self.memory_error = Some(heard);
                }
            }
            _ => {}
        }
        // The reports that follow a memory error show whether it is fatal.
        self.fatal |= row.severity == Severity::Page && !xid::is_memory_error(row.code);
    }

    /// Returns the faults that a later daemon needs. Values that a flood changes with every line are left out to
    /// protect the disk.
    pub(super) fn lasting(&self, uuid: &str) -> Option<FaultyGpu> {
        let FaultState { fatal, uncontained, memory_error, .. } = *self;
        (fatal || uncontained || memory_error.is_some()).then(|| FaultyGpu {
            uuid: uuid.to_owned(),
            fatal,
            uncontained,
            memory_error,
            ..FaultyGpu::default()
        })
    }

    pub(super) fn reset(&mut self, unix_seconds: f64) {
        let units = std::mem::take(&mut self.units);
        let reset = Some(unix_seconds);
        *self = FaultState { last_xid: self.last_xid, units, reset, ..FaultState::default() };
    }

    /// Records a fatal driver event, which may come without an Xid.
    pub(super) fn note_event(&mut self, event: DriverEvent, heard: Mono) {
        match event {
            DriverEvent::FatalPoison | DriverEvent::GpuUnavailable => self.fatal = true,
            DriverEvent::DoubleBitEcc => self.note(&xid::xid(48), heard),
            _ => {}
        }
    }

    /// Records a fall off the bus that was reported by a line without a code.
    pub(super) fn note_fall(&mut self) {
        self.fatal = true;
    }

    /// Restores the faults of an earlier daemon, which has counted them.
    pub(super) fn restore(&mut self, known: &FaultyGpu) {
        self.fatal |= known.fatal;
        self.uncontained |= known.uncontained;
        self.memory_error = self.memory_error.or(known.memory_error);
    }
}
