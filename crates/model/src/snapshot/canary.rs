//! What is known of the canary, as the status page and the JSON show it.

use crate::canary::{Instance, Rate};
use crate::catalog::{CanaryCheck, CanaryEnd, CanaryMode, CanarySkip, CanaryStep, CanaryVerdict, Gpu};

/// The canary of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CanaryView {
    /// When it runs; `None` while that was not told.
    pub mode: Option<CanaryMode>,
    /// Every place of which something was told, by GPU and instance.
    pub places: Vec<PlaceView>,
}

impl CanaryView {
    /// The places on one GPU.
    pub fn of<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = &'a PlaceView> {
        self.places.iter().filter(move |place| place.gpu == *gpu)
    }
}

/// One GPU, or one MIG instance of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceView {
    /// The GPU.
    pub gpu: Gpu,
    /// The MIG instance; `None`: the whole GPU.
    pub instance: Option<Instance>,
    /// Whether a run is under way.
    pub running: bool,
    /// The step in which a process hangs, if one does.
    pub hung: Option<CanaryStep>,
    /// When a run last ended, in seconds since 1970.
    pub last_run: Option<f64>,
    /// When the next run is due, likewise.
    pub due: Option<f64>,
    /// Why a run that was due was put off, if none was made since.
    pub skipped: Option<CanarySkip>,
    /// How the last run ended.
    pub end: Option<CanaryEnd>,
    /// Why it did not finish; empty if it did.
    pub text: String,
    /// What stands of each check.
    pub checks: Vec<CheckView>,
}

impl PlaceView {
    /// What is planned there, and that something hangs, without what was found.
    pub fn planned(self) -> PlaceView {
        PlaceView { last_run: None, end: None, text: String::new(), checks: Vec::new(), ..self }
    }
}

/// What stands of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckView {
    /// Which.
    pub check: CanaryCheck,
    /// The verdict.
    pub verdict: CanaryVerdict,
    /// Why, in words.
    pub text: String,
    /// Its rate in the newest valid run.
    pub rate: Option<Rate>,
}
