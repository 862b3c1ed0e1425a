//! Canary kernels: small CUDA programs, run now and then on an idle GPU or on command, that tell a healthy GPU from one that is
//! throttled, degraded, wrong or dying.
//!
//! - [`checks`]: the table of checks, one file each
//! - [`abi`]: the shapes shared with the kernels · [`code`]: their machine code · [`mod@reference`]: their results on the CPU
//! - [`child`]: the process of a run, the only one that loads libcuda · [`report`]: its messages · [`session`]: a GPU ready
//!   for checks, and the driver
//! - [`runner`]: one run · [`parent`]: starts, watches and ends its process
//! - [`gate`]: whether a run may start now · [`interlock`]: the lock files · [`schedule`]: when it is due
//! - [`roofline`]: what the hardware can do · [`baseline`]: what the GPU did before · [`sample`]: one check against both ·
//!   [`judge`]: the verdicts of a run
//!
//! `unsafe` is in `abi`, `session/cuda` and its modules.

#![deny(unsafe_code)]

pub mod abi;
pub mod baseline;
mod checks;
pub mod child;
pub mod code;
mod device;
pub mod format;
pub mod gate;
pub mod interlock;
pub mod judge;
pub mod parent;
pub mod reference;
pub mod report;
mod roofline;
pub mod runner;
mod sample;
pub mod schedule;
mod session;
pub mod stats;
