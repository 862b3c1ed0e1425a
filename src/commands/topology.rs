//! `gpu-node-exporter topology`: the machine around the GPUs, drawn, and how to bind work to it. Needs no daemon and
//! changes nothing: the driver and the machine are asked in processes of their own, with deadlines.

mod driver;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};

use host::Host;
use host::child::Stderr;
use host::stop::Stop;
use host::terminal;
use model::topology::Topology;
use settings::Config;
use topology::ask::Asker;
use topology::bind::{self, Binder};
use topology::discover::Origin;
use topology::latency;
use topology::map::Map;
use topology::{svg, text};

/// Examples for `--help`.
pub const AFTER_HELP: &str = "\
Examples:
  gpu-node-exporter topology                       the machine as a tree, and each GPU's share of CPUs
  gpu-node-exporter topology --format svg > node.svg
  gpu-node-exporter topology --bind docker         a line of docker run for each GPU or MIG device
  gpu-node-exporter topology --bind slurm          lines of gres.conf
  gpu-node-exporter topology --latency             also how long loads from each node's memory take
  gpu-node-exporter topology --format json > /etc/gpu-node-exporter/topology.json
                                                   the topology this machine should have (topology.expected_file)

Shares: the CPUs near a GPU are divided fairly among the GPUs near them, and the share of a GPU among its MIG devices
by their compute slices, along NUMA nodes and last-level caches; hardware threads of a core stay together.

The driver is asked in a process of its own, with a deadline; without it the map is drawn from PCI alone. GPUs that \
the driver lists are numbered as it does, others are P1, P2 in the order of their addresses.

Exit codes: 0 done, 1 the machine could not be looked at, 64 wrong configuration or command line";

/// What can be given.
#[derive(Clone, Debug, Args)]
pub struct TopologyArguments {
    /// How to print the map; xml is hwloc's own format, as of `lstopo`
    #[arg(long, value_enum, default_value = "text")]
    pub format: MapFormat,
    /// Print, in place of the map, ready lines that bind work on each GPU or MIG device to its share
    #[arg(long, value_enum, value_name = "TO", conflicts_with_all = ["format", "latency"])]
    pub bind: Option<Binder>,
    /// Also measure the latency of memory from each NUMA node to each: takes up to 512 MiB of a node's memory and one
    /// of its CPUs for some tenths of a second, 30 s in all at most
    #[arg(long, conflicts_with_all = ["input", "synthetic"])]
    pub latency: bool,
    /// Draw the machine of this file, which hwloc wrote (`lstopo machine.xml`), in place of this one
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    pub input: Option<PathBuf>,
    /// Draw a machine made up, in hwloc's words: `package:2 l3:3 core:8 pu:1`
    #[arg(long, value_name = "TEXT")]
    pub synthetic: Option<String>,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MapFormat {
    /// A tree for a terminal
    Text,
    /// All that is known, as one document
    Json,
    /// A picture
    Svg,
    /// hwloc's own
    Xml,
}

/// Nothing can be drawn: why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopologyError(String);

/// What is asked for, ready to be printed.
pub fn run(config: &Config, arguments: &TopologyArguments) -> Result<String, TopologyError> {
    if arguments.latency && !matches!(arguments.format, MapFormat::Text | MapFormat::Json) {
        return Err(TopologyError("--latency goes with --format text or json".into()));
    }
    let (topology, xml) = look(config, arguments)?;
    if arguments.format == MapFormat::Xml {
        return Ok(xml);
    }
    let mut map = join(config, arguments, topology);
    if let Some(binder) = arguments.bind {
        return Ok(bind::lines(&map, binder));
    }
    if arguments.latency {
        let measured = latency::measure(&map.topology, &Host::new(&config.host.root), |what| {
            if io::stderr().is_terminal() {
                eprint!("\rmeasuring: {what}\x1b[K");
                // A line of progress that does not come is no loss.
                let _ = io::stderr().flush();
            }
        });
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        map.latency = Some(measured);
    }
    match arguments.format {
        MapFormat::Text => Ok(text::text(&map, terminal::stdout_has_colours())),
        MapFormat::Svg => Ok(svg::svg(&map)),
        MapFormat::Json | MapFormat::Xml => {
            let json =
                serde_json::to_string_pretty(&map).map_err(|error| TopologyError(error.to_string()))?;
            Ok(json + "\n")
        }
    }
}

/// The machine joined with what the driver says of its GPUs; that of a file has no driver here.
fn join(config: &Config, arguments: &TopologyArguments, mut topology: Topology) -> Map {
    if arguments.input.is_some() || arguments.synthetic.is_some() {
        return Map::new(topology, &[]);
    }
    let (known, notes) = driver::ask(config);
    topology.notes.extend(notes);
    Map::new(topology, &known)
}

/// Looks at the machine, in a process of its own: the topology, and hwloc's own format of it if that is wanted.
fn look(config: &Config, arguments: &TopologyArguments) -> Result<(Topology, String), TopologyError> {
    let origin = match (&arguments.input, &arguments.synthetic) {
        (Some(file), _) => Origin::Xml(absolute(file)?),
        (_, Some(words)) => Origin::Synthetic(words.clone()),
        _ => Origin::Live(config.host.root.clone()),
    };
    let xml = arguments.format == MapFormat::Xml;
    let found = Asker::new(Stderr::Null, Arc::default()).all(&origin, xml, &Stop::default());
    let found = found.map_err(|error| TopologyError(error.to_string()))?;
    Ok((found.topology, found.xml.unwrap_or_default()))
}

/// The process that reads the file has a working directory of its own. A file that cannot be read is reported here.
fn absolute(file: &Path) -> Result<PathBuf, TopologyError> {
    let failed = |error: io::Error| TopologyError(format!("{}: {error}", file.display()));
    let path = std::path::absolute(file).map_err(failed)?;
    // Opening a pipe would wait for who writes it.
    if !std::fs::metadata(&path).map_err(failed)?.is_file() {
        return Err(TopologyError(format!("{}: not a file", file.display())));
    }
    std::fs::File::open(&path).map_err(failed)?;
    Ok(path)
}
