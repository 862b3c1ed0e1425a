//! The peer-to-peer matrix: how every pair of GPUs of the node is connected, and which accesses the pair
//! supports. It is read once in the life of a sampler, when every GPU has a handle, because each status takes
//! the driver almost 2 ms. It has a thread of its own: a call about a pair hangs when one of the two GPUs
//! hangs, and must not block a worker.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;

use super::Shared;
use super::driver::{CallFailure, Caller, gap};
use super::raw;
use host::inflight::PEERS_SLOT;
use model::catalog::{self as m, PeerInfo, Tier};
use model::clock::Mono;
use model::sample::{Gap, Rows};
use model::sync::lock;

/// Pause between attempts while some GPUs have no handle.
const RETRY: Duration = Duration::from_secs(1);
/// Duration after which a call may be hanging; the longest regular call takes 80 ms.
const LONG: Duration = Duration::from_millis(200);

/// Starts a thread that reads the matrix, unless the matrix is off or was read before. The matrix is not read
/// while a GPU must be avoided, because a call about a pair accesses both GPUs.
pub fn start(shared: &Arc<Shared>) {
    let wanted = !shared.settings().off.contains(&m::gpu_peer_info.id()) && shared.config.avoid.is_empty();
    if !wanted || shared.peers.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Err(error) = shared.spawn("peers", PEERS_SLOT, run) {
        tracing::warn!("failed to start the peer-to-peer thread: {error}; gpu_peer_info is missing");
    }
}

fn run(shared: &Shared) {
    let slot = shared.table.writer(PEERS_SLOT);
    let mut caller = Caller::new(slot, shared.settings().call_deadline);
    while !shared.stop.stopped() {
        let taken = Mono::now();
        let allowed = shared.settings().call_deadline;
        caller.set_allowed(allowed);
        if let Some(permit) = shared.expensive.try_acquire(taken, allowed) {
            let matrix = matrix(shared, &mut caller);
            drop(permit);
            if let Some((rows, gaps)) = matrix {
                return shared.report_node(Tier::Once, taken, rows, gaps, &mut caller);
            }
        }
        shared.sleep(slot, Mono::now() + RETRY);
    }
}

/// Returns the matrix. Returns `None` while some GPUs have no handle, or while a GPU is in a long call: that
/// call may be hanging, and a call about the pair would hang too. Pairs whose call failed are left out.
fn matrix(shared: &Shared, caller: &mut Caller) -> Option<(Rows, Vec<Gap>)> {
    let long = |slot: usize| {
        let view = shared.table.views().into_iter().find(|view| view.slot == slot);
        view.and_then(|view| view.call).is_some_and(|call| Mono::now().since(call.since) > LONG)
    };
    let count = shared.listed.load(Ordering::Relaxed);
    let known: Vec<_> = lock(&shared.attached).clone().into_iter().collect();
    if count < 2 || known.len() < count {
        return None;
    }
    let (mut rows, mut gaps) = (Rows::default(), Vec::new());
    for (i, (slot, a)) in known.iter().enumerate() {
        for (other, b) in known.iter().skip(i + 1) {
            if long(*slot) || long(*other) {
                return None;
            }
            match pair(&a.device, &b.device, caller) {
                Ok(info) => {
                    for (of, peer) in [(&a.gpu, &b.gpu), (&b.gpu, &a.gpu)] {
                        let (peer_gpu, peer_uuid) = (peer.gpu.to_string(), peer.uuid.to_string());
                        rows.entity(of)
                            .info(&m::gpu_peer_info, PeerInfo { peer_gpu, peer_uuid, ..info.clone() });
                    }
                }
                Err((call, failure)) => {
                    gaps.push(gap(call, &[m::gpu_peer_info.id()], failure.missing()));
                    // After the loss of the driver or of a GPU no further call succeeds.
                    if failure.is_final() {
                        return Some((rows, gaps));
                    }
                }
            }
        }
    }
    Some((rows, gaps))
}

fn pair(
    a: &Device<'static>,
    b: &Device<'static>,
    caller: &mut Caller,
) -> Result<PeerInfo, (&'static str, CallFailure)> {
    const ANCESTOR: &str = "nvmlDeviceGetTopologyCommonAncestor";
    const STATUS: &str = "nvmlDeviceGetP2PStatus";
    let level = caller.call(ANCESTOR, || raw::common_ancestor(a, b)).map_err(|e| (ANCESTOR, e))?;
    let mut status =
        |capability| match caller.call((STATUS, capability), || raw::p2p_status(a, b, capability)) {
            Ok(status) => Ok(p2p(status).to_owned()),
            Err(failure) => Err((STATUS, failure)),
        };
    Ok(PeerInfo {
        topology: topology(level).to_owned(),
        read: status(sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ)?,
        write: status(sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE)?,
        nvlink: status(sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK)?,
        ..PeerInfo::default()
    })
}

/// Returns the label of an `nvmlGpuTopologyLevel_t`.
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

/// Returns the label of an `nvmlGpuP2PStatus_t`.
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
    fn labels_are_those_of_the_header() {
        assert_eq!(topology(sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE), "hostbridge");
        assert_eq!(topology(sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM), "system");
        assert_eq!(p2p(sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_DISABLED_BY_REGKEY), "disabled_by_regkey");
        assert_eq!(p2p(sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED), "not_supported");
        assert_eq!(p2p(6), "unknown");
    }
}
