//! The NVLink fabric, in all layouts of the struct.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings::{self as sys, nvmlGpuFabricInfo_v3_t};

use super::{VERSION_MISMATCH, struct_version, symbol};

/// Returns the state of the fabric. Tries the third layout, then the second, then the first, which has no
/// health mask.
pub fn fabric_info(device: &Device<'static>) -> Result<nvmlGpuFabricInfo_v3_t, NvmlError> {
    let versions =
        [struct_version::<nvmlGpuFabricInfo_v3_t>(3), struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2)];
    for version in versions {
        match versioned(device, version) {
            Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => break,
            Err(NvmlError::UnexpectedVariant(VERSION_MISMATCH)) => {}
            result => return result,
        }
    }
    first(device)
}

/// Requests one version. The second layout is a prefix of the third, so one struct serves both.
fn versioned(device: &Device<'static>, version: u32) -> Result<nvmlGpuFabricInfo_v3_t, NvmlError> {
    let info = nvmlGpuFabricInfo_v3_t { version, ..versioned!(nvmlGpuFabricInfo_v3_t, 3) };
    read!(device, nvmlDeviceGetGpuFabricInfoV(), info)
}

fn first(device: &Device<'static>) -> Result<nvmlGpuFabricInfo_v3_t, NvmlError> {
    let info = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    let sys::nvmlGpuFabricInfo_t { clusterUuid, status, cliqueId, state } =
        read!(device, nvmlDeviceGetGpuFabricInfo(), info)?;
    let rest = versioned!(nvmlGpuFabricInfo_v3_t, 3);
    Ok(nvmlGpuFabricInfo_v3_t { clusterUuid, status, cliqueId, state, ..rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_layout_is_the_beginning_of_the_third() {
        use nvmlGpuFabricInfo_v3_t as V3;
        use std::mem::offset_of;
        use sys::nvmlGpuFabricInfo_v2_t as V2;
        assert_eq!(offset_of!(V2, clusterUuid), offset_of!(V3, clusterUuid));
        assert_eq!(offset_of!(V2, status), offset_of!(V3, status));
        assert_eq!(offset_of!(V2, cliqueId), offset_of!(V3, cliqueId));
        assert_eq!(offset_of!(V2, state), offset_of!(V3, state));
        assert_eq!(offset_of!(V2, healthMask), offset_of!(V3, healthMask));
        assert!(size_of::<V2>() <= size_of::<V3>());
    }
}
