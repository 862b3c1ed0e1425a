//! Runs of a healthy H200 with measured figures, which tests modify.

use crate::baseline::{BaselineStore, Siblings};
use crate::checks;
use crate::report::{CanaryRun, CheckFigures, CudaDevice, Measurement, Mismatches, RunEnd, Sm};
use model::canary::{Instance, Judged, Place};
use model::catalog::{CanaryCheck, CanaryStep, Gpu};
use sampler::watch::Around;

use super::{RunJudgement, judge};

/// Seconds between two runs.
const INTERVAL: f64 = 1800.0;

pub fn place() -> Place {
    Place { gpu: Gpu { gpu: 0, uuid: "GPU-0".into() }, instance: None }
}

/// A MIG device on that GPU.
pub fn part() -> Place {
    let instance = Instance {
        gpu_instance: 1,
        compute_instance: 0,
        profile: "3g.71gb".into(),
        mig_uuid: "MIG-1".into(),
    };
    Place { instance: Some(instance), ..place() }
}

pub fn device() -> CudaDevice {
    CudaDevice {
        name: "NVIDIA H200".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        fp32_lanes: 128,
        tensor_fma: 2048,
        l2_bytes: 60 << 20,
        memory_bytes: 141 << 30,
        used_bytes: 256 << 20,
        bus_width_bytes: 752,
        max_sm_clock_hertz: 1980e6,
        max_memory_clock_hertz: 3201e6,
        max_link_generation: 5,
        max_link_width: 16,
        cuda_version: 13000,
        driver_version: "580.159.04".into(),
        vbios_version: "96.00.D0.00.02".into(),
        power_limit_milliwatts: 700_000,
        default_power_limit_milliwatts: 700_000,
        ecc: Some(true),
        code: "sm_90a".into(),
        code_checksum: 7,
    }
}

/// Multiprocessors at this rate and clock, with the measured spread.
pub fn sms(work: f64, hertz: f64) -> Vec<Sm> {
    let sm = |smid: u32| {
        let step = f64::from(smid % 7) - 3.0;
        Sm { smid, work_per_cycle: work * (1.0 + 1e-5 * step), clock_hertz: hertz * (1.0 + 1e-4 * step) }
    };
    (0..132).map(sm).collect()
}

/// NVML's readings around a check of a healthy GPU.
pub fn around() -> Around {
    Around {
        sm_clock_hertz: 1980e6,
        memory_clock_hertz: 3201e6,
        temperature_celsius: 34.0,
        ..Around::default()
    }
}

/// A measurement of a check with these figures.
pub fn measured(check: CanaryCheck, found: CheckFigures) -> Measurement {
    let mismatches = Mismatches { compared: 1000, ..Mismatches::default() };
    Measurement { check, gpu_seconds: 0.0025, wall_seconds: 0.0026, found, mismatches, around: around() }
}

/// All checks of a healthy run.
pub fn healthy() -> CanaryRun {
    use CanaryCheck::*;
    let read = |bytes: u64, seconds: f64| CheckFigures::Read {
        bytes,
        seconds: vec![seconds * 1.002, seconds, seconds * 0.999],
        sm_clock_hertz: 1980e6,
    };
    let copied = CheckFigures::Copied {
        bytes: 32 << 20,
        to_gpu: vec![0.612e-3, 0.613e-3, 0.615e-3],
        to_host: vec![0.605e-3, 0.606e-3, 0.607e-3],
        latency: 6e-6,
        link_generation: 5,
        link_width: 16,
        numa_node: None,
    };
    let overlap = checks::Overlap {
        batches: 8,
        bytes: 16 << 20,
        stages: [0.3e-3, 0.6e-3, 0.3e-3],
        serial: 9.6e-3,
        rotating: 5.6e-3,
        separate: 5.5e-3,
        kernels: [1.0e-3, 0.52e-3],
    };
    let transform = checks::Transform {
        count: 4 << 20,
        copy_in: 0.3e-3,
        kernel: 0.02e-3,
        copy_out: 0.3e-3,
        cpu: 0.08,
        max_absolute_error: 3.5e-7,
        max_relative_error: 9.5e-7,
    };
    let peer = CheckFigures::Peer {
        peer: "GPU-1".into(),
        bytes: 64 << 20,
        seconds: vec![0.17e-3, 0.171e-3],
        access: true,
    };
    let steps = [
        (CanaryStep::Load, 0.01),
        (CanaryStep::Init, 0.1),
        (CanaryStep::Device, 0.001),
        (CanaryStep::Context, 0.1),
        (CanaryStep::Module, 0.01),
        (CanaryStep::FirstLaunch, 0.0002),
        (CanaryStep::Destroy, 0.05),
    ];
    CanaryRun {
        began: 999.0,
        ended: 1000.0,
        steps: steps.to_vec(),
        device: Some(device()),
        measured: vec![
            measured(SmRate, CheckFigures::Sms(sms(125.9, 1979.8e6))),
            measured(Tensor, CheckFigures::Sms(sms(1750.0, 1940e6))),
            measured(SmSdc, CheckFigures::Covered((0..132).collect())),
            measured(HbmRead, read(256 << 20, 63.1e-6)),
            measured(HbmWalk, CheckFigures::Walked { bytes: 256 << 20, patterns: 6 }),
            measured(L2, read(15 << 20, 2.2e-6)),
            measured(Pcie, copied),
            measured(Launch, CheckFigures::Launched(vec![8.6e-6, 8.7e-6, 8.8e-6, 18e-6])),
            measured(Overlap, CheckFigures::Overlapped(overlap)),
            measured(Transform, CheckFigures::Transformed(transform)),
            measured(P2p, peer),
        ],
        gpu_seconds: 0.05,
        end: RunEnd::Finished,
    }
}

/// The measurement of a check in a run.
pub fn measurement_mut(run: &mut CanaryRun, check: CanaryCheck) -> &mut Measurement {
    run.measured.iter_mut().find(|measured| measured.check == check).unwrap()
}

/// A history with this many healthy runs, the last of them just before `now`.
pub fn baseline(runs: usize, now: f64) -> BaselineStore {
    let mut baseline = BaselineStore::default();
    for nth in 0..runs {
        let at = now - INTERVAL * (runs - nth) as f64;
        let mut run = healthy();
        // Rates vary this much between runs.
        let moved = 1.0 + 1e-5 * ((nth % 5) as f64 - 2.0);
        for measured in &mut run.measured {
            if let CheckFigures::Sms(sms) = &mut measured.found {
                sms.iter_mut().for_each(|sm| {
                    sm.work_per_cycle *= moved;
                    sm.clock_hertz *= 1.0 + 20.0 * (moved - 1.0);
                });
            }
            if let CheckFigures::Read { seconds, .. } = &mut measured.found {
                seconds.iter_mut().for_each(|second| *second *= 1.0 + 500.0 * (moved - 1.0));
            }
        }
        baseline.apply(judge(&place(), &run, &baseline, &Siblings::default(), at).update);
    }
    baseline
}

/// Judges a run at this time without siblings.
pub fn judged(run: &CanaryRun, baseline: &BaselineStore, now: f64) -> RunJudgement {
    judge(&place(), run, baseline, &Siblings::default(), now)
}

/// The verdict on a check.
pub fn verdict(judgement: &RunJudgement, check: CanaryCheck) -> &Judged {
    judgement.outcome.checks.iter().find(|judged| judged.check == check).unwrap()
}
