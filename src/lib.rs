//! gpu-node-exporter: a node daemon for NVIDIA GPU hosts. `docs/DESIGN.md` has the map.
//!
//! The modules in the order in which data flows through them:
//!
//! - [`config`]: what the operator wants · [`host`]: where files are read · [`clock`]: time · [`stop`]: when to end
//! - [`catalog`]: every entity and metric, once · [`xid`]: what fault codes mean
//! - [`sample`]: what one visit learned · [`fact`]: what happened
//! - [`sampler`]: the child process that talks to NVML · [`child`]: starting and ending child processes
//! - [`topology`]: the machine around the GPUs · [`owners`]: whose work is on them · [`windows`]: planned work
//! - [`cpus`]: sets of CPUs
//! - [`collectors`]: who gathers batches, in the serving process
//! - [`ledger`]: folds batches, keeps all mutable state, publishes · [`snapshot`]: what it publishes
//! - [`encode`]: bytes for each format · [`http`] and [`page`]: who asks for them
//! - [`assets`]: rules and boards that are served and written out
//! - [`control`]: the local socket · [`state`]: files kept over restarts
//! - [`doctor`]: what this machine lets the exporter do
//! - [`lifecycle`]: signals and systemd · [`serve`]: wiring

pub mod assets;
pub mod canary;
pub mod catalog;
pub mod child;
pub mod clock;
pub mod collectors;
pub mod config;
pub mod control;
pub mod cpus;
pub mod doctor;
pub mod encode;
pub mod fact;
pub mod host;
pub mod http;
pub mod ledger;
pub mod lifecycle;
pub mod owners;
pub mod page;
pub mod sample;
pub mod sampler;
pub mod serve;
pub mod snapshot;
pub mod state;
pub mod stop;
pub mod topology;
pub mod windows;
pub mod xid;
