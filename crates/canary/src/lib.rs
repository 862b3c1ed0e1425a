//! Canary kernels are small CUDA programs that run occasionally on an idle GPU, or on command. They distinguish a
//! healthy GPU from a throttled, degraded or failing GPU, and from a GPU that computes wrong results.
//!
//! - [`checks`]: the table of checks, with one file per check
//! - [`abi`]: the shapes shared with the kernels · [`code`]: their machine code · [`mod@reference`]: their results on
//!   the CPU
//! - [`child`]: the process of a run, the only process that loads libcuda · [`report`]: its messages · [`session`]: a
//!   GPU that is ready for checks, and the driver
//! - [`runner`]: one run · [`parent`]: starts, monitors and ends the process of a run
//! - [`gate`]: the conditions for a run · [`interlock`]: the lock files · [`schedule`]: the times of the runs
//! - [`roofline`]: the hardware's upper bounds · [`baseline`]: the GPU's history · [`sample`]: comparison of one check
//!   with both · [`judge`]: the verdicts of a run
//!
//! Only `abi`, `session/cuda` and its modules contain `unsafe` code.

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
