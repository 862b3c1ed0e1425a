//! Reasons for the early end of a run, and the classification of CUDA driver errors. An error is either a fault of the
//! GPU or its driver, or a condition of this environment that is not the GPU's fault.

use model::catalog::CanarySkip;

/// An error of the CUDA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CudaError {
    pub code: u32,
    /// Driver function that returned the error.
    pub call: &'static str,
}

/// Reason for the early end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The driver failed. No further call is made.
    Fault(CudaError),
    /// The run is impossible here.
    Unable(CanarySkip, String),
    /// The run stopped between two kernels, for this reason and because of these processes.
    Abandoned(String, Vec<u32>),
}

/// Result of work that may end the run early.
pub(crate) type Try<T> = Result<T, Ended>;

/// Returns the reason why the run is impossible, or `None` if the error is a fault of the GPU or its driver. Kernels
/// and arguments are verified, so errors that usually come from the program (such as an illegal address) are faults
/// here. An unknown code is a fault too, because new codes are mostly about hardware. Errors about incorrect calls are
/// not evidence against the GPU.
pub fn skip(code: u32) -> Option<CanarySkip> {
    use CanarySkip as S;
    Some(match code {
        2 => S::NoMemory,
        46 => S::DeviceUnavailable,
        100 | 101 => S::NoDevice,
        34 => S::ForeignLibrary,
        35 | 36 | 804 => S::OldDriver,
        200 | 209 | 218 | 221..=223 | 500 => S::NoKernels,
        800 => S::NoPermission,
        805..=810 => S::Mps,
        // Invalid values, handles, attributes and program states, and functions that this system does not support.
        1 | 4..=8 | 102 | 201 | 202 | 205..=208 | 210..=213 | 215..=217 | 219 | 224 | 225 => S::Environment,
        300..=303 | 400..=402 | 600 | 701 | 703..=705 | 708 | 711..=713 | 720 | 801 => S::Environment,
        900..=910 | 912..=915 => S::Environment,
        _ => return None,
    })
}

/// CUresult codes and their names in the header, without the prefix.
const NAMES: &str = "1 INVALID_VALUE, 2 OUT_OF_MEMORY, 3 NOT_INITIALIZED, 4 DEINITIALIZED, 34 STUB_LIBRARY, \
    36 CALL_REQUIRES_NEWER_DRIVER, 46 DEVICE_UNAVAILABLE, 100 NO_DEVICE, 101 INVALID_DEVICE, \
    102 DEVICE_NOT_LICENSED, 200 INVALID_IMAGE, 201 INVALID_CONTEXT, 209 NO_BINARY_FOR_GPU, \
    214 ECC_UNCORRECTABLE, 217 PEER_ACCESS_UNSUPPORTED, 218 INVALID_PTX, \
    220 NVLINK_UNCORRECTABLE, 221 JIT_COMPILER_NOT_FOUND, 222 UNSUPPORTED_PTX_VERSION, \
    223 JIT_COMPILATION_DISABLED, 226 CONTAINED, 302 SHARED_OBJECT_SYMBOL_NOT_FOUND, \
    303 SHARED_OBJECT_INIT_FAILED, 304 OPERATING_SYSTEM, 400 INVALID_HANDLE, 500 NOT_FOUND, \
    600 NOT_READY, 700 ILLEGAL_ADDRESS, 701 LAUNCH_OUT_OF_RESOURCES, 702 LAUNCH_TIMEOUT, \
    709 CONTEXT_IS_DESTROYED, 710 ASSERT, 714 HARDWARE_STACK_ERROR, 715 ILLEGAL_INSTRUCTION, \
    716 MISALIGNED_ADDRESS, 717 INVALID_ADDRESS_SPACE, 718 INVALID_PC, 719 LAUNCH_FAILED, \
    721 TENSOR_MEMORY_LEAK, 800 NOT_PERMITTED, 801 NOT_SUPPORTED, 802 SYSTEM_NOT_READY, \
    803 SYSTEM_DRIVER_MISMATCH, 804 COMPAT_NOT_SUPPORTED_ON_DEVICE, 805 MPS_CONNECTION_FAILED, \
    806 MPS_RPC_FAILURE, 807 MPS_SERVER_NOT_READY, 808 MPS_MAX_CLIENTS_REACHED, \
    809 MPS_MAX_CONNECTIONS_REACHED, 810 MPS_CLIENT_TERMINATED, 911 EXTERNAL_DEVICE, \
    916 KEY_ROTATION, 999 UNKNOWN";

/// Returns the header's name for a code, or its number if the code is not listed here.
pub fn name(code: u32) -> String {
    let number = code.to_string();
    let names = NAMES.split(", ").filter_map(|entry| entry.split_once(' '));
    let name = names.into_iter().find(|(of, _)| *of == number).map_or(number.as_str(), |(_, name)| name);
    format!("CUDA_ERROR_{name}")
}

impl From<CudaError> for Ended {
    fn from(error: CudaError) -> Ended {
        match skip(error.code) {
            None => Ended::Fault(error),
            Some(reason) => Ended::Unable(reason, skip_text(error, reason)),
        }
    }
}

/// Returns the text of a skip, with the remedy.
fn skip_text(error: CudaError, reason: CanarySkip) -> String {
    let hint = match (reason, error.code) {
        (CanarySkip::NoMemory, _) if error.call == "cuMemHostAlloc" => {
            "not enough pinned host memory; raise the memory limit (cgroup) of this process"
        }
        (CanarySkip::NoMemory, _) => "not enough free device memory; lower canary.max_memory_mib",
        (CanarySkip::DeviceUnavailable, _) => {
            "another process uses the GPU exclusively, or its compute mode is not DEFAULT (nvidia-smi -c DEFAULT)"
        }
        (CanarySkip::NoDevice, _) => {
            "CUDA does not list this GPU; check this process's access to it and the fabric manager, then reset the GPU"
        }
        (CanarySkip::ForeignLibrary, _) => {
            "the stub library of a CUDA toolkit was loaded; set --cuda-library to the driver's own library"
        }
        (CanarySkip::OldDriver, 804) => {
            "a forward compatibility package that this GPU cannot use was loaded; set --cuda-library to the driver's \
             own library"
        }
        (CanarySkip::OldDriver, _) => "the driver is older than its library requires",
        (CanarySkip::NoKernels, _) => "the driver does not accept the machine code for this GPU",
        (CanarySkip::NoPermission, _) => "this process lacks the permission",
        (CanarySkip::Mps, _) => "MPS serves this GPU",
        _ => "not a fault of the GPU",
    };
    format!("{} from {}: {hint}", name(error.code), error.call)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults of the driver, and faults that our verified kernels can only cause on a defective GPU.
    const FAULTS: [u32; 21] = [
        214, 220, 226, 304, 714, 802, 803, 911, 916, 999, 3, 700, 702, 710, 715, 716, 717, 718, 719, 721, 709,
    ];

    #[test]
    fn faults_are_faults_and_nothing_of_the_environment_is() {
        for code in FAULTS {
            assert_eq!(skip(code), None, "{code}");
            let error = CudaError { code, call: "cuStreamSynchronize" };
            assert_eq!(Ended::from(error), Ended::Fault(error));
        }
        use CanarySkip as S;
        let skips = [
            (46, S::DeviceUnavailable),
            (2, S::NoMemory),
            (100, S::NoDevice),
            (101, S::NoDevice),
            (34, S::ForeignLibrary),
            (36, S::OldDriver),
            (209, S::NoKernels),
            (221, S::NoKernels),
            (222, S::NoKernels),
            (223, S::NoKernels),
            (800, S::NoPermission),
            (801, S::Environment),
            (804, S::OldDriver),
            (600, S::Environment),
        ];
        for (code, reason) in skips.into_iter().chain((805..=810).map(|code| (code, S::Mps))) {
            assert_eq!(skip(code), Some(reason), "{code}");
            let Ended::Unable(read, text) = Ended::from(CudaError { code, call: "cuInit" }) else {
                panic!("{code} ends as a fault")
            };
            assert_eq!(read, reason);
            assert!(text.starts_with(&format!("{} from cuInit: ", name(code))), "{text}");
        }
    }

    #[test]
    fn a_call_made_wrongly_says_nothing_of_the_gpu_and_an_unknown_code_does() {
        for code in [1, 201, 400, 500, 701] {
            assert!(skip(code).is_some(), "{code}");
        }
        for code in [227, 722, 917, 1000, u32::MAX] {
            assert_eq!(skip(code), None, "{code}");
            assert_eq!(name(code), format!("CUDA_ERROR_{code}"));
        }
    }

    #[test]
    fn out_of_memory_names_the_memory_that_is_short() {
        let text = |call| match Ended::from(CudaError { code: 2, call }) {
            Ended::Unable(CanarySkip::NoMemory, text) => text,
            other => panic!("{other:?}"),
        };
        assert!(text("cuMemHostAlloc").contains("host memory"));
        assert!(text("cuMemAlloc_v2").contains("canary.max_memory_mib"));
    }

    #[test]
    fn every_fault_has_its_name() {
        for code in FAULTS {
            assert!(!name(code).ends_with(&code.to_string()), "{code}");
        }
    }
}
