//! A run from its order to its end: the driver's steps, the checks, and giving back.

use std::time::Duration;

use super::checks;
use super::cuda::{Cuda, Grid};
use super::device;
use super::errors::{Ended, Try, name};
use super::library;
use super::own;
use super::poll::Poll;
use super::say::Reports;
use super::session::{Arena, Kernels, Session, Spent};
use super::start;
use crate::abi::LaunchArgs;
use crate::code;
use crate::report::{Device, Measured, Order, Report};
use host::inflight::SlotWriter;
use model::catalog::{CanaryCheck, CanarySkip, CanaryStep};
use model::clock::Mono;
use sampler::watch::{DeviceFacts, DeviceReading};

/// A look this young still tells how things are before the next check.
const YOUNG: Duration = Duration::from_millis(20);

/// A run under way.
pub struct Flow<'a> {
    order: &'a Order,
    poll: Poll<'a>,
    reports: &'a mut Reports,
    /// The step it is in, or was in last.
    step: CanaryStep,
    /// The last look, and when it was made.
    last: Option<(DeviceReading, Mono)>,
    /// Time in which kernels or copies ran, seconds.
    gpu_seconds: f64,
}

impl<'a> Flow<'a> {
    /// One that has not begun.
    pub fn new(order: &'a Order, poll: Poll<'a>, reports: &'a mut Reports) -> Flow<'a> {
        Flow { order, poll, reports, step: CanaryStep::Load, last: None, gpu_seconds: 0.0 }
    }

    /// Makes the run. What ends it is told; the last report is that it is done.
    pub fn run(mut self, slot: SlotWriter) {
        match self.step(CanaryStep::Load, |flow| flow.load(slot)) {
            Err(ended) => self.tell(ended),
            Ok((cuda, facts)) => {
                let ended = self.with(&cuda, &facts).err();
                self.give_back(&cuda, ended);
            }
        }
        self.reports.send(&Report::Done { gpu_seconds: self.gpu_seconds });
    }

    /// Tells what ended the run, and gives back what is held. After a fault nothing more is asked of the driver:
    /// the process's end gives back.
    fn give_back(&mut self, cuda: &Cuda, ended: Option<Ended>) {
        let fault = matches!(ended, Some(Ended::Fault(_)));
        let early = ended.is_some();
        if let Some(ended) = ended {
            self.tell(ended);
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
                tracing::warn!(text, "the context could not be destroyed")
            }
            Err(ended) => self.tell(ended),
        }
    }

    fn tell(&mut self, ended: Ended) {
        let report = match ended {
            Ended::Fault(error) => {
                let (step, code, call) = (self.step, error.code, error.call.to_owned());
                Report::Fault { step, code, name: name(code), call }
            }
            Ended::Unable(reason, text) => Report::Unable { reason, text },
            Ended::Abandoned(text, pids) => Report::Abandoned { text, pids },
        };
        self.reports.send(&report);
    }

    /// Does a step, and says so before and after.
    fn step<T>(&mut self, step: CanaryStep, work: impl FnOnce(&mut Self) -> Try<T>) -> Try<T> {
        self.step = step;
        self.reports.send(&Report::Begin(step));
        let began = Mono::now();
        let done = work(self)?;
        self.reports.send(&Report::End { step, seconds: Mono::now().since(began).as_secs_f64() });
        Ok(done)
    }

    /// NVML first: whether somebody is there is known before CUDA is touched.
    fn load(&mut self, slot: SlotWriter) -> Try<(Cuda, DeviceFacts)> {
        let facts = match self.poll.watch.facts() {
            Ok(facts) => facts,
            Err(text) if self.order.yields => return Err(Ended::Unable(CanarySkip::Unread, text)),
            Err(text) => {
                tracing::warn!(text, "nobody watches this run");
                DeviceFacts::default()
            }
        };
        self.look()?;
        self.poll.go_on()?;
        let file = library::find(&self.order.cuda_library)?;
        let cuda = Cuda::load(slot).map_err(|symbol| {
            let text = format!("{} has no {symbol}: a driver before R535", file.display());
            Ended::Unable(CanarySkip::OldDriver, text)
        })?;
        Ok((cuda, facts))
    }

    /// A fresh look. Who is to yield and cannot see to whom does not go on.
    fn look(&mut self) -> Try<Option<DeviceReading>> {
        let look = self.poll.watch.read();
        let seen = look.as_ref().is_some_and(|look| look.processes.is_some());
        if self.order.yields && !seen {
            let text = "NVML does not tell which processes are on the GPU".to_owned();
            return Err(Ended::Unable(CanarySkip::Unread, text));
        }
        self.last = look.clone().map(|look| (look, Mono::now()));
        Ok(look)
    }

    /// The last look, if it is young enough, or a fresh one.
    fn young_look(&mut self) -> Try<Option<DeviceReading>> {
        match &self.last {
            Some((look, at)) if Mono::now().since(*at) < YOUNG => Ok(Some(look.clone())),
            _ => self.look(),
        }
    }

    /// All from the initialisation to the last check.
    fn with(&mut self, cuda: &Cuda, facts: &DeviceFacts) -> Try<()> {
        let poll = self.poll;
        self.step(CanaryStep::Init, |_| start::init(cuda, &poll, facts.minor))?;
        let (id, device, shape) = self.step(CanaryStep::Device, |flow| {
            let version = cuda.driver_version()?;
            device::check_version(version)?;
            let id = device::find(cuda, 0, &flow.order.device)?;
            let (device, shape) = device::describe(cuda, id, facts, version)?;
            Ok((id, device, shape))
        })?;
        let context = self.step(CanaryStep::Context, |flow| {
            poll.go_on()?;
            let context = cuda.retain(id)?;
            flow.know_ourselves()?;
            Ok(context)
        })?;
        let (kernels, device) = self.step(CanaryStep::Module, |_| kernels(cuda, device))?;
        let mut session = self.step(CanaryStep::FirstLaunch, |flow| {
            let arena = Arena::new(cuda, &device, flow.order)?;
            let device = Device { used_bytes: arena.left(), ..device };
            let mut session = Session {
                cuda,
                poll,
                order: flow.order,
                shape,
                id,
                context,
                kernels,
                arena,
                stream: cuda.stream()?,
                events: (cuda.event()?, cuda.event()?),
                spent: Spent::default(),
                gpu_seconds: 0.0,
                rising: true,
                device,
            };
            let grid = Grid { blocks: 1, threads: 32, shared: 0 };
            session.run(session.kernels.launch, grid, &LaunchArgs::default())?;
            Ok(session)
        })?;
        self.reports.send(&Report::Device(Box::new(session.device.clone())));
        let done = self.order.checks.iter().try_for_each(|check| self.check(*check, &mut session));
        self.gpu_seconds = session.gpu_seconds;
        done
    }

    /// Looks who came with the context: NVML may know this process by a number that is not known here.
    fn know_ourselves(&mut self) -> Try<()> {
        let listed = |look: &DeviceReading| look.processes.clone().unwrap_or_default();
        let before = self.last.as_ref().map(|(look, _)| listed(look)).unwrap_or_default();
        let after = self.look()?.as_ref().map(listed).unwrap_or_default();
        if let Some(pid) = own::adopt(&own::pids(), &before, &after, own::seen) {
            self.poll.watch.ignore_pid(pid);
        }
        self.poll.go_on()
    }

    /// A check, with what NVML tells around it.
    fn check(&mut self, check: CanaryCheck, session: &mut Session<'_>) -> Try<()> {
        let Some(step) = checks::step(check) else { return Ok(()) };
        self.step(step, |flow| {
            let watch = flow.poll.watch;
            let before = flow.young_look()?;
            flow.poll.go_on()?;
            session.spent = Spent::default();
            watch.begin(check == CanaryCheck::Pcie);
            let made = checks::make(check, session);
            let notes = watch.end();
            let Some(finding) = made? else { return Ok(()) };
            let after = flow.look()?;
            flow.reports.send(&Report::Measured(Box::new(Measured {
                check,
                gpu_seconds: session.spent.gpu,
                wall_seconds: session.spent.wall,
                found: finding.found,
                mismatches: finding.mismatches,
                around: watch.around(before.as_ref(), &notes, after.as_ref()),
            })));
            Ok(())
        })?;
        self.poll.go_on()
    }
}

/// Loads the kernels made for this device.
fn kernels(cuda: &Cuda, mut device: Device) -> Try<(Kernels, Device)> {
    let (major, minor) = device.compute_capability;
    let code = code::choose((major, minor)).ok_or_else(|| {
        let text = format!("no kernels were made for compute capability {major}.{minor}");
        Ended::Unable(CanarySkip::NoKernels, text)
    })?;
    let module = cuda.load_module(code.image)?;
    device.code = code.name.to_owned();
    device.code_checksum = code.checksum();
    Ok((Kernels::of(cuda, &module)?, device))
}
