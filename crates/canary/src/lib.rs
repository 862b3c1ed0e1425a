//! Canary kernels: small CUDA programs, run now and then on an idle GPU or on command, that tell a GPU which
//! computes rightly and at its rate from one that is throttled, degraded, lying or dying.
//!
//! - [`abi`]: what kernels and host agree on · [`report`]: what parent and child say to each other
//! - [`code`]: the kernels' machine code · [`mod@reference`]: what the CPU expects of them
//! - [`child`]: the process of a run, the only one that loads libcuda · [`outcome`]: what became of a run
//! - [`parent`]: starts the process of a run, watches it, ends it
//! - [`gate`]: whether it may run now · [`interlock`]: what keeps it away by hand · [`schedule`]: when it is due
//! - [`stray`]: what another daemon or command has left behind
//! - [`roofline`]: what the hardware can do · [`baseline`]: what it did before · [`judge`]: what it does now
//! - [`command`]: all of this on command

pub mod abi;
pub mod baseline;
pub mod child;
pub mod code;
pub mod gate;
pub mod interlock;
pub mod judge;
pub mod parent;
pub mod reference;
pub mod report;
pub mod roofline;
pub mod schedule;
pub mod stray;
