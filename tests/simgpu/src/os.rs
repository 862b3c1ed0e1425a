//! The few things asked of the operating system: clocks, futexes, locks, signals to itself.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec; the clocks asked for exist on every Linux.
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// The wall clock in microseconds, as NVML stamps.
pub fn wall_us() -> u64 {
    clock(libc::CLOCK_REALTIME) / 1000
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps until `word` is rung, no longer holds `seen`, or the time is over. The word may lie in
/// memory shared between processes, so the futex is not a private one.
pub fn futex_wait(word: &AtomicU32, seen: u32, longest: Duration) {
    let t = libc::timespec {
        tv_sec: longest.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(longest.subsec_nanos()),
    };
    // SAFETY: the word outlives the call and the timeout is a valid timespec.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &t) };
}

/// Wakes every waiter of `word` in every process.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is valid memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Writes to a descriptor that this process does not own.
pub fn write_fd(fd: i32, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the buffer is valid for its length; a bad descriptor is an error, no more.
        let n = unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) };
        if n <= 0 {
            return;
        }
        rest = &rest[n as usize..];
    }
}

/// Locks a file against other openings of it, until it is closed: also by the death of the process.
pub fn lock(file: &File) {
    // SAFETY: the descriptor is open; without a lock the records are as good, only their order is not.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
}

/// Ends the process at once, without destructors.
pub fn exit(code: i32) -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// Stops the process as a debugger or an operator would.
pub fn stop() {
    // SAFETY: raising a signal at oneself needs no memory.
    unsafe { libc::raise(libc::SIGSTOP) };
}
