//! Canary kernels: small CUDA programs, run now and then on an idle GPU or on command, that tell a GPU which
//! computes rightly and at its rate from one that is throttled, degraded, lying or dying.
//!
//! - [`abi`]: what kernels and host agree on · [`report`]: what parent and child say to each other
//! - [`outcome`]: what became of a run
//! - [`roofline`]: what the hardware can do · [`baseline`]: what it did before · [`judge`]: what it does now

pub mod abi;
pub mod baseline;
pub mod judge;
pub mod outcome;
pub mod report;
pub mod roofline;
