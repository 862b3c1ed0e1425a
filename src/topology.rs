//! The machine around the GPUs: packages, NUMA nodes, L3 groups, cores, the PCI tree, network and storage by
//! locality. [`model`] is what was found, as plain data; who finds it (hwloc) runs in a process of its own.
//! [`place`] says where each GPU sits in it, [`divide`] which CPUs are whose; [`map`] joins both with what the driver
//! knows, and [`command`] shows it.

pub mod answer;
pub mod ask;
pub mod bind;
pub mod child;
pub mod command;
pub mod compare;
pub mod discover;
pub mod divide;
pub mod latency;
pub mod map;
pub mod model;
pub mod place;
#[cfg(test)]
pub(crate) mod specimen;
pub mod svg;
#[cfg(test)]
mod tests;
pub mod text;
mod tree;
mod words;

use std::sync::Arc;

pub use model::Topology;

/// What is told of the topology. Each replaces the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// What was found.
    pub topology: Arc<Topology>,
    /// What differs from the first one seen on this machine, in words; `None`: not compared.
    pub against_first_seen: Option<Vec<String>>,
    /// What differs from the declared one; `None`: none is declared, or it cannot be read.
    pub against_declared: Option<Vec<String>>,
}
