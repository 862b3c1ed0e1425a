//! Canary kernels: small CUDA programs, run now and then on an idle GPU or on command, that tell a GPU which
//! computes rightly and at its rate from one that is throttled, degraded, lying or dying.
//!
//! - [`abi`]: what kernels and host agree on · [`report`]: the messages between parent and child
//! - [`code`]: the kernels' machine code · [`mod@reference`]: what the CPU expects of them
//! - [`child`]: the process of a run, the only one that loads libcuda · [`outcome`]: what became of a run
//! - [`runner`]: makes a run · [`parent`]: starts its process, watches it, ends it
//! - [`gate`]: whether it may run now · [`interlock`]: lock files of all canaries and of each GPU · [`schedule`]: when it is due
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
pub mod runner;
pub mod schedule;
