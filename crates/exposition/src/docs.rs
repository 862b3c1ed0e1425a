//! The catalogue as documents: `docs/METRICS.md` and the output of `gpu-node-exporter metrics`.

use std::fmt::Write;

use model::catalog::schema::{KnownLabel, LabelDef, MetricDef};
use model::catalog::{EntityKind, METRICS, MetricGroup};
use model::text::one_line;
use serde_json::json;

/// The catalogue as JSON: `{"entities": [...], "metrics": [...]}`.
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

/// One line a metric: name, kind, labels, help.
pub fn text() -> String {
    let mut out = String::new();
    for m in METRICS {
        let labels: Vec<_> = all_labels(m).map(|l| l.name).collect();
        let _ = writeln!(out, "{} {:?} {{{}}}\n    {}", m.name, m.kind, labels.join(","), m.help());
    }
    out
}

/// Which GPUs measure what: most metrics come from NVML everywhere, GPM from Hopper on.
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
    Before Hopper `gpu_gpm_*` and `gpu_mig_gpm_*` are unsupported. Two substitutes:\n\n\
    - `sampler.pcie_throughput = true` reads `gpu_pcie_throughput_bytes_per_second`.\n\
    - A dcgm-exporter that the same Prometheus scrapes. `alerts/recording.rules.yml` joins its `DCGM_FI_PROF_*` by UUID \
    and MIG GPU instance to `place:dcgm_active:ratio{unit}` and `place:dcgm_pcie_bytes:rate{direction}`. The \
    dashboards and the utilization of MIG GPUs use them where GPM is absent. dcgm-exporter serves \
    `DCGM_FI_PROF_GR_ENGINE_ACTIVE`, `PIPE_TENSOR_ACTIVE`, `DRAM_ACTIVE`, `PCIE_TX_BYTES` and `PCIE_RX_BYTES` by default; \
    `DCGM_FI_PROF_SM_ACTIVE` needs a line in its list of counters. `gpu_bottleneck` does not use them.\n\n\
    Not supported: Jetson and other GPUs inside an SoC, GPUs of other vendors, GPUs before Turing.\n";

/// `docs/METRICS.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         Made from `crates/model/src/catalog.rs` by `gpu-node-exporter metrics --format markdown`; the tests compare \
         this file with it. Base units and ratios only. A value that is unsupported has no series and is \
         listed in `gpu_exporter_metric_unsupported`; a value that could not be read has no series and \
         counts in `gpu_exporter_driver_error_kinds_total`; zero is zero. What NVML answers and is no metric is in \
         [NVML.md](NVML.md).\n\n\
         Read how often: **identity** and **once** with each handle on the GPU, **fast** 10 Hz, **normal** \
         1 Hz, **slow** every 10 s, **rare** every 60 s (all configurable), **computed** when the exporter \
         publishes. Counters of tier *computed* start at 0 with the daemon; the others are the driver's.\n\n\
         ## Entities\n\n| entity | labels | what it is |\n|---|---|---|\n",
    );
    for e in EntityKind::ALL {
        let labels = quoted(e.labels().iter().map(|l| l.name));
        let _ = writeln!(out, "| {e:?} | {labels} | {} |", one_line(e.help()));
    }
    out.push_str(BY_ARCHITECTURE);
    out.push_str(
        "\n## Groups\n\n\
         `/metrics` serves the default set, and what `metrics.groups` switches on; `all` is every group. The \
         page, `/api/v1` and the alerts' data are not limited by groups. Series: what the group adds on a node of eight \
         H200s without MIG and with eight owners, about.\n\n\
         | group | series | what | metrics |\n|---|---|---|---|\n",
    );
    for group in MetricGroup::ALL.iter().filter(|group| **group != MetricGroup::All) {
        let metrics = METRICS.iter().filter(|m| m.group == Some(*group));
        let names: Vec<_> = metrics.map(|m| format!("[`{0}`](#{0})", m.name)).collect();
        let (name, series) = (group.name(), group.series());
        let _ = writeln!(out, "| `{name}` | {series} | {} | {} |", one_line(group.help()), names.join(", "));
    }
    out.push_str("\n## Metrics\n\n| metric | kind | unit | entity | more labels | read | since |\n|---|---|---|---|---|---|---|\n");
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
