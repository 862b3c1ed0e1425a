//! The collector on a kernel that is played: which counters it opens, what it makes of their readings, and on the
//! running one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::rc::Rc;

use nix::errno::Errno;
use proptest::prelude::*;

use super::backend::{CounterBackend, CounterGroup, CounterScope, GroupReading, Refusal};
use super::counter_set::open_counters;
use super::cpu_groups::CpuGroups;
use super::machine_events::{MachineEvents, state};
use super::owner_events::{OwnerEvents, Uncounted, WantedOwners, folder};
use super::perf::{Perf, Processor};
use host::Host;
use model::catalog::PerfEvent::{self, *};
use model::catalog::{CpuGroup, PerfState};
use model::cpus::CpuSet;

const DEFAULT: [PerfEvent; 8] =
    [ContextSwitches, CpuMigrations, PageFaults, MajorFaults, Cycles, Instructions, LlcMisses, BranchMisses];

/// A machine that is played. Each counter counts `rate` a nanosecond, of which hardware ones get `turn` of 100.
#[derive(Default)]
struct Played {
    now: u64,
    turn: u64,
    rates: BTreeMap<(u32, PerfEvent), u64>,
    refuses: BTreeMap<PerfEvent, Errno>,
    off: BTreeSet<u32>,
    /// Descriptors there are; 0 for as many as wanted.
    descriptors: usize,
    /// Most hardware counters that fit together.
    fit: usize,
    /// Groups opened before this number were taken apart.
    apart: usize,
    opened: usize,
    open: usize,
    reads: usize,
}

#[derive(Clone)]
struct Kept(Rc<RefCell<Played>>);

struct PlayedGroup {
    kept: Kept,
    number: usize,
    cpu: u32,
    events: Vec<PerfEvent>,
    started: Option<u64>,
}

impl Kept {
    fn new() -> Kept {
        Kept(Rc::new(RefCell::new(Played { turn: 100, fit: 4, ..Played::default() })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Played) -> T) -> T {
        f(&mut self.0.borrow_mut())
    }

    fn admit(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal> {
        self.with(|played| {
            if let Some(errno) = played.refuses.get(&event) {
                return Err(Refusal::Kernel(*errno));
            }
            if played.off.contains(&place.cpu) {
                return Err(Refusal::Kernel(Errno::ENODEV));
            }
            if played.descriptors > 0 && played.open >= played.descriptors {
                return Err(Refusal::Kernel(Errno::EMFILE));
            }
            played.open += 1;
            Ok(())
        })
    }
}

fn hardware(events: &[PerfEvent]) -> usize {
    events.iter().filter(|event| !super::counter_set::is_software(**event)).count()
}

impl CounterBackend for Kept {
    type Group = PlayedGroup;

    fn open(&self, event: PerfEvent, place: CounterScope<'_>) -> Result<PlayedGroup, Refusal> {
        self.admit(event, place)?;
        let number = self.with(|played| {
            played.opened += 1;
            played.opened
        });
        Ok(PlayedGroup { kept: self.clone(), number, cpu: place.cpu, events: vec![event], started: None })
    }
}

impl CounterGroup for PlayedGroup {
    fn join(&mut self, event: PerfEvent, place: CounterScope<'_>) -> Result<(), Refusal> {
        if hardware(&self.events) >= self.kept.with(|played| played.fit) {
            return Err(Refusal::Kernel(Errno::EINVAL));
        }
        self.kept.admit(event, place)?;
        self.events.push(event);
        Ok(())
    }

    fn start(&mut self) -> Result<(), Refusal> {
        self.started = Some(self.kept.with(|played| played.now));
        Ok(())
    }

    fn read(&mut self) -> Result<GroupReading, Refusal> {
        self.kept.with(|played| {
            played.reads += 1;
            if self.number <= played.apart || played.off.contains(&self.cpu) {
                return Err(Refusal::Kernel(Errno::ENODEV));
            }
            let enabled = played.now - self.started.expect("it was started");
            let running = if hardware(&self.events) > 0 { enabled / 100 * played.turn } else { enabled };
            let rate = |event: &PerfEvent| played.rates.get(&(self.cpu, *event)).copied().unwrap_or(0);
            let values = self.events.iter().map(|event| rate(event) * running).collect();
            Ok(GroupReading { enabled, running, values })
        })
    }
}

impl Drop for PlayedGroup {
    fn drop(&mut self) {
        let counters = self.events.len();
        self.kept.with(|played| played.open -= counters);
    }
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn unnamed() -> CpuGroup {
    CpuGroup { numa_node: "".into(), l3: "".into() }
}

fn owned_counters<K: CounterBackend>(owned: &OwnerEvents<K>) -> usize {
    owned.owners.values().map(|owner| open_counters(&owner.counters)).sum()
}

fn sums(machine: &MachineEvents<Kept>) -> BTreeMap<PerfEvent, u128> {
    let mut all = BTreeMap::new();
    machine.sums().for_each(|(_, event, sum)| *all.entry(event).or_default() += sum);
    all
}

fn states(machine: &MachineEvents<Kept>) -> BTreeMap<PerfEvent, PerfState> {
    machine.outcomes.iter().map(|(event, outcome)| (*event, state(outcome))).collect()
}

#[test]
fn a_cpu_is_read_with_one_call_for_the_kernels_events_and_one_for_four_of_the_hardware() {
    let kernel = Kept::new();
    kernel.with(|played| {
        played.rates = [((0, Cycles), 3), ((1, Cycles), 2), ((1, ContextSwitches), 1)].into();
    });
    let mut machine = MachineEvents::new(&DEFAULT);
    machine.step(&kernel, &cpus("0-1"), &CpuGroups::default(), 1000);
    assert_eq!(machine.open_counters(), 16);
    assert_eq!(sums(&machine).values().sum::<u128>(), 0, "counters are born at 0");
    assert_eq!(machine.sums().count(), 8, "each event in each group");
    assert_eq!(kernel.with(|played| played.opened), 4);
    kernel.with(|played| played.now = 1000);
    machine.step(&kernel, &cpus("0-1"), &CpuGroups::default(), 1000);
    assert_eq!(kernel.with(|played| played.reads), 4);
    assert_eq!((sums(&machine)[&Cycles], sums(&machine)[&ContextSwitches]), (5000, 1000));
    assert!(machine.ratios().all(|(_, ratio)| ratio == 1.0));
}

#[test]
fn shared_counters_are_scaled_and_say_so() {
    let kernel = Kept::new();
    kernel.with(|played| (played.turn, played.rates) = (25, [((0, Cycles), 4), ((0, PageFaults), 1)].into()));
    let mut machine = MachineEvents::new(&DEFAULT);
    machine.step(&kernel, &cpus("0"), &CpuGroups::default(), 1000);
    kernel.with(|played| played.now = 1000);
    machine.step(&kernel, &cpus("0"), &CpuGroups::default(), 1000);
    assert_eq!((sums(&machine)[&Cycles], sums(&machine)[&PageFaults]), (4000, 1000));
    let ratios: BTreeMap<PerfEvent, f64> = machine.ratios().collect();
    assert_eq!((ratios[&Cycles], ratios[&PageFaults]), (0.25, 1.0), "the kernel's own are never shared");
}

#[test]
fn each_refusal_has_its_state_and_the_others_are_counted() {
    for (errno, expected) in [
        (Errno::ENOENT, PerfState::NoPmu),
        (Errno::ENODEV, PerfState::NoPmu),
        (Errno::EOPNOTSUPP, PerfState::NoPmu),
        (Errno::EACCES, PerfState::NotPermitted),
        (Errno::EPERM, PerfState::NotPermitted),
        (Errno::ENOSYS, PerfState::Unknown),
        (Errno::EINVAL, PerfState::Unknown),
    ] {
        let kernel = Kept::new();
        kernel.with(|played| played.refuses = DEFAULT[4..].iter().map(|event| (*event, errno)).collect());
        let mut machine = MachineEvents::new(&DEFAULT);
        machine.step(&kernel, &cpus("0-3"), &CpuGroups::default(), 1000);
        let states = states(&machine);
        assert_eq!((states[&Cycles], states[&PageFaults]), (expected, PerfState::Works), "{errno}");
        assert_eq!((machine.open_counters(), machine.sums().count()), (16, 4));
        kernel.with(|played| played.refuses = DEFAULT.iter().map(|event| (*event, errno)).collect());
        let mut machine = MachineEvents::new(&DEFAULT);
        machine.step(&kernel, &cpus("0-3"), &CpuGroups::default(), 1000);
        assert_eq!((machine.open_counters(), machine.sums().count()), (0, 0));
        assert!(machine.outcomes.values().all(|outcome| state(outcome) == expected), "{errno}");
    }
}

#[test]
fn what_was_not_permitted_is_tried_again() {
    let kernel = Kept::new();
    kernel.with(|played| played.refuses = DEFAULT.iter().map(|event| (*event, Errno::EACCES)).collect());
    let mut machine = MachineEvents::new(&DEFAULT);
    let one = cpus("0-1");
    machine.step(&kernel, &one, &CpuGroups::default(), 1000);
    assert!(!machine.retry(&kernel, &one));
    kernel.with(|played| played.refuses = DEFAULT[4..].iter().map(|event| (*event, Errno::ENOENT)).collect());
    assert!(machine.retry(&kernel, &one));
    machine.step(&kernel, &one, &CpuGroups::default(), 1000);
    assert_eq!(machine.working(), DEFAULT[..4]);
    assert!(!machine.retry(&kernel, &one), "a PMU does not come by itself");
}

#[test]
fn events_that_do_not_fit_together_are_counted_apart() {
    for fit in 1..=6 {
        let kernel = Kept::new();
        kernel.with(|played| played.fit = fit);
        let mut machine = MachineEvents::new(&DEFAULT);
        machine.step(&kernel, &cpus("0"), &CpuGroups::default(), 1000);
        let groups = kernel.with(|played| played.opened);
        assert_eq!((machine.open_counters(), groups), (8, 1 + 4usize.div_ceil(fit.min(4))));
    }
}

#[test]
fn a_cpu_that_goes_keeps_its_sum_and_one_that_comes_is_added() {
    let kernel = Kept::new();
    let rate = |cpu| ((cpu, ContextSwitches), 1);
    kernel.with(|played| played.rates = (0..3).map(rate).collect());
    let mut machine = MachineEvents::new(&DEFAULT[..4]);
    let mut at = |now, off: &[u32], known: &str| {
        kernel.with(|played| (played.now, played.off) = (now, off.iter().copied().collect()));
        machine.step(&kernel, &cpus(known), &CpuGroups::default(), 1000);
        (sums(&machine)[&ContextSwitches], machine.open_counters())
    };
    assert_eq!(at(0, &[2], "0-1"), (0, 8));
    assert_eq!(at(100, &[2], "0-1"), (200, 8));
    assert_eq!(at(200, &[1, 2], "0"), (300, 4), "what CPU 1 did in its last moments is not known");
    assert_eq!(at(300, &[], "0-2"), (400, 12));
    assert_eq!(at(400, &[], "0-2"), (700, 12));
    assert_eq!(at(500, &[1], "0-2"), (900, 8), "gone between the list and the look");
    assert_eq!(at(600, &[], "0-2"), (1100, 12));
}

#[test]
fn groups_that_were_taken_apart_are_opened_again() {
    let kernel = Kept::new();
    kernel.with(|played| played.rates = [((0, PageFaults), 1)].into());
    let mut machine = MachineEvents::new(&DEFAULT[..4]);
    machine.step(&kernel, &cpus("0"), &CpuGroups::default(), 1000);
    kernel.with(|played| (played.now, played.apart) = (100, played.opened));
    machine.step(&kernel, &cpus("0"), &CpuGroups::default(), 1000);
    kernel.with(|played| played.now = 200);
    machine.step(&kernel, &cpus("0"), &CpuGroups::default(), 1000);
    assert_eq!(sums(&machine)[&PageFaults], 100);
}

#[test]
fn without_room_the_last_events_are_left_out_on_every_cpu() {
    let kernel = Kept::new();
    let mut machine = MachineEvents::new(&DEFAULT);
    machine.step(&kernel, &cpus("0-7"), &CpuGroups::default(), 40);
    assert_eq!((machine.open_counters(), machine.working()), (40, DEFAULT[..5].to_vec()));
    assert_eq!(states(&machine)[&BranchMisses], PerfState::Unknown);
    machine.step(&kernel, &cpus("0-7"), &CpuGroups::default(), 400);
    assert_eq!(machine.open_counters(), 64, "there is room now");
    // Another part of the process takes descriptors: an event that is not on all CPUs is on none.
    let kernel = Kept::new();
    kernel.with(|played| played.descriptors = 20);
    let mut machine = MachineEvents::new(&DEFAULT[..4]);
    machine.step(&kernel, &cpus("0-7"), &CpuGroups::default(), 400);
    assert!(machine.open_counters() <= 20);
    assert_eq!(machine.open_counters() % 8, 0);
}

#[test]
fn owners_are_counted_as_far_as_there_is_room_and_keep_what_was_counted() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = Kept::new();
    kernel.with(|played| played.rates = [((0, PageFaults), 2), ((1, PageFaults), 1)].into());
    let events = &DEFAULT[..4];
    let folders: Vec<_> = (0..3).map(|n| dir.path().join(format!("{n}"))).collect();
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let wanted = |alive: &[usize], ended: &[usize]| -> WantedOwners {
        let alive = alive.iter().map(|n| (n.to_string().into(), Some(folders[*n].clone())));
        alive.chain(ended.iter().map(|n| (n.to_string().into(), None))).collect()
    };
    let mut owned = OwnerEvents { owners: BTreeMap::new() };
    let mut at = |now, wanted: &WantedOwners| {
        kernel.with(|played| played.now = now);
        let left = owned.step(&kernel, &cpus("0-1"), events, wanted, 20);
        let sums: Vec<(String, u128)> = owned
            .sums()
            .filter(|(_, event, _)| *event == PageFaults)
            .map(|(id, _, sum)| (id.to_string(), sum))
            .collect();
        (sums, left, owned_counters(&owned))
    };
    let sum = |id: &str, sum| (id.to_owned(), sum);
    let (sums, left, open) = at(0, &wanted(&[0, 1, 2], &[]));
    assert_eq!((sums, open), (vec![sum("0", 0), sum("1", 0)], 16));
    assert_eq!(left.without_room, ["2".into()]);
    let (sums, left, open) = at(100, &wanted(&[1, 2], &[0]));
    assert_eq!(
        (sums, left, open),
        (vec![sum("0", 300), sum("1", 300), sum("2", 0)], Uncounted::default(), 16)
    );
    let (sums, ..) = at(200, &wanted(&[1, 2], &[0]));
    assert_eq!(sums, [sum("0", 300), sum("1", 600), sum("2", 300)]);
    fs::remove_dir(&folders[0]).unwrap();
    let (sums, left, open) = at(300, &wanted(&[0], &[1]));
    assert_eq!(sums, [sum("0", 300), sum("1", 900)], "2 is forgotten");
    assert_eq!((left.refused.len(), open), (1, 0), "its group has vanished");
}

#[test]
fn control_groups_are_looked_for_where_events_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::new(dir.path());
    let put = |path: &str| {
        let path = dir.path().join("sys/fs/cgroup").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    };
    assert_eq!(folder(&host, "/a/b"), None, "there is none");
    put("cgroup.controllers");
    put("a/b/cgroup.procs");
    put("unified/a/b/cgroup.procs");
    let found = |cgroup| folder(&host, cgroup).map(|path| path.strip_prefix(dir.path()).unwrap().to_owned());
    assert_eq!(found("/a/b"), Some("sys/fs/cgroup/a/b".into()));
    put("unified/cgroup.controllers");
    assert_eq!(found("/a/b"), Some("sys/fs/cgroup/unified/a/b".into()));
    put("perf_event/cgroup.procs");
    assert_eq!(found("/a/b"), None, "version 1 has perf_event, and not this group");
    put("perf_event/a/b/cgroup.procs");
    assert_eq!(found("/a/b"), Some("sys/fs/cgroup/perf_event/a/b".into()));
    for no_group in ["", "/", "/a/../../../etc", "/.."] {
        assert_eq!(found(no_group), None, "{no_group}");
    }
}

#[test]
fn the_running_kernel_counts_or_says_why_not() {
    let host = Host::new("/");
    let kernel = Perf::new(Processor::of_host(&host));
    let cpus = super::cpu_groups::online(&host).unwrap();
    // No more descriptors than a large machine with the usual limit has for all tests together.
    let mut machine = MachineEvents::new(&[PageFaults, Cycles]);
    machine.step(&kernel, &cpus, &CpuGroups::of_host(&host, &cpus), 1000);
    let pmu = ["cpu", "cpu_core", "cpu_atom", "armv8_pmuv3_0"]
        .iter()
        .any(|name| fs::exists(format!("/sys/bus/event_source/devices/{name}")).unwrap());
    let software = state(&machine.outcomes[&PageFaults]);
    assert!(matches!(software, PerfState::Works | PerfState::NotPermitted), "{:?}", machine.outcomes);
    if software == PerfState::Works && !pmu {
        assert_eq!(state(&machine.outcomes[&Cycles]), PerfState::NoPmu);
    }
    if software != PerfState::Works {
        return;
    }
    // New pages are made until the counters have seen some.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let faults = |machine: &MachineEvents<Perf>| -> u128 {
        machine.sums().filter(|(_, event, _)| *event == PageFaults).map(|(.., sum)| sum).sum()
    };
    while faults(&machine) < 100 {
        assert!(std::time::Instant::now() < deadline, "no page fault was counted");
        std::hint::black_box(vec![1u8; 4 << 20]);
        machine.step(&kernel, &cpus, &CpuGroups::of_host(&host, &cpus), 1000);
    }
    assert!(machine.ratios().filter(|(event, _)| *event == PageFaults).all(|(_, ratio)| ratio > 0.9));
}

#[test]
fn the_running_kernel_counts_for_a_control_group() {
    let host = Host::new("/");
    let kernel = Perf::new(Processor::of_host(&host));
    let cpus = super::cpu_groups::online(&host).unwrap();
    // This process's own group of version 2, where events are counted for those; else there is nothing to try.
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return };
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(std::path::Path::new);
    let Some(root) = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()) else { return };
    if fs::exists("/sys/fs/cgroup/perf_event/cgroup.procs").unwrap() {
        return;
    }
    let wanted: WantedOwners = [("own".into(), Some(root.join(own)))].into();
    let mut owned: OwnerEvents<Perf> = OwnerEvents { owners: BTreeMap::new() };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let left = owned.step(&kernel, &cpus, &[PageFaults, ContextSwitches], &wanted, 1000);
        if let Some((_, refusal)) = left.refused.first() {
            let state = refusal.state();
            assert!(matches!(state, PerfState::NotPermitted | PerfState::Unknown), "{refusal:?}");
            return;
        }
        if owned.sums().any(|(_, event, sum)| event == PageFaults && sum >= 100) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "no page fault was counted");
        std::hint::black_box(vec![1u8; 4 << 20]);
    }
    assert_eq!(owned_counters(&owned), 2 * cpus.len());
}

#[derive(Clone, Debug)]
enum Step {
    Work(u64),
    Multiplexing(u64),
    Off(u32),
    On(u32),
    TakeApart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u64..100_000).prop_map(Step::Work),
        (0u64..=100).prop_map(Step::Multiplexing),
        (0u32..4).prop_map(Step::Off),
        (0u32..4).prop_map(Step::On),
        Just(Step::TakeApart),
    ]
}

proptest! {
    #[test]
    fn sums_never_go_back_and_never_count_more_than_there_was(steps in prop::collection::vec(step(), 1..60)) {
        let kernel = Kept::new();
        let rates = (0..4).flat_map(|cpu| DEFAULT.map(|event| ((cpu, event), u64::from(cpu) + 1)));
        kernel.with(|played| played.rates = rates.collect());
        let mut machine = MachineEvents::new(&DEFAULT);
        let mut last = BTreeMap::new();
        let mut possible = 0u128;
        for step in steps {
            let work = matches!(step, Step::Work(_));
            kernel.with(|played| match step {
                Step::Work(hundreds) => {
                    played.now += hundreds * 100;
                    possible += u128::from(hundreds) * 1000;
                }
                Step::Multiplexing(turn) => played.turn = turn,
                Step::Off(cpu) => drop(played.off.insert(cpu)),
                Step::On(cpu) => drop(played.off.remove(&cpu)),
                Step::TakeApart => played.apart = played.opened,
            });
            // The share is read as that of the whole life of a group, so it may change only with new groups.
            if !work && matches!(step, Step::Multiplexing(_)) {
                kernel.with(|played| played.apart = played.opened);
            }
            let on: CpuSet = (0..4).filter(|cpu| !kernel.with(|played| played.off.contains(cpu))).collect();
            machine.step(&kernel, &on, &CpuGroups::default(), 1000);
            let now = sums(&machine);
            for (event, sum) in &last {
                prop_assert!(on.is_empty() || now.get(event).is_none_or(|now| now >= sum), "{event:?} went back");
            }
            prop_assert!(now.values().all(|sum| *sum <= possible), "{now:?} of {possible}");
            prop_assert_eq!(machine.open_counters(), kernel.with(|played| played.open));
            prop_assert_eq!(machine.open_counters(), on.len() * 8);
            last.extend(now);
        }
    }
}

#[test]
fn a_group_without_names_is_named_so() {
    assert_eq!(CpuGroups::default().group_of(0), unnamed());
}
