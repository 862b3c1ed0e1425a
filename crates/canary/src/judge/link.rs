//! `pcie` and `p2p`: copies between the GPU and its host or another GPU.

use super::view::{Sample, View};
use super::words::{bytes_per_second, percent, seconds};
use crate::baseline::{Quantity, statistics};
use crate::report::{Found, Measured};
use crate::roofline;
use model::canary::Rate;
use model::catalog::{CanaryVerdict, RateAgainst};

/// Share of a full link's raw rate below which copies are slow on any host.
const FLOOR: f64 = 0.25;
/// Share of the raw rate that a healthy link and host pass; below, the text says so.
const EXPECTED: f64 = 0.80;

/// Judges copies to and from the host.
pub fn pcie(view: &View<'_>, measured: &Measured) -> Option<Sample> {
    let Found::Copied { bytes, to_gpu, to_host, latency, link_generation, link_width, numa_node } =
        &measured.found
    else {
        return None;
    };
    // The fastest copy: other traffic on the host's memory and switches slows some of them (to 70 % was seen on a
    // shared H200 node), a bad link all.
    let speed = |times: &[f64]| {
        let speed = *bytes as f64 / times.iter().copied().reduce(f64::min)?;
        (speed.is_finite() && speed > 0.0).then_some(speed)
    };
    let ways =
        [("to the GPU", Quantity::ToGpu, speed(to_gpu)), ("to the host", Quantity::ToHost, speed(to_host))];
    let speeds = ways.iter().filter_map(|(.., speed)| *speed);
    let (Some(least), Some(most)) = (speeds.clone().reduce(f64::min), speeds.reduce(f64::max)) else {
        return Some(Sample::discarded(CanaryVerdict::Skipped, "no time was measured".into()));
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
        let standing = view.stand(quantity, speed);
        // The rate that is told is the lesser one: so are its comparisons.
        if speed == least && sample.ratios.is_empty() {
            for (against, ratio) in
                [(RateAgainst::Baseline, standing.baseline), (RateAgainst::Siblings, standing.siblings)]
            {
                if let Some(ratio) = ratio {
                    sample.compare(against, ratio);
                }
            }
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
        sample.unusual.extend([Quantity::ToGpu, Quantity::ToHost]);
    } else if !low.is_empty() {
        sample.find(CanaryVerdict::Slow, slow(measured, &low.join("; "), *numa_node));
    } else if share.is_some_and(|share| share < EXPECTED) {
        sample.say("less than hosts usually reach, as it always was here".into());
    }
    Some(sample)
}

/// The link is narrower or slower than GPU and slot can do together: in words. The generation falls while a link
/// idles, so what was read must be in force during the copies: copies faster than it allows prove that it was
/// not.
fn narrowed(view: &View<'_>, (generation, width): (u32, u32), fastest: f64) -> Option<String> {
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

fn slow(measured: &Measured, low: &str, numa_node: Option<u32>) -> String {
    let cause = match measured.around.pcie_replays {
        0 => {
            let near = match numa_node {
                Some(node) => format!("the buffer was asked from NUMA node {node}"),
                None => "the host does not tell the GPU's NUMA node".to_owned(),
            };
            format!(
                "the link is full and replayed nothing, so look at the host: its load, NUMA ({near}), IOMMU"
            )
        }
        n => format!("the link replayed {n} packets meanwhile: bad signal; reseat the GPU, riser or cable"),
    };
    format!("copies over PCIe are slow ({low}); {cause}")
}

/// Judges copies to another GPU: that the data is right. Their rate is told, and compared with nothing: it
/// depends on which two GPUs they are.
pub fn peer(measured: &Measured) -> Option<Sample> {
    let Found::Peer { peer, bytes, seconds, access } = &measured.found else { return None };
    let time = statistics::median(seconds.iter().copied());
    let Some(speed) = time.map(|time| *bytes as f64 / time).filter(|speed| speed.is_finite() && *speed > 0.0)
    else {
        return Some(Sample::discarded(CanaryVerdict::Skipped, "no time was measured".into()));
    };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::BytesPerSecond(speed));
    let way = if *access { "directly" } else { "through the host: the two cannot reach each other's memory" };
    sample.say(format!("{} to {peer}, {way}", bytes_per_second(speed)));
    Some(sample)
}
