//! Calls into the driver's library. Every call goes through [`Caller`], which records it in the in-flight
//! table, measures its duration and classifies its outcome.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::error::NvmlError;

use host::inflight::SlotWriter;
use model::catalog::{DriverError, MetricId};
use model::clock::{Mono, nanos};
use model::sample::{CallCost, Gap, Missing};
use model::sync::lock;

/// Name of a driver call with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallName {
    pub function: &'static str,
    /// Arguments that distinguish several uses of one function.
    pub args: [Option<u32>; 3],
}

impl From<&'static str> for CallName {
    fn from(function: &'static str) -> CallName {
        CallName { function, args: [None; 3] }
    }
}

impl From<(&'static str, u32)> for CallName {
    fn from((function, arg): (&'static str, u32)) -> CallName {
        (function, [arg]).into()
    }
}

impl<const N: usize> From<(&'static str, [u32; N])> for CallName {
    fn from((function, args): (&'static str, [u32; N])) -> CallName {
        CallName { function, args: std::array::from_fn(|at| args.get(at).copied()) }
    }
}

impl std::fmt::Display for CallName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let args: Vec<String> = self.args.iter().flatten().map(u32::to_string).collect();
        match args.is_empty() {
            true => f.write_str(self.function),
            false => write!(f, "{}({})", self.function, args.join(",")),
        }
    }
}

/// Failure of a call, by its consequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallFailure {
    /// The call is not repeated with this handle.
    Unsupported,
    /// The call is repeated at the next visit.
    Failed(DriverError, String),
    /// The GPU is lost. No call is made, and the worker tries to get a new handle later.
    Lost(DriverError, String),
    /// The driver is gone, so the sampler ends.
    DriverGone(DriverError, String),
}

impl CallFailure {
    /// Returns the gap that explains the missing value.
    pub fn missing(&self) -> Missing {
        match self {
            CallFailure::Unsupported => Missing::Unsupported,
            failure => {
                let (error, text) = failure.error();
                Missing::Failed { error, text }
            }
        }
    }

    pub fn error(&self) -> (DriverError, String) {
        use CallFailure as F;
        match self {
            F::Unsupported => (DriverError::Argument, "not supported".into()),
            F::Failed(error, text) | F::Lost(error, text) | F::DriverGone(error, text) => {
                (*error, text.clone())
            }
        }
    }

    /// Returns whether the GPU or the driver is gone, so that no further call can succeed.
    pub fn is_final(&self) -> bool {
        matches!(self, CallFailure::Lost(..) | CallFailure::DriverGone(..))
    }
}

/// Returns the gap for metrics that `call` left without a value.
pub fn gap(call: impl Into<CallName>, metrics: &[MetricId], missing: Missing) -> Gap {
    Gap { call: call.into().to_string(), metrics: metrics.to_vec(), missing }
}

/// Classifies NVML's return codes by the table in the NVML header. Codes 2, 5, 7 and 25 would be a mistake of
/// this program. Codes 3, 13 and 26 mean "not on this device or driver". Codes 9, 12 and 18 (and 1 after a
/// successful start) mean that the driver is gone.
pub fn classify(error: &NvmlError) -> CallFailure {
    use DriverError as D;
    let failed = |kind| CallFailure::Failed(kind, error.to_string());
    let gone = |kind| CallFailure::DriverGone(kind, error.to_string());
    // The same words as `nvidia-smi`, because people search for them.
    let lost = |kind, text: &str| CallFailure::Lost(kind, text.to_owned());
    match error {
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            CallFailure::Unsupported
        }
        NvmlError::UnexpectedVariant(26) => CallFailure::Unsupported,
        NvmlError::DriverNotLoaded
        | NvmlError::Uninitialized
        | NvmlError::LibraryNotFound
        | NvmlError::LibloadingError(_) => gone(D::DriverNotLoaded),
        NvmlError::LibRmVersionMismatch => gone(D::LibRmVersionMismatch),
        NvmlError::GpuLost => lost(D::GpuIsLost, "GPU is lost: it has fallen off the bus or does not answer"),
        NvmlError::ResetRequired => lost(D::ResetRequired, "GPU requires reset"),
        // 28 is GPU_NOT_FOUND, which the wrapper lacks.
        NvmlError::NotFound | NvmlError::UnexpectedVariant(28) => failed(D::NotFound),
        NvmlError::NoPermission => failed(D::NoPermission),
        NvmlError::InsufficientPower => failed(D::InsufficientPower),
        NvmlError::Timeout => failed(D::Timeout),
        NvmlError::IrqIssue => failed(D::IrqIssue),
        NvmlError::CorruptedInfoROM => failed(D::CorruptedInforom),
        NvmlError::OperatingSystem => failed(D::OperatingSystem),
        NvmlError::InUse | NvmlError::UnexpectedVariant(27 | 29) => failed(D::Busy),
        NvmlError::InsufficientMemory | NvmlError::UnexpectedVariant(23) => failed(D::Resources),
        NvmlError::InvalidArg | NvmlError::InsufficientSize(_) | NvmlError::UnexpectedVariant(25) => {
            failed(D::Argument)
        }
        _ => failed(D::Unknown),
    }
}

/// Returns a file error as the equivalent driver error. A kernel or virtual machine without the file does not
/// support the reading.
pub fn file_error(error: std::io::Error) -> NvmlError {
    use std::io::ErrorKind as E;
    match error.kind() {
        E::NotFound | E::NotADirectory => NvmlError::NotSupported,
        E::PermissionDenied => NvmlError::NoPermission,
        _ => NvmlError::OperatingSystem,
    }
}

/// Loads and initialises the library. A driver without GPUs is not an error.
pub fn load(library: Option<&Path>) -> Result<Nvml, NvmlError> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(OsStr::new(path));
    }
    builder.flags(InitFlags::NO_GPUS).init()
}

/// Makes the driver calls of one worker.
pub(crate) struct Caller {
    slot: SlotWriter,
    allowed: Duration,
    costs: Vec<CallCost>,
}

impl Caller {
    /// Returns a caller that records its calls in `slot` with the deadline `allowed`.
    pub fn new(slot: SlotWriter, allowed: Duration) -> Caller {
        Caller { slot, allowed, costs: Vec::new() }
    }

    pub fn set_allowed(&mut self, allowed: Duration) {
        self.allowed = allowed;
    }

    /// Makes a call: records it, measures it and classifies its outcome.
    pub fn call<T>(
        &mut self,
        name: impl Into<CallName>,
        f: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, CallFailure> {
        self.call_allowing(name, self.allowed, f)
    }

    /// Makes a call as [`Caller::call`] does, with a deadline of its own.
    pub fn call_allowing<T>(
        &mut self,
        name: impl Into<CallName>,
        allowed: Duration,
        f: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, CallFailure> {
        let name = name.into();
        let entered = self.slot.enter(&name.to_string(), allowed);
        let result = f();
        let nanos = nanos(self.slot.exit().since(entered));
        self.costs.push(CallCost { call: name.function.to_owned(), nanos });
        result.map_err(|error| classify(&error))
    }

    /// Returns the calls made since the last `take_costs`.
    pub fn take_costs(&mut self) -> Vec<CallCost> {
        std::mem::take(&mut self.costs)
    }
}

/// The node's single permit for expensive visits, whose calls take 1 ms or more and delay the cheap calls of
/// every client. The permit is issued for one visit and revoked at the deadline of that visit, so that a call
/// that never returns does not block the visits to the other GPUs. The value is that deadline, or 0 while the
/// permit is free.
#[derive(Debug, Default)]
pub(crate) struct ExpensiveVisits(Mutex<Mono>);

/// A permit that is released when it is dropped.
pub(crate) struct Permit<'a> {
    owner: &'a ExpensiveVisits,
    until: Mono,
}

impl ExpensiveVisits {
    /// Returns the permit if it is free or revoked. Never waits, because a waiting worker would miss its cheap
    /// visits.
    pub fn try_acquire(&self, now: Mono, allowed: Duration) -> Option<Permit<'_>> {
        let mut until = lock(&self.0);
        if now < *until {
            return None;
        }
        *until = now + allowed;
        Some(Permit { owner: self, until: *until })
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut until = lock(&self.owner.0);
        // A revoked permit must not release its successor, which has a later deadline.
        if *until == self.until {
            *until = Mono(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permit_is_revoked_at_the_deadline_and_a_late_release_changes_nothing() {
        let visits = ExpensiveVisits::default();
        let allowed = Duration::from_nanos(100);
        let stuck = visits.try_acquire(Mono(1000), allowed);
        assert!(visits.try_acquire(Mono(1099), allowed).is_none(), "not before the deadline");
        let second = visits.try_acquire(Mono(1100), allowed);
        assert!(second.is_some());
        drop(stuck);
        assert!(visits.try_acquire(Mono(1150), allowed).is_none(), "the second holder still has it");
        drop(second);
        assert!(visits.try_acquire(Mono(1150), allowed).is_some());
    }

    #[test]
    fn every_return_code_of_the_header_has_its_meaning() {
        use DriverError as D;
        let meaning = |code: u32| match nvml_wrapper::error::nvml_try(code) {
            Ok(()) => "fine".to_owned(),
            Err(error) => match classify(&error) {
                CallFailure::Unsupported => "unsupported".to_owned(),
                CallFailure::Lost(..) => "lost".to_owned(),
                CallFailure::DriverGone(..) => "gone".to_owned(),
                CallFailure::Failed(kind, _) => format!("{:?}", kind),
            },
        };
        let failed = |kind: D| format!("{kind:?}");
        for (code, wanted) in [
            (3, "unsupported".to_owned()),
            (13, "unsupported".to_owned()),
            (26, "unsupported".to_owned()),
            (15, "lost".to_owned()),
            (16, "lost".to_owned()),
            (9, "gone".to_owned()),
            (2, failed(D::Argument)),
            (4, failed(D::NoPermission)),
            (6, failed(D::NotFound)),
            (10, failed(D::Timeout)),
            (11, failed(D::IrqIssue)),
            (14, failed(D::CorruptedInforom)),
            (17, failed(D::OperatingSystem)),
            (19, failed(D::Busy)),
            (20, failed(D::Resources)),
            (23, failed(D::Resources)),
            (24, failed(D::Unknown)),
            (25, failed(D::Argument)),
            (27, failed(D::Busy)),
            (28, failed(D::NotFound)),
            (29, failed(D::Busy)),
            (30, failed(D::Unknown)),
            (31, failed(D::Unknown)),
            (999, failed(D::Unknown)),
            (u32::MAX, failed(D::Unknown)),
        ] {
            assert_eq!(meaning(code), wanted, "{code}");
        }
    }

    #[test]
    fn return_codes_are_sorted() {
        assert_eq!(classify(&NvmlError::NotSupported), CallFailure::Unsupported);
        assert!(matches!(classify(&NvmlError::GpuLost), CallFailure::Lost(..)));
        assert!(matches!(classify(&NvmlError::DriverNotLoaded), CallFailure::DriverGone(..)));
        match classify(&NvmlError::UnexpectedVariant(27)) {
            CallFailure::Failed(kind, _) => assert_eq!(kind, DriverError::Busy),
            other => panic!("{other:?}"),
        }
    }
}
