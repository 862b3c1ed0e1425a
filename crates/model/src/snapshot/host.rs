//! The host around the GPUs.

use std::sync::Arc;

use crate::catalog::{Cause, Gpu, OwnedGpu};
use crate::owners::Owner;
use crate::topology::TopologyUpdate;

/// The topology.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopologyView {
    /// What was reported last; `None` before that.
    pub update: Option<Arc<TopologyUpdate>>,
}

/// What one owner has of one GPU or MIG GPU instance.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerView {
    /// Who it is.
    pub owner: Arc<Owner>,
    /// The GPU.
    pub gpu: Gpu,
    /// MIG GPU instance, if it is on one.
    pub gpu_instance: Option<u32>,
    /// Its processes there now; none after its end.
    pub processes: Vec<u32>,
    /// What holds its work back; `None` while that is not known.
    pub cause: Option<Cause>,
}

impl OwnerView {
    /// As the catalogue knows it.
    pub fn entity(&self) -> OwnedGpu {
        OwnedGpu::new(&self.gpu, self.gpu_instance, &self.owner.id)
    }
}
