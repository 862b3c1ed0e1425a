//! Report on a run, as one document.

use serde::Serialize;

use crate::figures::RunFigures;
use crate::recording::RunCounts;
use crate::roofline::GpuRoof;
use crate::verdict::{AmdahlBound, MoveJudgement, SplitAnswers, SplitMatrix, amdahl, judge, split};

/// Options of the command that the counts do not contain.
#[derive(Clone, Debug, Default)]
pub struct AssessInputs {
    pub split: SplitAnswers,
    /// Functions that would move to the GPU.
    pub moved: Vec<String>,
    /// Speed-up factor of these functions.
    pub gain: Option<f64>,
}

/// Report. Field names are stable; new fields may be added.
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
    /// Reason why there is no bound.
    pub no_bound: Option<String>,
    /// GPU of the roofline.
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
