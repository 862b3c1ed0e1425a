//! What a command found, its document, and its exit code.

use serde::Serialize;

use super::devices::ListedDevice;
use canary::gate::RunCondition;
use canary::report::{CanaryRun, RunEnd};
use model::canary::{Judged, Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryEnd, CanarySkip, CanaryVerdict};
use model::persisted::KnownWrongResults;

/// What the exit code of the command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// All that was run is well; what is in use was left alone.
    Healthy,
    /// Nothing was run, where something was to be.
    NothingRun,
    /// Something could not be run.
    CouldNotRun,
    /// Something is slow, narrow, or may have computed wrongly.
    Degraded,
    /// Something computes wrongly, fails or hangs, or the driver says that the GPU is not well.
    Fault,
}

impl Exit {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Exit::Healthy => 0,
            Exit::Degraded => 1,
            Exit::Fault => 2,
            Exit::CouldNotRun => 3,
            Exit::NothingRun => 4,
        }
    }

    /// What a verdict amounts to.
    pub fn from_verdict(verdict: CanaryVerdict) -> Exit {
        use CanaryVerdict::*;
        match verdict {
            Ok | Contended | Skipped => Exit::Healthy,
            Throttled | UnexplainedClockCap | SlowSm | DegradedMemory | NarrowedLink | Slow
            | WrongResultSuspected => Exit::Degraded,
            WrongResult | DriverFault | Hung => Exit::Fault,
            CouldNotRun => Exit::CouldNotRun,
        }
    }
}

/// A run that was made, or was to be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunRecord {
    /// Where.
    pub place: Place,
    /// Name of the product.
    pub model: String,
    /// What had to be so for it.
    pub conditions: Vec<RunCondition>,
    /// All that was reported; none if it was not made.
    pub run: Option<CanaryRun>,
    /// What became of it; none if nothing was to be run.
    pub outcome: Option<Outcome>,
}

impl RunRecord {
    /// On this device.
    pub fn new(
        device: &ListedDevice,
        conditions: Vec<RunCondition>,
        run: Option<CanaryRun>,
        outcome: Option<Outcome>,
    ) -> RunRecord {
        RunRecord { place: device.place.clone(), model: device.model.clone(), conditions, run, outcome }
    }

    /// A wrong result that is not cleared is the verdict of its check, whatever this run says.
    pub fn keep_wrong_result(&mut self, wrong: &KnownWrongResults) {
        let Some(outcome) = &mut self.outcome else { return };
        let of_gpu = wrong.gpus.iter().find(|wrong| *wrong.uuid == *outcome.place.gpu.uuid);
        let Some(wrong) = of_gpu else { return };
        let Some(check) = CanaryCheck::ALL.iter().find(|check| check.known() == wrong.check) else { return };
        let text = format!("it computed wrongly before, and that is not cleared: {}", wrong.text);
        match outcome.checks.iter_mut().find(|judged| judged.check == *check) {
            Some(judged) if judged.verdict == CanaryVerdict::WrongResult => {}
            Some(judged) => {
                judged.verdict = CanaryVerdict::WrongResult;
                judged.text = format!("{}; {text}", judged.text);
            }
            None => {
                let held = Judged::plain(*check, CanaryVerdict::WrongResult, text);
                outcome.checks.push(Judged { sample: CanaryVerdict::Skipped, ..held });
            }
        }
    }

    /// Whether a check of it measured the GPU.
    fn proved(&self) -> bool {
        let checks = self.outcome.iter().flat_map(|outcome| &outcome.checks);
        let nothing = |sample| {
            matches!(sample, CanaryVerdict::Contended | CanaryVerdict::Skipped | CanaryVerdict::CouldNotRun)
        };
        checks.into_iter().any(|judged| !nothing(judged.sample))
    }

    /// What it amounts to.
    pub fn exit(&self) -> Exit {
        let Some(outcome) = &self.outcome else { return Exit::Healthy };
        let checks = outcome.checks.iter().map(|judged| Exit::from_verdict(judged.verdict));
        let end = match (outcome.end, outcome.skip) {
            // A call of the driver does not return there, it gives no handle, or asks for a reset.
            (_, Some(CanarySkip::Unhealthy | CanarySkip::ChildAlive)) => Exit::Fault,
            (CanaryEnd::Broken, _) => Exit::CouldNotRun,
            // No process came: the command itself was asked to end.
            (CanaryEnd::Abandoned, _) => match &self.run {
                Some(CanaryRun { end: RunEnd::Abandoned { pids, .. }, .. }) if pids.is_empty() => {
                    Exit::CouldNotRun
                }
                _ => Exit::Healthy,
            },
            _ => Exit::Healthy,
        };
        checks.chain([end]).max().unwrap_or(Exit::Healthy)
    }
}

/// All that was found. Field names stay; fields may be added.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Release of the exporter.
    pub version: &'static str,
    /// What it amounts to.
    pub result: Exit,
    /// Every run, by GPU.
    pub runs: Vec<RunRecord>,
}

impl Report {
    /// Sums up.
    pub fn new(runs: Vec<RunRecord>) -> Report {
        let result = runs.iter().map(RunRecord::exit).max().unwrap_or(Exit::Healthy);
        Report { version: env!("CARGO_PKG_VERSION"), result, runs }
    }

    /// The same where it is a result of its own that nothing was run.
    pub fn strict(mut self) -> Report {
        if self.result == Exit::Healthy && !self.runs.iter().any(RunRecord::proved) {
            self.result = Exit::NothingRun;
        }
        self
    }
}
