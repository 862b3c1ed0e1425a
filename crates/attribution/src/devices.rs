//! Names of GPUs and MIG devices in device plugins, dynamic resource allocation and Slurm. The functions are
//! pure.

/// Device that an id names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A GPU or MIG device by its UUID. Old drivers name a MIG device after its GPU: `MIG-GPU-…/1/0`.
    Uuid(&'a str),
    /// A GPU by NVML's index, followed by the part of the GPU, which is empty for the whole GPU.
    Index(u32, &'a str),
    /// A GPU by the N of its device file `/dev/nvidiaN`, followed by the part as above.
    Minor(u32, &'a str),
    /// An id that only its device plugin can interpret.
    Unknown,
}

impl Named<'_> {
    /// Returns GPU UUID, GPU instance id and compute instance id of a MIG device in the old form
    /// `MIG-GPU-…/1/0`.
    pub fn mig_of_gpu(&self) -> Option<(&str, u32, u32)> {
        let Named::Uuid(uuid) = self else { return None };
        let mut parts = uuid.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-"))?.split('/');
        let (gpu, instance, compute) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some((gpu, instance.parse().ok()?, compute.parse().ok()?))
    }
}

/// Parses an id of NVIDIA's or GKE's device plugin, of NVIDIA's driver for dynamic claims, or of Slurm:
/// `GPU-…`, `MIG-…`; `2` or `2:1` (index and MIG device); `nvidia2` or `nvidia2/gi1`; `gpu-2` or
/// `gpu-2-mig-19-0-1`, optionally after the id of a claim.
pub fn named(id: &str) -> Named<'_> {
    if id.starts_with("GPU-") || id.starts_with("MIG-") {
        return Named::Uuid(id);
    }
    let driver =
        id.rfind("gpu-").filter(|at| *at == 0 || id.as_bytes()[at - 1] == b'-').map(|at| &id[at + 4..]);
    let file = driver.or_else(|| id.strip_prefix("nvidia"));
    let number = file.unwrap_or(id);
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    let (number, part) = number.split_at(digits);
    let ends_well = part.chars().next().is_none_or(|c| ":/-".contains(c));
    match number.parse() {
        Ok(minor) if ends_well && file.is_some() => Named::Minor(minor, part),
        Ok(index) if ends_well => Named::Index(index, part),
        _ => Named::Unknown,
    }
}

/// A device as NVIDIA's driver for dynamic resource allocation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicDevice {
    /// A GPU by its minor number: `gpu-2`.
    Gpu(u32),
    /// A MIG device, created before the claim or for it: `gpu-2-mig-1g18gb-19-0`.
    Mig {
        /// Minor number of the GPU.
        minor: u32,
        /// Id of the GPU instance profile.
        profile_id: u32,
        /// First memory slice of the device.
        start: u32,
        /// Number of memory slices, which only the old form `gpu-2-mig-19-0-1` has.
        slices: Option<u32>,
    },
    /// A GPU that is passed to a virtual machine: `gpu-vfio-0`.
    Passthrough,
}

/// Parses the name of a device. Returns `None` for an unknown form. The text of the MIG profile is ignored,
/// because different profiles can have the same text and the id identifies the profile.
pub fn dynamic_device(name: &str) -> Option<DynamicDevice> {
    let rest = name.strip_prefix("gpu-")?;
    if let Some(index) = rest.strip_prefix("vfio-") {
        return number(index).map(|_| DynamicDevice::Passthrough);
    }
    let Some((minor, mig)) = rest.split_once("-mig-") else { return number(rest).map(DynamicDevice::Gpu) };
    let minor = number(minor)?;
    let mut parts = mig.rsplitn(3, '-');
    let (last, middle, profile) = (parts.next()?, parts.next()?, parts.next()?);
    let (middle, last) = (number(middle)?, number(last)?);
    if profile.bytes().all(|byte| byte.is_ascii_digit()) {
        let profile_id = number(profile)?;
        return Some(DynamicDevice::Mig { minor, profile_id, start: middle, slices: Some(last) });
    }
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let a_profile = profile.starts_with(|c: char| c.is_ascii_digit()) && profile.bytes().all(known);
    a_profile.then_some(DynamicDevice::Mig { minor, profile_id: middle, start: last, slices: None })
}

/// Parses a number in the driver's spelling, without needless digits.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_of_all_plugins_are_understood() {
        for (id, is) in [
            ("GPU-1a", Named::Uuid("GPU-1a")),
            ("MIG-77", Named::Uuid("MIG-77")),
            ("3", Named::Index(3, "")),
            ("3:1", Named::Index(3, ":1")),
            ("nvidia12", Named::Minor(12, "")),
            ("nvidia0/gi1/vgpu2", Named::Minor(0, "/gi1/vgpu2")),
            ("gpu-2", Named::Minor(2, "")),
            ("gpu-2-mig-19-0-1", Named::Minor(2, "-mig-19-0-1")),
            ("0b1c-22-gpu-5", Named::Minor(5, "")),
            ("gpu-", Named::Unknown),
            ("nvidia0x", Named::Unknown),
            ("all", Named::Unknown),
            ("", Named::Unknown),
            ("99999999999", Named::Unknown),
        ] {
            assert_eq!(named(id), is, "{id}");
        }
    }

    #[test]
    fn the_old_name_of_a_mig_device_names_gpu_and_instances() {
        assert_eq!(named("MIG-GPU-1a/7/0").mig_of_gpu(), Some(("GPU-1a", 7, 0)));
        for other in ["MIG-1a/7/0", "MIG-GPU-1a/7", "MIG-GPU-1a/7/0/0", "MIG-GPU-1a/x/0", "GPU-1a", "3"] {
            assert_eq!(named(other).mig_of_gpu(), None, "{other}");
        }
    }

    #[test]
    fn names_of_dynamic_devices_are_understood_whole_or_not_at_all() {
        use DynamicDevice::{Gpu, Mig, Passthrough};
        let mig = |minor, profile_id, start| Mig { minor, profile_id, start, slices: None };
        for (name, is) in [
            ("gpu-0", Gpu(0)),
            ("gpu-12", Gpu(12)),
            ("gpu-0-mig-1g5gb-19-0", mig(0, 19, 0)),
            ("gpu-1-mig-1g18gb-me-20-6", mig(1, 20, 6)),
            ("gpu-3-mig-1c.3g71gb-9-4", mig(3, 9, 4)),
            ("gpu-0-mig-19-6-1", Mig { minor: 0, profile_id: 19, start: 6, slices: Some(1) }),
            ("gpu-vfio-1", Passthrough),
        ] {
            assert_eq!(dynamic_device(name), Some(is), "{name}");
        }
        for name in [
            "gpu-",
            "gpu-x",
            "gpu-+1",
            "gpu-01",
            "gpu-0-",
            "gpu-0-mig-",
            "gpu-0-mig-1g5gb-19",
            "gpu-0-mig-19-6",
            "gpu-0-mig-1g5gb-19-x",
            "gpu-0-mig-1G5GB-19-0",
            "gpu-0-mig--19-0",
            "gpu-0-mig-me-19-0",
            "gpu-vfio-",
            "GPU-0",
            "nvidia0",
            "0",
            "channel-0",
            "x-gpu-0",
            "gpu-99999999999",
            "",
        ] {
            assert_eq!(dynamic_device(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(id in "(gpu-|-mig-|nvidia|GPU-|MIG-|/|:|[0-9]{1,12}|\\PC){0,8}") {
            let _ = dynamic_device(&id);
            let _ = named(&id).mig_of_gpu();
        }
    }
}
