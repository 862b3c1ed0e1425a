//! What the process has reported so far, and whether that makes sense: a pure state machine. Whatever does
//! not is a broken word, never a finding about the GPU.

use crate::report::{Device, End, Measured, Report};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryStep};

/// More reports than any run makes: each step begins and ends once, and each check may tell of several tries.
const MOST_REPORTS: usize = 512;
/// No step takes longer, in seconds; a figure above is no time.
const MOST_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// What was reported.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Steps that ended well, with their wall time in seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    /// The device.
    pub device: Option<Device>,
    /// What was measured.
    pub measured: Vec<Measured>,
    /// The step it is in.
    open: Option<CanaryStep>,
    /// The last step that began.
    last: Option<CanaryStep>,
    /// How it said that it ends; only giving back what it holds may follow.
    ending: Option<End>,
    /// GPU time by its own account, once it is done.
    done: Option<f64>,
    reports: usize,
}

impl Transcript {
    /// Takes the next report in. An error says what is wrong with it.
    pub fn take(&mut self, report: Report) -> Result<(), String> {
        self.reports += 1;
        if self.reports > MOST_REPORTS {
            return Err(format!("more than {MOST_REPORTS} reports"));
        }
        if self.done.is_some() {
            return Err(format!("a report after the last one: {}", brief(&report)));
        }
        match report {
            Report::Begin(step) => {
                if let Some(open) = self.open {
                    return Err(format!("step {} began within step {}", step.known(), open.known()));
                }
                if self.ending.is_some() && step != CanaryStep::Destroy {
                    return Err(format!("step {} began though the run was to end", step.known()));
                }
                (self.open, self.last) = (Some(step), Some(step));
            }
            Report::End { step, seconds } => {
                if self.open != Some(step) {
                    return Err(format!("step {} ended, which had not begun", step.known()));
                }
                self.steps.push((step, time(seconds)?));
                self.open = None;
            }
            Report::Device(device) => {
                if self.device.is_some() {
                    return Err("the device was told twice".into());
                }
                self.device = Some(*device);
            }
            Report::Measured(measured) => {
                // The driver's own steps are the check `init`.
                let within = self.open.map(|step| step.known()) == Some(measured.check.known());
                if !within && measured.check != CanaryCheck::Init {
                    return Err(format!("a measurement of {} outside its step", measured.check.known()));
                }
                time(measured.gpu_seconds)?;
                time(measured.wall_seconds)?;
                self.measured.push(*measured);
            }
            Report::Fault { step, code, name, call } => self.ends(End::Fault { step, code, name, call })?,
            Report::Unable { reason, text } => self.ends(End::Unable { reason, text })?,
            Report::Abandoned { text, pids } => self.ends(End::Abandoned { text, pids })?,
            Report::Done { gpu_seconds } => {
                if let Some(open) = self.open {
                    return Err(format!("the run was done within step {}", open.known()));
                }
                self.done = Some(time(gpu_seconds)?);
            }
        }
        Ok(())
    }

    fn ends(&mut self, end: End) -> Result<(), String> {
        match (&self.ending, &end) {
            // Giving back fails after a fault: the first one counts.
            (Some(_), End::Fault { .. }) => {}
            (Some(_), _) => return Err("the run ended twice".into()),
            (None, _) => self.ending = Some(end),
        }
        self.open = None;
        Ok(())
    }

    /// The step it is in, or else was in last.
    pub fn step(&self) -> CanaryStep {
        self.open.or(self.last).unwrap_or(CanaryStep::Load)
    }

    /// Whether the last report has come.
    pub fn done(&self) -> bool {
        self.done.is_some()
    }

    /// How the run ended, if the process told: all of it, or at least why there is not more.
    pub fn told_end(&self) -> Option<End> {
        self.ending.clone().or_else(|| self.done.map(|_| End::Finished))
    }

    /// Time in which kernels or copies ran, seconds.
    pub fn gpu_seconds(&self) -> f64 {
        self.done.unwrap_or_else(|| self.measured.iter().map(|m| m.gpu_seconds).sum())
    }
}

fn time(seconds: f64) -> Result<f64, String> {
    if (0.0..MOST_SECONDS).contains(&seconds) {
        return Ok(seconds);
    }
    Err(format!("{seconds} s is no time"))
}

fn brief(report: &Report) -> &'static str {
    match report {
        Report::Begin(_) => "a step's begin",
        Report::End { .. } => "a step's end",
        Report::Device(_) => "the device",
        Report::Measured(_) => "a measurement",
        Report::Fault { .. } => "a fault",
        Report::Unable { .. } => "that it cannot run",
        Report::Abandoned { .. } => "that it was abandoned",
        Report::Done { .. } => "that it is done",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Found, Mismatches};
    use model::catalog::CanarySkip;
    use sampler::watch::Around;

    fn begin(step: CanaryStep) -> Report {
        Report::Begin(step)
    }

    fn end(step: CanaryStep) -> Report {
        Report::End { step, seconds: 0.5 }
    }

    fn measured(check: CanaryCheck) -> Report {
        Report::Measured(Box::new(Measured {
            check,
            gpu_seconds: 0.25,
            wall_seconds: 0.5,
            found: Found::Launched(Vec::new()),
            mismatches: Mismatches::default(),
            around: Around::default(),
        }))
    }

    fn fault(step: CanaryStep) -> Report {
        Report::Fault { step, code: 719, name: "n".into(), call: "c".into() }
    }

    fn unable() -> Report {
        Report::Unable { reason: CanarySkip::NoMemory, text: "t".into() }
    }

    fn take(reports: impl IntoIterator<Item = Report>) -> Result<Transcript, String> {
        let mut transcript = Transcript::default();
        reports.into_iter().try_for_each(|report| transcript.take(report))?;
        Ok(transcript)
    }

    #[test]
    fn a_whole_run_is_kept() {
        let told = take([
            begin(CanaryStep::Context),
            end(CanaryStep::Context),
            Report::Device(Box::default()),
            begin(CanaryStep::SmRate),
            measured(CanaryCheck::SmRate),
            end(CanaryStep::SmRate),
        ])
        .unwrap();
        assert_eq!((told.told_end(), told.gpu_seconds(), told.step()), (None, 0.25, CanaryStep::SmRate));
        let mut told = told;
        told.take(Report::Done { gpu_seconds: 0.75 }).unwrap();
        assert_eq!((told.told_end(), told.gpu_seconds()), (Some(End::Finished), 0.75));
        assert_eq!(told.steps, [(CanaryStep::Context, 0.5), (CanaryStep::SmRate, 0.5)]);
    }

    #[test]
    fn the_first_fault_counts_and_giving_back_may_follow() {
        let told = take([
            begin(CanaryStep::L2),
            fault(CanaryStep::L2),
            begin(CanaryStep::Destroy),
            fault(CanaryStep::Destroy),
            Report::Done { gpu_seconds: 0.0 },
        ])
        .unwrap();
        assert!(matches!(told.told_end(), Some(End::Fault { step: CanaryStep::L2, .. })));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let done = || Report::Done { gpu_seconds: 0.0 };
        let senseless: [&[Report]; 11] = [
            &[end(CanaryStep::Init)],
            &[begin(CanaryStep::Init), begin(CanaryStep::Device)],
            &[begin(CanaryStep::Init), end(CanaryStep::Device)],
            &[begin(CanaryStep::Init), done()],
            &[done(), done()],
            &[unable(), begin(CanaryStep::L2)],
            &[unable(), unable()],
            &[measured(CanaryCheck::L2)],
            &[Report::Device(Box::default()), Report::Device(Box::default())],
            &[begin(CanaryStep::Init), Report::End { step: CanaryStep::Init, seconds: -1.0 }],
            &[Report::Done { gpu_seconds: 1e300 }],
        ];
        for reports in senseless {
            assert!(take(reports.iter().cloned()).is_err(), "{reports:?}");
        }
        let endless = (0..MOST_REPORTS).flat_map(|_| [begin(CanaryStep::L2), end(CanaryStep::L2)]);
        assert!(take(endless).is_err());
    }
}
