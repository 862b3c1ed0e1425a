//! A pure state machine that validates and collects the reports of the process. An invalid report means a broken
//! protocol, and is never a finding about the GPU.

use crate::report::{CanaryRun, ChildReport, CudaDevice, Measurement, RunEnd};
use model::catalog::schema::KnownLabel;
use model::catalog::{CanaryCheck, CanaryStep};
use model::clock::unix_seconds;

/// Maximum number of reports, more than any run makes. Every step begins and ends once, and a check may report several
/// attempts.
const MOST_REPORTS: usize = 512;
/// Maximum duration of a step in seconds. A larger figure is invalid.
const MOST_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

#[derive(Debug, Default)]
pub(crate) struct Transcript {
    /// Steps that succeeded, with their wall time in seconds.
    pub steps: Vec<(CanaryStep, f64)>,
    pub device: Option<CudaDevice>,
    pub measured: Vec<Measurement>,
    open: Option<CanaryStep>,
    /// The last step that began.
    last: Option<CanaryStep>,
    /// Reported end of the run. Only the release of resources may follow.
    ending: Option<RunEnd>,
    /// GPU time from the last report, in seconds.
    done: Option<f64>,
    reports: usize,
}

impl Transcript {
    /// Records the next report. Returns an error if the report breaks the protocol.
    pub fn record(&mut self, report: ChildReport) -> Result<(), String> {
        self.reports += 1;
        if self.reports > MOST_REPORTS {
            return Err(format!("more than {MOST_REPORTS} reports"));
        }
        if self.done.is_some() {
            return Err("a report arrived after the last one".into());
        }
        match report {
            ChildReport::Begin(step) => self.begin(step),
            ChildReport::End { step, seconds } => self.end(step, seconds),
            ChildReport::Device(device) if self.device.is_none() => {
                self.device = Some(*device);
                Ok(())
            }
            ChildReport::Device(_) => Err("the device was reported twice".into()),
            ChildReport::Measured(measured) => self.measure(*measured),
            ChildReport::Ended(end) => self.end_run(end),
            ChildReport::Done { gpu_seconds } => self.finish(gpu_seconds),
        }
    }

    fn begin(&mut self, step: CanaryStep) -> Result<(), String> {
        if let Some(open) = self.open {
            return Err(format!("step {} began within step {}", step.known(), open.known()));
        }
        if self.ending.is_some() && step != CanaryStep::Destroy {
            return Err(format!("step {} began after the run had ended", step.known()));
        }
        (self.open, self.last) = (Some(step), Some(step));
        Ok(())
    }

    fn end(&mut self, step: CanaryStep, seconds: f64) -> Result<(), String> {
        if self.open != Some(step) {
            return Err(format!("step {} ended but had not begun", step.known()));
        }
        self.steps.push((step, time(seconds)?));
        self.open = None;
        Ok(())
    }

    fn measure(&mut self, measured: Measurement) -> Result<(), String> {
        // The driver's own steps form the check `init`.
        let within = self.open.map(|step| step.known()) == Some(measured.check.known());
        if !within && measured.check != CanaryCheck::Init {
            return Err(format!("{} was measured outside its step", measured.check.known()));
        }
        time(measured.gpu_seconds)?;
        time(measured.wall_seconds)?;
        self.measured.push(measured);
        Ok(())
    }

    fn end_run(&mut self, end: RunEnd) -> Result<(), String> {
        if matches!(end, RunEnd::Finished | RunEnd::Hung { .. } | RunEnd::Broken { .. }) {
            return Err("the process reported an end that only its parent may record".into());
        }
        // Releasing resources fails after a fault, so the first fault counts.
        if self.ending.is_some() && !matches!(end, RunEnd::Fault { .. }) {
            return Err("the run ended twice".into());
        }
        self.ending.get_or_insert(end);
        self.open = None;
        Ok(())
    }

    fn finish(&mut self, gpu_seconds: f64) -> Result<(), String> {
        if let Some(open) = self.open {
            return Err(format!("the run was done within step {}", open.known()));
        }
        self.done = Some(time(gpu_seconds)?);
        Ok(())
    }

    /// Returns the current step, or otherwise the last one.
    pub fn step(&self) -> CanaryStep {
        self.open.or(self.last).unwrap_or(CanaryStep::Load)
    }

    /// Returns true if the last report has arrived.
    pub fn done(&self) -> bool {
        self.done.is_some()
    }

    /// Returns the end of the run if the process reported one.
    pub fn reported_end(&self) -> Option<RunEnd> {
        self.ending.clone().or_else(|| self.done.map(|_| RunEnd::Finished))
    }

    /// Returns the time in which kernels or copies ran, in seconds.
    pub fn gpu_seconds(&self) -> f64 {
        self.done.unwrap_or_else(|| self.measured.iter().map(|m| m.gpu_seconds).sum())
    }

    /// Returns the reports of a run that has just ended with `end`.
    pub fn run(self, began: f64, end: RunEnd) -> CanaryRun {
        let gpu_seconds = self.gpu_seconds();
        // The clock may have been set back during the run.
        let ended = unix_seconds().max(began);
        let Transcript { steps, device, measured, .. } = self;
        CanaryRun { began, ended, steps, device, measured, gpu_seconds, end }
    }
}

fn time(seconds: f64) -> Result<f64, String> {
    if (0.0..MOST_SECONDS).contains(&seconds) {
        return Ok(seconds);
    }
    Err(format!("{seconds} s is not a valid duration"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CheckFigures, Mismatches};
    use model::catalog::CanarySkip;
    use sampler::watch::Around;

    fn begin(step: CanaryStep) -> ChildReport {
        ChildReport::Begin(step)
    }

    fn end(step: CanaryStep) -> ChildReport {
        ChildReport::End { step, seconds: 0.5 }
    }

    fn measured(check: CanaryCheck) -> ChildReport {
        ChildReport::Measured(Box::new(Measurement {
            check,
            gpu_seconds: 0.25,
            wall_seconds: 0.5,
            found: CheckFigures::Launched(Vec::new()),
            mismatches: Mismatches::default(),
            around: Around::default(),
        }))
    }

    fn fault(step: CanaryStep) -> ChildReport {
        ChildReport::Ended(RunEnd::Fault { step, code: 719, name: "n".into(), call: "c".into() })
    }

    fn unable() -> ChildReport {
        ChildReport::Ended(RunEnd::Unable { reason: CanarySkip::NoMemory, text: "t".into() })
    }

    fn recorded(reports: impl IntoIterator<Item = ChildReport>) -> Result<Transcript, String> {
        let mut transcript = Transcript::default();
        reports.into_iter().try_for_each(|report| transcript.record(report))?;
        Ok(transcript)
    }

    #[test]
    fn a_whole_run_is_kept() {
        let transcript = recorded([
            begin(CanaryStep::Context),
            end(CanaryStep::Context),
            ChildReport::Device(Box::default()),
            begin(CanaryStep::SmRate),
            measured(CanaryCheck::SmRate),
            end(CanaryStep::SmRate),
        ])
        .unwrap();
        assert_eq!(
            (transcript.reported_end(), transcript.gpu_seconds(), transcript.step()),
            (None, 0.25, CanaryStep::SmRate)
        );
        let mut transcript = transcript;
        transcript.record(ChildReport::Done { gpu_seconds: 0.75 }).unwrap();
        assert_eq!((transcript.reported_end(), transcript.gpu_seconds()), (Some(RunEnd::Finished), 0.75));
        assert_eq!(transcript.steps, [(CanaryStep::Context, 0.5), (CanaryStep::SmRate, 0.5)]);
    }

    #[test]
    fn the_first_fault_counts_and_giving_back_may_follow() {
        let transcript = recorded([
            begin(CanaryStep::L2),
            fault(CanaryStep::L2),
            begin(CanaryStep::Destroy),
            fault(CanaryStep::Destroy),
            ChildReport::Done { gpu_seconds: 0.0 },
        ])
        .unwrap();
        assert!(matches!(transcript.reported_end(), Some(RunEnd::Fault { step: CanaryStep::L2, .. })));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let done = || ChildReport::Done { gpu_seconds: 0.0 };
        let senseless: [&[ChildReport]; 11] = [
            &[end(CanaryStep::Init)],
            &[begin(CanaryStep::Init), begin(CanaryStep::Device)],
            &[begin(CanaryStep::Init), end(CanaryStep::Device)],
            &[begin(CanaryStep::Init), done()],
            &[done(), done()],
            &[unable(), begin(CanaryStep::L2)],
            &[unable(), unable()],
            &[measured(CanaryCheck::L2)],
            &[ChildReport::Device(Box::default()), ChildReport::Device(Box::default())],
            &[begin(CanaryStep::Init), ChildReport::End { step: CanaryStep::Init, seconds: -1.0 }],
            &[ChildReport::Done { gpu_seconds: 1e300 }],
        ];
        for reports in senseless {
            assert!(recorded(reports.iter().cloned()).is_err(), "{reports:?}");
        }
        let endless = (0..MOST_REPORTS).flat_map(|_| [begin(CanaryStep::L2), end(CanaryStep::L2)]);
        assert!(recorded(endless).is_err());
    }
}
