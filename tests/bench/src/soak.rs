//! Memory stays flat: the ledger through a day of simulated time with all that comes and goes on a node,
//! then the whole program through many restarts of the driver ([`super::restarts`]).

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use exposition::format::ResponseFormat;
use ledger::inbox::{Inbox, LedgerEvent, Stall};
use ledger::{Ledger, LedgerSettings, LiveSettings};
use model::catalog::FaultSource;
use model::catalog::{self as m, DriverError, Node, SamplerEnd};
use model::clock::Mono;
use model::driver_module::{Load, LoadId, ModuleState};
use model::fact::{DriverFact, Fact, FactKind, KernelFact, KernelLine};
use model::pci::pci_address;
use model::snapshot_cell::SnapshotCell;

use sampler::wire::GpuSlot;

use super::record::{Recording, Replay};
use super::{cost, restarts};

/// The node, and how long.
#[derive(clap::Parser)]
pub struct Options {
    /// Hours of simulated time
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// Seconds of the sampler that are recorded and replayed
    #[arg(long, default_value_t = 60)]
    record: u64,
    /// Restarts of the driver under the whole program
    #[arg(long, default_value_t = 24)]
    restarts: u32,
    /// The program to prove
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// The scenario of both parts.
pub const SCENARIO: &str = "tests/scenarios/soak.toml";
/// What memory may grow by after the warm-up, MiB.
pub const GROWTH: f64 = 1.0;

const HOUR: u64 = 3600;
const WARM_UP: u64 = HOUR;
/// Seconds between two restarts of the driver, and how long it is away.
const RESTART: u64 = 3 * HOUR;
const AWAY: u64 = 30;
/// Seconds between two of the rest.
const NEW_SAMPLER: u64 = 1700;
const RESHAPE: u64 = 700;
const LOSS: u64 = 5300;
const STALL: u64 = 2900;
const XID: u64 = 5;
const PAGE: u64 = 15;
/// Wall clock when the simulated day begins.
const MORNING: f64 = 1.8e9;
/// Codes that come by turns, one of them in no table.
const CODES: [u32; 8] = [13, 31, 43, 45, 63, 94, 119, 999];

/// Runs both parts.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let program = super::program(options.binary.as_ref())?;
    let recording = Recording::take(&program, SCENARIO, Duration::from_secs(options.record))?;
    println!(
        "soak: {} h of the ledger on a simulated clock, {} GPUs; {} batches of {} s from a sampler, replayed",
        options.hours,
        recording.slots.len(),
        recording.len(),
        options.record
    );
    ledger(&recording, options.hours)?;
    restarts::run(options.restarts, options.binary.as_ref())
}

/// A day of the ledger.
fn ledger(recording: &Recording, hours: u64) -> Result<(), Box<dyn Error>> {
    let own = i32::try_from(std::process::id())?;
    let begun = Instant::now();
    let mut day = Day::new(recording);
    println!("  at the start                   {:8.2} MiB RSS", cost::rss_mib(own)?);
    let (mut warm, mut most) = (None, 0.0f64);
    for second in 0..hours * HOUR {
        day.second(second)?;
        let passed = second + 1;
        if passed == WARM_UP || passed.is_multiple_of(3 * HOUR) {
            let rss = cost::rss_mib(own)?;
            let grown = rss - *warm.get_or_insert(rss);
            most = most.max(grown);
            println!("  after {:2} h                     {rss:8.2} MiB RSS, {grown:+.2}", passed / HOUR);
        }
    }
    day.figures(begun.elapsed())?;
    if most > GROWTH {
        return Err(format!("the ledger grew by {most:.2} MiB after the warm-up").into());
    }
    Ok(())
}

/// The ledger with its surroundings.
struct Day<'a> {
    recording: &'a Recording,
    ledger: Ledger,
    inbox: Inbox,
    board: SnapshotCell,
    page: String,
    replay: Replay,
    /// Restarts of the driver.
    loads: u64,
    /// Until when the driver is away.
    away_until: u64,
    /// Facts of the sampler's life and of the kernel log so far.
    facts: [u64; 2],
    folded: u64,
    pages: u64,
}

impl<'a> Day<'a> {
    fn new(recording: &'a Recording) -> Day<'a> {
        let ledger = Ledger::new(LedgerSettings {
            live: LiveSettings { off: Default::default(), ..LiveSettings::default() },
            ..LedgerSettings::default()
        });
        let inbox = Inbox::default();
        inbox.event(LedgerEvent::ReadsKernelLog(Some(at(0))));
        inbox.event(module(Some(0), 0));
        let mut day = Day {
            recording,
            ledger,
            inbox,
            board: SnapshotCell::default(),
            page: String::new(),
            replay: Replay { generation: 1, ..Replay::default() },
            loads: 0,
            away_until: 0,
            facts: [0, 0],
            folded: 0,
            pages: 0,
        };
        day.sampler_starts();
        day
    }

    /// What happens in one second, folded and published as the daemon does.
    fn second(&mut self, second: u64) -> Result<(), Box<dyn Error>> {
        self.replay.round = second / self.recording.lasts.as_secs();
        // Halfway between two looks at the memory.
        if second % RESTART == RESTART / 2 {
            self.driver_goes(second);
        } else if second == self.away_until && second > 0 {
            self.driver_comes(second);
        }
        if second >= self.away_until {
            self.life(second)?;
            let within = second % self.recording.lasts.as_secs();
            for batch in self.recording.second(within, at(0), self.replay) {
                self.folded += 1;
                self.inbox.batch(batch);
            }
        }
        self.publish(second + 1)
    }

    /// What comes and goes while the driver is there.
    fn life(&mut self, second: u64) -> Result<(), Box<dyn Error>> {
        let due = |every: u64| second % every == every - 1;
        if due(NEW_SAMPLER) {
            self.inbox.event(LedgerEvent::SamplerEnded(SamplerEnd::Exited, at(second)));
            self.sampler_ends();
            self.sampler_starts();
        }
        if due(RESHAPE) {
            self.replay.layouts += 1;
        }
        let slot = &self.recording.slots[second as usize / 7 % self.recording.slots.len()];
        if due(LOSS) {
            let error = DriverError::GpuIsLost;
            self.inbox.event(LedgerEvent::AttachFailed { index: slot.gpu.gpu, error, text: "lost".into() });
        }
        if due(STALL) {
            let (gpu, since) = (Some(slot.gpu.clone()), at(second - 4));
            let stall = Stall { gpu, call: "nvmlX".into(), since, overdue: true };
            self.inbox.event(LedgerEvent::Stalls(vec![stall]));
        }
        if second % STALL == 20 {
            self.inbox.event(LedgerEvent::Stalls(Vec::new()));
        }
        if due(XID) {
            self.xid(&slot.clone(), second)?;
        }
        Ok(())
    }

    /// A fault of another process each time, reported by both or by one of the two.
    fn xid(&mut self, slot: &GpuSlot, second: u64) -> Result<(), Box<dyn Error>> {
        let code = CODES[(second / XID) as usize % CODES.len()];
        let pid = 1000 + second as u32;
        if !second.is_multiple_of(3) {
            self.tell(
                second,
                FactKind::Driver(DriverFact {
                    gpu: slot.gpu.clone(),
                    bits: 0x8,
                    data: code.into(),
                    gpu_instance: None,
                    compute_instance: None,
                }),
            );
        }
        if !second.is_multiple_of(4) {
            let pci = pci_address(&slot.pci_bus_id).ok_or("no PCI address")?;
            let text = format!("NVRM: Xid (PCI:{pci}): {code}, pid={pid}, name=job-{pid}, something");
            let process = Some(format!("job-{pid}"));
            let line = KernelLine::Xid {
                pci,
                code,
                pid: Some(pid),
                process,
                gpu_instance: None,
                compute_instance: None,
                detail: None,
            };
            self.tell(second, FactKind::Kernel(KernelFact { old: false, line, text }));
        }
        Ok(())
    }

    fn tell(&mut self, second: u64, what: FactKind) {
        let (source, life) = match &what {
            FactKind::Driver(_) => (FaultSource::Nvml, self.replay.generation),
            FactKind::Kernel(_) => (FaultSource::Kmsg, 1),
        };
        let number = &mut self.facts[usize::from(source == FaultSource::Kmsg)];
        *number += 1;
        let fact =
            Fact { source, number: *number, taken: at(second), unix_seconds: wall(second), kind: what };
        self.inbox.fact(life, fact);
    }

    fn sampler_starts(&mut self) {
        self.inbox.event(LedgerEvent::SamplerStarted);
        self.inbox.event(LedgerEvent::Samplers(1));
        self.inbox.event(LedgerEvent::DriverUp);
    }

    /// What the next one sends is of a new life, in new epochs.
    fn sampler_ends(&mut self) {
        self.inbox.event(LedgerEvent::Samplers(0));
        self.replay.generation += 1;
        self.facts[0] = 0;
    }

    fn driver_goes(&mut self, second: u64) {
        let error = DriverError::DriverNotLoaded;
        let epoch = (self.replay.generation + 1) << 32;
        self.inbox.event(LedgerEvent::DriverAway { error, text: "not loaded".into(), epoch });
        self.sampler_ends();
        let line = KernelLine::DriverUnloaded;
        self.tell(second, FactKind::Kernel(KernelFact { old: false, line, text: "unloaded".into() }));
        self.inbox.event(module(None, second));
        self.loads += 1;
        self.away_until = second + AWAY;
    }

    fn driver_comes(&mut self, second: u64) {
        let line = KernelLine::DriverLoaded { version: "580.159.04".into() };
        self.tell(second, FactKind::Kernel(KernelFact { old: false, line, text: "loading".into() }));
        self.inbox.event(module(Some(self.loads), second));
        self.sampler_starts();
    }

    /// As the ledger's thread does.
    fn publish(&mut self, second: u64) -> Result<(), Box<dyn Error>> {
        let pending = self.inbox.wait_until(Mono(0)).ok_or("the inbox is closed")?;
        pending.events.into_iter().for_each(|event| self.ledger.event(event));
        for batch in pending.batches {
            self.ledger.fold(batch);
        }
        pending.facts.into_iter().for_each(|(life, fact)| self.ledger.fact(life, fact));
        self.ledger.lost(pending.lost);
        self.board.publish(self.ledger.publish(at(second), wall(second)));
        self.ledger.changed_documents(at(second), wall(second));
        if second.is_multiple_of(PAGE) {
            self.page.clear();
            ResponseFormat::Text.encode_into(&self.board.current(), &Default::default(), &mut self.page);
            self.pages += 1;
        }
        Ok(())
    }

    /// What was done, and that it was: a ledger that threw everything away would be flat too.
    fn figures(&mut self, took: Duration) -> Result<(), Box<dyn Error>> {
        let snapshot: Arc<_> = self.board.current();
        let node = |metric| snapshot.number(metric, &Node {}, ()).unwrap_or(f64::NAN);
        let loads = node(&m::gpu_driver_loads_total);
        let discarded = node(&m::gpu_exporter_batches_discarded_total);
        let lost = node(&m::gpu_exporter_events_lost_total);
        let up = snapshot.series(&m::gpu_up).iter().filter(|s| number(s) == 1.0).count();
        let sum = |series: &[_]| series.iter().map(number).sum::<f64>();
        println!(
            "  batches folded                 {:8}, {discarded} discarded, {lost} events lost",
            self.folded
        );
        println!("  restarts of the driver         {loads:8}");
        println!("  samplers, MIG layouts          {:8}, {}", self.replay.generation, self.replay.layouts);
        println!(
            "  Xids counted, events listed    {:8}, {}",
            sum(snapshot.series(&m::gpu_xid_faults_total)),
            snapshot.events.len()
        );
        println!(
            "  samples of the driver's buffers {:8}",
            sum(snapshot.series(&m::gpu_exporter_samples_total))
        );
        println!(
            "  series, bytes of a page        {:8}, {}, {} pages",
            node(&m::gpu_exporter_series),
            self.page.len(),
            self.pages
        );
        println!("  took                           {:8.0} s", took.as_secs_f64());
        let whole = up == self.recording.slots.len() && discarded == 0.0 && lost == 0.0;
        if !whole || loads != self.loads as f64 {
            return Err(format!("{up} GPUs up, {loads} loads of {}: not what was played", self.loads).into());
        }
        Ok(())
    }
}

fn number(series: &model::snapshot::Series) -> f64 {
    match series.value {
        model::snapshot::Value::Number(value) => value,
        _ => f64::NAN,
    }
}

/// The module's folder as of this load, or none.
fn module(load: Option<u64>, second: u64) -> LedgerEvent {
    let module = load.map_or(ModuleState::Absent, |inode| {
        let id = LoadId { boot: "b".into(), inode, made: None };
        ModuleState::Loaded(Load { id, live: true, version: "580.159.04".into(), unix_seconds: None })
    });
    LedgerEvent::Module { state: module, at: at(second), unix_seconds: wall(second) }
}

/// A second of the day on the monotonic clock: the day begins now, and passes faster.
fn at(second: u64) -> Mono {
    static BEGIN: LazyLock<Mono> = LazyLock::new(Mono::now);
    *BEGIN + Duration::from_secs(second)
}

/// The same on the wall clock.
fn wall(second: u64) -> f64 {
    MORNING + second as f64
}
