//! Plain data that every other crate speaks in. No I/O beside the clocks; no vendor type.
//!
//! - [`catalog`]: every entity, label and metric, declared once · [`xid`]: the meaning of fault codes
//! - [`sample`]: batches from a collector to the ledger · [`fact`]: things that happened
//! - [`snapshot`]: the state that the ledger publishes · [`trends`]: its last hour · [`health`]: its verdicts on GPUs and node
//! - [`snapshot_cell`]: the newest snapshot · [`http_counters`]: counters of the HTTP server
//! - [`canary`], [`owners`], [`window`], [`driver_module`], [`persisted`], [`topology`]: the facts of one subject each
//! - [`clock`], [`cpus`], [`pci`], [`text`], [`sync`]: time, sets of CPUs, PCI addresses, cleaned text, locks

#![forbid(unsafe_code)]

pub mod canary;
pub mod catalog;
pub mod clock;
pub mod cpus;
pub mod driver_module;
pub mod event_history;
pub mod fact;
pub mod health;
pub mod http_counters;
pub mod owner_records;
pub mod owners;
pub mod pci;
pub mod persisted;
pub mod plain_file;
pub mod sample;
pub mod snapshot;
pub mod snapshot_cell;
pub mod sync;
pub mod text;
pub mod topology;
pub mod trends;
pub mod verdict;
pub mod window;
pub mod xid;
