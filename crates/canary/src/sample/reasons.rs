//! Reasons for low clocks, as reported by NVML.

use crate::device::CudaDevice;
use sampler::watch::{Around, IDLE};

const APPLICATION_CLOCKS: u64 = 0x2;
const POWER_CAP: u64 = 0x4;
const HW_SLOWDOWN: u64 = 0x8;
const SYNC_BOOST: u64 = 0x10;
const SW_THERMAL: u64 = 0x20;
const HW_THERMAL: u64 = 0x40;
const HW_BRAKE: u64 = 0x80;
const DISPLAY: u64 = 0x100;

/// Meaning of the bits, and the first action for them.
const WORDS: [(u64, &str, &str); 8] = [
    (HW_BRAKE, "hardware power brake (0x80)", "check the power supplies and the rack's power feed"),
    (HW_THERMAL, "hardware thermal slowdown (0x40)", "check fans, airflow and the GPU's heat sink now"),
    (HW_SLOWDOWN, "hardware slowdown (0x8)", "check cooling and power: `nvidia-smi -q -d PERFORMANCE,POWER`"),
    (SW_THERMAL, "software thermal slowdown (0x20)", "check cooling: `nvidia-smi -q -d TEMPERATURE`"),
    (POWER_CAP, "power cap (0x4)", "check the power draw with `nvidia-smi -q -d POWER`"),
    (APPLICATION_CLOCKS, "application clocks (0x2)", "`nvidia-smi -rac` and `-rgc` reset them"),
    (SYNC_BOOST, "sync boost group (0x10)", "check the other GPUs of the sync boost group"),
    (DISPLAY, "display clock (0x100)", "no action; a display limits the clock"),
];

/// Reasons at one moment or over a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reasons {
    bits: u64,
    /// True if the enforced power limit is below the vendor's default, so that the limit was lowered on purpose.
    limited: bool,
}

impl Reasons {
    /// Returns all sampled reasons, and those whose time counters in the driver increased. The counters include reasons
    /// between two samples. Returns `None` if NVML reported nothing at all, which differs from reporting no reason.
    pub fn seen(device: &CudaDevice, around: &Around) -> Option<Reasons> {
        // A clock that is not a number is unknown as well.
        if around.sm_clock_hertz.is_nan() || around.sm_clock_hertz <= 0.0 {
            return None;
        }
        let counted = [POWER_CAP, SYNC_BOOST, SW_THERMAL, HW_THERMAL, HW_BRAKE];
        let moved = counted.iter().zip(around.reason_ns).filter(|(_, ns)| *ns > 0);
        let bits = moved.fold(around.reasons, |bits, (bit, _)| bits | bit);
        let (limit, default) = (device.power_limit_milliwatts, device.default_power_limit_milliwatts);
        Some(Reasons { bits, limited: limit > 0 && limit < default })
    }

    /// Returns true if the GPU was idle and there is no other reason.
    pub fn only_idle(self) -> bool {
        self.bits == IDLE
    }

    /// Returns true if there is no reason other than idleness.
    pub fn none(self) -> bool {
        self.bits & !IDLE == 0
    }

    /// Returns true for heat, a power brake, or a hardware slowdown, which never occur on purpose.
    pub fn distress(self) -> bool {
        self.bits & (HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | HW_BRAKE) != 0
    }

    /// Returns true if lower clocks were chosen and nothing else limits them.
    pub fn by_choice(self) -> bool {
        let chosen = APPLICATION_CLOCKS | SYNC_BOOST | DISPLAY | if self.limited { POWER_CAP } else { 0 };
        self.bits & chosen != 0 && self.bits & !(chosen | IDLE) == 0
    }

    /// Returns true if clocks with these reasons are representative, because neither heat, a power brake nor a chosen
    /// limit lowered them. A power cap belongs to the configuration.
    pub fn usual(self) -> bool {
        !self.distress() && self.bits & (APPLICATION_CLOCKS | SYNC_BOOST | DISPLAY) == 0
    }

    /// Formats the reasons as text, the most severe first.
    pub fn words(self) -> String {
        let read = WORDS.iter().filter(|(bit, ..)| self.bits & bit != 0);
        let mut words: Vec<String> = read.map(|(_, words, _)| (*words).to_owned()).collect();
        let known = WORDS.iter().fold(IDLE, |all, (bit, ..)| all | bit);
        let other = self.bits & !known;
        if other != 0 {
            words.push(format!("an unknown reason ({other:#x})"));
        }
        if words.is_empty() {
            words.push(if self.bits & IDLE != 0 { "idle (0x1)" } else { "none" }.to_owned());
        }
        words.join(", ")
    }

    /// Returns the first action for the most severe reason.
    pub fn first_thing(self) -> &'static str {
        let read = WORDS.iter().find(|(bit, ..)| self.bits & bit != 0);
        read.map_or("`nvidia-smi -q -d PERFORMANCE,CLOCK` shows the state", |(.., thing)| thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(reasons: u64, reason_ns: [u64; 5], limit: u64) -> Reasons {
        let device = CudaDevice {
            power_limit_milliwatts: limit,
            default_power_limit_milliwatts: 700_000,
            ..CudaDevice::default()
        };
        let around = Around { reasons, reason_ns, sm_clock_hertz: 1e9, ..Around::default() };
        Reasons::seen(&device, &around).unwrap()
    }

    #[test]
    fn nothing_reported_is_not_no_reason() {
        assert_eq!(Reasons::seen(&CudaDevice::default(), &Around::default()), None);
        let odd = Around { sm_clock_hertz: f64::NAN, ..Around::default() };
        assert_eq!(Reasons::seen(&CudaDevice::default(), &odd), None);
        assert!(seen(0, [0; 5], 0).none());
    }

    #[test]
    fn a_reason_between_two_looks_is_seen_in_the_counters() {
        let reasons = seen(0, [0, 0, 0, 5, 0], 0);
        assert!(reasons.distress() && reasons.words().contains("0x40"));
        assert!(reasons.first_thing().contains("fans"));
    }

    #[test]
    fn a_power_cap_is_a_choice_below_the_default_limit_alone() {
        assert!(seen(0x4, [0; 5], 450_000).by_choice());
        assert!(!seen(0x4, [0; 5], 700_000).by_choice() && !seen(0x4, [0; 5], 0).by_choice());
        assert!(!seen(0x44, [0; 5], 450_000).by_choice(), "heat is no choice");
        assert!(seen(0x103, [0; 5], 700_000).by_choice());
    }

    #[test]
    fn every_bit_has_words() {
        for bit in 0..9 {
            let reasons = seen(1 << bit, [0; 5], 0);
            assert!(reasons.words().contains(&format!("({:#x})", 1 << bit)), "{}", reasons.words());
        }
        assert_eq!(seen(0x1000, [0; 5], 0).words(), "an unknown reason (0x1000)");
        assert_eq!(seen(0, [0; 5], 0).words(), "none");
        assert!(seen(1, [0; 5], 0).only_idle() && !seen(5, [0; 5], 0).only_idle());
    }
}
