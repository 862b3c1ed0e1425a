//! The machine around the GPUs: packages, NUMA nodes, L3 groups, cores, the PCI tree, network and storage by
//! locality. A process of its own finds it with hwloc ([`discover`]); [`map`] joins it with what the driver knows,
//! [`text`] and [`svg`] draw the map, [`bind`] writes binding lines. Unsafe code: `latency/mempolicy.rs` alone.

#![deny(unsafe_code)]

pub mod ask;
pub mod bind;
pub mod child;
pub mod discover;
mod format;
pub mod latency;
pub mod map;
pub mod svg;
#[cfg(test)]
mod tests;
pub mod text;
mod tree;
