//! The daemon and its commands, between the libraries in `crates/` and the command line.
//!
//! - [`serve`]: the daemon
//! - [`drop_in`]: configuration of dcgm-exporter's page
//! - [`local_socket`]: sockets for clients on the node, used by [`control`] and [`nvrx`]
//! - [`lifecycle`]: signals and systemd · [`listeners`]: sockets for HTTP
//! - [`recorder`]: flight recorder · [`redaction`]: removal of secrets
//! - [`commands`]: the other commands

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
