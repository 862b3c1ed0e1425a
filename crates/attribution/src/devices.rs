//! What device plugins, dynamic resource allocation and Slurm call a GPU or MIG device. Pure.

/// What the id of a device names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A GPU or MIG device by its UUID. Old drivers name a MIG device after its GPU: `MIG-GPU-…/1/0`.
    Uuid(&'a str),
    /// A GPU by NVML's index, and what follows: the part of the GPU, empty for all of it.
    Index(u32, &'a str),
    /// A GPU by the N of its device file `/dev/nvidiaN`, and what follows likewise.
    Minor(u32, &'a str),
    /// Something that only its device plugin understands.
    Unknown,
}

impl Named<'_> {
    /// GPU UUID, GPU and compute instance id of a MIG device in the old form, `MIG-GPU-…/1/0`.
    pub fn mig_of_gpu(&self) -> Option<(&str, u32, u32)> {
        let Named::Uuid(uuid) = self else { return None };
        let mut parts = uuid.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-"))?.split('/');
        let (gpu, instance, compute) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some((gpu, instance.parse().ok()?, compute.parse().ok()?))
    }
}

/// Reads an id of NVIDIA's or GKE's device plugin, of NVIDIA's driver for dynamic claims, or of Slurm: `GPU-…`,
/// `MIG-…`; `2` or `2:1` (index, and MIG device); `nvidia2` or `nvidia2/gi1`; `gpu-2` or `gpu-2-mig-19-0-1`, also after a
/// claim's id.
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

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(id in "(gpu-|nvidia|GPU-|MIG-|/|:|[0-9]{1,12}|\\PC){0,8}") {
            let _ = named(&id).mig_of_gpu();
        }
    }
}
