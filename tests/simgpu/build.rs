//! Compiles the kernels for the CPU, and embeds the machine code made of the same sources.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=../../kernels");
    machine_code()?;
    println!("cargo:rerun-if-changed=cuda");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").cpp_link_stdlib(None).include("cuda").include("../../kernels");
    build.files(["cuda/machine.cpp", "cuda/kernels.cpp"]);
    // Fast also in debug builds, and with no other rounding than the sources ask for.
    build.opt_level(2).debug(false).warnings(true).extra_warnings(true).pic(true);
    for flag in ["-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"] {
        build.flag(flag);
    }
    // Fibres jump between stacks, which neither guards nor shadow stacks would follow.
    for flag in ["-U_FORTIFY_SOURCE", "-fvisibility=hidden", "-fcf-protection=none", "-Wno-unknown-pragmas"] {
        build.flag_if_supported(flag);
    }
    // What is built here runs here. Without the instruction, an FMA is a call that gives the same bits.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("bmi2") {
        for flag in ["-mfma", "-mpopcnt", "-mbmi2"] {
            build.flag(flag);
        }
    }
    build.compile("simgpu_cuda");
    Ok(())
}

/// Keeps a copy of what is in `kernels/bin`, as programs hand it to the driver (PTX ends with a zero byte), and writes
/// a list of the copies: they stay with the kernels compiled beside them, whichever checkout uses the target folder next.
fn machine_code() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut list = String::from("&[");
    for entry in fs::read_dir("../../kernels/bin")? {
        let path = entry?.path();
        let end: &[u8] = match path.extension().and_then(|ending| ending.to_str()) {
            Some("cubin") => b"",
            Some("ptx") => b"\0",
            _ => continue,
        };
        let name = path.file_name().unwrap_or_default();
        fs::write(out.join(name), [&fs::read(&path)?, end].concat())?;
        list += &format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/\", {name:?})),");
    }
    list.push(']');
    fs::write(out.join("machine_code.rs"), list)
}
