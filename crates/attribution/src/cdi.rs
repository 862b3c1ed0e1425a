//! The CDI specification of a dynamic claim, which NVIDIA's driver writes for the container runtime. It lists
//! the device files of every device, which confirms what was allocated. The environment in it names no device.
//! Reading is for threads that may wait ([`host::reader`]).

use std::collections::BTreeMap;

use yaml_serde::Value;

use super::proc::read;
use host::Host;

/// Folders of the specifications. The second is usually a link to the first, and may lead out of a mounted
/// root.
const FOLDERS: [&str; 2] = ["/run/cdi", "/var/run/cdi"];
/// Maximum size of a specification in bytes; a device takes about 2 KiB.
const MOST_BYTES: u64 = 256 * 1024;
/// The driver's table of the files in `/dev/nvidia-caps`.
const CAPABILITIES: &str = "/proc/driver/nvidia-caps/mig-minors";
/// Maximum size of that table in bytes; 32 GPUs with 15 instances each take 130 KiB.
const MOST_CAPABILITY_BYTES: u64 = 1024 * 1024;
/// Maximum length of a claim's UID in bytes.
const MOST_UID_BYTES: usize = 64;

/// Identity of a claimed device according to its device files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CdiWitness {
    /// Minor number of the GPU.
    pub minor: u32,
    /// Part of the GPU.
    pub part: CdiPart,
}

/// Part of a GPU to which device files give access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiPart {
    /// All parts of the GPU.
    Whole,
    /// A GPU instance by its id.
    Instance(u32),
    /// A MIG device that the table does not identify.
    Unknown,
}

/// Returns which device the specification of this claim describes, or `None` if the specification is missing,
/// invalid or ambiguous. May wait.
pub fn look(host: &Host, uid: &str, device: &str) -> Option<CdiWitness> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !(1..=MOST_UID_BYTES).contains(&uid.len()) || !uid.bytes().all(plain) {
        return None;
    }
    let file = format!("k8s.gpu.nvidia.com-claim_{uid}.yaml");
    let mut texts = FOLDERS.iter().filter_map(|folder| {
        let bytes = read(&host.path(folder).join(&file), MOST_BYTES).ok()?;
        ((bytes.len() as u64) < MOST_BYTES).then(|| String::from_utf8(bytes).ok())?
    });
    let files = device_files(&texts.next()?, &format!("{uid}-{device}"))?;
    let table = || {
        let bytes = read(&host.path(CAPABILITIES), MOST_CAPABILITY_BYTES).unwrap_or_default();
        capabilities(&String::from_utf8_lossy(&bytes))
    };
    witness(&files, table)
}

/// Returns whether a text may have aliases, with which a few lines can expand to any number of nodes. The
/// driver's library writes none.
fn may_have_alias(text: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || "[]{},:?".contains(c)).any(|word| word.starts_with('*'))
}

/// Returns the device files of this device in a specification.
fn device_files(text: &str, name: &str) -> Option<Vec<String>> {
    if may_have_alias(text) {
        return None;
    }
    let specification: Value = yaml_serde::from_str(text).ok()?;
    let mut devices = specification.get("devices")?.as_sequence()?.iter();
    let device = devices.find(|device| device.get("name").and_then(Value::as_str) == Some(name))?;
    let files = device.get("containerEdits")?.get("deviceNodes")?.as_sequence()?.iter();
    files.map(|file| Some(file.get("path")?.as_str()?.to_owned())).collect()
}

/// Parses the table of device files, for example `gpu0/gi1/access 21`. Returns GPU and instance by the number
/// of the file.
fn capabilities(text: &str) -> BTreeMap<u32, (u32, u32)> {
    let line = |line: &str| {
        let (path, number) = line.split_once(' ')?;
        let mut parts = path.split('/');
        let minor = parts.next()?.strip_prefix("gpu")?.parse().ok()?;
        let instance = parts.next()?.strip_prefix("gi")?.parse().ok()?;
        Some((number.trim().parse().ok()?, (minor, instance)))
    };
    text.lines().filter_map(line).collect()
}

/// Returns the device to which the files give access, or `None` if they belong to no GPU or to several.
fn witness(files: &[String], table: impl FnOnce() -> BTreeMap<u32, (u32, u32)>) -> Option<CdiWitness> {
    let numbers = |prefix: &str| -> Vec<u32> {
        let mut found: Vec<u32> =
            files.iter().filter_map(|file| file.strip_prefix(prefix)?.parse().ok()).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    let (gpus, caps) = (numbers("/dev/nvidia"), numbers("/dev/nvidia-caps/nvidia-cap"));
    let [minor] = gpus[..] else { return None };
    if caps.is_empty() {
        return Some(CdiWitness { minor, part: CdiPart::Whole });
    }
    let table = table();
    let of_gpu =
        |number: &u32| table.get(number).filter(|(gpu, _)| *gpu == minor).map(|(_, instance)| *instance);
    // A MIG device has the files of a GPU instance and of its compute instance.
    let instances: Option<Vec<u32>> = caps.iter().map(of_gpu).collect();
    let part = match instances.as_deref() {
        Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => CdiPart::Instance(*first),
        _ => CdiPart::Unknown,
    };
    Some(CdiWitness { minor, part })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "3f1e0f6c-7c43-4f0f-8a3b-0c5e1b1e7a55";
    const MINORS: &str = "config 1\nmonitor 2\ngpu0/gi1/access 21\ngpu0/gi1/ci0/access 22\ngpu1/gi1/access 156\n\
                          gpu1/gi1/ci0/access 157\ngpu1/gi2/ci0/access 166\n";

    /// A specification as the driver's library writes it.
    fn specification(devices: &[(&str, &[&str])]) -> String {
        let mut text = "cdiVersion: 0.5.0\nkind: k8s.gpu.nvidia.com/claim\ncontainerEdits:\n  env:\n  - \
                        NVIDIA_VISIBLE_DEVICES=void\n  deviceNodes:\n  - path: /dev/nvidiactl\ndevices:\n"
            .to_owned();
        for (name, files) in devices {
            text += "- containerEdits:\n    deviceNodes:\n";
            for file in *files {
                text += &format!("    - path: {file}\n      hostPath: /run/nvidia/driver{file}\n");
            }
            text += &format!("  name: {UID}-{name}\n");
        }
        text
    }

    fn looked(devices: &[(&str, &[&str])], minors: &str, device: &str) -> Option<CdiWitness> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(&format!("var/run/cdi/k8s.gpu.nvidia.com-claim_{UID}.yaml"), &specification(devices));
        write("proc/driver/nvidia-caps/mig-minors", minors);
        look(&Host::new(root.path()), UID, device)
    }

    #[test]
    fn device_files_tell_gpu_and_instance() {
        let mig = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"];
        let devices: [(&str, &[&str]); 2] = [("gpu-5", &["/dev/nvidia5"]), ("gpu-1-mig-1g18gb-19-6", &mig)];
        let witness = |minor, part| Some(CdiWitness { minor, part });
        assert_eq!(looked(&devices, MINORS, "gpu-5"), witness(5, CdiPart::Whole));
        assert_eq!(looked(&devices, MINORS, "gpu-1-mig-1g18gb-19-6"), witness(1, CdiPart::Instance(1)));
        assert_eq!(looked(&devices, "", "gpu-1-mig-1g18gb-19-6"), witness(1, CdiPart::Unknown));
        assert_eq!(looked(&devices, MINORS, "gpu-6"), None, "not in the claim");
        let crossed = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap166"];
        assert_eq!(looked(&[("a", &crossed)], MINORS, "a"), witness(1, CdiPart::Unknown));
        let elsewhere = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21"];
        assert_eq!(looked(&[("a", &elsewhere)], MINORS, "a"), witness(1, CdiPart::Unknown));
        for none in [&["/dev/nvidia1", "/dev/nvidia2"][..], &["/dev/nvidiactl"], &[]] {
            assert_eq!(looked(&[("a", none)], MINORS, "a"), None, "{none:?}");
        }
    }

    #[test]
    fn no_file_elsewhere_is_read() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::new(root.path());
        for uid in ["", "../../etc/x", "a/b", &"1".repeat(65)] {
            assert_eq!(look(&host, uid, "gpu-0"), None, "{uid}");
        }
    }

    #[test]
    fn a_specification_that_is_too_long_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/cdi");
        std::fs::create_dir_all(&folder).unwrap();
        let text = specification(&[("gpu-0", &["/dev/nvidia0"])]);
        let file = folder.join(format!("k8s.gpu.nvidia.com-claim_{UID}.yaml"));
        std::fs::write(&file, &text).unwrap();
        assert!(look(&Host::new(root.path()), UID, "gpu-0").is_some());
        std::fs::write(&file, text + &"#".repeat(MOST_BYTES as usize)).unwrap();
        assert_eq!(look(&Host::new(root.path()), UID, "gpu-0"), None);
    }

    #[test]
    fn a_specification_with_aliases_says_nothing() {
        let files = "{path: /dev/nvidia0}, ".repeat(5_000);
        for alias in ["*a", "[*a]", "{? *a : 1}", "{?*a : 1}", "{x:*a}"] {
            let devices = format!("{{name: b, containerEdits: {alias}}}, ").repeat(1_000);
            let text = format!("x: &a {{deviceNodes: [{files}]}}\ndevices: [{devices}]\n");
            assert_eq!(device_files(&text, "b"), None, "{alias}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(devices:|- name: a|containerEdits|\\n|  |: |[|]|&a|\\*a|\\PC){0,40}") {
            let _ = device_files(&text, "a");
            capabilities(&text);
        }
    }
}
