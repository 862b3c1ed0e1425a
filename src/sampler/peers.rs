//! The peer-to-peer matrix: how each pair of GPUs of the node is connected and what it can do. Asked once for
//! the life of a sampler, when every GPU has a handle: each status takes the driver almost 2 ms.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;

use super::driver::{Caller, Failure};
use super::raw::peers;
use crate::catalog::{self as m, Gpu, PeerInfo};
use crate::sample::{Gap, Rows};

/// Every GPU with a handle, by slot.
#[derive(Debug, Default)]
pub struct Peers(Mutex<BTreeMap<usize, (Gpu, Arc<Device<'static>>)>>);

/// Where the answer to one question about a pair goes.
type Place = fn(&mut PeerInfo) -> &mut String;

/// What a GPU may do with the memory of another.
const CAPABILITIES: [(u32, Place); 3] = [
    (sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ, |info| &mut info.read),
    (sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE, |info| &mut info.write),
    (sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK, |info| &mut info.nvlink),
];

impl Peers {
    /// A GPU has a handle.
    pub fn join(&self, slot: usize, gpu: &Gpu, device: &Arc<Device<'static>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(slot, (gpu.clone(), Arc::clone(device)));
    }

    /// Its handle is of no more use.
    pub fn leave(&self, slot: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
    }

    /// The matrix of so many GPUs; `None` while they have not all a handle, or one of a pair is in a call that
    /// takes `long`: it may hang, and would hang whoever asks about the pair. A pair whose call failed is left
    /// out.
    pub fn matrix(
        &self,
        count: usize,
        caller: &mut Caller,
        long: impl Fn(usize) -> bool,
    ) -> Option<(Rows, Vec<Gap>)> {
        let known: Vec<_> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().map(|(slot, (gpu, device))| (gpu.clone(), Arc::clone(device), *slot)).collect()
        };
        if known.len() < count {
            return None;
        }
        let (mut rows, mut gaps) = (Rows::default(), Vec::new());
        for (i, a) in known.iter().enumerate() {
            for b in known.iter().skip(i + 1) {
                if long(a.2) || long(b.2) {
                    return None;
                }
                match pair(&a.1, &b.1, caller) {
                    Ok(info) => {
                        let towards = |of: &Gpu| PeerInfo {
                            peer_gpu: of.gpu.to_string(),
                            peer_uuid: of.uuid.to_string(),
                            ..info.clone()
                        };
                        rows.of(&a.0).info(&m::gpu_peer_info, towards(&b.0));
                        rows.of(&b.0).info(&m::gpu_peer_info, towards(&a.0));
                    }
                    Err((call, failure)) => {
                        let metrics = vec![m::gpu_peer_info.id()];
                        let missing = failure.missing();
                        gaps.push(Gap { call: call.to_owned(), metrics, missing });
                        // A driver that is gone or a lost GPU answers nothing more.
                        if !matches!(failure, Failure::Unsupported | Failure::Failed(..)) {
                            return Some((rows, gaps));
                        }
                    }
                }
            }
        }
        Some((rows, gaps))
    }
}

fn pair(
    a: &Device<'static>,
    b: &Device<'static>,
    caller: &mut Caller,
) -> Result<PeerInfo, (&'static str, Failure)> {
    const ANCESTOR: &str = "nvmlDeviceGetTopologyCommonAncestor";
    const STATUS: &str = "nvmlDeviceGetP2PStatus";
    let mut info = PeerInfo::default();
    let level = caller.call(ANCESTOR.into(), || peers::common_ancestor(a, b)).map_err(|e| (ANCESTOR, e))?;
    info.topology = topology(level).to_owned();
    for (capability, place) in CAPABILITIES {
        let status = caller.call((STATUS, capability).into(), || peers::p2p_status(a, b, capability));
        *place(&mut info) = p2p(status.map_err(|e| (STATUS, e))?).to_owned();
    }
    Ok(info)
}

/// NVML's words for `nvmlGpuTopologyLevel_t`.
fn topology(level: u32) -> &'static str {
    match level {
        0 => "internal",
        10 => "single",
        20 => "multiple",
        30 => "hostbridge",
        40 => "node",
        50 => "system",
        _ => "unknown",
    }
}

/// NVML's words for `nvmlGpuP2PStatus_t`.
fn p2p(status: u32) -> &'static str {
    match status {
        0 => "ok",
        1 => "chipset_not_supported",
        2 => "gpu_not_supported",
        3 => "ioh_topology_not_supported",
        4 => "disabled_by_regkey",
        5 => "not_supported",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_header() {
        assert_eq!(topology(sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE), "hostbridge");
        assert_eq!(topology(sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM), "system");
        assert_eq!(p2p(sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_DISABLED_BY_REGKEY), "disabled_by_regkey");
        assert_eq!(p2p(sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED), "not_supported");
        assert_eq!(p2p(6), "unknown");
    }
}
