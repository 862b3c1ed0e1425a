//! Documents generated from the catalogue: `docs/METRICS.md` and the output of `gpu-node-exporter metrics`.

use std::fmt::Write;

use model::catalog::schema::{KnownLabel, LabelDef, MetricDef};
use model::catalog::{EntityKind, METRICS, MetricGroup};
use model::text::one_line;
use serde_json::json;

/// Returns the catalogue as JSON: `{"entities": [...], "metrics": [...]}`.
pub fn json() -> String {
    let entity = |e: &EntityKind| json!({ "entity": e, "help": one_line(e.help()), "labels": e.labels() });
    let entities: Vec<_> = EntityKind::ALL.iter().map(entity).collect();
    let metric = |m: &MetricDef| {
        let mut metric = json!(m);
        (metric["help"], metric["notes"]) = (m.help().into(), m.notes().into());
        metric
    };
    let metrics: Vec<_> = METRICS.iter().map(metric).collect();
    let document = json!({ "entities": entities, "metrics": metrics });
    format!("{document:#}\n")
}

/// Returns one line per metric with its name, kind, labels and help.
pub fn text() -> String {
    let mut out = String::new();
    for m in METRICS {
        let kind = format!("{:?}", m.kind).to_lowercase();
        let labels: Vec<_> = all_labels(m).map(|l| l.name).collect();
        let labels = if labels.is_empty() { String::new() } else { format!(" {{{}}}", labels.join(", ")) };
        let _ = writeln!(out, "{}{labels} ({kind})\n    {}", m.name, m.help());
    }
    out
}

/// Metrics by GPU architecture. NVML metrics are available on all GPUs, GPM metrics on Hopper and later.
const BY_ARCHITECTURE: &str = "\n## What is measured, by architecture\n\n\
    | architecture | GPUs, for example | NVML: utilization, memory, power, heat, clocks, errors, processes | GPM: \
    activity of SM, tensor pipes and memory, PCIe bytes | utilization of a MIG GPU instance | `gpu_bottleneck` | seen |\n\
    |---|---|---|---|---|---|---|\n\
    | Blackwell | B200, GB200 | yes | yes | GPM | every cause | no |\n\
    | Hopper | H100, H200 | yes | yes | GPM | every cause | H200; H100 and MIG simulated only |\n\
    | Ada Lovelace | L4, L40S | yes; they have no NVLink | no | no MIG | without the causes of GPM, else `unknown` | L4 \
    simulated only |\n\
    | Ampere | A100, A30, A10, A40 | yes | no | none | without the causes of GPM, else `unknown` | A100 simulated only |\n\
    | Turing | T4 | yes; retired pages in place of remapped rows | no | no MIG | without the causes of GPM, else \
    `unknown` | T4 simulated only |\n\n\
    GPUs before Hopper do not support `gpu_gpm_*` and `gpu_mig_gpm_*`. There are two substitutes:\n\n\
    - `sampler.pcie_throughput = true` enables `gpu_pcie_throughput_bytes_per_second`.\n\
    - Run dcgm-exporter alongside and scrape it with the same Prometheus. `alerts/recording.rules.yml` joins its \
    `DCGM_FI_PROF_*` metrics by UUID and MIG GPU instance to `place:dcgm_active:ratio{unit}` and \
    `place:dcgm_pcie_bytes:rate{direction}`. The dashboards and the utilization of MIG GPUs use these series if GPM is \
    unsupported. By default, dcgm-exporter serves `DCGM_FI_PROF_GR_ENGINE_ACTIVE`, `PIPE_TENSOR_ACTIVE`, `DRAM_ACTIVE`, \
    `PCIE_TX_BYTES` and `PCIE_RX_BYTES`. Add a line for `DCGM_FI_PROF_SM_ACTIVE` to its list of counters. \
    `gpu_bottleneck` does not use these metrics.\n\n\
    Not supported: Jetson and other GPUs inside an SoC, GPUs of other vendors, GPUs before Turing.\n";

/// Returns the text of `docs/METRICS.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         Generated from `crates/model/src/catalog.rs` by `gpu-node-exporter metrics --format markdown`; a test \
         compares this file with the catalogue. All values use base units or ratios. An unsupported value has no \
         series and is listed in `gpu_exporter_metric_unsupported`. A value that could not be read has no series and \
         is counted in `gpu_exporter_driver_error_kinds_total`. Zero is a measured value. [NVML.md](NVML.md) lists the \
         NVML data that the exporter does not publish.\n\n\
         The tier of a metric defines how often it is read: **identity** and **once** when a GPU is opened, **fast** \
         at 10 Hz, **normal** at 1 Hz, **samples** every 2 s, **slow** every 10 s, **rare** every 60 s, **nvlink** \
         every 10 min (all configurable), and **computed** when the exporter publishes. Counters of tier *computed* \
         start at 0 when the daemon starts; other counters are the driver's own.\n\n\
         ## Entities\n\n| entity | labels | description |\n|---|---|---|\n",
    );
    for e in EntityKind::ALL {
        let labels = quoted(e.labels().iter().map(|l| l.name));
        let _ = writeln!(out, "| {e:?} | {labels} | {} |", one_line(e.help()));
    }
    out.push_str(BY_ARCHITECTURE);
    out.push_str(
        "\n## Groups\n\n\
         `/metrics` serves the default set and the groups in `metrics.groups`; `all` enables every group. Groups do \
         not limit the status page, `/api/v1` or the data of the alerts. The column \"series\" is the approximate \
         number of series that the group adds on a node with eight H200s without MIG and with eight owners.\n\n\
         | group | series | description | metrics |\n|---|---|---|---|\n",
    );
    for group in MetricGroup::ALL.iter().filter(|group| **group != MetricGroup::All) {
        let metrics = METRICS.iter().filter(|m| m.group == Some(*group));
        let names: Vec<_> = metrics.map(|m| format!("[`{0}`](#{0})", m.name)).collect();
        let (name, series) = (group.name(), group.series());
        let _ = writeln!(out, "| `{name}` | {series} | {} | {} |", one_line(group.help()), names.join(", "));
    }
    out.push_str("\n## Metrics\n\n| metric | kind | unit | entity | further labels | tier | since |\n|---|---|---|---|---|---|---|\n");
    for m in METRICS {
        let _ = writeln!(
            out,
            "| [`{0}`](#{0}) | {1} | {2} | {3:?} | {4} | {5} | {6} |",
            m.name,
            format!("{:?}", m.kind).to_lowercase(),
            m.unit.suffix(),
            m.entity,
            quoted(m.labels.iter().map(|l| l.name)),
            m.tier.known(),
            m.since
        );
    }
    for m in METRICS {
        let _ = write!(out, "\n### {}\n\n{}\n", m.name, format!("{} {}", m.help(), m.notes()).trim_end());
        if let Some(group) = m.group {
            let except = quoted(m.except.iter().copied());
            let except = if except.is_empty() { except } else { format!(", except for {except}") };
            let _ = write!(out, "\nGroup `{}`{except}.\n", group.name());
        }
        if let Some(instead) = m.deprecated {
            let _ = write!(out, "\nDeprecated: use `{instead}`.\n");
        }
        if all_labels(m).next().is_some() {
            out.push('\n');
        }
        for label in all_labels(m) {
            let _ = write!(out, "- `{}`: {}", label.name, one_line(label.help));
            if let Some(values) = label.values {
                let _ = write!(out, " One of {}.", quoted(values.iter().copied()));
            }
            out.push('\n');
        }
    }
    out
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn all_labels(m: &MetricDef) -> impl Iterator<Item = &'static LabelDef> {
    m.entity.labels().iter().chain(m.labels)
}
