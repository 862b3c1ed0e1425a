//! Verdicts on programs of known operation counts, and the tables behind them.

use std::collections::BTreeMap;

use super::compare::{CompareTarget, compare};
use super::flops::{CpuModel, Precision};
use super::recording::{self, HotFunction, HotFunctions, PmuCounts, RunCounts, SystemCounts};
use super::report::{AssessInputs, AssessReport};
use super::roofline::{self, GPUS};
use super::text;
use super::thresholds::Vote;
use super::verdict::{BoundedTime, Coupling, MoveVerdict, SplitAnswers, amdahl};

/// Counts by arithmetic: nothing of them was measured.
fn computed(subject: &str, seconds: f64, counts: PmuCounts, items: Option<f64>) -> RunCounts {
    RunCounts {
        subject: subject.into(),
        computed: true,
        wall_seconds: seconds,
        cpu_seconds: Some(seconds),
        cpus: Some(64.0),
        items,
        counts,
        ..RunCounts::default()
    }
}

fn counts(flops: f64, instructions: f64, branches: (f64, f64), misses: f64) -> PmuCounts {
    PmuCounts {
        flops: BTreeMap::from([(Precision::Double, flops)]),
        instructions: Some(instructions),
        branches: Some(branches.0),
        branch_misses: Some(branches.1),
        llc_references: Some(misses.max(1.0)),
        llc_misses: Some(misses),
        ..PmuCounts::default()
    }
}

/// `a[i] = b[i] + s * c[i]`: 2 FLOPs on 24 bytes and the line of `a` that is read before it is written, four elements an
/// instruction, at 12 GB/s.
fn triad() -> RunCounts {
    let n: f64 = 2e8;
    let bytes = 32.0 * n;
    computed("triad", bytes / 12e9, counts(2.0 * n, n * 5.0 / 4.0, (n / 4.0, 10.0), bytes / 64.0), Some(n))
}

/// A product of two square matrices in blocks of 256: 2n³ FLOPs; each block is loaded n/256 times.
fn dense_product() -> RunCounts {
    let n: f64 = 4096.0;
    let bytes = 2.0 * 8.0 * n * n * (n / 256.0) + 16.0 * n * n;
    let flops = 2.0 * n.powi(3);
    computed(
        "dense product",
        flops / 40e9,
        counts(flops, flops / 4.0, (n.powi(3) / 32.0, n * n), bytes / 64.0),
        Some(n * n),
    )
}

/// `if x[i] < pivot { sum += x[i] }` over random numbers: half of one of two branches is a surprise.
fn branchy_loop() -> RunCounts {
    let n: f64 = 1e9;
    computed(
        "branchy loop",
        n * 8.0 / 3e9,
        counts(n / 2.0, n * 5.0, (2.0 * n, n / 2.0), n * 8.0 / 64.0),
        Some(n),
    )
}

/// A random cycle of pointers in 4 GB: every load misses, and waits for the one before.
fn pointer_chase() -> RunCounts {
    let n: f64 = 1e8;
    let run = computed("pointer chase", n * 100e-9, counts(0.0, n * 3.0, (n, 10.0), n), None);
    // 3 GHz.
    let counts = PmuCounts { cycles: Some(run.wall_seconds * 3e9), ..run.counts };
    RunCounts { counts, ..run }
}

fn report(run: RunCounts) -> AssessReport {
    AssessReport::new(run, &AssessInputs::default(), GPUS[0])
}

#[test]
fn known_programs_have_the_right_verdict() {
    let density = |run: RunCounts| report(run).figures.density_at_most.unwrap();
    assert!((density(triad()) - 1.0 / 16.0).abs() < 1e-9);
    assert!((15.0..32.0).contains(&density(dense_product())));
    for (run, verdict) in [
        (triad(), MoveVerdict::MemoryBound),
        (dense_product(), MoveVerdict::Suits),
        (branchy_loop(), MoveVerdict::NotAsWritten),
        (pointer_chase(), MoveVerdict::NotAsWritten),
    ] {
        let report = report(run);
        assert_eq!(report.judgement.verdict, verdict, "{:#?}", report.judgement);
        let page = text::page(&report, false);
        assert!(page.contains("computed from known operation counts, not measured"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 120), "{page}");
        assert!(page.contains(verdict.text().split(':').next().unwrap()), "{page}");
    }
    let rows = |run| report(run).judgement.rows.iter().map(|row| row.says).collect::<Vec<_>>();
    assert_eq!(rows(branchy_loop())[2], Vote::Against);
    assert_eq!(rows(pointer_chase())[3], Vote::Against, "one miss in flight");
    assert_eq!(rows(triad())[3], Vote::For, "a stream");
}

/// Few misses in flight because it computes meanwhile, whatever the speed of its CPU, and none because they depend.
#[test]
fn a_dense_product_suits_at_any_rate() {
    for gigaflops in [1.0, 5.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0] {
        let run = dense_product();
        let seconds = run.counts.flops.values().sum::<f64>() / gigaflops / 1e9;
        let counts = PmuCounts { cycles: Some(seconds * 3e9), ..run.counts };
        let run = RunCounts { wall_seconds: seconds, cpu_seconds: Some(seconds), counts, ..run };
        let report = report(run);
        assert_eq!(report.judgement.verdict, MoveVerdict::Suits, "{gigaflops}: {:#?}", report.judgement);
    }
    // Without cycles, waiting and computing look alike.
    let chase = pointer_chase();
    let blind = PmuCounts { cycles: None, ..chase.counts.clone() };
    let report = report(RunCounts { counts: blind, ..chase });
    assert_eq!(report.judgement.rows[3].says, Vote::NotMeasured, "{:#?}", report.judgement);
}

/// Where memory is saturated, each thread has few misses in flight and waits: no chain of loads.
#[test]
fn a_triad_on_all_cpus_is_bound_by_memory() {
    for rate in [150e9, 250e9, 350e9, 500e9] {
        let seconds = triad().counts.llc_misses.unwrap() * 64.0 / rate;
        let cpu = seconds * 256.0;
        let counts = PmuCounts { cycles: Some(cpu * 3e9), ..triad().counts };
        let run = RunCounts { wall_seconds: seconds, cpu_seconds: Some(cpu), counts, ..triad() };
        let judged = report(run.clone()).judgement;
        assert_eq!(judged.verdict, MoveVerdict::MemoryBound, "{rate}: {judged:#?}");
        assert_ne!(judged.rows[3].says, Vote::Against, "{rate}: {judged:#?}");
        // Nor a copy of the same, which has no operations.
        let copy = RunCounts { counts: PmuCounts { flops: BTreeMap::new(), ..run.counts }, ..run };
        assert_eq!(report(copy).judgement.verdict, MoveVerdict::NotJudged, "{rate}");
    }
}

#[test]
fn few_operations_on_hardly_any_bytes_do_not_suit() {
    // A simulator: 0.02 FLOPs an instruction, 0.02 misses in 1,000.
    let run = computed("simulator", 10.0, counts(6e8, 3e10, (6e9, 6e6), 5e5), Some(1e6));
    let judged = report(run).judgement;
    assert!(judged.rows[0].value.unwrap() > 10.0, "{judged:#?}");
    assert_eq!(
        (judged.verdict, judged.rows[0].says),
        (MoveVerdict::Borderline, Vote::Between),
        "{judged:#?}"
    );
}

#[test]
fn misses_that_do_not_matter_speak_against_nothing() {
    // 0.05 FLOPs an instruction, 0.9 misses and 0.5 branch misses in 1,000 of them, every fourth branch missed.
    let run = computed("in the caches", 10.0, counts(5e8, 1e10, (2e7, 5e6), 9e6), Some(1e6));
    let judged = report(run).judgement;
    assert_eq!(judged.verdict, MoveVerdict::Borderline, "{judged:#?}");
    assert_eq!((judged.rows[2].says, judged.rows[3].says), (Vote::For, Vote::For), "{judged:#?}");
}

#[test]
fn events_that_were_hardly_counted_are_not_judged() {
    let with = |ratio: f64| {
        let run = dense_product();
        let counts = PmuCounts { counted_ratio: Some(ratio), ..run.counts };
        report(RunCounts { counts, ..run }).judgement.verdict
    };
    assert_eq!((with(0.04), with(0.5)), (MoveVerdict::NotJudged, MoveVerdict::Suits));
}

#[test]
fn bytes_are_fills_from_memory_where_those_are_counted() {
    let run = triad();
    let counts =
        PmuCounts { memory_fills: Some(1e6), llc_misses: Some(3e6), llc_references: Some(4e6), ..run.counts };
    let figures = report(RunCounts { counts, ..run }).figures;
    assert_eq!((figures.bytes_at_least, figures.llc_hit_ratio), (Some(64e6), Some(0.25)));
}

#[test]
fn a_serial_program_is_not_unsuitable_for_that_alone() {
    let report = report(RunCounts { items: None, ..dense_product() });
    assert_eq!(report.figures.threads_used, Some(1.0));
    assert_eq!(report.judgement.verdict, MoveVerdict::SuitsIfParallel);
    let few = AssessReport::new(
        RunCounts { items: Some(64.0), ..dense_product() },
        &AssessInputs::default(),
        GPUS[0],
    );
    assert_eq!(few.judgement.verdict, MoveVerdict::TooSmall);
}

#[test]
fn nothing_measured_is_no_verdict() {
    let nothing =
        RunCounts { items: Some(1e9), wall_seconds: 2.0, cpu_seconds: Some(2.0), ..RunCounts::default() };
    let report_of = report(nothing);
    assert_eq!(report_of.judgement.verdict, MoveVerdict::NotJudged);
    let page = text::page(&report_of, false);
    assert_eq!(page.matches("not measured").count(), 8, "{page}");
    assert!(page.contains("no bound: functions were not sampled") && page.contains("no position"), "{page}");
    let short = RunCounts { wall_seconds: 0.01, cpu_seconds: Some(0.008), ..dense_product() };
    assert_eq!(report(short).judgement.verdict, MoveVerdict::NotJudged);
    let integers = RunCounts { counts: counts(0.0, 1e10, (1e9, 1e6), 1e3), ..dense_product() };
    assert_eq!(report(integers).judgement.verdict, MoveVerdict::NotJudged);
}

/// A script that is copied much has the weights the other way round: scalars weigh least.
#[test]
fn masks_of_intels_floating_point_event_weigh_by_width_and_precision() {
    let cpuinfo = |vendor: &str, family: u32, model: u32, flags: &str| {
        CpuModel::from_cpuinfo(&format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nflags\t\t: fpu {flags}\n\n\
             processor\t: 1\nvendor_id\t: other\n"
        ))
    };
    let sapphire_rapids = cpuinfo("GenuineIntel", 6, 143, "avx2 avx512f");
    let events = sapphire_rapids.flop_events();
    let configs: Vec<u64> = events.iter().map(|event| event.config).collect();
    assert_eq!(configs, [0x01c7, 0x02c7, 0x04c7, 0x08c7, 0x10c7, 0x20c7, 0x40c7, 0x80c7]);
    let weights: Vec<u32> = events.iter().map(|event| event.weight).collect();
    assert_eq!(weights, [1, 1, 2, 4, 4, 8, 8, 16]);
    let doubles = events.iter().filter(|event| event.precision == Precision::Double);
    assert_eq!(doubles.map(|event| event.config >> 8).sum::<u64>(), 0x55);
    assert_eq!(cpuinfo("GenuineIntel", 6, 79, "avx2").flop_events().len(), 6, "Broadwell has no 512 bits");
    for unknown in
        [cpuinfo("GenuineIntel", 6, 175, "avx2"), cpuinfo("GenuineIntel", 6, 87, "avx512f avx512er")]
    {
        assert!(unknown.flop_events().is_empty() && unknown.flop_gap().is_some());
        assert!(unknown.kernel_counts_last_level());
    }
    let zen1 = cpuinfo("AuthenticAMD", 0x17, 1, "").flop_events();
    assert_eq!(
        zen1.iter().map(|event| (event.config, event.precision)).collect::<Vec<_>>(),
        [(0xf003, Precision::Double), (0x0f03, Precision::Single)]
    );
    let zen4 = cpuinfo("AuthenticAMD", 0x19, 17, "avx512f");
    assert_eq!(zen4, CpuModel::Zen2 { fills: true });
    let last_level = zen4.last_level_events().unwrap();
    // Fills from the own core complex are hits; those from another one are misses and no bytes from memory.
    assert_eq!(last_level.references ^ last_level.misses, 0x0200);
    assert_eq!((last_level.misses, last_level.memory_fills), (0xdc44, 0x4844));
    assert_eq!((zen4.flop_events()[0].config, zen4.flop_events()[0].precision), (0x0f03, Precision::Any));
    let arm = |part: &str| {
        CpuModel::from_cpuinfo(&format!("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"))
    };
    assert_eq!(arm("0xd40").flop_events().iter().map(|event| event.weight).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(arm("0xd4f").flop_events().iter().map(|event| event.weight).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(arm("0xd0c"), CpuModel::Other { intel: false });
}

#[test]
fn three_of_five_recommend_a_split() {
    let with = |run: RunCounts, split: SplitAnswers| {
        AssessReport::new(run, &AssessInputs { split, ..AssessInputs::default() }, GPUS[0]).split
    };
    let none = SplitAnswers::default();
    assert_eq!(with(dense_product(), none).split, None, "two, and three unknown");
    let loose = SplitAnswers { coupling: Some(Coupling::Loose), ..none };
    assert_eq!((with(dense_product(), loose).split, with(dense_product(), loose).votes), (Some(true), 3));
    let close =
        SplitAnswers { p99_seconds: Some(1e-3), coupling: Some(Coupling::Tight), exchange_bytes: Some(3e6) };
    assert_eq!(with(dense_product(), close).split, Some(false));
    let far =
        SplitAnswers { p99_seconds: Some(0.05), coupling: Some(Coupling::Loose), exchange_bytes: Some(4e3) };
    assert_eq!(with(RunCounts::default(), far).split, Some(true), "by flags alone");
}

fn hot(shares: &[(&str, u64)]) -> HotFunctions {
    let samples = shares.iter().map(|(_, samples)| samples).sum();
    let function = |(name, of): &(&str, u64)| HotFunction {
        name: (*name).into(),
        samples: *of,
        share: *of as f64 / samples as f64,
        ..HotFunction::default()
    };
    HotFunctions {
        hertz: 99,
        samples,
        functions: shares.iter().map(function).collect(),
        ..HotFunctions::default()
    }
}

#[test]
fn the_bound_is_amdahls() {
    let profile = hot(&[("app::kernel(f64)", 800), ("[kernel]", 150), ("parse", 50)]);
    // Ten seconds of one thread that waits for nothing.
    let of = |profile: &HotFunctions| RunCounts {
        wall_seconds: 10.0,
        cpu_seconds: Some(10.0),
        cpus: Some(8.0),
        system: Some(SystemCounts { voluntary_switches: 9, ..SystemCounts::default() }),
        hot: Some(profile.clone()),
        ..RunCounts::default()
    };
    let run = of(&profile);
    let bound = amdahl(&run, &[], Some(10.0)).unwrap();
    assert_eq!(bound.functions, ["app::kernel(f64)"], "the kernel's time cannot move");
    assert!((bound.at_most.unwrap() - 5.0).abs() < 1e-9);
    assert!((bound.with_gain.unwrap().speed_up - 1.0 / 0.28).abs() < 1e-9);
    assert!(bound.share_interval.low > 0.77 && bound.share_interval.high < 0.83);
    let chosen = amdahl(&run, &["kernel".into(), "parse".into()], None).unwrap();
    assert_eq!((chosen.functions.len(), chosen.share), (2, 0.85));
    assert!(amdahl(&run, &["nothing".into()], None).unwrap_err().contains("nothing"));
    assert!(amdahl(&of(&hot(&[("f", 20)])), &[], None).unwrap_err().contains("too few"));
    // Half of its time it waits: 80 % of the CPU time are 40 % of the wall time.
    let waits = RunCounts { wall_seconds: 20.0, ..run.clone() };
    let bound = amdahl(&waits, &[], None).unwrap();
    assert_eq!((bound.of, bound.share, bound.share_of_time), (BoundedTime::Wall, 0.8, 0.4));
    assert!((bound.at_most.unwrap() - 1.0 / 0.6).abs() < 1e-9);
    // With several threads the bound is one of CPU time, and is called so.
    let threads = RunCounts { wall_seconds: 2.5, ..run.clone() };
    let bound = amdahl(&threads, &[], None).unwrap();
    assert_eq!((bound.of, bound.share_of_time), (BoundedTime::Cpu, 0.8));
    let page = text::page(&report(threads), false);
    assert!(page.contains("times less CPU time") && page.contains("shares are self time"), "{page}");
    // A third of the CPU time was of processes that no sample saw.
    let short = RunCounts { cpu_seconds: Some(15.0), wall_seconds: 15.0, ..run.clone() };
    assert!(amdahl(&short, &[], None).unwrap_err().contains("67 % of the CPU time"));
    assert!(text::page(&report(short), false).contains("the samples cover 67 % of the CPU time"));
    // Time in the kernel without samples stays: 85 % of it are the function's, not all.
    let unseen = RunCounts { hot: Some(HotFunctions { hertz: 100, ..hot(&[("f", 850)]) }), ..run.clone() };
    let bound = amdahl(&unseen, &[], None).unwrap();
    assert!((bound.share - 0.85).abs() < 1e-9 && (bound.at_most.unwrap() - 1.0 / 0.15).abs() < 1e-9);
    assert!(bound.share_interval.high <= 0.85, "{bound:?}");
    // Who waits for a CPU, by a quota or for others, waits less if the functions move.
    let throttled = RunCounts { cpus: Some(0.5), ..waits.clone() };
    let preempted =
        SystemCounts { voluntary_switches: 1, involuntary_switches: 86, ..SystemCounts::default() };
    for waiting in [
        throttled,
        RunCounts { system: Some(preempted), ..waits.clone() },
        RunCounts { system: None, ..waits },
    ] {
        let bound = amdahl(&waiting, &[], None).unwrap();
        assert_eq!((bound.of, bound.share_of_time), (BoundedTime::Cpu, 0.8), "{waiting:?}");
    }
    let all = RunCounts { hot: Some(hot(&[("f", 1000)])), ..run };
    assert!(text::page(&report(all), false).contains("of the wall time: no bound (95 %: "));
    // Code without a name cannot be moved.
    let stripped = hot(&[("[no symbol in app]", 900), ("[code without a file]", 100)]);
    assert!(amdahl(&of(&stripped), &[], None).unwrap_err().contains("no function with a name"));
}

#[test]
fn the_plot_has_the_program_under_the_roof() {
    let figures = report(triad()).figures;
    let plot = roofline::text(&figures, &GPUS[0]).unwrap();
    assert_eq!(plot.matches('x').count(), 2, "the mark and its legend: {plot}");
    assert!(["1e14", "1e12", "1e10", "1e8", "1e6"].iter().all(|mark| plot.contains(mark)), "{plot}");
    let svg = roofline::svg(&figures, &GPUS[0], "a<b & c");
    assert!(svg.contains("<circle") && svg.contains("a&lt;b &amp; c") && svg.ends_with("</svg>\n"));
    assert!(!roofline::svg(&report(RunCounts::default()).figures, &GPUS[0], "x").contains("<circle"));
}

#[test]
fn recordings_are_compared_with_their_spread_and_targets() {
    let run = |wall: f64, misses: f64| RunCounts {
        wall_seconds: wall,
        cpu_seconds: Some(wall * 32.0),
        items: Some(1000.0),
        counts: PmuCounts { llc_references: Some(100.0), llc_misses: Some(misses), ..PmuCounts::default() },
        ..dense_product()
    };
    let (before, after) = ([run(10.0, 40.0), run(12.0, 44.0)], [run(8.0, 20.0), run(8.8, 22.0)]);
    let target = |text: &str| text.parse::<CompareTarget>().unwrap();
    let met = |targets: &[&str]| {
        compare(&before, &after, &targets.iter().map(|text| target(text)).collect::<Vec<_>>()).met
    };
    assert!(met(&["wall<=-20%", "items>=+20%", "llc_hit>=0.75", "utilization>=0.5"]));
    assert!(!met(&["wall<=-30%"]) && !met(&["llc_hit>=0.8"]) && !met(&["wall<=-20%", "items>=+90%"]));
    let diff = compare(&before, &after, &[target("wall<=-30%")]);
    let wall = &diff.rows[0];
    assert_eq!((wall.before.unwrap().mean, wall.overlap), (11.0, Some(false)));
    assert!((wall.before.unwrap().deviation.unwrap() - 2f64.sqrt()).abs() < 1e-9);
    let text = super::compare::text(&diff, false);
    assert!(text.contains("✕ missed wall <= -30 %") && text.contains("-23.6 %"), "{text}");
    // What was not measured misses its target.
    let blind = RunCounts { counts: PmuCounts::default(), ..run(1.0, 0.0) };
    assert!(!compare(&before, &[blind], &[target("llc_hit>=0.1")]).met);
    // A run that failed was quick for that.
    let crashed = RunCounts { exit: Some(-11), ..run(0.1, 20.0) };
    assert!(!compare(&before, std::slice::from_ref(&crashed), &[]).met, "also without a target");
    let diff = compare(&before, &[crashed], &[target("wall<=-20%"), target("llc_hit>=0")]);
    assert!(!diff.met && diff.rows.iter().flat_map(|row| &row.targets).all(|judged| !judged.met));
    assert!(super::compare::text(&diff, false).contains("! a run after the change failed"));
    let ended = RunCounts { exit: Some(0), computed: false, ..run(8.0, 20.0) };
    let diff = compare(&before, &[ended], &[target("wall<=-20%")]);
    assert!(diff.met && diff.doubts.len() == 2, "computed with measured, spans with runs: {:?}", diff.doubts);
    // Of a ratio, a share without a sign is the value itself.
    assert!(met(&["llc_hit>=75%"]) && !met(&["llc_hit>=90%"]) && met(&["llc_hit>=+20%"]));
    for wrong in ["wall", "wall<=x", "speed>=1", "wall<=1>=2", "wall>=nan", "wall<=80%", "items>=150%"] {
        assert!(wrong.parse::<CompareTarget>().is_err(), "{wrong}");
    }
    for unreachable in ["wall<=-20", "utilization>=90", "llc_hit>=-0.1"] {
        assert!(unreachable.parse::<CompareTarget>().is_err(), "{unreachable}");
    }
    // A running owner was watched as long as was wanted for, whatever it did.
    let span = |wall: f64| RunCounts { watch: Some(1), ..run(wall, 20.0) };
    let diff = compare(&[span(10.0)], &[span(5.0)], &[target("items>=90"), target("wall<=6")]);
    assert!(!diff.met && diff.rows[..2].iter().all(|row| row.after.is_none()), "{diff:?}");
    let other = RunCounts { processor: "other".into(), cpus: Some(1.0), items: None, ..run(8.0, 20.0) };
    assert_eq!(compare(&before, &[other], &[]).doubts.len(), 3);
}

#[test]
fn a_recording_is_read_back() {
    let text = recording::line(&triad()).unwrap() + &recording::line(&pointer_chase()).unwrap();
    let runs = recording::parse(&text).unwrap();
    assert_eq!((runs.len(), runs[0].counts.flops.len()), (2, 1));
    assert!(text.starts_with("{\"recording\":1,"), "{text}");
    assert_eq!(recording::newest(runs).unwrap().subject, "pointer chase");
    // Of an owner, all spans of the last watch are the run.
    let spans = |watch: u64, count: usize| {
        let items = triad().items.map(|items| items / 10.0);
        vec![RunCounts { watch: Some(watch), items, ..triad() }; count]
    };
    let whole = recording::newest([spans(1, 3), spans(2, 10)].concat()).unwrap();
    assert!((whole.wall_seconds / triad().wall_seconds - 10.0).abs() < 1e-9);
    assert_eq!(
        (whole.items, whole.counts.llc_misses),
        (Some(2e8), triad().counts.llc_misses.map(|n| n * 10.0))
    );
    assert_eq!(whole.counts.flops[&Precision::Double], 4e9);
    assert!(recording::parse("").is_err());
    assert!(recording::parse("{\"recording\": 2}\n").unwrap_err().contains("version 2 is newer"));
    assert!(recording::parse("{}\n").unwrap_err().starts_with("line 1"));
}
