//! The GPU instance profiles that a GPU knows. They do not change while it is in MIG mode.

use nvml_wrapper::error::NvmlError;

use crate::raw::mig::{ProfileInfo, profile_info};
use crate::visit::Visit;
use model::catalog::MetricId;

/// Numbers of profiles asked for. The header names 0 to 16; a GPU knows some, and later headers may name more.
const NUMBERS: u32 = 24;

/// Reads them; `None` if a call failed. A number that GPU or library does not know is no failure.
pub fn read(v: &mut Visit<'_>, feeds: &[MetricId]) -> Option<Vec<ProfileInfo>> {
    let mut known: Vec<ProfileInfo> = Vec::new();
    for number in 0..NUMBERS {
        let call = ("nvmlDeviceGetGpuInstanceProfileInfoV", number);
        let info = v.read(call, feeds, |d| match profile_info(d, number) {
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => Ok(None),
            other => other.map(Some),
        })?;
        let Some(info) = info else { continue };
        // Id and name tell a profile from the others, and the name is a label.
        if known.iter().all(|k| k.id != info.id && k.name != info.name) {
            known.push(info);
        }
    }
    Some(known)
}
