//! The machine around the GPUs: packages, NUMA nodes, L3 groups, cores, the PCI tree, network and storage by
//! locality. [`model`] is what was found, as plain data; who finds it (hwloc) runs in a process of its own.
//! [`place`] says where each GPU sits in it, [`divide`] which CPUs are whose; [`map`] joins both with what the driver
//! knows, and [`command`] shows it.

pub mod answer;
pub mod ask;
pub mod bind;
pub mod child;
pub mod discover;
pub mod latency;
pub mod map;
pub mod svg;
#[cfg(test)]
mod tests;
pub mod text;
mod tree;
mod words;
