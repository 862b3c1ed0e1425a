//! Counters of a simulated host. Every event grows at the rate in the files of the host.
//!
//! The simulation is used only if the directory [`SOURCE`] exists below the root of the host. Only the kernel creates
//! entries in sysfs, so a real host never has this directory, whether seen at `/` or through a mount of its root.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use nix::errno::Errno;

use super::backend::{CounterBackend, CounterGroup, CounterScope, GroupReading, Refusal};
use host::Host;
use model::catalog::PerfEvent;
use model::catalog::schema::KnownLabel;
use model::clock::{Mono, nanos};

/// Directory with one file per event, which contains the rate per CPU and second. `simgpu::host` writes it.
const SOURCE: &str = "/sys/bus/event_source/devices/simulated/events";

/// Event rates of a simulated host.
#[derive(Clone, Debug)]
pub struct Simulated(Arc<BTreeMap<PerfEvent, u64>>);

impl Simulated {
    /// Reads the rates of this host; returns `None` on a real host.
    pub fn of_host(host: &Host) -> Option<Simulated> {
        let folder = host.path(SOURCE);
        let rate = |event: &PerfEvent| {
            let rate = fs::read_to_string(folder.join(event.known())).ok()?.trim().parse().ok()?;
            Some((*event, rate))
        };
        folder.is_dir().then(|| Simulated(Arc::new(PerfEvent::ALL.iter().filter_map(rate).collect())))
    }

    fn rate(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<u64, Refusal> {
        match (place.cgroup, self.0.get(&event)) {
            (Some(_), _) => Err(Refusal::NotAsked("a simulated host counts for no control group")),
            (None, Some(rate)) => Ok(*rate),
            (None, None) => Err(Refusal::Kernel(Errno::ENOENT)),
        }
    }
}

impl CounterBackend for Simulated {
    type Group = SimulatedGroup;

    fn open(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<SimulatedGroup, Refusal> {
        let rates = vec![self.rate(event, place)?];
        Ok(SimulatedGroup { host: self.clone(), rates, started: Mono::now() })
    }
}

/// Counters of one simulated CPU.
#[derive(Debug)]
pub struct SimulatedGroup {
    host: Simulated,
    rates: Vec<u64>,
    started: Mono,
}

impl CounterGroup for SimulatedGroup {
    fn join(&mut self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal> {
        self.rates.push(self.host.rate(event, place)?);
        Ok(())
    }

    fn start(&mut self) -> Result<(), Refusal> {
        self.started = Mono::now();
        Ok(())
    }

    fn read(&mut self) -> Result<GroupReading, Refusal> {
        let time = nanos(Mono::now().since(self.started));
        let count = |rate: &u64| (u128::from(*rate) * u128::from(time) / 1_000_000_000) as u64;
        Ok(GroupReading { enabled: time, running: time, values: self.rates.iter().map(count).collect() })
    }
}
