//! The process of one run: the only one that loads libcuda, and it does nothing else. It takes one order on its
//! control pipe, says before and after each step where it is, so that a hang has a name, and gives back
//! all that it had.
//!
//! It ends between two kernels when its control pipe closes, or, where it is to yield, when somebody else comes to
//! the GPU; never in the middle of a driver call. Kernels last a few milliseconds at most, so whoever waits for
//! the GPU waits no longer than that.
//!
//! - [`say`]: order and reports · [`flow`]: the steps · [`start`]: what can keep it from beginning
//! - [`library`], [`functions`], [`cuda`]: the driver · [`errors`]: what its errors mean
//! - [`watch`]: what NVML tells meanwhile · [`poll`]: whether to go on · [`own`]: who we are
//! - [`session`]: a GPU ready for checks · [`checks`]: the checks · [`figures`], [`tally`]: their arithmetic
//! - [`device`]: who the GPU is · [`near`]: memory near it

mod checks;
mod cuda;
mod device;
mod errors;
mod figures;
mod flow;
mod functions;
mod library;
mod near;
mod own;
mod poll;
mod say;
mod session;
mod start;
mod tally;

use std::io;
use std::process::ExitCode;

use crate::report::Report;
use flow::Flow;
use host::child;
use host::inflight::{NODE_SLOT, Table};
use model::catalog::CanarySkip;
use model::clock::Mono;
use poll::Poll;
use sampler::watch::{NvmlWatch, WatchTarget};
use say::{Control, Reports};

/// How much of the CPU is left to others.
const NICE: i32 = 10;

/// The process's whole life.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-node-exporter canary-child: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    child::ignore_signals()?;
    let (frames, control, shared) = child::inherited()?;
    let table: &'static Table = Box::leak(Box::new(Table::open(shared)?));
    let mut control = Control::new(control);
    let Some(order) = control.order()? else { return Ok(()) };
    if let Err(error) = child::be_nice(NICE) {
        tracing::debug!(%error, "the canary's process is as important as others");
    }
    let mut reports = Reports::new(frames);
    let target = WatchTarget {
        nvml_library: order.nvml_library.clone(),
        pci_address: order.pci_address.clone(),
        instance: order.instance,
    };
    let watch = match NvmlWatch::start(target, own::pids(), table) {
        Ok(watch) => watch,
        Err(error) => {
            let text = format!("no thread to watch the GPU: {error}");
            reports.send(&Report::Unable { reason: CanarySkip::Environment, text });
            reports.send(&Report::Done { gpu_seconds: 0.0 });
            return Ok(());
        }
    };
    let slot = table.writer(NODE_SLOT);
    // From now on its calls are seen.
    slot.expect(Mono::now());
    let poll = Poll { control: &control, watch: &watch, yields: order.yields };
    Flow::new(&order, poll, &mut reports).run(slot);
    slot.leave();
    // The parent hears the end now, also if NVML holds the other thread for ever.
    drop(reports);
    watch.finish();
    Ok(())
}
