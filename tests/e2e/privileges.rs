//! What the daemon is given by its unit stays with it.

use std::fs;
use std::process::Command;

use nix::libc;
use std::os::unix::process::CommandExt;

use super::node::Setup;

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
