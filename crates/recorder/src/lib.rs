//! Flight recorder. It keeps the last minutes at full rate in memory, and writes them to a file after a fault that
//! pages.
//!
//! [`ring`] keeps the readings, [`trigger`] decides when to write them, and [`file`] defines the format.
#![forbid(unsafe_code)]

pub mod file;
pub mod ring;
pub mod trigger;
