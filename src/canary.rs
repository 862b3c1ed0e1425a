//! Canary kernels: small CUDA programs, run now and then on an idle GPU or on command, that tell a GPU which
//! computes rightly and at its rate from one that is throttled, degraded, lying or dying.
//!
//! - [`abi`]: what kernels and host agree on · [`report`]: what parent and child say to each other
//! - [`code`]: the kernels' machine code · [`mod@reference`]: what the CPU expects of them
//! - [`outcome`]: what became of a run

pub mod abi;
pub mod code;
pub mod outcome;
pub mod reference;
pub mod report;
