//! The names of the exported functions, once: scenarios, model tables, counters and exports all use
//! this list.

macro_rules! functions {
    ($($name:ident)*) => {
        /// A function that the library exports, under its versioned symbol name: NVML's, then libcuda's.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Function { $($name),* }

        impl Function {
            /// Every exported function.
            pub const ALL: &'static [Function] = &[$(Function::$name),*];

            /// The symbol name.
            pub fn name(self) -> &'static str {
                match self { $(Function::$name => stringify!($name)),* }
            }
        }
    };
}

functions! {
    nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString
    nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion
    nvmlSystemGetCudaDriverVersion_v2 nvmlSystemGetDriverBranch nvmlSystemGetProcessName
    nvmlSystemGetNvlinkBwMode nvmlSystemGetHicVersion nvmlSystemGetConfComputeCapabilities
    nvmlSystemGetConfComputeState nvmlSystemGetConfComputeKeyRotationThresholdInfo
    nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByUUID
    nvmlDeviceGetHandleBySerial nvmlDeviceGetHandleByPciBusId_v2

    nvmlDeviceGetName nvmlDeviceGetBrand nvmlDeviceGetIndex nvmlDeviceGetSerial
    nvmlDeviceGetUUID nvmlDeviceGetMinorNumber nvmlDeviceGetModuleId nvmlDeviceGetBoardId
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetMultiGpuBoard nvmlDeviceGetVbiosVersion
    nvmlDeviceGetPlatformInfo
    nvmlDeviceGetInforomImageVersion nvmlDeviceGetInforomVersion
    nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetGspFirmwareMode nvmlDeviceGetArchitecture nvmlDeviceGetCudaComputeCapability
    nvmlDeviceGetNumGpuCores nvmlDeviceGetMemoryBusWidth nvmlDeviceGetBusType
    nvmlDeviceGetIrqNum nvmlDeviceGetPciInfo_v3 nvmlDeviceGetVirtualizationMode
    nvmlDeviceGetCpuAffinity nvmlDeviceGetCpuAffinityWithinScope nvmlDeviceGetMemoryAffinity
    nvmlDeviceGetNumaNodeId nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetP2PStatus
    nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfoV

    nvmlDeviceGetPersistenceMode nvmlDeviceGetComputeMode nvmlDeviceGetDisplayMode
    nvmlDeviceGetDisplayActive nvmlDeviceGetPowerManagementMode nvmlDeviceGetEccMode
    nvmlDeviceGetDefaultEccMode nvmlDeviceGetPowerSource nvmlDeviceGetAddressingMode
    nvmlDeviceGetAccountingMode nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingPids
    nvmlDeviceGetC2cModeInfoV nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetConfComputeProtectedMemoryUsage

    nvmlDeviceGetUtilizationRates nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetJpgUtilization nvmlDeviceGetOfaUtilization nvmlDeviceGetMemoryInfo
    nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetSamples
    nvmlDeviceGetProcessUtilization nvmlDeviceGetFieldValues
    nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v3
    nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v2
    nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlDeviceGetMPSComputeRunningProcesses_v3
    nvmlDeviceGetDynamicPstatesInfo

    nvmlDeviceGetPowerUsage nvmlDeviceGetPowerManagementLimit
    nvmlDeviceGetPowerManagementDefaultLimit nvmlDeviceGetPowerManagementLimitConstraints
    nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetTotalEnergyConsumption
    nvmlDeviceGetTemperature nvmlDeviceGetTemperatureV nvmlDeviceGetTemperatureThreshold
    nvmlDeviceGetMarginTemperature nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo
    nvmlDeviceGetClock nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons
    nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
    nvmlDeviceGetViolationStatus nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState
    nvmlDeviceGetSupportedPerformanceStates nvmlDeviceGetPerformanceModes
    nvmlDeviceGetCurrentClockFreqs nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetMemClkVfOffset
    nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetNumFans nvmlDeviceGetFanSpeed
    nvmlDeviceGetFanSpeed_v2

    nvmlDeviceGetTotalEccErrors nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetDetailedEccErrors
    nvmlDeviceGetSramEccErrorStatus nvmlDeviceGetRemappedRows nvmlDeviceGetRowRemapperHistogram
    nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRetiredPagesPendingStatus
    nvmlDeviceGetRepairStatus

    nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth
    nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
    nvmlDeviceGetGpuMaxPcieLinkGeneration nvmlDeviceGetPcieSpeed nvmlDeviceGetPcieLinkMaxSpeed
    nvmlDeviceGetPcieReplayCounter nvmlDeviceGetPcieThroughput
    nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvLinkCapability
    nvmlDeviceGetNvLinkErrorCounter nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetNvLinkRemotePciInfo_v2

    nvmlDeviceGetMigMode nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex
    nvmlDeviceIsMigDeviceHandle nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId nvmlDeviceGetAttributes_v2
    nvmlDeviceGetGpuInstanceProfileInfo nvmlDeviceGetGpuInstanceProfileInfoV
    nvmlDeviceGetGpuInstancePossiblePlacements_v2 nvmlDeviceGetGpuInstanceRemainingCapacity
    nvmlDeviceGetGpuInstances nvmlDeviceGetGpuInstanceById nvmlGpuInstanceGetInfo
    nvmlGpuInstanceGetComputeInstances nvmlGpuInstanceGetComputeInstanceById
    nvmlComputeInstanceGetInfo_v2

    nvmlEventSetCreate nvmlDeviceRegisterEvents nvmlDeviceGetSupportedEventTypes
    nvmlEventSetWait_v2 nvmlEventSetFree

    nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderSessions nvmlDeviceGetEncoderCapacity
    nvmlDeviceGetFBCStats nvmlDeviceGetFBCSessions

    nvmlDeviceGetHostVgpuMode nvmlDeviceGetActiveVgpus nvmlDeviceGetVgpuUtilization
    nvmlDeviceGetGridLicensableFeatures_v4 nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceGetFbUsage nvmlVgpuInstanceGetType nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetVmDriverVersion nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetEncoderStats nvmlVgpuTypeGetName nvmlVgpuTypeGetClass
    nvmlVgpuTypeGetFramebufferSize

    nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet
    nvmlGpmMigSampleGet nvmlGpmMetricsGet

    cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetByPCIBusId cuDeviceGetName
    cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDeviceGetPCIBusId
    cuDeviceCanAccessPeer cuDeviceGetP2PAttribute
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2
    cuDevicePrimaryCtxSetFlags_v2 cuDevicePrimaryCtxGetState
    cuCtxCreate_v2 cuCtxDestroy_v2 cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSetCurrent
    cuCtxGetCurrent cuCtxGetDevice cuCtxSynchronize cuCtxGetStreamPriorityRange
    cuCtxEnablePeerAccess cuCtxDisablePeerAccess
    cuModuleLoadData cuModuleUnload cuModuleGetFunction cuModuleGetGlobal_v2
    cuFuncGetAttribute cuFuncSetAttribute cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuLaunchKernel
    cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemAllocHost_v2 cuMemHostAlloc cuMemFreeHost
    cuMemHostRegister_v2 cuMemHostUnregister
    cuMemsetD8_v2 cuMemsetD8Async cuMemsetD32_v2 cuMemsetD32Async
    cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2
    cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2 cuMemcpyPeer cuMemcpyPeerAsync
    cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery
    cuStreamWaitEvent cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventQuery
    cuEventSynchronize cuEventElapsedTime
}

impl Function {
    /// Whether it is one of libcuda's, and answers its codes.
    pub fn is_cuda(self) -> bool {
        self >= Function::cuInit
    }

    /// The function of that symbol name.
    pub fn from_name(name: &str) -> Option<Function> {
        Function::ALL.iter().copied().find(|f| f.name() == name)
    }
}

/// A function and the leading numbers it was asked with, written `name/1/2` in scenarios and model
/// tables: a temperature sensor, a field id, a link and a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The function.
    pub function: Function,
    args: [u32; 3],
    len: u8,
}

impl Key {
    /// A key of a function and at most three arguments.
    pub fn new(function: Function, args: &[u32]) -> Key {
        let mut key = Key { function, args: [0; 3], len: args.len().min(3) as u8 };
        for (slot, arg) in key.args.iter_mut().zip(args) {
            *slot = *arg;
        }
        key
    }

    /// Reads `name/1/2`.
    pub fn parse(text: &str) -> Result<Key, String> {
        let mut parts = text.split('/');
        let name = parts.next().unwrap_or_default();
        let function =
            Function::from_name(name).ok_or_else(|| format!("'{name}' is no function of this library"))?;
        let args: Vec<u32> = parts
            .map(|p| p.parse().map_err(|_| format!("'{p}' in '{text}' is no number")))
            .collect::<Result<_, _>>()?;
        if args.len() > 3 {
            return Err(format!("'{text}' has more than three arguments"));
        }
        Ok(Key::new(function, &args))
    }

    /// The key, then the key with ever fewer arguments.
    pub fn shortening(&self) -> impl Iterator<Item = Key> + '_ {
        (0..=self.args().len()).rev().map(|n| Key::new(self.function, &self.args()[..n]))
    }

    /// The arguments.
    pub fn args(&self) -> &[u32] {
        &self.args[..usize::from(self.len)]
    }

    /// Whether a call with these arguments is meant: a key without arguments means them all.
    pub fn covers(&self, call: &Key) -> bool {
        self.function == call.function && call.args().starts_with(self.args())
    }
}
