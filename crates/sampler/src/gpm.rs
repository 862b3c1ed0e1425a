//! GPM: what the units of the GPU did between two samples of the driver's profiling counters (Hopper and
//! later). The counters have one reader at a time, so they can be switched off, which frees the samples.
//!
//! Windows follow each other without a gap: the sample that ends one begins the next. NVML takes 1.9 ms to
//! compute `graphics` and next to nothing for all others together (H200), so that one has longer windows.

use std::collections::HashMap;
use std::time::Duration;

use nvml_wrapper::GpmSample;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::gpm::GpmMetricResult;

use super::driver::classify;
use super::visit::{LINK_TOLERANCE, ONE, Visit};
use model::catalog::schema::{Entity, Label, Metric};
use model::catalog::{self as m, Direction, DropReason, GpmUnit, GpuInstance, MetricId, Subject, Tier};
use model::clock::Mono;
use model::sample::{Drained, GpmWindow, Missing, Row};

/// Units of the GPU with their GPM metric, a percentage.
const UNITS: [(GpmMetricId, GpmUnit); 11] = [
    (GpmMetricId::SmUtil, GpmUnit::Sm),
    (GpmMetricId::SmOccupancy, GpmUnit::SmOccupancy),
    (GpmMetricId::IntegerUtil, GpmUnit::Integer),
    (GpmMetricId::AnyTensorUtil, GpmUnit::Tensor),
    (GpmMetricId::DfmaTensorUtil, GpmUnit::TensorDfma),
    (GpmMetricId::HmmaTensorUtil, GpmUnit::TensorHmma),
    (GpmMetricId::ImmaTensorUtil, GpmUnit::TensorImma),
    (GpmMetricId::DramBwUtil, GpmUnit::Dram),
    (GpmMetricId::Fp64Util, GpmUnit::Fp64),
    (GpmMetricId::Fp32Util, GpmUnit::Fp32),
    (GpmMetricId::Fp16Util, GpmUnit::Fp16),
];

/// The unit with longer windows.
const GRAPHICS: [(GpmMetricId, GpmUnit); 1] = [(GpmMetricId::GraphicsUtil, GpmUnit::Graphics)];

/// GPM metrics that are a rate in MiB a second, with their place in [`GpmMetrics::bytes`].
const RATES: [(GpmMetricId, usize, Direction); 4] = [
    (GpmMetricId::PcieTxPerSec, 0, Direction::Tx),
    (GpmMetricId::PcieRxPerSec, 0, Direction::Rx),
    (GpmMetricId::NvlinkTotalTxPerSec, 1, Direction::Tx),
    (GpmMetricId::NvlinkTotalRxPerSec, 1, Direction::Rx),
];

/// Ids of all GPM metrics that are read.
pub fn metrics_read() -> impl Iterator<Item = u32> {
    let units = UNITS.iter().chain(&GRAPHICS).map(|(id, _)| id.as_c());
    units.chain(RATES.iter().map(|(id, ..)| id.as_c()))
}

const MIB: f64 = 1_048_576.0;
/// A unit can be measured a little more than always active, as numerator and denominator are not read at
/// the same instant. More than this is no rounding.
const MOST_PERCENT: f64 = 105.0;

const METRICS_GET: &str = "nvmlGpmMetricsGet";

/// The metrics of one kind of subject.
struct GpmMetrics<E: Entity + 'static> {
    active: &'static Metric<E, (GpmUnit,)>,
    seconds: &'static Metric<E, (GpmUnit,)>,
    /// Over PCIe and over NVLink.
    bytes: [&'static Metric<E, (Direction,)>; 2],
    /// The same a second, in the last window.
    rates: [&'static Metric<E, (Direction,)>; 2],
}

impl<E: Entity + 'static> GpmMetrics<E> {
    fn feeds(&self) -> [MetricId; 6] {
        let [pcie, nvlink] = self.bytes.map(Metric::id);
        let [pcie_rate, nvlink_rate] = self.rates.map(Metric::id);
        [self.active.id(), self.seconds.id(), pcie, nvlink, pcie_rate, nvlink_rate]
    }
}

const WHOLE: GpmMetrics<m::Gpu> = GpmMetrics {
    active: &m::gpu_gpm_active_ratio,
    seconds: &m::gpu_gpm_active_seconds_total,
    bytes: [&m::gpu_gpm_pcie_bytes_total, &m::gpu_gpm_nvlink_bytes_total],
    rates: [&m::gpu_gpm_pcie_bytes_per_second, &m::gpu_gpm_nvlink_bytes_per_second],
};

const INSTANCE: GpmMetrics<GpuInstance> = GpmMetrics {
    active: &m::gpu_mig_gpm_active_ratio,
    seconds: &m::gpu_mig_gpm_active_seconds_total,
    bytes: [&m::gpu_mig_gpm_pcie_bytes_total, &m::gpu_mig_gpm_nvlink_bytes_total],
    rates: [&m::gpu_mig_gpm_pcie_bytes_per_second, &m::gpu_mig_gpm_nvlink_bytes_per_second],
};

/// The values that are read of a window.
struct WindowParts {
    units: &'static [(GpmMetricId, GpmUnit)],
    rates: &'static [(GpmMetricId, usize, Direction)],
}

const SLOW: WindowParts = WindowParts { units: &UNITS, rates: &RATES };
const RARE: WindowParts = WindowParts { units: &GRAPHICS, rates: &[] };

/// The newest sample of the GPU (`None`) and of each of its GPU instances: the beginning of the next window.
type Begun = HashMap<Option<u32>, (GpmSample<'static>, Mono)>;

/// The windows that are open.
#[derive(Debug, Default)]
pub(crate) struct GpmReader {
    slow: Begun,
    rare: Begun,
    supported: Option<bool>,
    stopped: StoppedCounters,
}

/// Whether the counters of the whole GPU have stopped: all units read 0 while the GPU works by its utilization rate, as
/// seen in the field after an Xid 31. In MIG mode there is no such rate.
#[derive(Debug, Default)]
struct StoppedCounters {
    /// Since when every window contradicted the rate.
    since: Option<Mono>,
    stopped: bool,
}

impl StoppedCounters {
    /// Takes in a window that began at `begun` and ended `now`; gives whether the counters count. A GPU without work
    /// proves nothing; any unit that was active does.
    fn counts(&mut self, active: bool, worked: bool, begun: Mono, now: Mono, patience: Duration) -> bool {
        if active {
            *self = StoppedCounters::default();
        } else if worked {
            match self.since {
                // A rate covers other moments than the window: one alone is no evidence.
                None => self.since = Some(begun),
                Some(since) => self.stopped |= now.since(since) >= patience,
            }
        } else if !self.stopped {
            self.since = None;
        }
        !self.stopped
    }
}

impl GpmReader {
    /// Ends a window of the tier and begins the next, of the GPU and of its GPU instances. Switched off, it frees
    /// the samples.
    pub fn read(&mut self, tier: Tier, v: &mut Visit<'_>, on: bool, instances: &[GpuInstance]) {
        if !self.there(v) {
            return;
        }
        if !on {
            self.stopped = StoppedCounters::default();
        }
        let stopped = &mut self.stopped;
        if tier == Tier::Rare {
            return windows(&mut self.rare, &RARE, v, on, instances, stopped);
        }
        v.rows.entity(v.gpu).flag(&m::gpu_gpm_enabled, (), on);
        windows(&mut self.slow, &SLOW, v, on, instances, stopped);
    }

    /// Whether the values are withdrawn, because the counters have stopped.
    pub fn withdrawn(&self) -> bool {
        self.stopped.stopped
    }

    /// What was read under another MIG layout is void.
    pub fn forget(&mut self) {
        self.slow.clear();
        self.rare.clear();
        self.stopped = StoppedCounters::default();
    }

    fn there(&mut self, v: &mut Visit<'_>) -> bool {
        const SUPPORT: &str = "nvmlGpmQueryDeviceSupport";
        let feeds: Vec<MetricId> =
            [m::gpu_gpm_enabled.id()].into_iter().chain(WHOLE.feeds()).chain(INSTANCE.feeds()).collect();
        if !v.wants(&feeds) {
            return false;
        }
        if self.supported.is_none() {
            self.supported = v.read(SUPPORT, &feeds, |d| d.gpm_support());
        }
        if self.supported == Some(false) {
            v.gap(SUPPORT.into(), &feeds, Missing::Unsupported);
        }
        self.supported == Some(true)
    }
}

fn windows(
    begun: &mut Begun,
    parts: &WindowParts,
    v: &mut Visit<'_>,
    on: bool,
    instances: &[GpuInstance],
    stopped: &mut StoppedCounters,
) {
    begun.retain(|of, _| on && of.is_none_or(|id| instances.iter().any(|i| i.gpu_instance == id)));
    if !on {
        return;
    }
    if v.wants(&WHOLE.feeds()) {
        let gpu = v.gpu.clone();
        window(begun, parts, v, &gpu, None, &WHOLE, Some(stopped));
    }
    if v.wants(&INSTANCE.feeds()) {
        for instance in instances {
            window(begun, parts, v, instance, Some(instance.gpu_instance), &INSTANCE, None);
        }
    }
}

fn window<E: Entity + 'static>(
    begun: &mut Begun,
    parts: &WindowParts,
    v: &mut Visit<'_>,
    entity: &E,
    id: Option<u32>,
    metrics: &GpmMetrics<E>,
    stopped: Option<&mut StoppedCounters>,
) {
    let feeds = metrics.feeds();
    let sampled = match id {
        None => v.read("nvmlGpmSampleGet", &feeds, |d| d.gpm_sample()),
        Some(id) => v.read(("nvmlGpmMigSampleGet", id), &feeds, |d| d.gpm_mig_sample(id)),
    };
    // A sample that failed leaves the window open; one that is not supported leaves none.
    let Some(sample) = sampled else { return };
    let now = Mono::now();
    let Some((begin, since)) = begun.get(&id) else {
        // Counters begin at 0 with the first sample, before anything was measured.
        v.drained.push(Drained::Gpm(born(entity.subject(), parts, metrics)));
        begun.insert(id, (sample, now));
        return;
    };
    let began = *since;
    let seconds = now.since(began).as_secs_f64();
    let units = parts.units.iter().map(|(id, _)| *id);
    let ids: Vec<GpmMetricId> = units.chain(parts.rates.iter().map(|(id, ..)| *id)).collect();
    let Some(values) = v.read(METRICS_GET, &feeds, |d| gpm_metrics_get(d.nvml(), begin, &sample, &ids))
    else {
        return;
    };
    begun.insert(id, (sample, now));
    if stopped.is_some_and(|stopped| have_stopped(v, stopped, parts, &values, began, now)) {
        return v.gap(METRICS_GET.into(), &feeds, Missing::Dropped(DropReason::Contradicted));
    }
    let mut values = values.into_iter().map(|value| value.map(|result| result.value));
    let mut sums = Vec::new();
    for ((id, unit), value) in parts.units.iter().zip(&mut values) {
        let ratio = match value {
            Ok(percent) => ratio(percent).map_err(Missing::Dropped),
            Err(error) => Err(classify(&error).missing()),
        };
        let added = ratio.and_then(|ratio| {
            let added = v.rows.entity(entity).record(metrics.active, (*unit,), ratio);
            added.map(|()| ratio).map_err(Missing::Dropped)
        });
        match added {
            Ok(ratio) => sums.push(row(metrics.seconds, unit.text(), ratio * seconds)),
            Err(missing) => v.gap((METRICS_GET, id.as_c()).into(), &feeds[..2], missing),
        }
    }
    for (rate, value) in parts.rates.iter().zip(&mut values) {
        sums.extend(link_bytes(v, entity, metrics, *rate, value, seconds));
    }
    v.drained.push(Drained::Gpm(GpmWindow { subject: entity.subject(), seconds, sums }));
}

/// Publishes the rate of a link in one direction. Returns the bytes of the window.
fn link_bytes<E: Entity + 'static>(
    v: &mut Visit<'_>,
    entity: &E,
    metrics: &GpmMetrics<E>,
    (id, link, direction): (GpmMetricId, usize, Direction),
    value: Result<f64, NvmlError>,
    seconds: f64,
) -> Option<Row> {
    let call = (METRICS_GET, id.as_c());
    let (total, newest) = (metrics.bytes[link], metrics.rates[link]);
    // Before the link's own rate was asked for, no other can be judged.
    let own = [v.state.link_rates.pcie, v.state.link_rates.nvlink][link]?;
    // Not given: 10 PB/s, no link is as fast.
    let most = own.map_or(1e10, |rate| rate * LINK_TOLERANCE / MIB);
    let missing = match value {
        Ok(rate) if (0.0..=most).contains(&rate) => {
            v.add_for(entity, call, newest, (direction,), Some(rate * MIB), ONE);
            return Some(row(total, direction.text(), rate * MIB * seconds));
        }
        Ok(_) => Missing::Dropped(DropReason::OutOfRange),
        Err(error) => classify(&error).missing(),
    };
    v.gap(call.into(), &[total.id(), newest.id()], missing);
    None
}

/// Whether the counters of the whole GPU have stopped, by the values of a window. Only the slow windows show that, and
/// each takes what the utilization rates showed meanwhile.
fn have_stopped(
    v: &mut Visit<'_>,
    stopped: &mut StoppedCounters,
    parts: &WindowParts,
    values: &[Result<GpmMetricResult, NvmlError>],
    began: Mono,
    now: Mono,
) -> bool {
    if parts.rates.is_empty() {
        return stopped.stopped;
    }
    let work = std::mem::take(&mut v.state.work);
    let before = stopped.stopped;
    let mut units = values.iter().take(parts.units.len()).flatten().peekable();
    if units.peek().is_none() {
        return before;
    }
    let active = units.any(|unit| unit.value != 0.0);
    let patience = patience(v.settings.intervals.rare);
    let counts = stopped.counts(active, work.busy && !work.idle, began, now, patience);
    let gpu = v.gpu.gpu;
    match (before, counts) {
        (false, false) => tracing::warn!(
            "GPU {gpu} is busy by NVML, but its profiling counters (GPM) read 0: their values are withdrawn"
        ),
        (true, true) => tracing::info!("GPU {gpu}: the profiling counters (GPM) count again"),
        _ => {}
    }
    !counts
}

/// For how long windows contradict the utilization rate until the counters have stopped: the interval of the longer windows,
/// which are withdrawn with them, but a minute at most.
fn patience(rare: Duration) -> Duration {
    rare.min(Duration::from_secs(60))
}

/// A window in which nothing was measured.
fn born<E: Entity + 'static>(subject: Subject, parts: &WindowParts, metrics: &GpmMetrics<E>) -> GpmWindow {
    let units = parts.units.iter().map(|(_, unit)| row(metrics.seconds, unit.text(), 0.0));
    let rates =
        parts.rates.iter().map(|(_, link, direction)| row(metrics.bytes[*link], direction.text(), 0.0));
    GpmWindow { subject, seconds: 0.0, sums: units.chain(rates).collect() }
}

fn row<E: Entity, L: model::catalog::schema::LabelSet>(
    metric: &Metric<E, L>,
    label: model::catalog::schema::LabelText,
    value: f64,
) -> Row {
    Row { metric: metric.id(), labels: vec![label], value }
}

/// A percentage as a ratio; NaN and what no rounding explains are none.
fn ratio(percent: f64) -> Result<f64, DropReason> {
    match (0.0..=MOST_PERCENT).contains(&percent) {
        true => Ok((percent / 100.0).min(1.0)),
        false => Err(DropReason::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_read_nothing_of_a_busy_gpu_for_a_minute_have_stopped() {
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        let minute = Duration::from_secs(60);
        let mut counters = StoppedCounters::default();
        let mut window =
            |n: u64, active, worked| counters.counts(active, worked, at(10 * n), at(10 * n + 10), minute);
        assert!((0..5).all(|n| window(n, false, true)), "50 s");
        assert!(window(5, false, false), "an idle GPU has no activity");
        assert!((6..11).all(|n| window(n, false, true)), "the minute begins again");
        assert!(!window(11, false, true));
        assert!(!window(12, false, false), "idle: still not known to count");
        assert!(window(13, true, true));
        assert!((14..19).all(|n| window(n, false, true)));
        assert!(!window(19, false, true));
    }

    #[test]
    fn one_window_does_not_contradict_and_no_interval_waits_longer_than_a_minute() {
        let minute = Duration::from_secs(60);
        assert_eq!(patience(Duration::from_secs(3600)), minute);
        assert_eq!(patience(Duration::from_secs(10)), Duration::from_secs(10));
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        let mut counters = StoppedCounters::default();
        assert!(counters.counts(false, true, at(0), at(100), minute), "long enough, and the only one");
        assert!(!counters.counts(false, true, at(100), at(200), minute));
    }

    #[test]
    fn a_percentage_is_a_ratio_only_if_it_can_be_one() {
        assert_eq!(ratio(57.0), Ok(0.57));
        assert_eq!(ratio(100.4), Ok(1.0));
        for wrong in [-0.1, 105.1, f64::NAN, f64::INFINITY] {
            assert_eq!(ratio(wrong), Err(DropReason::OutOfRange));
        }
    }
}
