//! The in-flight table: a page shared by parent and sampler in which every worker records its current driver
//! call. The parent only reads the page, so it can detect a stuck call or a stopped or starved process without
//! any help from the sampler.
//!
//! Every slot has one writer, its worker. The two low bits of `sequence` mean idle, in a call, or being
//! written. If a reader finds a slot that is being written or changes meanwhile, it uses the promised time.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use memmap2::MmapRaw;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use model::clock::{Mono, nanos};

/// Maximum number of GPUs of one sampler, more than any host has.
pub const MAX_GPUS: usize = 64;
/// Slot of the worker of the node: library, driver and list of GPUs.
pub const NODE_SLOT: usize = 0;
/// Slot of the thread that waits for the driver's events.
pub const EVENTS_SLOT: usize = MAX_GPUS + 1;
/// Slot of the thread that makes the fast visits of all GPUs. The parent does not judge it, because a GPU's own
/// worker meets the same call.
pub const FAST_SLOT: usize = MAX_GPUS + 2;
/// Slot of the thread that reads about pairs of GPUs. Its calls are shown but do not count as a second sick
/// worker, because a call about a pair hangs when one of the two GPUs hangs.
pub const PEERS_SLOT: usize = MAX_GPUS + 3;
/// Number of slots in the table.
pub const SLOTS: usize = MAX_GPUS + 4;

/// Returns whether a slot belongs to the worker of a GPU.
pub const fn is_gpu(slot: usize) -> bool {
    slot != NODE_SLOT && slot <= MAX_GPUS
}
/// Number of words kept of a call's name; the longest NVML function name has 48 bytes.
const NAME_WORDS: usize = 8;

/// Content of one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Number of the slot.
    pub slot: usize,
    /// Current call of the worker.
    pub call: Option<InCall>,
    /// Time by which the worker promises to be active again if it is in no call.
    pub expected: Mono,
}

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InCall {
    /// NVML function with its arguments.
    pub name: String,
    /// Time when the call began.
    pub since: Mono,
    /// Allowed duration of the call.
    pub allowed: Duration,
    /// Number of the call, which distinguishes two calls with the same name.
    pub sequence: u64,
}

/// Low bits of [`TableSlot::sequence`].
const IDLE: u64 = 0;
const IN_CALL: u64 = 1;
const WRITING: u64 = 2;
const STATE: u64 = 3;

#[derive(Debug)]
#[repr(C, align(128))]
struct TableSlot {
    sequence: AtomicU64,
    since: AtomicU64,
    allowed: AtomicU64,
    /// Promised time in nanoseconds; 0 if no worker uses the slot.
    expected: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

/// The table, mapped into this process.
#[derive(Debug)]
pub struct Table {
    file: File,
    map: MmapRaw,
}

impl Table {
    /// Creates an empty table in anonymous memory, whose descriptor a child inherits. Fails if the kernel
    /// refuses the memory.
    pub fn create() -> io::Result<Table> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create("gpu-node-exporter-inflight", flags)?);
        file.set_len(size_of::<[TableSlot; SLOTS]>() as u64)?;
        // If a child could shrink the memory, the next read would kill the parent.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Table::open(file)
    }

    /// Maps the table behind an inherited descriptor. Fails if the memory is too small.
    pub fn open(file: File) -> io::Result<Table> {
        if file.metadata()?.len() < size_of::<[TableSlot; SLOTS]>() as u64 {
            return Err(io::Error::other(
                "the in-flight table is too small; the parent may be another build",
            ));
        }
        let map = MmapRaw::map_raw(&file)?;
        Ok(Table { file, map })
    }

    /// Returns the descriptor that is passed to a child.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn slots(&self) -> &[TableSlot; SLOTS] {
        // SAFETY: the mapping is page-aligned, at least as long as the array (checked in `open`) and lives as
        // long as `self`. A slot consists only of atomics, which are valid for any bits and shared writing.
        unsafe { &*self.map.as_ptr().cast::<[TableSlot; SLOTS]>() }
    }

    /// Returns the writer of one slot. Every slot must have only one writer.
    pub fn writer(&'static self, slot: usize) -> SlotWriter {
        SlotWriter { slot: &self.slots()[slot.min(SLOTS - 1)] }
    }

    /// Returns the contents of all used slots.
    pub fn views(&self) -> Vec<SlotView> {
        self.slots().iter().enumerate().filter_map(|(i, slot)| slot.view(i)).collect()
    }
}

impl TableSlot {
    fn view(&self, number: usize) -> Option<SlotView> {
        let mut last_expected = 0;
        for _ in 0..4 {
            let before = self.sequence.load(Ordering::Acquire);
            let expected = self.expected.load(Ordering::Relaxed);
            let since = self.since.load(Ordering::Relaxed);
            let allowed = self.allowed.load(Ordering::Relaxed);
            let mut name = [0u8; NAME_WORDS * 8];
            for (bytes, word) in name.chunks_exact_mut(8).zip(&self.name) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            fence(Ordering::Acquire);
            last_expected = expected;
            if before & STATE == WRITING || self.sequence.load(Ordering::Relaxed) != before {
                continue;
            }
            if expected == 0 {
                return None;
            }
            let call = (before & STATE == IN_CALL).then(|| InCall {
                name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
                since: Mono(since),
                allowed: Duration::from_nanos(allowed),
                sequence: before,
            });
            return Some(SlotView { slot: number, call, expected: Mono(expected) });
        }
        // The slot keeps changing, or its writer was stopped, so the last promise counts.
        Some(SlotView { slot: number, call: None, expected: Mono(last_expected) })
    }
}

/// Writer of one slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotWriter {
    slot: &'static TableSlot,
}

impl SlotWriter {
    /// Promises that the worker will be active again by `when`.
    pub fn expect(&self, when: Mono) {
        self.slot.expected.store(when.0.max(1), Ordering::Release);
    }

    /// Marks the slot as unused.
    pub fn leave(&self) {
        self.slot.expected.store(0, Ordering::Release);
    }

    /// Records that the worker enters a call that may take `allowed`. Returns the time.
    pub fn enter(&self, name: &str, allowed: Duration) -> Mono {
        let now = Mono::now();
        let slot = self.slot;
        let sequence = (slot.sequence.load(Ordering::Relaxed) & !STATE).wrapping_add(STATE + 1);
        slot.sequence.store(sequence | WRITING, Ordering::Relaxed);
        fence(Ordering::Release);
        let mut bytes = [0u8; NAME_WORDS * 8];
        let kept = name.len().min(bytes.len());
        bytes[..kept].copy_from_slice(&name.as_bytes()[..kept]);
        for (word, bytes) in slot.name.iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
        slot.since.store(now.0, Ordering::Relaxed);
        slot.allowed.store(nanos(allowed), Ordering::Relaxed);
        slot.sequence.store(sequence | IN_CALL, Ordering::Release);
        now
    }

    /// Records that the call has returned. Returns the time.
    pub fn exit(&self) -> Mono {
        let now = Mono::now();
        self.expect(now);
        let sequence = self.slot.sequence.load(Ordering::Relaxed);
        self.slot.sequence.store((sequence & !STATE) | IDLE, Ordering::Release);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_from_a_second_mapping_until_it_returns() {
        let writer_side: &'static Table = Box::leak(Box::new(Table::create().unwrap()));
        let reader_side = Table::open(writer_side.file.try_clone().unwrap()).unwrap();
        assert_eq!(reader_side.views(), [], "unused slots say nothing");

        let writer = writer_side.writer(3);
        writer.expect(Mono(77));
        assert_eq!(reader_side.views(), [SlotView { slot: 3, call: None, expected: Mono(77) }]);

        let long = "nvmlSystemGetConfComputeKeyRotationThresholdInfo";
        for round in 0..3 {
            let since = writer.enter(long, Duration::from_secs(3));
            let view = &reader_side.views()[0];
            let call = view.call.as_ref().expect("in a call");
            assert_eq!((call.name.as_str(), call.since), (long, since), "round {round}");
            assert_eq!(call.allowed, Duration::from_secs(3));
            writer.exit();
            assert_eq!(reader_side.views()[0].call, None);
        }
        writer.leave();
        assert_eq!(reader_side.views(), []);
    }

    #[test]
    fn a_reader_never_sees_a_mixed_name() {
        let table: &'static Table = Box::leak(Box::new(Table::create().unwrap()));
        let writer = table.writer(1);
        writer.expect(Mono(1));
        let names = ["a".repeat(40), "b".repeat(40)];
        let done = &std::sync::atomic::AtomicBool::new(false);
        let names = &names;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..20_000 {
                    writer.enter(&names[i % 2], Duration::from_secs(1));
                    writer.exit();
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                if let Some(call) = table.views().remove(0).call {
                    assert!(names.contains(&call.name), "torn: {}", call.name);
                }
            }
        });
    }
}
