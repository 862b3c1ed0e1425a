//! How fast a device works now: the model's rates, what steps take of them, and a little noise, which is
//! the same in every run of a scenario.

use crate::device::Device;
use crate::functions::{Function, Key};
use crate::hardware::{Direction, Hardware};

/// Standard deviations of the noise: work in a cycle, the SM clock, memory, copies.
const WORK_NOISE: f64 = 1e-5;
const CLOCK_NOISE: f64 = 2e-4;
const MEMORY_NOISE: f64 = 3e-3;
const COPY_NOISE: f64 = 3e-3;

/// What every copy costs beside its bytes, nanoseconds.
const COPY_NS: f64 = 4000.0;

/// Raw bytes a nanosecond of one lane, by PCIe generation.
const LANE: [f64; 7] = [0.0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563];

/// Numbers that look random and are the same every time.
#[derive(Clone, Copy)]
pub struct Noise(pub u64);

impl Noise {
    /// The noise of one event among others.
    pub fn of(self, number: u64) -> Noise {
        let mut x = self.0 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Noise(x ^ x >> 31)
    }

    /// About 1, with this standard deviation: the sum of twelve even numbers is nearly normal.
    pub fn factor(self, deviation: f64) -> f64 {
        let even = |n: u64| (self.of(n + 1).0 >> 11) as f64 / (1u64 << 53) as f64;
        1.0 + deviation * ((0..12).map(even).sum::<f64>() - 6.0)
    }
}

/// The share of a GPU that a device has.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Multiprocessors.
    pub sms: u32,
    /// The part of memory and L2.
    pub memory: f64,
}

/// The share of the GPU or of its MIG device.
pub fn share(device: &Device) -> Share {
    let compute = &device.gpu.model.compute;
    match device.instance() {
        Ok((gi, ci)) => Share {
            sms: (gi.profile.sms * ci.slices / gi.profile.slices).max(1),
            memory: f64::from(gi.profile.size) / 8.0,
        },
        Err(_) => Share { sms: compute.multiprocessors, memory: 1.0 },
    }
}

/// How fast a kernel's parts go.
pub struct Rates {
    /// Multiprocessors of the device.
    pub sms: u32,
    /// Cycles in a nanosecond.
    pub ghz: f64,
    /// FP32 FMA of a multiprocessor in a cycle.
    pub fp32: f64,
    /// Tensor FMA of a multiprocessor in a cycle.
    pub tensor: f64,
    /// Bytes of device memory in a cycle, all multiprocessors together.
    pub memory: f64,
    /// Bytes of L2 in a cycle, likewise.
    pub l2: f64,
    /// The part of these that each multiprocessor reaches.
    pub sm: Vec<f64>,
    /// By how much the kernel takes longer, because others have the GPU by turns.
    pub stretch: f64,
}

/// How fast a kernel that works on `bytes` of memory goes on a device.
pub fn kernel(device: &Device, bytes: u64, noise: Noise) -> Rates {
    let model = &device.gpu.model;
    let compute = &model.compute;
    let share = share(device);
    let board = device.board();
    let clock = board.value(Function::nvmlDeviceGetClockInfo, &[1]).and_then(|v| v.f64(0));
    let mut mhz = clock.unwrap_or(model.behaviour.max_mhz);
    let mut memory_part = part(compute.memory_part, bytes) * share.memory;
    let mut sm: Vec<f64> = (0..u64::from(share.sms)).map(|i| noise.of(100 + i).factor(WORK_NOISE)).collect();
    for hardware in device.hardware() {
        match hardware {
            Hardware::SmClock(rate, false) => mhz *= rate,
            Hardware::MemoryRate(rate) => memory_part *= rate,
            Hardware::Sm(slow) => {
                if let Some(rate) = sm.get_mut(slow.id as usize) {
                    *rate *= slow.rate;
                }
            }
            _ => {}
        }
    }
    let ghz = mhz / 1000.0 * noise.of(1).factor(CLOCK_NOISE);
    let work = noise.of(2).factor(WORK_NOISE);
    let memory = memory_peak(&board) * memory_part * noise.of(3).factor(MEMORY_NOISE);
    Rates {
        sms: share.sms,
        ghz,
        fp32: compute.fp32_fma * compute.fp32_part * work,
        tensor: compute.tensor_fma * compute.tensor_part * work,
        memory: memory / ghz,
        l2: compute.l2_bytes_per_cycle * share.memory * noise.of(4).factor(MEMORY_NOISE),
        sm,
        stretch: if device.jobs().iter().any(|job| !job.idle) { 3.0 } else { 1.0 },
    }
}

/// Twice the memory clock times the bus, bytes a nanosecond.
fn memory_peak(board: &Device) -> f64 {
    let clock = board.value(Function::nvmlDeviceGetClockInfo, &[2]).and_then(|v| v.f64(0)).unwrap_or(1000.0);
    let bus = board.value(Function::nvmlDeviceGetMemoryBusWidth, &[]).and_then(|v| v.f64(0)).unwrap_or(256.0);
    clock * 1e6 * 2.0 * bus / 8.0 / 1e9
}

/// The part of the peak, between the sizes for which the model has it.
fn part([small, large]: [f64; 2], bytes: u64) -> f64 {
    let doubled = (bytes as f64 / f64::from(256u32 << 20)).max(1.0).log2() / 2.0;
    small + (large - small) * doubled.min(1.0)
}

/// How long a copy between host and device takes, nanoseconds. Of memory that is not pinned, the driver makes
/// another copy by itself.
pub fn copy(device: &Device, direction: Direction, bytes: u64, pinned: bool, noise: Noise) -> u64 {
    let board = device.board();
    let ask = |function| board.value(function, &[]).and_then(|v| v.u32(0)).unwrap_or(1);
    let generation = ask(Function::nvmlDeviceGetCurrPcieLinkGeneration).clamp(1, 6);
    let width = ask(Function::nvmlDeviceGetCurrPcieLinkWidth);
    let mut rate = LANE[generation as usize] * f64::from(width) * device.gpu.model.compute.pcie_part;
    for hardware in device.hardware() {
        if let Hardware::PcieRate(part) = hardware {
            rate *= part;
        }
    }
    if !pinned {
        rate *= 0.4;
    }
    // The way back is a trifle slower.
    let back = if direction == Direction::ToHost { 0.99 } else { 1.0 };
    let ns = COPY_NS + bytes as f64 / (rate * back);
    (ns * noise.of(5).factor(COPY_NOISE)) as u64
}

/// How long a copy within a device takes, nanoseconds: every byte is read and written.
pub fn inner_copy(device: &Device, bytes: u64, noise: Noise) -> u64 {
    let rates = kernel(device, bytes, noise);
    (2000.0 + 2.0 * bytes as f64 / (rates.memory * rates.ghz)) as u64
}

/// How long a copy from one GPU to another takes, nanoseconds: over NVLink if both have it.
pub fn peer_copy(from: &Device, to: &Device, bytes: u64, noise: Noise) -> u64 {
    let links = |d: &Device| d.gpu.model.behaviour.nvlink_bytes / 1e9 * d.gpu.model.compute.nvlink_part;
    let rate = links(from).min(links(to));
    if rate > 0.0 {
        return ((COPY_NS + bytes as f64 / rate) * noise.of(6).factor(COPY_NOISE)) as u64;
    }
    let out = copy(from, Direction::ToHost, bytes, true, noise);
    out.max(copy(to, Direction::ToGpu, bytes, true, noise))
}

impl Device {
    /// The GPU that this is, or that this is on.
    pub(crate) fn board(&self) -> Device {
        Device { sim: self.sim, index: self.index, gpu: self.gpu, mig: None }
    }

    /// What the device answers to a call without arguments, as a number.
    pub(crate) fn number(&self, function: Function) -> Option<u64> {
        self.value(function, Key::new(function, &[]).args()).and_then(|v| v.u64(0)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_small_even_and_the_same_every_time() {
        let all: Vec<f64> = (0..10_000).map(|n| Noise(7).of(n).factor(0.01)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let deviation = (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 5e-4, "{mean}");
        assert!((deviation - 0.01).abs() < 5e-4, "{deviation}");
        assert_eq!(all[3], Noise(7).of(3).factor(0.01));
    }

    #[test]
    fn larger_buffers_get_more_of_the_peak() {
        let parts = [0.8, 0.9];
        assert_eq!((part(parts, 1 << 20), part(parts, 256 << 20)), (0.8, 0.8));
        assert!((part(parts, 512 << 20) - 0.85).abs() < 1e-9);
        assert_eq!(part(parts, 8 << 30), 0.9);
    }
}
