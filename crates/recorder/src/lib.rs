//! The flight recorder: the last minutes at full rate, kept in memory and written to a file after a fault that pages.
//!
//! [`ring`] keeps what passes, [`trigger`] decides when it is written, [`file`] is the format.
#![forbid(unsafe_code)]

pub mod file;
pub mod ring;
pub mod trigger;
