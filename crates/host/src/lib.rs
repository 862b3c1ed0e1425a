//! The host around a process of the exporter: its files, child processes, shared memory and state.
//!
//! - [`Host`]: root folder of the host's files
//! - [`reader`]: reads with a deadline
//! - [`supervise`]: child processes, asked first and killed last
//! - [`child`]: starting and reaping children
//! - [`frame`]: messages on the pipes between parent and child
//! - [`inflight`]: shared table of driver calls
//! - [`state`]: files kept across restarts
//! - [`stop`]: one stop signal for all threads
//! - [`thread`]: threads with small stacks
//! - [`terminal`]: text for people at a terminal
//! - [`activation`]: sockets of the service manager
//!
//! Unsafe code: `activation` (inherited descriptors), `child` (inherited descriptors, signals, wait4) and
//! `inflight` (the shared page).

#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod activation;
#[allow(unsafe_code)]
pub mod child;
pub mod flock;
pub mod frame;
#[allow(unsafe_code)]
pub mod inflight;
pub mod reader;
mod root;
pub mod state;
pub mod stop;
pub mod supervise;
pub mod terminal;
pub mod thread;

pub use root::Host;
