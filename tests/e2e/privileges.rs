//! What the daemon is given by its unit stays with it.

use std::fs;
use std::process::Command;

use nix::libc;
use std::os::unix::process::CommandExt;

use super::health_command::{answer, without_topology};
use super::node::{Node, Setup};

/// A set of capabilities of a process, as `CapAmb`.
fn set(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// Makes everything that is held ambient, as systemd does with `AmbientCapabilities=`.
fn with_ambient(command: &mut Command) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let raise = || {
        // Version 3: two words each of the effective, permitted and inheritable set, in turn.
        let mut header = Header { version: 0x2008_0522, pid: 0 };
        let mut sets = [[0u32; 3]; 2];
        // SAFETY: both are as the kernel wants them for this version, and live over the calls.
        unsafe {
            if libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            for word in &mut sets {
                word[2] = word[1];
            }
            if libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            for capability in 0..64 as libc::c_ulong {
                // It fails where there is nothing to raise.
                libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0);
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec nothing but system calls is made.
    unsafe { command.pre_exec(raise) };
}

#[test]
fn the_processes_of_the_daemon_inherit_none_of_its_privileges() {
    let mut probe = Command::new("/bin/sleep");
    with_ambient(probe.arg("600"));
    let mut probe = probe.spawn().expect("it starts");
    let raised = set(probe.id() as i32, "CapAmb");
    probe.kill().unwrap();
    probe.wait().unwrap();
    if raised == 0 {
        eprintln!("nothing to inherit: this user has no privileges");
        return;
    }
    let node = Setup::new("tests/scenarios/still-1xh200.toml").restrained(with_ambient).start();
    node.wait_ready();
    assert_eq!(set(node.pid(), "CapEff") & raised, raised, "the daemon keeps its own");
    let children = node.samplers();
    assert!(!children.is_empty());
    for pid in children {
        assert_eq!(set(pid, "CapAmb"), 0);
    }
}

/// The settings that a unit or drop-in makes, as `SECTION__KEY`.
fn settings_of(file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("{}/systemd/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let set = |line: &str| {
        let (key, value) = line.strip_prefix("Environment=GPU_NODE_EXPORTER__")?.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(set).collect()
}

#[test]
fn a_plain_unit_is_healthy_without_the_kernel_log_and_the_drop_in_asks_for_it() {
    // The simulated host has no /dev/kmsg.
    let start = |files: &[&str]| -> Node {
        let settings = files.iter().flat_map(|file| settings_of(file));
        let setup = without_topology("tests/scenarios/still-1xh200.toml");
        let node = settings.fold(setup, |setup, (key, value)| setup.with(&key, &value)).start();
        node.wait_ready();
        node
    };
    let health = |node: &Node| answer(&node.command(&["health"]).output().unwrap());
    let plain = start(&["gpu-node-exporter.service"]);
    assert_eq!(health(&plain), (0, "ok: 1 GPU, ok.".to_owned()));
    assert!(plain.get("/").1.contains("switched off (events.kernel_log)"), "it is listed");
    let asked = start(&["gpu-node-exporter.service", "optional/kernel-log.conf"]);
    assert_eq!(health(&asked), (1, "warning: 1 GPU, ok; collector kmsg is down.".to_owned()));
}
