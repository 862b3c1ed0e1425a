//! A run from its request to its end: the driver's steps, the checks, and the release of all resources.

use std::time::Duration;

use super::ReportWriter;
use super::init;
use super::pid;
use crate::abi::{LaunchArgs, TensorShape};
use crate::checks;
use crate::code;
use crate::device::CudaDevice;
use crate::report::{ChildReport, Measurement, RunEnd, RunRequest};
use crate::session::cuda::{CudaDriver, Grid};
use crate::session::errors::{CudaError, Ended, Try, name};
use crate::session::poll::Poll;
use crate::session::{Arena, KernelsByName, Session, Spent, device, library};
use host::inflight::SlotWriter;
use model::catalog::{CanaryCheck, CanarySkip, CanaryStep};
use model::clock::Mono;
use sampler::watch::{DeviceFacts, DeviceReading};

/// Maximum age of a reading that the next check reuses.
const YOUNG: Duration = Duration::from_millis(20);

/// A run in progress.
pub(crate) struct RunSteps<'a> {
    request: &'a RunRequest,
    poll: Poll<'a>,
    reports: &'a mut ReportWriter,
    /// The current or the last step.
    step: CanaryStep,
    /// The last reading and its time.
    last: Option<(DeviceReading, Mono)>,
    /// Time in which kernels or copies ran, in seconds.
    gpu_seconds: f64,
}

impl<'a> RunSteps<'a> {
    /// Makes the run and reports how it ended. The last report is `Done`.
    pub fn run(request: &'a RunRequest, poll: Poll<'a>, reports: &'a mut ReportWriter, slot: SlotWriter) {
        let step = CanaryStep::Load;
        let mut run = RunSteps { request, poll, reports, step, last: None, gpu_seconds: 0.0 };
        match run.step(step, |run| run.load(slot)) {
            Err(ended) => run.report_end(ended),
            Ok((cuda, facts)) => {
                let ended = run.with(&cuda, &facts).err();
                run.give_back(&cuda, ended);
            }
        }
        run.reports.send(&ChildReport::Done { gpu_seconds: run.gpu_seconds });
    }

    /// Reports the end and releases all resources. After a fault, the process makes no further driver call, and the
    /// kernel releases the resources when the process exits.
    fn give_back(&mut self, cuda: &CudaDriver, ended: Option<Ended>) {
        let fault = matches!(ended, Some(Ended::Fault(_)));
        let early = ended.is_some();
        if let Some(ended) = ended {
            self.report_end(ended);
        }
        if fault || cuda.held().is_empty() {
            return;
        }
        let destroyed = self.step(CanaryStep::Destroy, |_| {
            let mut held = cuda.held().into_iter();
            Ok(held.try_for_each(|device| cuda.release(device))?)
        });
        match destroyed {
            Ok(()) => {}
            Err(Ended::Unable(_, text)) if early => {
                tracing::warn!(text, "failed to destroy the CUDA context")
            }
            Err(ended) => self.report_end(ended),
        }
    }

    fn report_end(&mut self, ended: Ended) {
        let end = match ended {
            Ended::Fault(CudaError { code, call }) => {
                RunEnd::Fault { step: self.step, code, name: name(code), call: call.to_owned() }
            }
            Ended::Unable(reason, text) => RunEnd::Unable { reason, text },
            Ended::Abandoned(text, pids) => RunEnd::Abandoned { text, pids },
        };
        self.reports.send(&ChildReport::Ended(end));
    }

    /// Runs a step, and reports its start and its end.
    fn step<T>(&mut self, step: CanaryStep, work: impl FnOnce(&mut Self) -> Try<T>) -> Try<T> {
        self.step = step;
        self.reports.send(&ChildReport::Begin(step));
        let began = Mono::now();
        let done = work(self)?;
        self.reports.send(&ChildReport::End { step, seconds: Mono::now().since(began).as_secs_f64() });
        Ok(done)
    }

    /// Loads NVML first, so that other processes are detected before CUDA is used.
    fn load(&mut self, slot: SlotWriter) -> Try<(CudaDriver, DeviceFacts)> {
        let facts = match self.poll.watch.facts() {
            Ok(facts) => facts,
            Err(text) if self.request.yields => return Err(Ended::Unable(CanarySkip::Unread, text)),
            Err(text) => {
                tracing::warn!(text, "NVML cannot watch this run; other processes on the GPU go unnoticed");
                DeviceFacts::default()
            }
        };
        self.look()?;
        self.poll.go_on()?;
        let file = library::find(&self.request.cuda_library)?;
        let cuda = CudaDriver::load(slot).map_err(|symbol| {
            let text = format!("{} lacks {symbol}; install driver R535 or newer", file.display());
            Ended::Unable(CanarySkip::OldDriver, text)
        })?;
        Ok((cuda, facts))
    }

    /// Reads the device. A run that yields ends if NVML cannot list the other processes.
    fn look(&mut self) -> Try<Option<DeviceReading>> {
        let look = self.poll.watch.read();
        let seen = look.as_ref().is_some_and(|look| look.processes.is_some());
        if self.request.yields && !seen {
            let text = "NVML does not report the processes on the GPU".to_owned();
            return Err(Ended::Unable(CanarySkip::Unread, text));
        }
        self.last = look.clone().map(|look| (look, Mono::now()));
        Ok(look)
    }

    /// Returns the last reading if it is recent enough, or a new one.
    fn young_look(&mut self) -> Try<Option<DeviceReading>> {
        match &self.last {
            Some((look, at)) if Mono::now().since(*at) < YOUNG => Ok(Some(look.clone())),
            _ => self.look(),
        }
    }

    /// Runs everything from the initialisation to the last check.
    fn with(&mut self, cuda: &CudaDriver, facts: &DeviceFacts) -> Try<()> {
        let poll = self.poll;
        self.step(CanaryStep::Init, |_| init::init(cuda, &poll, facts.minor))?;
        let (id, device, limits) = self.step(CanaryStep::Device, |run| {
            let version = cuda.driver_version()?;
            device::check_version(version)?;
            let id = device::find(cuda, 0, &run.request.device)?;
            let (device, limits) = device::describe(cuda, id, facts, version)?;
            Ok((id, device, limits))
        })?;
        let context = self.step(CanaryStep::Context, |run| {
            poll.go_on()?;
            let context = cuda.retain(id)?;
            run.know_ourselves()?;
            Ok(context)
        })?;
        let (kernels, tensor_shape, device) =
            self.step(CanaryStep::Module, |_| load_kernels(cuda, device))?;
        let mut session = self.step(CanaryStep::FirstLaunch, |run| {
            let arena = Arena::new(cuda, &device, run.request)?;
            let device = CudaDevice { used_bytes: arena.left(), ..device };
            let mut session = Session {
                cuda,
                poll,
                request: run.request,
                limits,
                id,
                context,
                kernels,
                tensor_shape,
                arena,
                stream: cuda.stream()?,
                events: (cuda.event()?, cuda.event()?),
                spent: Spent::default(),
                gpu_seconds: 0.0,
                rising: true,
                device,
            };
            let grid = Grid { blocks: 1, threads: 32, shared: 0 };
            let launch = session.kernel("launch")?;
            session.run(launch, grid, &LaunchArgs::default())?;
            Ok(session)
        })?;
        self.reports.send(&ChildReport::Device(Box::new(session.device.clone())));
        let done = self.request.checks.iter().try_for_each(|check| self.check(*check, &mut session));
        self.gpu_seconds = session.gpu_seconds;
        done
    }

    /// Finds the process that appeared with the context, because NVML may list this process under a PID that is unknown
    /// here.
    fn know_ourselves(&mut self) -> Try<()> {
        let listed = |look: &DeviceReading| look.processes.clone().unwrap_or_default();
        let before = self.last.as_ref().map(|(look, _)| listed(look)).unwrap_or_default();
        let after = self.look()?.as_ref().map(listed).unwrap_or_default();
        if let Some(pid) = pid::adopt(&pid::pids(), &before, &after, pid::seen) {
            self.poll.watch.ignore_pid(pid);
        }
        self.poll.go_on()
    }

    /// Runs a check, with NVML's readings around it.
    fn check(&mut self, name: CanaryCheck, session: &mut Session<'_>) -> Try<()> {
        let Some(check) = checks::by_name(name) else { return Ok(()) };
        self.step(check.step, |run| {
            let watch = run.poll.watch;
            let before = run.young_look()?;
            run.poll.go_on()?;
            session.spent = Spent::default();
            session.arena.clear();
            watch.begin(check.reads_link);
            let result = (check.measure)(session);
            let notes = watch.end();
            let Some((found, mismatches)) = result? else { return Ok(()) };
            let after = run.look()?;
            run.reports.send(&ChildReport::Measured(Box::new(Measurement {
                check: name,
                gpu_seconds: session.spent.gpu,
                wall_seconds: session.spent.wall,
                found,
                mismatches,
                around: watch.around(before.as_ref(), &notes, after.as_ref()),
            })));
            Ok(())
        })?;
        self.poll.go_on()
    }
}

/// Loads the kernels that were compiled for this device.
fn load_kernels(cuda: &CudaDriver, mut device: CudaDevice) -> Try<(KernelsByName, TensorShape, CudaDevice)> {
    let (major, minor) = device.compute_capability;
    let code = code::choose((major, minor)).ok_or_else(|| {
        let text = format!("there are no kernels for compute capability {major}.{minor}");
        Ended::Unable(CanarySkip::NoKernels, text)
    })?;
    let module = cuda.load_module(code.image)?;
    device.code = code.name.to_owned();
    device.code_checksum = code.checksum();
    let mut kernels = KernelsByName::new();
    for name in checks::kernels() {
        kernels.insert(name, cuda.function(&module, name)?);
    }
    Ok((kernels, cuda.global(&module, "tensor_shape")?, device))
}
