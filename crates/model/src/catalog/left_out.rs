//! What NVML tells of a data-centre GPU and is not exported, each with its reason. A test compares this with
//! what real GPUs answered (`tests/data/nvml-answered.txt`) and with the calls the sampler makes: everything
//! answered is read or stands here, and nothing is both.

use std::ops::RangeInclusive;

/// Calls left out for one reason.
#[derive(Clone, Copy, Debug)]
pub struct LeftOut {
    /// What is left out.
    pub what: What,
    /// Why.
    pub why: &'static str,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// NVML functions, without the version at the end of their names.
    Functions(&'static [&'static str]),
    /// Fields of `nvmlDeviceGetFieldValues`, by the numbers of driver 580.82 and later.
    Fields(&'static [RangeInclusive<u32>]),
    /// Metrics of `nvmlGpmMetricsGet`.
    Gpm(&'static [RangeInclusive<u32>]),
}

const fn functions(names: &'static [&'static str], why: &'static str) -> LeftOut {
    LeftOut { what: What::Functions(names), why }
}

const fn fields(ids: &'static [RangeInclusive<u32>], why: &'static str) -> LeftOut {
    LeftOut { what: What::Fields(ids), why }
}

const fn gpm(ids: &'static [RangeInclusive<u32>], why: &'static str) -> LeftOut {
    LeftOut { what: What::Gpm(ids), why }
}

/// Everything left out.
pub const LEFT_OUT: &[LeftOut] = &[
    functions(
        &["nvmlDeviceGetUnrepairableMemoryFlag"],
        "Whether memory has failed beyond repair: the vendor's header and its Python bindings describe the struct differently (one word or two), and no GPU with such memory is at hand to tell. Missing beats wrong.",
    ),
    functions(
        &["nvmlDeviceGetAccountingBufferSize", "nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingPids"],
        "Accounting of ended processes: off by default, and switching it on changes a setting.",
    ),
    functions(
        &[
            "nvmlDeviceGetAdaptiveClockInfoStatus",
            "nvmlDeviceGetAddressingMode",
            "nvmlDeviceGetC2cModeInfoV",
            "nvmlDeviceGetC2cModeInfoV1",
            "nvmlDeviceGetDefaultEccMode",
            "nvmlDeviceGetGspFirmwareMode",
            "nvmlDeviceGetPowerManagementMode",
            "nvmlDeviceGetPowerSource",
            "nvmlSystemGetNvlinkBwMode",
        ],
        "A property or setting of the board that no measurement depends on.",
    ),
    functions(
        &[
            "nvmlDeviceGetConfComputeMemSizeInfo",
            "nvmlDeviceGetConfComputeProtectedMemoryUsage",
            "nvmlSystemGetConfComputeCapabilities",
            "nvmlSystemGetConfComputeKeyRotationThresholdInfo",
            "nvmlSystemGetConfComputeState",
        ],
        "Confidential computing: not seen switched on.",
    ),
    functions(
        &[
            "nvmlDeviceGetBoardId",
            "nvmlDeviceGetBrand",
            "nvmlDeviceGetBusType",
            "nvmlDeviceGetIndex",
            "nvmlDeviceGetMultiGpuBoard",
        ],
        "Identity that `gpu_info` tells already, by PCI address, model and serial number; the index is the label `gpu`.",
    ),
    functions(
        &["nvmlDeviceGetCpuAffinity", "nvmlDeviceGetIrqNum", "nvmlDeviceGetMemoryAffinity"],
        "Where the GPU sits in the host: the kernel tells it of the PCI address.",
    ),
    functions(
        &["nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetSupportedClocksThrottleReasons"],
        "Older names of the clocks event reasons.",
    ),
    functions(
        &[
            "nvmlDeviceGetCurrentEccMode",
            "nvmlDeviceGetPendingEccMode",
            "nvmlDeviceGetPowerState",
            "nvmlDeviceGetRemappedRows",
        ],
        "Older or dearer calls for what another call or a field in one batch tells (ECC mode, performance state, remapped rows).",
    ),
    functions(
        &["nvmlDeviceGetCurrentClockFreqs", "nvmlDeviceGetPerformanceModes"],
        "Text for people, 3 to 7 ms; the clocks are read one by one.",
    ),
    functions(
        &["nvmlDeviceGetDynamicPstatesInfo"],
        "Utilization by domain, 1.2 ms; the same as the utilization calls, which cost 3 microseconds.",
    ),
    functions(&["nvmlDeviceGetDisplayActive", "nvmlDeviceGetDisplayMode"], "Whether a monitor is attached."),
    functions(
        &["nvmlDeviceGetEncoderSessions", "nvmlDeviceGetFBCSessions"],
        "Sessions one by one: their number, rate and latency are exported.",
    ),
    functions(
        &[
            "nvmlDeviceGetGpcClkMinMaxVfOffset",
            "nvmlDeviceGetGpcClkVfOffset",
            "nvmlDeviceGetMemClkMinMaxVfOffset",
            "nvmlDeviceGetMemClkVfOffset",
        ],
        "Overclocking: zero on data-centre boards.",
    ),
    functions(
        &[
            "nvmlDeviceGetSupportedClocksEventReasons",
            "nvmlDeviceGetSupportedGraphicsClocks",
            "nvmlDeviceGetSupportedMemoryClocks",
            "nvmlDeviceGetSupportedPerformanceStates",
        ],
        "Lists of what can be set or told; the highest clocks are exported.",
    ),
    functions(
        &["nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetPcieLinkMaxSpeed", "nvmlDeviceGetPcieSpeed"],
        "Follows from the PCIe generation, or is of the GPU alone, without its slot.",
    ),
    functions(
        &["nvmlDeviceGetPcieThroughput"],
        "Blocks for a window of 20 ms and sees nothing else; GPM measures all the time.",
    ),
    functions(&["nvmlDeviceGetGridLicensableFeatures"], "Licences of a guest's own vGPU driver."),
    functions(
        &["nvmlDeviceGetInforomConfigurationChecksum"],
        "67 ms of reading the board's flash memory; versions of the InfoROM are in `gpu_info`.",
    ),
    functions(&["nvmlDeviceGetNumFans"], "Data-centre boards have no fans of their own."),
    functions(
        &["nvmlDeviceGetViolationStatus"],
        "0.6 to 1.3 ms a policy; the driver's own counters of event reasons come as fields, the two dear ones only when needed.",
    ),
    functions(&["nvmlSystemGetHicVersion"], "Host interface cards of S-class systems."),
    fields(
        &[1..=6, 83..=83, 94..=94, 165..=166, 185..=185, 187..=196],
        "The same as a call that is made: ECC modes and totals, energy, PCIe replays, NVLink state and version, power, power limits, temperature thresholds.",
    ),
    fields(
        &[75..=75, 77..=81],
        "Violation times that overlap those of single event reasons (any thermal, board limit, low utilization, reliability, sums).",
    ),
    fields(&[95..=95], "Times the PCIe replay number rolled over; replays are counted."),
    fields(
        &[147..=147],
        "Answered with an empty value where there is no NVSwitch; `gpu_nvlink_info` tells of each link.",
    ),
    fields(
        &[167..=168, 200..=200, 223..=225],
        "Settings of the NVLinks' power saving, of link 0 as representative.",
    ),
    fields(&[184..=184, 199..=199, 228..=229], "What the board is capable of."),
    fields(
        &[197..=198],
        "PCIe bytes in 32 bits: they wrap within 78 ms at full rate, and count protocol. GPM's rates are added up instead.",
    ),
    fields(&[226..=227], "Deprecated twins of the recovery action."),
    gpm(
        &[8..=8, 14..=19, 22..=29, 38..=39, 48..=49, 52..=59],
        "Numbers without a name in the header; answered with 0.",
    ),
    gpm(
        &[30..=37, 40..=47, 50..=51],
        "Decoders, JPEG and optical flow engines one by one: the utilization calls tell of each kind.",
    ),
    gpm(&[62..=97], "NVLink rates by link: the links' own byte counters miss nothing between two samples."),
];

impl What {
    /// Its members as a reader looks for them.
    pub fn names(&self) -> Vec<String> {
        let span = |range: &RangeInclusive<u32>| match range.start() == range.end() {
            true => range.start().to_string(),
            false => format!("{} to {}", range.start(), range.end()),
        };
        let spans = |ranges: &[RangeInclusive<u32>]| ranges.iter().map(span).collect::<Vec<_>>().join(", ");
        match self {
            What::Functions(names) => names.iter().map(|name| format!("`{name}`")).collect(),
            What::Fields(ranges) => vec![format!("fields {}", spans(ranges))],
            What::Gpm(ranges) => vec![format!("GPM metrics {}", spans(ranges))],
        }
    }
}

/// Whether a function (without its version) is left out.
pub fn function(name: &str) -> bool {
    LEFT_OUT.iter().any(|l| matches!(l.what, What::Functions(names) if names.contains(&name)))
}

/// Whether a field is left out.
pub fn field(id: u32) -> bool {
    LEFT_OUT.iter().any(|l| matches!(l.what, What::Fields(ids) if ids.iter().any(|r| r.contains(&id))))
}

/// Whether a GPM metric is left out.
pub fn gpm_metric(id: u32) -> bool {
    LEFT_OUT.iter().any(|l| matches!(l.what, What::Gpm(ids) if ids.iter().any(|r| r.contains(&id))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nothing_is_left_out_twice_and_everything_for_a_reason() {
        let mut seen = HashSet::new();
        for left_out in LEFT_OUT {
            assert!(left_out.why.ends_with('.') && !left_out.why.contains(['|', '\n']), "{}", left_out.why);
            let members: Vec<String> = match left_out.what {
                What::Functions(names) => names.iter().map(|n| (*n).to_owned()).collect(),
                What::Fields(ids) => ids.iter().cloned().flatten().map(|n| format!("field {n}")).collect(),
                What::Gpm(ids) => ids.iter().cloned().flatten().map(|n| format!("gpm {n}")).collect(),
            };
            for member in members {
                assert!(seen.insert(member.clone()), "{member}");
            }
        }
    }
}
