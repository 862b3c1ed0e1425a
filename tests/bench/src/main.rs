//! Measures what gpu-node-exporter costs: `serve` under fifty scrapers on a simulated node, what a
//! scraper sees while a driver call hangs, what scrapes and probes see under an attack, and the memory of one sampler with a worker a GPU against a process a GPU; and counting events on the CPUs.
//! Prints figures; nothing there passes or fails. `health`, `soak` and `watched` are proofs: they fail if an answer takes 50 ms
//! or is another one, if memory grows, or if `assess` slows its program down.

mod attack;
mod cost;
mod cpu;
mod daemon;
mod fleet;
mod hang;
mod health;
mod pages;
mod record;
mod restarts;
mod samplers;
mod serve;
mod soak;
mod watched;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Measures what gpu-node-exporter costs.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// The daemon on a simulated node under scrapers (the default)
    Serve(serve::Options),
    /// What a scraper sees while a driver call hangs
    Hang(hang::Options),
    /// Time of `health` beside a driver that hangs
    Health(health::Options),
    /// Scrapes, probes and memory under idle connections, slow readers, streams, and clients that never read
    Attack(attack::Options),
    /// One Prometheus that scrapes hundreds of exporters: its CPU, memory and bytes
    Fleet(fleet::Options),
    /// Series, bytes and CPU of a node, by its GPUs
    Pages(pages::Options),
    /// Memory of one sampler with a worker a GPU against a process a GPU
    Samplers(samplers::Options),
    /// A day of the ledger on a simulated clock, then restarts of the driver: memory stays flat
    Soak(soak::Options),
    /// System calls, descriptors and time of counting events on the CPUs
    Cpu(cpu::Options),
    /// Wall time of a program with and without `assess`
    Watched(watched::Options),
}

fn main() -> Result<(), Box<dyn Error>> {
    match Cli::parse().what {
        None => {
            serve::run(&serve::Options::parse_from(["serve"]))?;
            hang::run(&hang::Options::parse_from(["hang"]))?;
            health::run(&health::Options::parse_from(["health"]))?;
            samplers::run(&samplers::Options::parse_from(["samplers"]))
        }
        Some(What::Serve(options)) => serve::run(&options),
        Some(What::Hang(options)) => hang::run(&options),
        Some(What::Health(options)) => health::run(&options),
        Some(What::Attack(options)) => attack::run(&options),
        Some(What::Fleet(options)) => fleet::run(&options),
        Some(What::Pages(options)) => pages::run(&options),
        Some(What::Samplers(options)) => samplers::run(&options),
        Some(What::Soak(options)) => soak::run(&options),
        Some(What::Cpu(options)) => cpu::run(&options),
        Some(What::Watched(options)) => watched::run(&options),
    }
}

/// The program to measure: the one built beside this one.
fn program(given: Option<&PathBuf>) -> std::io::Result<PathBuf> {
    match given {
        Some(path) => path.canonicalize(),
        None => Ok(std::env::current_exe()?.with_file_name("gpu-node-exporter")),
    }
}
