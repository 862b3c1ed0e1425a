//! Upper bounds of the hardware, computed from the properties that the device reports, so that no table of models
//! becomes outdated.
//!
//! No bound is returned if it is unknown. This applies to properties reported as 0, to a MIG device whose share of the
//! GPU is unknown, and to boards that share their memory or host link in another way.

use crate::device::CudaDevice;
use sampler::watch::Around;

/// Gigatransfers per second of one PCIe lane, by generation, starting at 1.
const LANE_GIGATRANSFERS: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

/// Names of boards whose GPU shares memory or link with the host's processor (NVLink-C2C, one memory for both). Neither
/// the memory bus nor PCIe limits them.
const COHERENT: [&str; 6] = ["GH200", "GB200", "GB300", "GB10", "Thor", "Orin"];

/// Returns the maximum rate of the device memory in bytes per second. `whole` must be false for a MIG device, because
/// its share of the bus is unknown.
pub fn memory(device: &CudaDevice, around: &Around, whole: bool) -> Option<f64> {
    if !whole || is_coherent(device) {
        return None;
    }
    let clock = positive(around.memory_clock_hertz).unwrap_or(device.max_memory_clock_hertz);
    positive(memory_rate(device, clock))
}

/// Returns the memory rate in bytes per second: two transfers per cycle of the memory clock times the bus width.
pub fn memory_rate(device: &CudaDevice, hertz: f64) -> f64 {
    2.0 * hertz * f64::from(device.bus_width_bytes)
}

/// Returns the bytes per second in one direction of the widest and fastest link that both GPU and slot support.
pub fn link(device: &CudaDevice) -> Option<f64> {
    if is_coherent(device) {
        return None;
    }
    pcie(device.max_link_generation, device.max_link_width)
}

/// Returns the bytes per second in one direction of a PCIe link before protocol overhead. This is the rate of the lanes
/// minus the line code (8b/10b up to generation 2, 128b/130b up to 5, and 242 of 256 bytes of a flit from 6 on).
pub fn pcie(generation: u32, lanes: u32) -> Option<f64> {
    let index = usize::try_from(generation.checked_sub(1)?).ok()?;
    let transfers = LANE_GIGATRANSFERS.get(index)?;
    let payload = match generation {
        1 | 2 => 8.0 / 10.0,
        3..=5 => 128.0 / 130.0,
        _ => 242.0 / 256.0,
    };
    positive(transfers * 1e9 / 8.0 * payload * f64::from(lanes))
}

fn is_coherent(device: &CudaDevice) -> bool {
    COHERENT.iter().any(|board| device.name.contains(board))
}

fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value / expected - 1.0).abs() < 0.005)
    }

    fn board(name: &str, memory_megahertz: f64, bus_bits: u32) -> CudaDevice {
        CudaDevice {
            name: name.into(),
            max_memory_clock_hertz: memory_megahertz * 1e6,
            bus_width_bytes: bus_bits / 8,
            max_link_generation: 5,
            max_link_width: 16,
            ..CudaDevice::default()
        }
    }

    #[test]
    fn memory_is_clock_by_width_as_the_data_sheets_have_it() {
        let around = Around::default();
        for (name, clock, bits, expected) in [
            ("Tesla V100-SXM2-16GB", 877.0, 4096, 898e9),
            ("Tesla T4", 5001.0, 256, 320e9),
            ("NVIDIA A100-SXM4-40GB", 1215.0, 5120, 1555e9),
            ("NVIDIA L4", 6251.0, 192, 300e9),
            ("NVIDIA H100 80GB HBM3", 2619.0, 5120, 3352e9),
            ("NVIDIA H200", 3201.0, 6016, 4814e9),
        ] {
            let device = board(name, clock, bits);
            assert!(near(memory(&device, &around, true), expected), "{name}");
            assert_eq!(memory(&device, &around, false), None, "a part of {name}");
        }
        let slower = Around { memory_clock_hertz: 1600.5e6, ..around };
        assert!(near(memory(&board("NVIDIA H200", 3201.0, 6016), &slower, true), 2407e9));
    }

    #[test]
    fn links_have_the_rates_of_their_generations() {
        for (generation, lanes, expected) in [
            (1, 16, 4.0e9),
            (2, 16, 8.0e9),
            (3, 16, 15.75e9),
            (3, 1, 0.985e9),
            (4, 16, 31.5e9),
            (4, 8, 15.75e9),
            (5, 16, 63.0e9),
            (5, 4, 15.75e9),
            (6, 16, 121.0e9),
        ] {
            assert!(near(pcie(generation, lanes), expected), "generation {generation}, {lanes} lanes");
        }
        for (generation, lanes) in [(0, 16), (5, 0), (7, 16), (u32::MAX, u32::MAX)] {
            assert_eq!(pcie(generation, lanes), None);
        }
    }

    #[test]
    fn what_is_not_known_has_no_bound() {
        let nothing = CudaDevice::default();
        assert_eq!((memory(&nothing, &Around::default(), true), link(&nothing)), (None, None));
        assert_eq!(link(&board("NVIDIA GH200 480GB", 2619.0, 6144)), None);
        assert_eq!(memory(&board("NVIDIA GH200 480GB", 2619.0, 6144), &Around::default(), true), None);
        assert_eq!(memory(&board("NVIDIA GB10", 8000.0, 256), &Around::default(), true), None);
        let odd = Around { memory_clock_hertz: f64::NAN, ..Around::default() };
        assert!(memory(&board("NVIDIA H200", 3201.0, 6016), &odd, true).is_some());
    }
}
