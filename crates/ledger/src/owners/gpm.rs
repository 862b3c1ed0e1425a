//! GPM windows in the form that the accounts of owners use.

use model::catalog::schema::{Label, LabelText};
use model::catalog::{self as m, Direction, GpmUnit, MetricId};
use model::clock::Mono;
use model::sample::{GpmWindow, Row};

/// GPM window of a GPU or GPU instance: active seconds of each unit and bytes over its links; `None` if not measured.
pub(super) struct UnitWindow {
    /// Time at which the window was read.
    pub at: Mono,
    pub seconds: f64,
    pub graphics: Option<f64>,
    pub sm: Option<f64>,
    /// Sum over all pipes of the multiprocessors.
    pub pipes: Option<f64>,
    pub tensor: Option<f64>,
    pub dram: Option<f64>,
    /// Bytes from the host and to it.
    pub pcie: [Option<f64>; 2],
    /// Bytes from other GPUs and to them.
    pub nvlink: [Option<f64>; 2],
}

impl UnitWindow {
    pub fn new(window: &GpmWindow, at: Mono) -> UnitWindow {
        let active = [m::gpu_gpm_active_seconds_total.id(), m::gpu_mig_gpm_active_seconds_total.id()];
        let pcie = [m::gpu_gpm_pcie_bytes_total.id(), m::gpu_mig_gpm_pcie_bytes_total.id()];
        let nvlink = [m::gpu_gpm_nvlink_bytes_total.id(), m::gpu_mig_gpm_nvlink_bytes_total.id()];
        let value = |metrics: &[MetricId; 2], label: LabelText| {
            let fits = |row: &&Row| metrics.contains(&row.metric) && row.labels.first() == Some(&label);
            window.sums.iter().find(fits).map(|row| row.value)
        };
        let unit = |unit: GpmUnit| value(&active, unit.text());
        let ways = [Direction::Rx, Direction::Tx];
        UnitWindow {
            at,
            seconds: window.seconds,
            graphics: unit(GpmUnit::Graphics),
            sm: unit(GpmUnit::Sm),
            pipes: pipes(unit),
            tensor: unit(GpmUnit::Tensor),
            dram: unit(GpmUnit::Dram),
            pcie: ways.map(|way| value(&pcie, way.text())),
            nvlink: ways.map(|way| value(&nvlink, way.text())),
        }
    }

    /// Returns a unit's active seconds as a share of the time, or 0 if not measured.
    pub fn share(&self, active: Option<f64>) -> f64 {
        active.unwrap_or(0.0) / self.seconds.max(1e-9)
    }
}

/// Returns the active seconds of all pipes added up. Every GPU with GPM has the first three pipes. Without them,
/// nothing is known about the others.
fn pipes(seconds: impl Fn(GpmUnit) -> Option<f64>) -> Option<f64> {
    let all = seconds(GpmUnit::Integer)? + seconds(GpmUnit::Fp32)? + seconds(GpmUnit::Tensor)?;
    Some(all + [GpmUnit::Fp64, GpmUnit::Fp16].into_iter().filter_map(seconds).sum::<f64>())
}
