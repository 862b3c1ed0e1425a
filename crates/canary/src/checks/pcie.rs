//! `pcie` copies data in both directions between the GPU and nearby host memory, verifies the data, and reads the state
//! of the link during the copies. The rates are compared with the maximum that GPU and slot have in common, with the
//! GPU's own history and with its siblings. Any wrong word is a wrong result.

use std::path::Path;

use super::*;
use crate::session::numa::{self, Node};
use model::pci::kernel_address;

pub static CHECK: Check = Check {
    reads_link: true,
    ..Check::new(CanaryCheck::Pcie, CanaryStep::Pcie, &["fill", "check"], measure, judge)
};

impl Quantity {
    /// Bytes per second copied to the GPU. GPUs of one node may differ by the processor that they are attached to.
    pub const TO_GPU: Quantity = Quantity::rate("to_gpu", bytes_per_second, 0.05).beside_siblings(0.80);
    /// Bytes per second copied to the host.
    pub const TO_HOST: Quantity = Quantity::rate("to_host", bytes_per_second, 0.05).beside_siblings(0.80);
}

/// Share of a full link's raw rate below which copies are slow on any host.
const FLOOR: f64 = 0.25;
/// Share of the raw rate that a healthy link and host exceed. The report mentions a lower share.
const EXPECTED: f64 = 0.80;

/// Maximum bytes of one copy, enough to reach the link's rate and few enough to finish within a millisecond.
const BYTES: u64 = 32 << 20;
/// Number of copies in one direction.
const COPIES: usize = 5;
/// Maximum time for which copies continue until the link has been read during one of them.
const LINK: Duration = Duration::from_millis(100);
/// Number of copies queued at once while the link is read.
const IN_A_ROW: usize = 4;
/// Number of small copies that measure the latency.
const SMALL: usize = 200;
/// Bytes of a copy that measures the latency.
const SMALL_BYTES: usize = 4;

fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let bad = s.arena.results::<BadWords>(1)?;
    let words = (BYTES.min(s.request.memory_bytes).min(s.arena.left()) / 512 * 64) as usize;
    let gpu = s.arena.data::<u64>(words)?;
    let folder = Path::new("/sys/bus/pci/devices").join(kernel_address(&s.request.pci_address));
    let node = Node::from_sysfs(&folder);
    let seed = |of| stats::seed(s.request.seed, of);
    // First words and steps of the patterns for both directions.
    let (inwards, outwards) = ((seed(6), seed(7) | 1), (seed(8), seed(9) | 1));
    let cuda = s.cuda;
    let (host, there) = numa::on(node.as_ref(), || {
        let host = cuda.pin(gpu.bytes())?;
        for at in 0..host.words() {
            host.set(at, reference::pattern(Pattern::Arithmetic, at as u64, inwards.0, inwards.1));
        }
        Ok::<_, CudaError>(host)
    });
    let host = host?;
    let there_and_back = PinnedPart(&host, 0);
    let copy_in = |s: &mut Session<'_>| s.timed(|cuda, stream| cuda.queue_in(gpu, there_and_back, stream));
    let copy_out = |s: &mut Session<'_>| s.timed(|cuda, stream| cuda.queue_out(there_and_back, gpu, stream));
    let verify_in = |s: &mut Session<'_>| s.check((gpu, bad), Pattern::Arithmetic, inwards, "to_gpu");
    let mut tally = Mismatches::default();

    let to_gpu = copies(s, copy_in)?;
    tally.add(words as u64, verify_in(s)?);
    while tally.wants_more() {
        copy_in(s)?;
        tally.add(0, verify_in(s)?);
    }

    s.fill(gpu, Pattern::Arithmetic, outwards)?;
    let to_host = copies(s, copy_out)?;
    tally.add(words as u64, verify_out(&host, outwards));
    while tally.wants_more() {
        copy_out(s)?;
        tally.add(0, verify_out(&host, outwards));
    }

    let few = gpu.as_bytes(SMALL_BYTES);
    let small = |_| s.awake(|cuda, stream| cuda.queue_in(few, there_and_back, stream));
    let latency = stats::median_or_zero(&(0..SMALL).map(small).collect::<Try<Vec<f64>>>()?);
    let began = Mono::now();
    while s.poll.watch.notes().link.is_none() && Mono::now().since(began) < LINK {
        // On some drivers, reading the link state takes longer than one copy, so several copies are queued.
        s.timed(|cuda, stream| (0..IN_A_ROW).try_for_each(|_| cuda.queue_in(gpu, there_and_back, stream)))?;
    }
    let (link_generation, link_width) = s.poll.watch.notes().link.unwrap_or_default();
    s.cuda.unpin(host)?;
    let numa_node = node.filter(|_| there).map(|node| node.number);
    let bytes = gpu.bytes();
    let found =
        CheckFigures::Copied { bytes, to_gpu, to_host, latency, link_generation, link_width, numa_node };
    Ok(Some((found, tally)))
}

fn copies(s: &mut Session<'_>, copy: impl Fn(&mut Session<'_>) -> Try<f64>) -> Try<Vec<f64>> {
    // The first copy runs with cold page tables on both sides.
    copy(s)?;
    (0..COPIES).map(|_| copy(s)).collect()
}

fn verify_out(host: &Pinned, (a, b): (u64, u64)) -> WrongResults {
    let mut wrong = WrongResults::default();
    for at in 0..host.words() {
        let (expected, got) = (reference::pattern(Pattern::Arithmetic, at as u64, a, b), host.get(at));
        if got != expected {
            let offset = Some(8 * at as u64);
            wrong.add(Mismatch { unit: "to_host".into(), offset, expected, got, ..Mismatch::default() });
        }
    }
    wrong
}

fn judge(view: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Copied { bytes, to_gpu, to_host, latency, link_generation, link_width, numa_node } =
        &measured.found
    else {
        return CheckFigures::of_another_check();
    };
    // The fastest copy counts. Other traffic on the host's memory and switches slows only some copies (down to 70 % on
    // a shared H200 node), but a bad link slows all of them.
    let speed = |times: &[f64]| {
        let speed = *bytes as f64 / times.iter().copied().reduce(f64::min)?;
        (speed.is_finite() && speed > 0.0).then_some(speed)
    };
    let ways =
        [("to the GPU", Quantity::TO_GPU, speed(to_gpu)), ("to the host", Quantity::TO_HOST, speed(to_host))];
    let speeds = ways.iter().filter_map(|(.., speed)| *speed);
    let (Some(least), Some(most)) = (speeds.clone().reduce(f64::min), speeds.reduce(f64::max)) else {
        return Sample::discarded(CanaryVerdict::Skipped, "no time was measured".into());
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::BytesPerSecond(least));
    for (way, _, speed) in &ways {
        if let Some(speed) = speed {
            sample.say(format!("{} {way}", bytes_per_second(*speed)));
        }
    }
    if latency.is_finite() && *latency > 0.0 {
        sample.say(format!("{} a copy of four bytes", seconds(*latency)));
    }
    let link = (*link_generation, *link_width);
    if let Some(narrow) = narrowed(view, link, most) {
        sample.find(CanaryVerdict::NarrowedLink, narrow);
    }
    let mut low = Vec::new();
    for (way, quantity, speed) in ways {
        let Some(speed) = speed else { continue };
        let standing = view.compared(quantity, speed);
        // The lower rate is reported, together with its comparisons.
        if speed == least && sample.ratios.is_empty() {
            sample.note_ratios(&standing);
        }
        sample.figures.push((quantity, speed));
        low.extend(standing.low.map(|low| format!("{way}: {low}")));
    }
    let share = roofline::link(view.device).map(|bound| least / bound);
    if let Some(share) = share {
        sample.compare(RateAgainst::Roofline, share);
        sample.say(format!("{} of the link's raw rate", percent(share)));
    }
    if low.is_empty() && share.is_some_and(|share| share < FLOOR) {
        low.push(format!("below {} of the link's raw rate", percent(FLOOR)));
    }
    if sample.verdict != CanaryVerdict::Ok {
        sample.unusual.extend([Quantity::TO_GPU, Quantity::TO_HOST]);
    } else if !low.is_empty() {
        sample.find(CanaryVerdict::Slow, slow(measured, &low.join("; "), *numa_node));
    } else if share.is_some_and(|share| share < EXPECTED) {
        sample.say("less than usual, but not less than before on this host".into());
    }
    sample
}

/// Returns the finding if the link is narrower or slower than GPU and slot support. The generation drops while a link
/// idles, so the reading counts only if it applied during the copies. Copies faster than the reading allows prove that
/// it did not.
fn narrowed(view: &RunContext<'_>, (generation, width): (u32, u32), fastest: f64) -> Option<String> {
    let (max_generation, max_width) = (view.device.max_link_generation, view.device.max_link_width);
    let full = roofline::link(view.device)?;
    let now = roofline::pcie(generation, width)?;
    let narrow = generation < max_generation || width < max_width;
    if !narrow || fastest > now {
        return None;
    }
    Some(format!(
        "the PCIe link runs at generation {generation} x{width} under load, while GPU and slot can do generation \
         {max_generation} x{max_width} ({} of the bandwidth); reseat the GPU, riser or cable of the drained \
         node, and look at `nvidia-smi -q -d PCIE` and `lspci -vv`",
        percent(now / full)
    ))
}

fn slow(measured: &Measurement, low: &str, numa_node: Option<u32>) -> String {
    let near = match numa_node {
        Some(node) => format!("the buffer was requested on NUMA node {node}"),
        None => "the host does not report the GPU's NUMA node".to_owned(),
    };
    let cause = match measured.around.pcie_replays {
        0 => format!(
            "the link is full and replayed nothing, so look at the host: its load, NUMA ({near}), IOMMU"
        ),
        n => format!("the link replayed {n} packets meanwhile: bad signal; reseat the GPU, riser or cable"),
    };
    format!("copies over PCIe are slow ({low}); {cause}")
}
