//! Plain data that all other crates use. The crate has no I/O except for clocks and plain files, and no vendor types.
//!
//! - [`catalog`]: declaration of all entities, labels and metrics · [`xid`]: meaning of fault codes
//! - [`sample`]: batches from a collector to the ledger · [`fact`]: events from a collector to the ledger
//! - [`snapshot`]: state that the ledger publishes · [`trends`]: history of the last hour · [`health`]: health verdicts
//! - [`snapshot_cell`]: newest snapshot · [`http_counters`]: counters of the HTTP server
//! - [`canary`], [`owners`], [`window`], [`driver_module`], [`topology`]: data of one subject
//! - [`persisted`], [`event_history`], [`owner_records`], [`documents`]: state that is kept across restarts
//! - [`clock`], [`cpus`], [`pci`], [`text`], [`sync`]: time, sets of CPUs, PCI addresses, cleaned text, locks

#![forbid(unsafe_code)]

pub mod canary;
pub mod catalog;
pub mod clock;
pub mod cpus;
pub mod documents;
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
