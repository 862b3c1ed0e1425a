//! `pcie`: copies both ways between the GPU and host memory near it, their data verified, and the link as it is
//! while they run.

use std::path::Path;
use std::time::Duration;

use super::{Finding, launch};
use crate::abi::{BadWords, Pattern};
use crate::child::cuda::{Part, Pinned, Slice};
use crate::child::errors::{CudaError, Try};
use crate::child::figures;
use crate::child::near::{self, Node};
use crate::child::session::Session;
use crate::child::tally::{Tally, Wrong};
use crate::reference;
use crate::report::{Found, Mismatch};
use model::clock::Mono;
use model::pci::kernel_address;

/// Bytes of one copy at most: enough to reach the link's rate, little enough to be over in a millisecond.
const BYTES: u64 = 32 << 20;
/// Copies each way.
const COPIES: usize = 5;
/// How long copies go on at most until the link was read during one.
const LINK: Duration = Duration::from_millis(100);
/// Copies that are queued at once meanwhile.
const IN_A_ROW: usize = 4;
/// Copies of a word, for the latency.
const SMALL: usize = 200;
/// Bytes of such a copy.
const SMALL_BYTES: usize = 4;

/// What is copied, and the patterns that it holds each way: their first words and steps.
struct Space {
    host: Pinned,
    gpu: Slice<u64>,
    bad: Slice<BadWords>,
    inwards: (u64, u64),
    outwards: (u64, u64),
}

/// Copies.
pub fn pcie(s: &mut Session<'_>) -> Try<Finding> {
    let bad = s.arena.results::<BadWords>(1)?;
    let words = (BYTES.min(s.order.memory_bytes).min(s.arena.left()) / 512 * 64) as usize;
    let gpu = s.arena.data::<u64>(words)?;
    let folder = Path::new("/sys/bus/pci/devices").join(kernel_address(&s.order.pci_address));
    let node = Node::of(&folder);
    let seed = |of| figures::seed(s.order.seed, of);
    let (inwards, outwards) = ((seed(6), seed(7) | 1), (seed(8), seed(9) | 1));
    let cuda = s.cuda;
    let (host, there) = near::on(node.as_ref(), || {
        let host = cuda.pin(gpu.bytes())?;
        write(&host, inwards);
        Ok::<_, CudaError>(host)
    });
    let space = Space { host: host?, gpu, bad, inwards, outwards };
    let mut tally = Tally::default();

    let to_gpu = copies(s, |s| copy_in(s, &space))?;
    tally.add(words as u64, verify_in(s, &space)?);
    while tally.wants_more() {
        copy_in(s, &space)?;
        let wrong = verify_in(s, &space)?;
        tally.add(0, wrong);
    }

    s.fill(gpu, Pattern::Arithmetic, outwards.0, outwards.1)?;
    let to_host = copies(s, |s| copy_out(s, &space))?;
    tally.add(words as u64, verify_out(&space));
    while tally.wants_more() {
        copy_out(s, &space)?;
        tally.add(0, verify_out(&space));
    }

    let latency = latency(s, &space)?;
    let began = Mono::now();
    while s.poll.watch.notes().link.is_none() && Mono::now().since(began) < LINK {
        // Several in a row: to ask for the link takes longer than one copy on some drivers.
        s.timed(|cuda, stream| {
            (0..IN_A_ROW).try_for_each(|_| cuda.queue_in(space.gpu, Part(&space.host, 0), stream))
        })?;
    }
    let (link_generation, link_width) = s.poll.watch.notes().link.unwrap_or_default();
    s.cuda.unpin(space.host)?;
    let numa_node = node.filter(|_| there).map(|node| node.number);
    let bytes = gpu.bytes();
    let found = Found::Copied { bytes, to_gpu, to_host, latency, link_generation, link_width, numa_node };
    Ok(Finding { found, mismatches: tally.told() })
}

fn copies(s: &mut Session<'_>, mut copy: impl FnMut(&mut Session<'_>) -> Try<f64>) -> Try<Vec<f64>> {
    // The first finds cold tables on both sides.
    copy(s)?;
    (0..COPIES).map(|_| copy(s)).collect()
}

fn copy_in(s: &mut Session<'_>, space: &Space) -> Try<f64> {
    s.timed(|cuda, stream| cuda.queue_in(space.gpu, Part(&space.host, 0), stream))
}

fn copy_out(s: &mut Session<'_>, space: &Space) -> Try<f64> {
    s.timed(|cuda, stream| cuda.queue_out(Part(&space.host, 0), space.gpu, stream))
}

fn verify_in(s: &mut Session<'_>, space: &Space) -> Try<Wrong> {
    s.check((space.gpu, space.bad), Pattern::Arithmetic, space.inwards, "to_gpu")
}

fn verify_out(space: &Space) -> Wrong {
    let (a, b) = space.outwards;
    let mut wrong = Wrong::default();
    for at in 0..space.host.words() {
        let (expected, got) = (reference::pattern(Pattern::Arithmetic, at as u64, a, b), space.host.get(at));
        if got != expected {
            let offset = Some(8 * at as u64);
            wrong.add(Mismatch { unit: "to_host".into(), offset, expected, got, ..Mismatch::default() });
        }
    }
    wrong
}

fn write(host: &Pinned, (a, b): (u64, u64)) {
    for at in 0..host.words() {
        host.set(at, reference::pattern(Pattern::Arithmetic, at as u64, a, b));
    }
}

/// The time of a copy of four bytes, median, seconds.
fn latency(s: &mut Session<'_>, space: &Space) -> Try<f64> {
    let few = space.gpu.as_bytes(SMALL_BYTES);
    let mut seconds = Vec::with_capacity(SMALL);
    for _ in 0..SMALL {
        s.poll.go_on()?;
        s.poll.watch.working(true);
        let began = Mono::now();
        let done = s
            .cuda
            .queue_in(few, Part(&space.host, 0), &s.stream)
            .and_then(|()| launch::end(s, &s.stream, began));
        let took = Mono::now().since(began).as_secs_f64();
        s.poll.watch.working(false);
        done?;
        s.spend(took, took);
        seconds.push(took);
    }
    Ok(figures::median(&seconds))
}
