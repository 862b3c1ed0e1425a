//! Video sessions, and what the GPU offers virtual machines.

use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode as NvmlMode;

use super::{MICRO, ONE};
use crate::catalog::{self as m, VirtualizationMode};
use crate::sampler::visit::Visit;

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

/// What the GPU offers virtual machines.
pub(super) fn rare(v: &mut Visit<'_>) {
    let feeds = [m::gpu_virtualization_mode.id()];
    if let Some(mode) = v.read("nvmlDeviceGetVirtualizationMode", &feeds, |d| d.virtualization_mode()) {
        let mode = match mode {
            NvmlMode::Bare => VirtualizationMode::None,
            NvmlMode::PassThrough => VirtualizationMode::Passthrough,
            NvmlMode::Vgpu => VirtualizationMode::Vgpu,
            NvmlMode::HostVgpu => VirtualizationMode::HostVgpu,
            NvmlMode::HostVsga => VirtualizationMode::HostVsga,
        };
        v.rows.of(v.gpu).state(&m::gpu_virtualization_mode, mode);
    }
}
