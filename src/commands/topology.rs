//! `gpu-node-exporter topology`: draws the machine around the GPUs, and prints how to bind work to it. Needs
//! no daemon and changes nothing. Separate processes with deadlines query the driver and the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::doctor::daemon::Daemon;
use super::doctor::driver_query::{QueryScope, does_not_return, label};
use super::{CommandResult, checked_config, json};
use crate::log;
use host::Host;
use host::child::Stderr;
use host::stop::Stop;
use host::terminal::{self, progress};
use model::catalog::{self as m, ComputeInstance, Gpu, MetricId};
use model::sample::Row;
use settings::{Config, Overrides};
use topology::ask::Asker;
use topology::bind::{self, Binder};
use topology::discover::Origin;
use topology::map::{DriverGpu, DriverMigDevice, Map};
use topology::{latency, svg, text};

/// Metrics to read from the driver; others cost time.
const WANTED: [MetricId; 4] =
    [m::gpu_devices.id(), m::gpu_info.id(), m::gpu_mig_mode_enabled.id(), m::gpu_mig_info.id()];

/// Draw the machine around the GPUs, and print how to bind work to the CPUs near a GPU
///
/// Shows packages, NUMA nodes, caches, the PCI tree with its links, the network device nearest to every GPU, and the fair
/// share of CPUs of every GPU or MIG device. Needs no daemon and changes nothing.
#[derive(Args)]
#[command(after_help = include_str!("help/topology.txt").trim_end())]
pub(crate) struct TopologyArguments {
    /// Output format; xml is the format of hwloc, as from `lstopo`
    #[arg(long, value_enum, default_value = "text")]
    format: MapFormat,
    /// Instead of the map, print lines that bind work on a GPU or MIG device to its share of CPUs
    #[arg(long, value_enum, value_name = "TO", conflicts_with_all = ["format", "latency"])]
    bind: Option<Binder>,
    /// Also measure memory latency between all NUMA nodes; uses up to 512 MiB of a node's memory and one of
    /// its CPUs for less than a second per pair, at most 30 s in total
    #[arg(long, conflicts_with_all = ["input", "synthetic"])]
    latency: bool,
    /// Draw the machine of this file, which hwloc wrote (`lstopo machine.xml`), instead of this machine
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    input: Option<PathBuf>,
    /// Draw a synthetic machine in the notation of hwloc, for example `package:2 l3:3 core:8 pu:1`
    #[arg(long, value_name = "TEXT")]
    synthetic: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MapFormat {
    /// Tree for a terminal
    Text,
    /// One JSON document with all data
    Json,
    /// Image of the whole machine
    Svg,
    /// XML document in the format of hwloc
    Xml,
}

pub fn run(overrides: &Overrides, arguments: &TopologyArguments) -> CommandResult {
    let config = checked_config(overrides)?.config;
    log::to_stderr(tracing::Level::ERROR);
    Ok(draw(&config, arguments)?.into())
}

/// Returns the map, or the lines that bind work.
fn draw(config: &Config, arguments: &TopologyArguments) -> Result<String, String> {
    if arguments.latency && !matches!(arguments.format, MapFormat::Text | MapFormat::Json) {
        return Err("--latency needs --format text or json".into());
    }
    let origin = match (&arguments.input, &arguments.synthetic) {
        (Some(file), _) => {
            Origin::Xml(absolute(file).map_err(|error| format!("{}: {error}", file.display()))?)
        }
        (_, Some(description)) => Origin::Synthetic(description.clone()),
        _ => Origin::Live(config.host.root.clone()),
    };
    let xml = arguments.format == MapFormat::Xml;
    let found = Asker::new(Stderr::Null, Arc::default()).all(&origin, xml, &Stop::default());
    let found = found.map_err(|error| error.to_string())?;
    if xml {
        return Ok(found.xml.unwrap_or_default());
    }
    let mut topology = found.topology;
    // The driver of this machine has no GPUs of the machine in a file.
    let gpus = match origin {
        Origin::Live(_) => query_driver(config, &mut topology.notes),
        _ => Vec::new(),
    };
    let mut map = Map::new(topology, &gpus);
    if let Some(binder) = arguments.bind {
        return Ok(bind::lines(&map, binder));
    }
    if arguments.latency {
        let host = Host::new(&config.host.root);
        let measuring = |step: &str| progress(&format!("measuring: {step}"));
        map.latency = Some(latency::measure(&map.topology, &host, measuring));
        progress("");
    }
    match arguments.format {
        MapFormat::Text => Ok(text::text(&map, terminal::stdout_has_colours(), terminal::stdout_columns())),
        MapFormat::Svg => Ok(svg::svg(&map)),
        MapFormat::Json | MapFormat::Xml => json(&map),
    }
}

/// Returns the GPUs and MIG devices that the driver lists. Adds a note for every gap.
fn query_driver(config: &Config, notes: &mut Vec<String>) -> Vec<DriverGpu> {
    let answers = match Daemon::connect(config).query_driver(config, QueryScope::Only(&WANTED)) {
        Ok(answers) => answers,
        Err(why) => {
            notes.push(format!("the driver: {}", why.text));
            return Vec::new();
        }
    };
    if let Some((_, text)) = answers.away.as_ref().filter(|_| !answers.up) {
        notes.push(format!("the driver does not respond, so the map shows only PCI data: {text}"));
    }
    notes.extend(answers.hung.iter().map(does_not_return));
    for (index, text) in &answers.attach_failed {
        notes.push(format!("GPU {index} has no handle: {text}"));
    }
    let gpu = |(gpu, row): (&Gpu, &Row)| DriverGpu {
        index: gpu.gpu,
        uuid: gpu.uuid.to_string(),
        model: label(row, "model"),
        pci_address: label(row, "pci_address"),
        minor: label(row, "minor_number").parse().ok(),
        slices: answers.mig_devices(gpu).into_iter().map(slice).collect(),
    };
    answers.gpus().into_iter().map(gpu).collect()
}

fn slice((instance, row): (&ComputeInstance, &Row)) -> DriverMigDevice {
    DriverMigDevice {
        uuid: label(row, "mig_uuid"),
        profile: label(row, "mig_profile"),
        gpu_instance: instance.gpu_instance,
        compute_instance: instance.compute_instance,
    }
}

/// Returns an absolute path, because the process that reads the file has another working directory. Reports a
/// file that cannot be read.
fn absolute(file: &Path) -> io::Result<PathBuf> {
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    std::fs::File::open(file)?;
    std::path::absolute(file)
}
