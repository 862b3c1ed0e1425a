//! Machine code of the kernels, compiled in advance by `kernels/build.py`, and the choice of code for a GPU.
//!
//! Machine code of one architecture runs on GPUs with the same major and the same or a higher minor number. Code whose
//! name ends in `a` runs on exactly one architecture. All other GPUs use PTX, which their driver compiles. The
//! compilation takes some time, and only `tensor` is slower, because it then uses the oldest of its instructions.

/// Compute capability as major and minor number.
type Capability = (u32, u32);

/// A module that the CUDA driver can load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Target of the module, such as `sm_90a`. `compute_75` is PTX.
    pub name: &'static str,
    /// Content of the module. PTX ends with a zero byte, as the driver requires.
    pub image: &'static [u8],
    /// Lowest and highest compute capability that the module supports.
    least: Capability,
    most: Capability,
}

impl Code {
    /// Returns a checksum of the module, which distinguishes builds of the kernels.
    pub fn checksum(&self) -> u32 {
        crc32fast::hash(self.image)
    }
}

macro_rules! cubin {
    ($name:literal, $least:expr, $most:expr) => {
        Code {
            name: $name,
            image: include_bytes!(concat!("../../../kernels/bin/", $name, ".cubin")),
            least: $least,
            most: $most,
        }
    };
}

/// Machine code of all targets. If two entries match, the later one is the better match.
static CUBINS: [Code; 8] = [
    cubin!("sm_75", (7, 5), (7, u32::MAX)),
    cubin!("sm_80", (8, 0), (8, u32::MAX)),
    cubin!("sm_86", (8, 6), (8, u32::MAX)),
    cubin!("sm_89", (8, 9), (8, u32::MAX)),
    cubin!("sm_90a", (9, 0), (9, 0)),
    cubin!("sm_100a", (10, 0), (10, 0)),
    cubin!("sm_103", (10, 3), (10, u32::MAX)),
    cubin!("sm_120", (12, 0), (12, u32::MAX)),
];

/// Integrated GPUs (Jetson), which cannot run the machine code of other GPUs, whatever its number.
const INTEGRATED: [Capability; 4] = [(5, 3), (6, 2), (7, 2), (8, 7)];

static PTX: Code = Code {
    name: "compute_75",
    image: concat!(include_str!("../../../kernels/bin/compute_75.ptx"), "\0").as_bytes(),
    least: (7, 5),
    most: (u32::MAX, u32::MAX),
};

/// Returns the module for a compute capability, or `None` if the GPU is too old.
pub fn choose(capability: Capability) -> Option<&'static Code> {
    let fits = |code: &&Code| (code.least..=code.most).contains(&capability);
    let cubin = CUBINS.iter().rev().find(fits).filter(|_| !INTEGRATED.contains(&capability));
    cubin.or_else(|| Some(&PTX).filter(fits))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use sha2::{Digest, Sha256};

    use super::*;

    fn name(major: u32, minor: u32) -> Option<&'static str> {
        choose((major, minor)).map(|code| code.name)
    }

    #[test]
    fn each_gpu_takes_what_it_can_run() {
        for (capability, wanted) in [
            ((7, 5), "sm_75"),
            ((8, 0), "sm_80"),
            ((8, 6), "sm_86"),
            ((8, 9), "sm_89"),
            ((9, 0), "sm_90a"),
            ((10, 0), "sm_100a"),
            ((10, 3), "sm_103"),
            ((12, 0), "sm_120"),
            ((12, 1), "sm_120"),
            // An integrated GPU, a GPU without matching machine code, and some future GPUs.
            ((8, 7), "compute_75"),
            ((10, 1), "compute_75"),
            ((11, 0), "compute_75"),
            ((9, 1), "compute_75"),
            ((13, 0), "compute_75"),
        ] {
            assert_eq!(name(capability.0, capability.1), Some(wanted), "{capability:?}");
        }
        for old in [(5, 2), (6, 1), (7, 0), (7, 2)] {
            assert_eq!(choose(old), None, "{old:?}");
        }
    }

    #[test]
    fn modules_are_what_the_driver_loads() {
        for made in &CUBINS {
            let image = made.image;
            assert_eq!(&image[..4], b"\x7fELF", "{}", made.name);
            // ELF machine 190 is CUDA.
            assert_eq!(u16::from_le_bytes([image[18], image[19]]), 190, "{}", made.name);
        }
        let (zero, text) = PTX.image.split_last().unwrap();
        assert_eq!(*zero, 0);
        let text = std::str::from_utf8(text).unwrap();
        assert!(!text.contains('\0') && text.contains("\n.target sm_75\n"));
        // PTX 8.2 is the newest version that the oldest supported driver branch, R535, accepts.
        let version = text.lines().find_map(|line| line.strip_prefix(".version ")).unwrap();
        assert!(version.parse::<f64>().unwrap() <= 8.2, "{version}");
    }

    #[test]
    fn modules_have_all_kernels() {
        let kernels = crate::checks::kernels();
        for code in CUBINS.iter().chain([&PTX]) {
            let text = String::from_utf8_lossy(code.image);
            for kernel in &kernels {
                let section = format!(".text.{kernel}\0");
                let entry = format!(".entry {kernel}(");
                assert!(text.contains(&section) || text.contains(&entry), "{kernel} in {}", code.name);
            }
            assert!(text.contains("tensor_shape"), "{}", code.name);
        }
    }

    /// Returns the content of a section of a 64-bit ELF file.
    fn section<'a>(image: &'a [u8], wanted: &str) -> &'a [u8] {
        let number = |at: usize, bytes: usize| {
            image[at..at + bytes].iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte))
        };
        let (headers, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
        let of = |index: usize| headers + 64 * index;
        let contents = |index: usize| {
            let (begin, size) = (number(of(index) + 24, 8), number(of(index) + 32, 8));
            &image[begin..begin + size]
        };
        let name = |index: usize| {
            let from = &contents(names)[number(of(index), 4)..];
            from.split(|byte| *byte == 0).next().unwrap_or_default()
        };
        contents((0..count).find(|index| name(*index) == wanted.as_bytes()).unwrap())
    }

    /// All threads of `sm_rate` do the same work. A compiler must not move any of it out of the lanes or omit it,
    /// because the rate is computed from the requested work.
    #[test]
    fn rates_work_is_done_by_the_lanes() {
        use crate::abi::{SM_RATE_CHAIN_FMA, SM_RATE_CHAINS};
        // FFMA of registers with an immediate addend. Instructions have 16 bytes since compute capability 7.0.
        const FFMA: u16 = 0x423;
        for made in &CUBINS {
            let instructions = section(made.image, ".text.sm_rate").chunks_exact(16);
            let opcodes = instructions.map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]) & 0xfff);
            let found = opcodes.filter(|opcode| *opcode == FFMA).count();
            assert_eq!(found, (SM_RATE_CHAINS * SM_RATE_CHAIN_FMA) as usize, "{}", made.name);
        }
        let fma = std::str::from_utf8(PTX.image).unwrap().split(".entry tensor(").next().unwrap();
        assert_eq!(fma.matches("fma.rn.f32").count(), (SM_RATE_CHAINS * SM_RATE_CHAIN_FMA) as usize);
    }

    #[test]
    fn checksums_tell_modules_apart() {
        let mut sums: Vec<u32> = CUBINS.iter().map(|made| made.checksum()).collect();
        sums.push(PTX.checksum());
        sums.sort_unstable();
        sums.dedup();
        // sm_86 and sm_89 could only differ in their number, which is part of the code too.
        assert_eq!(sums.len(), CUBINS.len() + 1);
    }

    /// Fails if a kernel was changed without new machine code.
    #[test]
    fn machine_code_is_of_these_sources() {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let sums = fs::read_to_string(kernels.join("bin/SHA256SUMS")).unwrap();
        let read: BTreeMap<String, String> = sums
            .lines()
            .map(|line| line.split_once("  ").unwrap())
            .map(|(sum, name)| (name.to_owned(), sum.to_owned()))
            .collect();
        let mut found = BTreeMap::new();
        for folder in ["", "bin/"] {
            for entry in fs::read_dir(kernels.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if [".cu", ".h", ".py", ".cubin", ".ptx"].iter().any(|end| name.ends_with(end)) {
                    let bytes = fs::read(kernels.join(folder).join(&name)).unwrap();
                    let sum: String =
                        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                    found.insert(format!("{folder}{name}"), sum);
                }
            }
        }
        assert_eq!(read, found, "kernels/bin is not made of kernels/: run `make kernels`");
    }
}
