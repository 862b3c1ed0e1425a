//! What a call answers: a value of one of NVML's shapes, or one of its return codes.

use nvml_wrapper_sys::bindings as sys;

/// An NVML return code.
pub type Code = sys::nvmlReturn_t;

/// A value, or the code the call returns instead.
pub type Answer<T> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $constant:ident),* $(,)?) => {
        /// The return codes, under their names.
        #[allow(missing_docs)]
        pub mod code {
            use super::{sys, Code};
            $(pub const $name: Code = sys::$constant;)*
        }
        const CODES: &[(&str, Code)] = &[$((concat!("NVML_", stringify!($name)), code::$name)),*];
    };
}

codes! {
    SUCCESS = nvmlReturn_enum_NVML_SUCCESS,
    ERROR_UNINITIALIZED = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
    ERROR_INVALID_ARGUMENT = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
    ERROR_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
    ERROR_NO_PERMISSION = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
    ERROR_ALREADY_INITIALIZED = nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED,
    ERROR_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
    ERROR_INSUFFICIENT_SIZE = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    ERROR_INSUFFICIENT_POWER = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER,
    ERROR_DRIVER_NOT_LOADED = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
    ERROR_TIMEOUT = nvmlReturn_enum_NVML_ERROR_TIMEOUT,
    ERROR_IRQ_ISSUE = nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE,
    ERROR_LIBRARY_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND,
    ERROR_FUNCTION_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
    ERROR_CORRUPTED_INFOROM = nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM,
    ERROR_GPU_IS_LOST = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
    ERROR_RESET_REQUIRED = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
    ERROR_OPERATING_SYSTEM = nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
    ERROR_LIB_RM_VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    ERROR_IN_USE = nvmlReturn_enum_NVML_ERROR_IN_USE,
    ERROR_MEMORY = nvmlReturn_enum_NVML_ERROR_MEMORY,
    ERROR_NO_DATA = nvmlReturn_enum_NVML_ERROR_NO_DATA,
    ERROR_VGPU_ECC_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    ERROR_INSUFFICIENT_RESOURCES = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES,
    ERROR_FREQ_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED,
    ERROR_ARGUMENT_VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    ERROR_DEPRECATED = nvmlReturn_enum_NVML_ERROR_DEPRECATED,
    ERROR_NOT_READY = nvmlReturn_enum_NVML_ERROR_NOT_READY,
    ERROR_GPU_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND,
    ERROR_INVALID_STATE = nvmlReturn_enum_NVML_ERROR_INVALID_STATE,
    ERROR_RESET_TYPE_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED,
    ERROR_UNKNOWN = nvmlReturn_enum_NVML_ERROR_UNKNOWN,
}

/// The code of a name such as `NVML_ERROR_NOT_SUPPORTED`.
pub fn code_of(name: &str) -> Option<Code> {
    CODES.iter().find(|(n, _)| *n == name).map(|(_, code)| *code)
}

/// The name of a code.
pub fn name_of(code: Code) -> &'static str {
    CODES.iter().find(|(_, c)| *c == code).map_or("NVML_ERROR_UNKNOWN", |(name, _)| name)
}

/// A value as model tables and scenarios write it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number. Unsigned numbers above 2^63 are written negative; -1 is NVML's "not
    /// available" in every width.
    Int(i64),
    /// A double.
    Float(f64),
    /// A string.
    Text(String),
    /// The members of a struct, or the entries of a list, in NVML's order.
    List(Vec<Value>),
    /// The call returns this code instead.
    Error(Code),
}

impl Value {
    /// Reads a TOML value. A string that names a return code is that error, `"blank"` is NVML's
    /// "not available".
    pub fn from_toml(value: &toml::Value) -> Result<Value, String> {
        Ok(match value {
            toml::Value::Integer(n) => Value::Int(*n),
            toml::Value::Float(x) => Value::Float(*x),
            toml::Value::Boolean(b) => Value::Int(i64::from(*b)),
            toml::Value::String(s) if s == "blank" => Value::Int(-1),
            toml::Value::String(s) if s.starts_with("NVML_") => {
                Value::Error(code_of(s).ok_or_else(|| format!("'{s}' is no NVML return code"))?)
            }
            toml::Value::String(s) => Value::Text(s.clone()),
            toml::Value::Array(list) => {
                Value::List(list.iter().map(Value::from_toml).collect::<Result<_, _>>()?)
            }
            other => return Err(format!("a {} is no value of a call", other.type_str())),
        })
    }

    /// A list of numbers.
    pub fn list<const N: usize>(numbers: [u64; N]) -> Value {
        Value::List(numbers.into_iter().map(|n| Value::Int(n as i64)).collect())
    }

    /// Member `i` of a struct; a plain value is a struct of one.
    fn at(&self, i: usize) -> Answer<&Value> {
        match self {
            Value::List(list) => list.get(i).ok_or(code::ERROR_UNKNOWN),
            plain if i == 0 => Ok(plain),
            _ => Err(code::ERROR_UNKNOWN),
        }
    }

    /// Member `i` as a 64-bit number.
    pub fn u64(&self, i: usize) -> Answer<u64> {
        match self.at(i)? {
            Value::Int(n) => Ok(*n as u64),
            Value::Float(x) => Ok(*x as u64),
            _ => Err(code::ERROR_UNKNOWN),
        }
    }

    /// Member `i` as a 32-bit number.
    pub fn u32(&self, i: usize) -> Answer<u32> {
        self.u64(i).map(|n| n as u32)
    }

    /// Member `i` as a double.
    pub fn f64(&self, i: usize) -> Answer<f64> {
        match self.at(i)? {
            Value::Int(n) => Ok(*n as f64),
            Value::Float(x) => Ok(*x),
            _ => Err(code::ERROR_UNKNOWN),
        }
    }

    /// The string.
    pub fn text(&self) -> Answer<&str> {
        self.text_at(0)
    }

    /// Member `i` as a string.
    pub fn text_at(&self, i: usize) -> Answer<&str> {
        match self.at(i)? {
            Value::Text(s) => Ok(s),
            _ => Err(code::ERROR_UNKNOWN),
        }
    }

    /// The entries of a list, as numbers.
    pub fn numbers(&self) -> Answer<Vec<u64>> {
        match self {
            Value::List(list) => (0..list.len()).map(|i| self.u64(i)).collect(),
            _ => Ok(vec![self.u64(0)?]),
        }
    }
}
