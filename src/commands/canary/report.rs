//! Result of the command, its document and its exit code.

use serde::Serialize;

use super::devices::ListedDevice;
use canary::gate::RunCondition;
use canary::report::{CanaryRun, RunEnd};
use model::canary::{Judged, Outcome, Place};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryEnd, CanarySkip, CanaryVerdict};
use model::persisted::KnownWrongResults;

/// Result of the command, in ascending order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// Everything that was run is healthy. GPUs in use were skipped.
    Healthy,
    /// Nothing was run, although `--strict` required a run.
    NothingRun,
    /// Some run was not possible.
    CouldNotRun,
    /// Some GPU is slow, has a narrowed link, or may have computed a wrong result.
    Degraded,
    /// Some GPU computed a wrong result, failed or hangs, or the driver reports it as unhealthy.
    Fault,
}

impl Exit {
    /// Returns the exit code.
    pub fn code(self) -> u8 {
        match self {
            Exit::Healthy => 0,
            Exit::Degraded => 1,
            Exit::Fault => 2,
            Exit::CouldNotRun => 3,
            Exit::NothingRun => 4,
        }
    }

    /// Returns the result that a verdict causes.
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

/// Run on a device, or the reason why there was none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunRecord {
    pub place: Place,
    pub model: String,
    /// Conditions before the run.
    pub conditions: Vec<RunCondition>,
    /// Reports of the run; `None` if it was not made.
    pub run: Option<CanaryRun>,
    /// Outcome of the run; `None` with `--explain`.
    pub outcome: Option<Outcome>,
}

impl RunRecord {
    pub fn new(
        device: &ListedDevice,
        conditions: Vec<RunCondition>,
        run: Option<CanaryRun>,
        outcome: Option<Outcome>,
    ) -> RunRecord {
        RunRecord { place: device.place.clone(), model: device.model.clone(), conditions, run, outcome }
    }

    /// Sets the verdict of a check to a wrong result that was not cleared, regardless of this run.
    pub fn keep_wrong_result(&mut self, wrong: &KnownWrongResults) {
        let Some(outcome) = &mut self.outcome else { return };
        let of_gpu = wrong.gpus.iter().find(|wrong| *wrong.uuid == *outcome.place.gpu.uuid);
        let Some(wrong) = of_gpu else { return };
        let Some(check) = CanaryCheck::ALL.iter().find(|check| check.known() == wrong.check) else { return };
        let text = format!("an earlier wrong result is not cleared: {}", wrong.text);
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

    /// Returns true if a check measured the GPU.
    fn proved(&self) -> bool {
        let checks = self.outcome.iter().flat_map(|outcome| &outcome.checks);
        let nothing = |sample| {
            matches!(sample, CanaryVerdict::Contended | CanaryVerdict::Skipped | CanaryVerdict::CouldNotRun)
        };
        checks.into_iter().any(|judged| !nothing(judged.sample))
    }

    /// Returns the result of the run.
    pub fn exit(&self) -> Exit {
        let Some(outcome) = &self.outcome else { return Exit::Healthy };
        let checks = outcome.checks.iter().map(|judged| Exit::from_verdict(judged.verdict));
        let end = match (outcome.end, outcome.skip) {
            // A driver call hangs on the GPU, it has no handle, or it needs a reset.
            (_, Some(CanarySkip::Unhealthy | CanarySkip::ChildAlive)) => Exit::Fault,
            (CanaryEnd::Broken, _) => Exit::CouldNotRun,
            // No process hangs, so a signal stopped the command.
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

/// Report. Field names are stable; new fields may be added.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Release of the exporter.
    pub version: &'static str,
    /// Most severe result of all runs.
    pub result: Exit,
    /// All runs, by GPU.
    pub runs: Vec<RunRecord>,
}

impl Report {
    pub fn new(runs: Vec<RunRecord>) -> Report {
        let result = runs.iter().map(RunRecord::exit).max().unwrap_or(Exit::Healthy);
        Report { version: env!("CARGO_PKG_VERSION"), result, runs }
    }

    /// Replaces a healthy result without any measurement by [`Exit::NothingRun`].
    pub fn strict(mut self) -> Report {
        if self.result == Exit::Healthy && !self.runs.iter().any(RunRecord::proved) {
            self.result = Exit::NothingRun;
        }
        self
    }
}
