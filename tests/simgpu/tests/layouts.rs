//! The structs and constants that the library uses are the vendor's.
//!
//! `layouts.sh` reads the two tables below, has a C compiler print what they are in the vendor's
//! header, and writes `layouts.psv`; this test compares.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use nvml_wrapper_sys::bindings as sys;

type Table = BTreeMap<String, (usize, usize)>;

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structs {
    ($($name:ident { $($field:ident)* })*) => {
        fn structs(table: &mut Table) {$(
            table.insert(concat!(stringify!($name), "|").into(), (0, size_of::<sys::$name>()));
            $(table.insert(
                concat!(stringify!($name), "|", stringify!($field)).into(),
                (offset_of!(sys::$name, $field), size_of_field(|s: &sys::$name| &s.$field)),
            );)*
        )*}
    };
}

// One struct a line: layouts.sh reads them.
#[rustfmt::skip]
structs! {
    nvmlPciInfo_t { busIdLegacy domain bus device pciDeviceId pciSubSystemId busId }
    nvmlUtilization_t { gpu memory }
    nvmlMemory_t { total free used }
    nvmlMemory_v2_t { version total reserved free used }
    nvmlBAR1Memory_t { bar1Total bar1Free bar1Used }
    nvmlProcessInfo_t { pid usedGpuMemory gpuInstanceId computeInstanceId }
    nvmlProcessInfo_v2_t { pid usedGpuMemory gpuInstanceId computeInstanceId }
    nvmlProcessUtilizationSample_t { pid timeStamp smUtil memUtil encUtil decUtil }
    nvmlSample_t { timeStamp sampleValue }
    nvmlFieldValue_t { fieldId scopeId timestamp latencyUsec valueType nvmlReturn value }
    nvmlViolationTime_t { referenceTime violationTime }
    nvmlTemperature_t { version sensorType temperature }
    nvmlMarginTemperature_t { version marginTemperature }
    nvmlGpuDynamicPstatesInfo_t { flags utilization }
    nvmlEccErrorCounts_t { l1Cache l2Cache deviceMemory registerFile }
    nvmlEccSramErrorStatus_t { version aggregateUncParity aggregateUncSecDed aggregateCor volatileUncParity volatileUncSecDed volatileCor aggregateUncBucketL2 aggregateUncBucketSm aggregateUncBucketPcie aggregateUncBucketMcu aggregateUncBucketOther bThresholdExceeded }
    nvmlRowRemapperHistogramValues_t { max high partial low none }
    nvmlRepairStatus_t { version bChannelRepairPending bTpcRepairPending }
    nvmlDeviceAddressingMode_t { version value }
    nvmlSystemDriverBranchInfo_t { version branch }
    nvmlGpuFabricInfo_t { clusterUuid status cliqueId state }
    nvmlGpuFabricInfo_v2_t { version clusterUuid status cliqueId state healthMask }
    nvmlGpuFabricInfoV_t { version clusterUuid status cliqueId state healthMask healthSummary }
    nvmlPlatformInfo_v1_t { version ibGuid rackGuid chassisPhysicalSlotNumber computeSlotIndex nodeIndex peerType moduleId }
    nvmlPlatformInfo_v2_t { version ibGuid chassisSerialNumber slotNumber trayIndex hostId peerType moduleId }
    nvmlDeviceAttributes_t { multiprocessorCount sharedCopyEngineCount sharedDecoderCount sharedEncoderCount sharedJpegCount sharedOfaCount gpuInstanceSliceCount computeInstanceSliceCount memorySizeMB }
    nvmlGpuInstancePlacement_t { start size }
    nvmlGpuInstanceProfileInfo_t { id isP2pSupported sliceCount instanceCount multiprocessorCount copyEngineCount decoderCount encoderCount jpegCount ofaCount memorySizeMB }
    nvmlGpuInstanceProfileInfo_v2_t { version id isP2pSupported sliceCount instanceCount multiprocessorCount copyEngineCount decoderCount encoderCount jpegCount ofaCount memorySizeMB name }
    nvmlGpuInstanceInfo_t { device id profileId placement }
    nvmlComputeInstancePlacement_t { start size }
    nvmlComputeInstanceInfo_t { device gpuInstance id profileId placement }
    nvmlEventData_t { device eventType eventData gpuInstanceId computeInstanceId }
    nvmlDevicePerfModes_t { version }
    nvmlDeviceCurrentClockFreqs_t { version }
    nvmlHwbcEntry_t { hwbcId firmwareVersion }
    nvmlC2cModeInfo_v1_t { isC2cEnabled }
    nvmlConfComputeSystemCaps_t { cpuCaps gpusCaps }
    nvmlConfComputeSystemState_t { environment ccFeature devToolsMode }
    nvmlConfComputeGetKeyRotationThresholdInfo_t { version attackerAdvantage }
    nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib unprotectedMemSizeKib }
    nvmlEncoderSessionInfo_t { sessionId pid vgpuInstance codecType hResolution vResolution averageFps averageLatency }
    nvmlFBCStats_t { sessionsCount averageFPS averageLatency }
    nvmlFBCSessionInfo_t { sessionId pid vgpuInstance displayOrdinal sessionType sessionFlags hMaxResolution vMaxResolution hResolution vResolution averageFPS averageLatency }
    nvmlVgpuInstanceUtilizationSample_t { vgpuInstance timeStamp smUtil memUtil encUtil decUtil }
    nvmlVgpuLicenseExpiry_t { year month day hour min sec status }
    nvmlVgpuLicenseInfo_t { isLicensed licenseExpiry currentState }
    nvmlGridLicenseExpiry_t { year month day hour min sec status }
    nvmlGridLicensableFeature_t { featureCode featureState licenseInfo productName featureEnabled licenseExpiry }
    nvmlGridLicensableFeatures_t { isGridLicenseSupported licensableFeaturesCount gridLicensableFeatures }
    nvmlGpmMetric_t { metricId nvmlReturn value metricInfo }
    nvmlGpmMetricsGet_t { version numMetrics sample1 sample2 metrics }
    nvmlGpmSupport_t { version isSupportedDevice }
}

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        fn constants(table: &mut Table) {
            $(table.insert(concat!("=", stringify!($name)).into(), ($value as usize, 0));)*
        }
    };
}

// One constant a line: layouts.sh reads them. The numbers are those that model tables, scenarios
// and the library's own code use.
#[rustfmt::skip]
constants! {
    NVML_SUCCESS = sys::nvmlReturn_enum_NVML_SUCCESS;
    NVML_ERROR_UNINITIALIZED = sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
    NVML_ERROR_INVALID_ARGUMENT = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
    NVML_ERROR_NOT_SUPPORTED = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    NVML_ERROR_NOT_FOUND = sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
    NVML_ERROR_INSUFFICIENT_SIZE = sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
    NVML_ERROR_DRIVER_NOT_LOADED = sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
    NVML_ERROR_TIMEOUT = sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT;
    NVML_ERROR_GPU_IS_LOST = sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NVML_ERROR_UNKNOWN = sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN;
    NVML_VALUE_TYPE_UNSIGNED_INT = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    NVML_VALUE_TYPE_SIGNED_INT = sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT;
    NVML_TOTAL_POWER_SAMPLES = sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES;
    NVML_GPU_UTILIZATION_SAMPLES = sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES;
    NVML_MEMORY_UTILIZATION_SAMPLES = sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES;
    NVML_ENC_UTILIZATION_SAMPLES = sys::nvmlSamplingType_enum_NVML_ENC_UTILIZATION_SAMPLES;
    NVML_DEC_UTILIZATION_SAMPLES = sys::nvmlSamplingType_enum_NVML_DEC_UTILIZATION_SAMPLES;
    NVML_GSP_FIRMWARE_VERSION_BUF_SIZE = sys::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE;
    NVML_GPM_METRICS_GET_VERSION = sys::NVML_GPM_METRICS_GET_VERSION;
    NVML_GPM_SUPPORT_VERSION = sys::NVML_GPM_SUPPORT_VERSION;
    NVML_PSTATE_UNKNOWN = sys::nvmlPStates_enum_NVML_PSTATE_UNKNOWN;
    NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU = 3;
    NVML_HOST_VGPU_MODE_SRIOV = 1;
    NVML_VGPU_VM_ID_UUID = sys::nvmlVgpuVmIdType_NVML_VGPU_VM_ID_UUID;
    NVML_GRID_LICENSE_STATE_UNLICENSED = sys::NVML_GRID_LICENSE_STATE_UNLICENSED;
    NVML_GRID_LICENSE_STATE_LICENSED = sys::NVML_GRID_LICENSE_STATE_LICENSED;
    NVML_GRID_LICENSE_EXPIRY_VALID = sys::NVML_GRID_LICENSE_EXPIRY_VALID;
    NVML_GRID_LICENSE_FEATURE_CODE_NVIDIA_RTX = 2;
    NVML_ENCODER_QUERY_H264 = sys::nvmlEncoderQueryType_enum_NVML_ENCODER_QUERY_H264;
    NVML_FBC_SESSION_TYPE_TOSYS = sys::nvmlFBCSessionType_enum_NVML_FBC_SESSION_TYPE_TOSYS;
    nvmlEventTypeXidCriticalError = sys::nvmlEventTypeXidCriticalError;
    nvmlEventTypeDramRetirementEvent = 0x400;
    nvmlEventTypeNonFatalPoisonError = 0x1000;
    nvmlEventTypeGpuRecoveryAction = 0x8000;
    NVML_GPU_RECOVERY_ACTION_NONE = 0;
    NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1;
    NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2;
    NVML_GPU_RECOVERY_ACTION_DRAIN_P2P = 3;
    NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4;
    nvmlClocksEventReasonGpuIdle = 0x1;
    nvmlClocksEventReasonApplicationsClocksSetting = 0x2;
    nvmlClocksEventReasonSwPowerCap = 0x4;
    nvmlClocksThrottleReasonHwSlowdown = 0x8;
    nvmlClocksEventReasonSyncBoost = 0x10;
    nvmlClocksEventReasonSwThermalSlowdown = 0x20;
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40;
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80;
    nvmlClocksEventReasonDisplayClockSetting = 0x100;
    NVML_PERF_POLICY_POWER = 0;
    NVML_PERF_POLICY_THERMAL = 1;
    NVML_PERF_POLICY_SYNC_BOOST = 2;
    NVML_PERF_POLICY_BOARD_LIMIT = 3;
    NVML_PERF_POLICY_LOW_UTILIZATION = 4;
    NVML_PERF_POLICY_TOTAL_APP_CLOCKS = 10;
    NVML_PERF_POLICY_TOTAL_BASE_CLOCKS = 11;
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3;
    NVML_PCIE_UTIL_TX_BYTES = 0;
    NVML_PCIE_UTIL_RX_BYTES = 1;
    NVML_CLOCK_SM = 1;
    NVML_CLOCK_VIDEO = 3;
    NVML_MEMORY_LOCATION_DEVICE_MEMORY = 2;
    NVML_MEMORY_LOCATION_SRAM = 7;
    NVML_FI_DEV_ECC_SBE_VOL_TOTAL = 3;
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL = 4;
    NVML_FI_DEV_ECC_SBE_AGG_TOTAL = 5;
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL = 6;
    NVML_FI_DEV_PERF_POLICY_POWER = 74;
    NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION = 78;
    NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS = 80;
    NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS = 81;
    NVML_FI_DEV_MEMORY_TEMP = 82;
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83;
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91;
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138;
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139;
    NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX = 140;
    NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX = 141;
    NVML_FI_DEV_REMAPPED_COR = 142;
    NVML_FI_DEV_REMAPPED_UNC = 143;
    NVML_FI_DEV_REMAPPED_PENDING = 144;
    NVML_FI_DEV_REMAPPED_FAILURE = 145;
    NVML_FI_DEV_POWER_AVERAGE = 185;
    NVML_FI_DEV_POWER_INSTANT = 186;
    NVML_FI_DEV_POWER_CURRENT_LIMIT = 190;
    NVML_FI_DEV_ENERGY = 191;
    NVML_FI_DEV_POWER_REQUESTED_LIMIT = 192;
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197;
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198;
    NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS = 201;
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS = 215;
    NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS = 219;
    NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER = 220;
    NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS = 221;
    NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER = 222;
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230;
    NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0 = 235;
    NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15 = 250;
    NVML_NVLINK_BER_MANTISSA_SHIFT = sys::NVML_NVLINK_BER_MANTISSA_SHIFT;
    NVML_NVLINK_BER_MANTISSA_WIDTH = sys::NVML_NVLINK_BER_MANTISSA_WIDTH;
    NVML_NVLINK_BER_EXP_SHIFT = sys::NVML_NVLINK_BER_EXP_SHIFT;
    NVML_NVLINK_BER_EXP_WIDTH = sys::NVML_NVLINK_BER_EXP_WIDTH;
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269;
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270;
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE = 0;
    NVML_GPU_INSTANCE_PROFILE_2_SLICE = 1;
    NVML_GPU_INSTANCE_PROFILE_3_SLICE = 2;
    NVML_GPU_INSTANCE_PROFILE_4_SLICE = 3;
    NVML_GPU_INSTANCE_PROFILE_7_SLICE = 4;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 = 7;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 = 9;
    NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE = 0;
    NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE = 3;
    NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE = 4;
    NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE = 5;
    NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE = 6;
    NVML_GPM_METRIC_GRAPHICS_UTIL = 1;
    NVML_GPM_METRIC_SM_UTIL = 2;
    NVML_GPM_METRIC_SM_OCCUPANCY = 3;
    NVML_GPM_METRIC_INTEGER_UTIL = 4;
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5;
    NVML_GPM_METRIC_HMMA_TENSOR_UTIL = 7;
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10;
    NVML_GPM_METRIC_FP32_UTIL = 12;
    NVML_GPM_METRIC_FP16_UTIL = 13;
    NVML_GPM_METRIC_PCIE_TX_PER_SEC = 20;
    NVML_GPM_METRIC_PCIE_RX_PER_SEC = 21;
    NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 60;
    NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 61;
    NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC = 62;
    NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC = 97;
}

#[test]
fn structs_and_constants_are_the_vendors() {
    let mut ours = Table::new();
    structs(&mut ours);
    constants(&mut ours);
    let vendors: Table = include_str!("../layouts.psv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (rest, size) = line.rsplit_once('|').expect("a size");
            let (name, offset) = rest.rsplit_once('|').expect("an offset");
            (name.into(), (offset.parse().expect("a number"), size.parse().expect("a number")))
        })
        .collect();
    let differ: Vec<_> = ours.iter().filter(|(name, is)| vendors.get(*name) != Some(is)).collect();
    assert!(differ.is_empty(), "not as the vendor has them: {differ:?}");
    assert_eq!(ours.len(), vendors.len(), "run layouts.sh");
}
