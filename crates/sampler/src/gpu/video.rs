//! Video sessions, and what the GPU offers virtual machines.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode as NvmlMode;
use nvml_wrapper::error::NvmlError;

use super::{MICRO, ONE};
use crate::visit::Visit;
use model::catalog as m;

/// Encoder and capture sessions. An average of no sessions is no latency, so there is none then.
pub(super) fn slow(v: &mut Visit<'_>) {
    const ENCODER: &str = "nvmlDeviceGetEncoderStats";
    let feeds = [
        m::gpu_encoder_sessions.id(),
        m::gpu_encoder_frames_per_second.id(),
        m::gpu_encoder_latency_seconds.id(),
    ];
    if let Some(stats) = v.read(ENCODER, &feeds, |d| d.encoder_stats()) {
        v.put(ENCODER, &m::gpu_encoder_sessions, (), stats.session_count, ONE);
        v.put(ENCODER, &m::gpu_encoder_frames_per_second, (), stats.average_fps, ONE);
        if stats.session_count > 0 {
            v.put(ENCODER, &m::gpu_encoder_latency_seconds, (), stats.average_latency, MICRO);
        }
    }

    const CAPTURE: &str = "nvmlDeviceGetFBCStats";
    let feeds =
        [m::gpu_fbc_sessions.id(), m::gpu_fbc_frames_per_second.id(), m::gpu_fbc_latency_seconds.id()];
    if let Some(stats) = v.read(CAPTURE, &feeds, |d| d.fbc_stats()) {
        v.put(CAPTURE, &m::gpu_fbc_sessions, (), stats.sessions_count, ONE);
        v.put(CAPTURE, &m::gpu_fbc_frames_per_second, (), stats.average_fps, ONE);
        if stats.sessions_count > 0 {
            v.put(CAPTURE, &m::gpu_fbc_latency_seconds, (), stats.average_latency, MICRO);
        }
    }
}

/// Whether the GPU is in a virtual machine, or offered to some.
pub(super) fn virtualization(device: &Device<'static>) -> Result<String, NvmlError> {
    let mode = match device.virtualization_mode()? {
        NvmlMode::Bare => "none",
        NvmlMode::PassThrough => "passthrough",
        NvmlMode::Vgpu => "vgpu",
        NvmlMode::HostVgpu => "host_vgpu",
        NvmlMode::HostVsga => "host_vsga",
    };
    Ok(mode.to_owned())
}
