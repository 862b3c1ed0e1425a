//! All that is known of a run, as one document.

use serde::Serialize;

use crate::figures::RunFigures;
use crate::recording::RunCounts;
use crate::roofline::GpuRoof;
use crate::verdict::{AmdahlBound, MoveJudgement, SplitAnswers, SplitMatrix, amdahl, judge, split};

/// What is given beside what was counted.
#[derive(Clone, Debug, Default)]
pub struct AssessInputs {
    pub split: SplitAnswers,
    /// Functions that would move.
    pub moved: Vec<String>,
    /// How many times as fast they would be.
    pub gain: Option<f64>,
}

/// The report. Field names stay; fields may be added.
#[derive(Clone, Debug, Serialize)]
pub struct AssessReport {
    /// Release of this program.
    pub version: &'static str,
    pub run: RunCounts,
    pub figures: RunFigures,
    #[serde(flatten)]
    pub judgement: MoveJudgement,
    pub split: SplitMatrix,
    pub amdahl: Option<AmdahlBound>,
    /// Why there is no bound.
    pub no_bound: Option<String>,
    /// The GPU of the roofline.
    pub gpu: GpuRoof,
}

impl AssessReport {
    pub fn new(run: RunCounts, inputs: &AssessInputs, gpu: GpuRoof) -> AssessReport {
        let figures = RunFigures::from_run(&run);
        let judgement = judge(&run, &figures);
        let split = split(&judgement, inputs.split);
        let (amdahl, no_bound) = match amdahl(&run, &inputs.moved, inputs.gain) {
            Ok(bound) => (Some(bound), None),
            Err(why) => (None, Some(why)),
        };
        let version = env!("CARGO_PKG_VERSION");
        AssessReport { version, run, figures, judgement, split, amdahl, no_bound, gpu }
    }
}
