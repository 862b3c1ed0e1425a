//! libcuda's return codes: their numbers, their names, and which of them end a context.

use std::ffi::CStr;

use crate::value::Code;

macro_rules! codes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// The return codes, under their names.
        #[allow(missing_docs)]
        pub mod cu {
            use super::Code;
            $(#[allow(dead_code)] pub const $name: Code = $number;)*
        }
        const CODES: &[(&CStr, Code)] = &[$((
            match CStr::from_bytes_with_nul(concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            $number,
        )),*];
    };
}

codes! {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    STUB_LIBRARY = 34,
    CALL_REQUIRES_NEWER_DRIVER = 36,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    DEVICE_NOT_LICENSED = 102,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    MAP_FAILED = 205,
    UNMAP_FAILED = 206,
    NO_BINARY_FOR_GPU = 209,
    ECC_UNCORRECTABLE = 214,
    UNSUPPORTED_LIMIT = 215,
    CONTEXT_ALREADY_IN_USE = 216,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    NVLINK_UNCORRECTABLE = 220,
    JIT_COMPILER_NOT_FOUND = 221,
    UNSUPPORTED_PTX_VERSION = 222,
    JIT_COMPILATION_DISABLED = 223,
    CONTAINED = 226,
    INVALID_SOURCE = 300,
    FILE_NOT_FOUND = 301,
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
    SHARED_OBJECT_INIT_FAILED = 303,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710,
    TOO_MANY_PEERS = 711,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    HARDWARE_STACK_ERROR = 714,
    ILLEGAL_INSTRUCTION = 715,
    MISALIGNED_ADDRESS = 716,
    INVALID_ADDRESS_SPACE = 717,
    INVALID_PC = 718,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    TENSOR_MEMORY_LEAK = 721,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    MPS_CONNECTION_FAILED = 805,
    MPS_RPC_FAILURE = 806,
    MPS_SERVER_NOT_READY = 807,
    MPS_MAX_CLIENTS_REACHED = 808,
    MPS_MAX_CONNECTIONS_REACHED = 809,
    MPS_CLIENT_TERMINATED = 810,
    TIMEOUT = 909,
    EXTERNAL_DEVICE = 911,
    KEY_ROTATION = 916,
    UNKNOWN = 999,
}

/// The code of a name such as `CUDA_ERROR_LAUNCH_FAILED`.
pub fn code_of(name: &str) -> Option<Code> {
    CODES.iter().find(|(n, _)| n.to_bytes() == name.as_bytes()).map(|(_, code)| *code)
}

/// The name of a code.
pub fn name_of(code: Code) -> Option<&'static CStr> {
    if code == 0 {
        return Some(c"CUDA_SUCCESS");
    }
    CODES.iter().find(|(_, c)| *c == code).map(|(name, _)| *name)
}

/// Whether the context in which a call returned this is dead: every later call returns it too.
pub fn sticky(code: Code) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        assert_eq!(code_of("CUDA_ERROR_LAUNCH_FAILED"), Some(719));
        assert_eq!(name_of(719), Some(c"CUDA_ERROR_LAUNCH_FAILED"));
        assert_eq!((code_of("CUDA_ERROR_OOPS"), name_of(12345)), (None, None));
        assert!(sticky(716) && !sticky(cu::OUT_OF_MEMORY));
    }
}
