//! The NVLink fabric, in the layouts that drivers know.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::{struct_version, symbol};

/// The state of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricInfo {
    /// UUID of the cluster; all zero for none.
    pub cluster: [u8; 16],
    /// NVML return code of joining; it counts once the state is "completed".
    pub status: u32,
    /// Clique within the cluster.
    pub clique: u32,
    /// `NVML_GPU_FABRIC_STATE_*`.
    pub state: u8,
    /// `NVML_GPU_FABRIC_HEALTH_MASK_*`; `None` where the driver has no such word.
    pub health_mask: Option<u32>,
}

/// The state of the fabric, by the third layout, else the second, else the first.
pub fn fabric_info(device: &Device<'static>) -> Result<FabricInfo, NvmlError> {
    let versions =
        [struct_version::<sys::nvmlGpuFabricInfo_v3_t>(3), struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2)];
    for version in versions {
        match versioned(device, version) {
            Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => break,
            Err(error) if is_mismatch(&error) => {}
            result => return result,
        }
    }
    first(device)
}

/// NVML's "this version of the struct is not known", which the wrapper has no name for.
fn is_mismatch(error: &NvmlError) -> bool {
    matches!(error, NvmlError::UnexpectedVariant(25))
}

/// The second layout is the beginning of the third, so one struct serves both.
fn versioned(device: &Device<'static>, version: u32) -> Result<FabricInfo, NvmlError> {
    let info = sys::nvmlGpuFabricInfo_v3_t { version, ..versioned!(sys::nvmlGpuFabricInfo_v3_t, 3) };
    let info = read!(device, nvmlDeviceGetGpuFabricInfoV(), info)?;
    Ok(FabricInfo {
        cluster: info.clusterUuid,
        status: info.status,
        clique: info.cliqueId,
        state: info.state,
        health_mask: Some(info.healthMask),
    })
}

fn first(device: &Device<'static>) -> Result<FabricInfo, NvmlError> {
    let info = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    let info = read!(device, nvmlDeviceGetGpuFabricInfo(), info)?;
    Ok(FabricInfo {
        cluster: info.clusterUuid,
        status: info.status,
        clique: info.cliqueId,
        state: info.state,
        health_mask: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_layout_is_the_beginning_of_the_third() {
        use std::mem::offset_of;
        use sys::{nvmlGpuFabricInfo_v2_t as V2, nvmlGpuFabricInfo_v3_t as V3};
        assert_eq!(offset_of!(V2, clusterUuid), offset_of!(V3, clusterUuid));
        assert_eq!(offset_of!(V2, status), offset_of!(V3, status));
        assert_eq!(offset_of!(V2, cliqueId), offset_of!(V3, cliqueId));
        assert_eq!(offset_of!(V2, state), offset_of!(V3, state));
        assert_eq!(offset_of!(V2, healthMask), offset_of!(V3, healthMask));
        assert!(size_of::<V2>() <= size_of::<V3>());
    }

    #[test]
    fn only_the_version_mismatch_asks_in_an_older_layout() {
        assert!(is_mismatch(&NvmlError::UnexpectedVariant(25)));
        assert!(!is_mismatch(&NvmlError::UnexpectedVariant(26)));
        assert!(!is_mismatch(&NvmlError::NotSupported));
    }
}
