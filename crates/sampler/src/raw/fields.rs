//! Field values of a GPU and its parts. The wrapper can only read part 0.

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, FieldIdScheme};
use nvml_wrapper_sys::bindings as sys;

use super::symbol;

/// Scope of all parts together.
pub const ALL_PARTS: u32 = u32::MAX;

/// Reads fields, given as id and part, in one call. Returns one result per field in the same order.
pub fn values_at(
    device: &Device<'static>,
    fields: &[(u32, u32)],
) -> Result<Vec<Result<SampleValue, NvmlError>>, NvmlError> {
    let f = symbol(&device.nvml().lib().nvmlDeviceGetFieldValues)?;
    let count = i32::try_from(fields.len()).map_err(|_| NvmlError::InvalidArg)?;
    let mut entries = entries(fields, device.nvml().field_id_scheme());
    // SAFETY: the handle is valid while the library is loaded, and `entries` has `count` entries and the extra
    // one behind them that the driver accesses.
    nvml_try(unsafe { f(device.handle(), count, entries.as_mut_ptr()) })?;
    Ok(entries.iter().take(fields.len()).map(outcome).collect())
}

/// Returns the entries for the driver: one per field, and an extra one that is not counted. For counters of
/// NVLink (fields 138 to 141 and 161 to 163) libnvidia-ml 580.159 reads the entry behind the last, and writes
/// to it if it is about the same field and link. Without the extra entry that would be past the end of the
/// array. The driver skips an entry that already has an error. Observed on H200s,
/// `docs/evidence/2026-11-22-h200/x2-field-values-past-the-end.md`.
fn entries(fields: &[(u32, u32)], scheme: FieldIdScheme) -> Vec<sys::nvmlFieldValue_t> {
    let entry = |id, part, code| sys::nvmlFieldValue_t {
        fieldId: id,
        scopeId: part,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: code,
        value: sys::nvmlValue_t { ullVal: 0 },
    };
    let asked = fields
        .iter()
        .map(|(id, part)| entry(renumbered(*id, scheme), *part, sys::nvmlReturn_enum_NVML_SUCCESS));
    asked.chain([entry(0, 0, sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)]).collect()
}

/// Returns the driver's number of a field of the bindings. Drivers from 580.82 on have renumbered some fields.
fn renumbered(id: u32, scheme: FieldIdScheme) -> u32 {
    match id {
        _ if scheme == FieldIdScheme::V12 => id,
        251..=255 => id + 18,
        256..=273 => id - 5,
        _ => id,
    }
}

fn outcome(entry: &sys::nvmlFieldValue_t) -> Result<SampleValue, NvmlError> {
    nvml_try(entry.nvmlReturn)?;
    // SAFETY: as in `typed`.
    if entry.timestamp == 0 && entry.valueType == 0 && unsafe { entry.value.ullVal } == 0 {
        // The entry is unchanged, so the driver did not answer. A missing value is not zero.
        return Err(NvmlError::NotSupported);
    }
    typed(entry.valueType, entry.value)
}

/// Returns the value of NVML's union by its type.
pub(super) fn typed(kind: sys::nvmlValueType_t, value: sys::nvmlValue_t) -> Result<SampleValue, NvmlError> {
    // SAFETY: every bit pattern is valid for every member, and the union was written whole before the call.
    Ok(unsafe {
        match kind {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => SampleValue::F64(value.dVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => SampleValue::U32(value.uiVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => SampleValue::U64(value.ulVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => SampleValue::U64(value.ullVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => SampleValue::I64(value.sllVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => SampleValue::I64(value.siVal.into()),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => SampleValue::U32(value.usVal.into()),
            unknown => return Err(NvmlError::UnexpectedVariant(unknown)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u32, value: sys::nvmlValue_t, code: u32) -> sys::nvmlFieldValue_t {
        sys::nvmlFieldValue_t {
            fieldId: 138,
            scopeId: 3,
            timestamp: 0,
            latencyUsec: 0,
            valueType: kind,
            nvmlReturn: code,
            value,
        }
    }

    #[test]
    fn behind_the_entries_is_one_that_the_driver_passes_over() {
        for fields in [vec![], vec![(138, 0)], (0..18).map(|link| (138, link)).collect()] {
            let entries = entries(&fields, FieldIdScheme::V12);
            assert_eq!(entries.len(), fields.len() + 1);
            let (last, asked) = entries.split_last().unwrap();
            assert_ne!(last.nvmlReturn, 0);
            assert!(asked.iter().all(|entry| entry.nvmlReturn == 0));
            assert!(asked.iter().zip(&fields).all(|(entry, field)| (entry.fieldId, entry.scopeId) == *field));
        }
    }

    #[test]
    fn a_newer_driver_is_asked_by_its_own_numbers() {
        let ids = |scheme| [250, 251, 255, 256, 273, 274].map(|id| renumbered(id, scheme));
        assert_eq!(ids(FieldIdScheme::V12), [250, 251, 255, 256, 273, 274]);
        assert_eq!(ids(FieldIdScheme::V13Update1), [250, 269, 273, 251, 268, 274]);
    }

    #[test]
    fn values_have_the_type_they_say() {
        let all_ones = sys::nvmlValue_t { ullVal: u64::MAX };
        assert_eq!(outcome(&entry(1, all_ones, 0)).ok(), Some(SampleValue::U32(u32::MAX)));
        assert_eq!(outcome(&entry(3, all_ones, 0)).ok(), Some(SampleValue::U64(u64::MAX)));
        assert_eq!(outcome(&entry(4, all_ones, 0)).ok(), Some(SampleValue::I64(-1)));
        assert_eq!(outcome(&entry(5, all_ones, 0)).ok(), Some(SampleValue::I64(-1)));
        assert_eq!(outcome(&entry(6, all_ones, 0)).ok(), Some(SampleValue::U32(0xffff)));
        assert!(matches!(outcome(&entry(7, all_ones, 0)), Err(NvmlError::UnexpectedVariant(7))));
        assert!(matches!(outcome(&entry(3, all_ones, 3)), Err(NvmlError::NotSupported)));
        let nothing = sys::nvmlValue_t { ullVal: 0 };
        assert!(matches!(outcome(&entry(0, nothing, 0)), Err(NvmlError::NotSupported)), "left alone");
        assert_eq!(outcome(&entry(1, nothing, 0)).ok(), Some(SampleValue::U32(0)), "zero is zero");
    }
}
