//! The daemon and its commands: everything between the libraries in `crates/` and the command line.
//!
//! - [`serve`]: wiring of the daemon
//! - [`drop_in`]: what dcgm-exporter's page has, by the settings
//! - [`local_socket`]: sockets for clients on the node; [`control`], [`nvrx`]: what is spoken there
//! - [`lifecycle`]: signals and systemd · [`listeners`]: sockets for HTTP
//! - [`recorder`]: the minutes before a fault, written to a file · [`redaction`]: no secret leaves the node
//! - [`commands`]: everything the command line does beside serving

#![forbid(unsafe_code)]

pub mod commands;
pub mod control;
pub mod drop_in;
pub mod lifecycle;
pub mod listeners;
pub mod local_socket;
pub mod log;
pub mod nvrx;
pub mod recorder;
pub mod redaction;
pub mod reload;
pub mod serve;
