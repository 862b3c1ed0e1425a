//! The driver's library as the workers use it: every call goes through [`Caller`], which notes it in the
//! in-flight table, measures it, and sorts its outcome.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::error::NvmlError;

use host::inflight::SlotWriter;
use model::catalog::DriverError;
use model::clock::Mono;
use model::sample::{CallCost, ErrorKind, Missing};

/// A driver call by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallName {
    /// NVML's C function.
    pub function: &'static str,
    /// Its arguments, where one function answers several questions.
    pub args: [Option<u32>; 3],
}

impl From<&'static str> for CallName {
    fn from(function: &'static str) -> CallName {
        CallName { function, args: [None; 3] }
    }
}

impl From<(&'static str, u32)> for CallName {
    fn from((function, a): (&'static str, u32)) -> CallName {
        CallName { args: [Some(a), None, None], ..CallName::from(function) }
    }
}

impl From<(&'static str, [u32; 2])> for CallName {
    fn from((function, [a, b]): (&'static str, [u32; 2])) -> CallName {
        CallName { args: [Some(a), Some(b), None], ..CallName::from(function) }
    }
}

impl From<(&'static str, [u32; 3])> for CallName {
    fn from((function, args): (&'static str, [u32; 3])) -> CallName {
        CallName { args: args.map(Some), ..CallName::from(function) }
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

/// What a failed call means for what comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// Not asked again with this handle.
    Unsupported,
    /// Asked again at the next visit.
    Failed(ErrorKind, String),
    /// The GPU is gone: left alone, and its handle asked for again later.
    Lost(ErrorKind, String),
    /// The driver is gone: the sampler ends.
    DriverGone(ErrorKind, String),
}

impl Failure {
    /// What the reader of the batch is told.
    pub fn missing(&self) -> Missing {
        match self {
            Failure::Unsupported => Missing::Unsupported,
            Failure::Failed(error, text) | Failure::Lost(error, text) | Failure::DriverGone(error, text) => {
                Missing::Failed { error: *error, text: text.clone() }
            }
        }
    }

    /// Kind and words, for a failure that has them.
    pub fn told(&self) -> (ErrorKind, String) {
        match self {
            Failure::Unsupported => (ErrorKind::new(DriverError::Argument), "not supported".into()),
            Failure::Failed(error, text) | Failure::Lost(error, text) | Failure::DriverGone(error, text) => {
                (*error, text.clone())
            }
        }
    }
}

/// Sorts NVML's return codes. Table: NVML header; 2, 5, 7 and 25 would be our mistake, 3, 13 and 26 mean
/// "not on this device or driver", 9, 12 and 18 (and 1 after a successful start) that the driver is gone.
pub fn classify(error: &NvmlError) -> Failure {
    use DriverError as D;
    let failed = |kind| Failure::Failed(ErrorKind::new(kind), error.to_string());
    let gone = |kind| Failure::DriverGone(ErrorKind::new(kind), error.to_string());
    let lost = |kind| Failure::Lost(ErrorKind::new(kind), error.to_string());
    match error {
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            Failure::Unsupported
        }
        NvmlError::UnexpectedVariant(26) => Failure::Unsupported,
        NvmlError::DriverNotLoaded
        | NvmlError::Uninitialized
        | NvmlError::LibraryNotFound
        | NvmlError::LibloadingError(_) => gone(D::DriverNotLoaded),
        NvmlError::LibRmVersionMismatch => gone(D::LibRmVersionMismatch),
        NvmlError::GpuLost => lost(D::GpuIsLost),
        NvmlError::ResetRequired => lost(D::ResetRequired),
        // 28 is GPU_NOT_FOUND, which the wrapper does not know yet.
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

/// Loads and initialises the library. A driver without GPUs is a driver.
pub fn load(library: Option<&Path>) -> Result<Nvml, NvmlError> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(OsStr::new(path));
    }
    builder.flags(InitFlags::NO_GPUS).init()
}

/// Makes driver calls for one worker.
#[derive(Debug)]
pub struct Caller {
    slot: SlotWriter,
    allowed: Duration,
    costs: Vec<CallCost>,
}

impl Caller {
    /// A caller that notes its calls in `slot`; a call may take `allowed`.
    pub fn new(slot: SlotWriter, allowed: Duration) -> Caller {
        Caller { slot, allowed, costs: Vec::new() }
    }

    /// Makes a call: noted, measured, sorted.
    pub fn call<T>(
        &mut self,
        name: CallName,
        f: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Failure> {
        self.call_allowing(name, self.allowed, f)
    }

    /// As [`Caller::call`], with a deadline of its own.
    pub fn call_allowing<T>(
        &mut self,
        name: CallName,
        allowed: Duration,
        f: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Failure> {
        let shown = name.to_string();
        let entered = self.slot.enter(&shown, allowed);
        let result = f();
        let left = self.slot.exit();
        let nanos = u64::try_from(left.since(entered).as_nanos()).unwrap_or(u64::MAX);
        self.costs.push(CallCost { call: name.function.to_owned(), nanos });
        result.map_err(|error| classify(&error))
    }

    /// The calls made since this was last asked.
    pub fn take_costs(&mut self) -> Vec<CallCost> {
        std::mem::take(&mut self.costs)
    }
}

/// The right to make dear calls (1 ms and more; they hold up the cheap ones of every client): one visit on
/// the node at a time, lent for one visit and taken back at its deadline, so that a call that never returns
/// does not keep the others from theirs.
#[derive(Debug, Default)]
pub struct Token(Mutex<Lent>);

#[derive(Debug, Default)]
struct Lent {
    until: Option<Mono>,
    serial: u64,
}

/// The token while it is lent.
#[derive(Debug)]
pub struct Loan<'a> {
    token: &'a Token,
    serial: u64,
}

impl Token {
    /// The token, if it is free or its time with the last borrower is over. Never waits: a worker that
    /// waited here would miss its cheap visits.
    pub fn borrow(&self, now: Mono, allowed: Duration) -> Option<Loan<'_>> {
        let mut lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lent.until.is_some_and(|until| now < until) {
            return None;
        }
        lent.serial += 1;
        lent.until = Some(now + allowed);
        Some(Loan { token: self, serial: lent.serial })
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut lent = self.token.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A borrower whose time was over must not give back what someone else holds now.
        if lent.serial == self.serial {
            lent.until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_taken_back_at_the_deadline_and_a_late_return_changes_nothing() {
        let token = Token::default();
        let allowed = Duration::from_nanos(100);
        let stuck = token.borrow(Mono(1000), allowed);
        assert!(token.borrow(Mono(1099), allowed).is_none(), "not before the deadline");
        let second = token.borrow(Mono(1100), allowed);
        assert!(second.is_some());
        drop(stuck);
        assert!(token.borrow(Mono(1150), allowed).is_none(), "the second borrower still holds it");
        drop(second);
        assert!(token.borrow(Mono(1150), allowed).is_some());
    }

    #[test]
    fn every_return_code_of_the_header_has_its_meaning() {
        use DriverError as D;
        let meaning = |code: u32| match nvml_wrapper::error::nvml_try(code) {
            Ok(()) => "fine".to_owned(),
            Err(error) => match classify(&error) {
                Failure::Unsupported => "unsupported".to_owned(),
                Failure::Lost(..) => "lost".to_owned(),
                Failure::DriverGone(..) => "gone".to_owned(),
                Failure::Failed(kind, _) => format!("{:?}", kind.label()),
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
        assert_eq!(classify(&NvmlError::NotSupported), Failure::Unsupported);
        assert!(matches!(classify(&NvmlError::GpuLost), Failure::Lost(..)));
        assert!(matches!(classify(&NvmlError::DriverNotLoaded), Failure::DriverGone(..)));
        match classify(&NvmlError::UnexpectedVariant(27)) {
            Failure::Failed(kind, _) => assert_eq!(kind.label(), DriverError::Busy),
            other => panic!("{other:?}"),
        }
    }
}
