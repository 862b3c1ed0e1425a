//! The machine around the GPUs: packages, NUMA nodes, L3 groups, cores, the PCI tree, and the locality of network and
//! storage devices. A separate process discovers it with hwloc ([`discover`]). [`map`] joins the result with the GPUs
//! that the driver lists, [`text`] and [`svg`] draw the map, and [`bind`] writes binding lines. Only
//! `latency/mempolicy.rs` contains unsafe code.

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
