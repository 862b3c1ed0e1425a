//! GPM: activity of the units of the GPU between two samples of the driver's profiling counters (Hopper and
//! later). Only one program at a time can read the counters, so reading can be switched off, which frees the
//! samples.
//!
//! Windows follow each other without a gap: the sample that ends one window begins the next. On an H200, NVML
//! takes 1.9 ms to compute `graphics` and almost no time for all other units together, so `graphics` has longer
//! windows.

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

/// Units of the GPU with their GPM metrics, which are percentages.
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

/// GPM metrics that are rates in MiB/s, with their index in [`GpmMetrics::bytes`].
const RATES: [(GpmMetricId, usize, Direction); 4] = [
    (GpmMetricId::PcieTxPerSec, 0, Direction::Tx),
    (GpmMetricId::PcieRxPerSec, 0, Direction::Rx),
    (GpmMetricId::NvlinkTotalTxPerSec, 1, Direction::Tx),
    (GpmMetricId::NvlinkTotalRxPerSec, 1, Direction::Rx),
];

/// Returns the ids of all GPM metrics that are read.
pub fn metrics_read() -> impl Iterator<Item = u32> {
    let units = UNITS.iter().chain(&GRAPHICS).map(|(id, _)| id.as_c());
    units.chain(RATES.iter().map(|(id, ..)| id.as_c()))
}

const MIB: f64 = 1_048_576.0;
/// Maximum percentage that is accepted. Numerator and denominator are not read at the same instant, so a busy
/// unit can measure slightly above 100 %; anything above this limit is not a rounding error.
const MOST_PERCENT: f64 = 105.0;

const METRICS_GET: &str = "nvmlGpmMetricsGet";

/// Metrics of the GPU or of its GPU instances.
struct GpmMetrics<E: Entity + 'static> {
    active: &'static Metric<E, (GpmUnit,)>,
    seconds: &'static Metric<E, (GpmUnit,)>,
    /// Bytes over PCIe and over NVLink.
    bytes: [&'static Metric<E, (Direction,)>; 2],
    /// Bytes per second in the last window, in the same order.
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

/// Values that are read from a window.
struct WindowParts {
    units: &'static [(GpmMetricId, GpmUnit)],
    rates: &'static [(GpmMetricId, usize, Direction)],
}

const SLOW: WindowParts = WindowParts { units: &UNITS, rates: &RATES };
const RARE: WindowParts = WindowParts { units: &GRAPHICS, rates: &[] };

/// Newest samples of the GPU (`None`) and of its GPU instances, with which the next windows begin.
type Begun = HashMap<Option<u32>, (GpmSample<'static>, Mono)>;

/// Reads the windows, and keeps those that are open.
#[derive(Debug, Default)]
pub(crate) struct GpmReader {
    slow: Begun,
    rare: Begun,
    supported: Option<bool>,
    stopped: StoppedCounters,
}

/// Detects that the counters of the whole GPU have stopped: all units read 0 while the utilization rate shows
/// work, as observed in the field after an Xid 31. GPUs in MIG mode have no such rate.
#[derive(Debug, Default)]
struct StoppedCounters {
    /// Beginning of the first of the windows that contradict the rate.
    since: Option<Mono>,
    stopped: bool,
}

impl StoppedCounters {
    /// Adds a window from `begun` to `now`, and returns whether the counters work. A GPU without work proves
    /// nothing; any active unit proves that the counters work.
    fn counts(&mut self, active: bool, worked: bool, begun: Mono, now: Mono, patience: Duration) -> bool {
        if active {
            *self = StoppedCounters::default();
        } else if worked {
            match self.since {
                // The rate covers other moments than the window, so a single window is no evidence.
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
    /// Ends a window of the tier and begins the next one, for the GPU and for its GPU instances. Frees the
    /// samples when reading is switched off.
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

    /// Returns whether the values are withdrawn because the counters have stopped.
    pub fn withdrawn(&self) -> bool {
        self.stopped.stopped
    }

    /// Discards the samples of another MIG layout.
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
    // After a failed sample the window stays open. Without support there is no window.
    let Some(sample) = sampled else { return };
    let now = Mono::now();
    let Some((begin, since)) = begun.get(&id) else {
        // Counters start at 0 with the first sample, before anything was measured.
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
    // A rate cannot be judged before the rate of the link itself was requested.
    let own = [v.state.link_rates.pcie, v.state.link_rates.nvlink][link]?;
    // Without a known link rate the limit is 10 PB/s, which is faster than any link.
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

/// Returns whether the values of a window show that the counters of the whole GPU have stopped. Only slow
/// windows can show this, and each one consumes the utilization rates collected since the previous one.
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
            "the profiling counters (GPM) of GPU {gpu} read 0 although NVML reports a busy GPU; their values are withdrawn"
        ),
        (true, true) => tracing::info!("the profiling counters (GPM) of GPU {gpu} work again"),
        _ => {}
    }
    !counts
}

/// Returns the time for which windows must contradict the utilization rate before the counters count as
/// stopped: the interval of the longer windows, which are withdrawn as well, but at most one minute.
fn patience(rare: Duration) -> Duration {
    rare.min(Duration::from_secs(60))
}

/// Returns a window in which nothing was measured.
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

/// Returns a percentage as a ratio, or an error if it is NaN or outside the range that rounding explains.
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
