//! One sampler with a worker a GPU against one sampler a GPU: what each takes of memory. On real GPUs give
//! the driver's library.

use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host::child::{Environment, Stderr};
use host::frame::FrameError;
use host::supervise::{Launch, Supervised};
use sampler::wire::{FromSampler, GpuSlot, Intervals, SamplerConfig, SamplerSettings, ToSampler};

use super::cost;
use super::daemon::wait;

/// What to measure.
#[derive(clap::Parser)]
pub struct Options {
    /// The NVML library; without it, eight simulated GPUs
    #[arg(long)]
    library: Option<PathBuf>,
    /// Seconds each kind runs before it is measured
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// The program to measure
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Runs and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let program = super::program(options.binary.as_ref())?;
    let dir = tempfile::tempdir()?;
    let library = match &options.library {
        Some(path) => path.clone(),
        None => simulated(dir.path(), "tests/scenarios/node-8xh200.toml")?,
    };
    let lasts = Duration::from_secs(options.seconds);
    println!("samplers: PSS after {} s at default cadences, {}", options.seconds, library.display());
    let (one, slots) = start(&program, &library, &[], Vec::new())?;
    wait(lasts);
    let together = cost::pss_mib(one.pid())?;
    let cpu = cost::cpu_seconds(one.pid())?;
    end(vec![one])?;
    println!("  one process, {} workers        {together:8.1} MiB, {cpu:6.2} s of CPU", slots.len());

    let mut many = Vec::new();
    for slot in &slots {
        let others = slots.iter().map(|s| s.slot).filter(|other| *other != slot.slot).collect();
        many.push(start(&program, &library, std::slice::from_ref(slot), others)?.0);
    }
    wait(lasts);
    let mut sums = (0.0, 0.0);
    for sampler in &many {
        sums.0 += cost::pss_mib(sampler.pid())?;
        sums.1 += cost::cpu_seconds(sampler.pid())?;
    }
    end(many)?;
    println!("  {} processes, one worker each   {:8.1} MiB, {:6.2} s of CPU", slots.len(), sums.0, sums.1);
    Ok(())
}

/// The simulated library, on this scenario for every process started from here on. Only while this program
/// has one thread.
pub fn simulated(dir: &Path, scenario: &str) -> Result<PathBuf, Box<dyn Error>> {
    let library = dir.join("libnvidia-ml.so.1");
    symlink(simgpu::library_path().map_err(|e| e.to_string())?, &library)?;
    let scenario = Path::new(scenario).canonicalize()?;
    // SAFETY: no other thread of this program runs yet.
    unsafe {
        std::env::set_var("GPU_SIM_SCENARIO", scenario);
        std::env::set_var("GPU_SIM_STATE", dir.join("sim"));
    }
    Ok(library)
}

/// Starts a sampler and waits until its GPUs have workers. Its frames are read and thrown away.
fn start(
    program: &Path,
    library: &Path,
    known: &[GpuSlot],
    avoid: Vec<usize>,
) -> Result<(Supervised, Vec<GpuSlot>), Box<dyn Error>> {
    let orders = SamplerConfig { known: known.to_vec(), avoid, ..orders(library) };
    let (sender, attached) = std::sync::mpsc::channel();
    let sampler = launch(program, orders, move |message| {
        if let Ok(Some(FromSampler::Attached(slot))) = message {
            // The receiver is gone once all are attached; the frames are read all the same.
            let _ = sender.send(slot);
        }
        true
    })?;
    let mut found = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Ok(slot) = attached.recv_timeout(Duration::from_secs(2)) {
        found.push(slot);
        if Instant::now() > deadline {
            return Err("GPUs keep coming".into());
        }
    }
    Ok((sampler, found))
}

/// How a sampler works by default, without the profiling counters.
pub fn orders(library: &Path) -> SamplerConfig {
    SamplerConfig {
        library: Some(library.to_owned()),
        settings: SamplerSettings {
            intervals: Intervals {
                fast: Duration::from_millis(100),
                normal: Duration::from_secs(1),
                samples: Duration::from_secs(2),
                slow: Duration::from_secs(10),
                rare: Duration::from_secs(60),
                nvlink: Duration::from_secs(600),
            },
            call_deadline: Duration::from_secs(3),
            init_deadline: Duration::from_secs(20),
            ..SamplerSettings::default()
        },
        root: "/".into(),
        ..SamplerConfig::default()
    }
}

/// Starts a sampler, whose messages go to `deliver`.
pub fn launch(
    program: &Path,
    orders: SamplerConfig,
    deliver: impl FnMut(Result<Option<FromSampler>, FrameError>) -> bool + Send + 'static,
) -> Result<Supervised, Box<dyn Error>> {
    let launch = Launch {
        program,
        args: &["sampler"],
        environment: &Environment::default(),
        stderr: Stderr::Inherit,
        children: None,
        thread: "frames",
    };
    let mut sampler = Supervised::start(launch, deliver)?;
    sampler.send(&ToSampler::Start(Box::new(orders)));
    Ok(sampler)
}

/// Ends samplers.
pub fn end(samplers: Vec<Supervised>) -> Result<(), Box<dyn Error>> {
    for mut sampler in samplers {
        sampler.ask_to_end();
        let deadline = Instant::now() + Duration::from_secs(10);
        while sampler.ended().is_none() {
            if Instant::now() > deadline {
                return Err("a sampler does not end".into());
            }
            wait(Duration::from_millis(20));
        }
    }
    Ok(())
}
