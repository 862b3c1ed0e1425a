//! The report as text for a terminal.

use host::terminal::{Colour, Painter, fit, printable, wrap};

use crate::flops::Precision;
use crate::recording::HotFunctions;
use crate::report::AssessReport;
use crate::roofline;
use crate::thresholds::Vote;
use crate::verdict::{BoundedTime, GainedSpeedUp, MoveVerdict, TableRow};

/// Number of functions in the text; the JSON document has all functions above the cut-off.
const FUNCTIONS: usize = 12;
const COLUMNS: usize = 100;

/// Formats the report for a terminal.
pub fn page(report: &AssessReport, colours: bool) -> String {
    let paint = Painter::new(colours);
    let (run, figures) = (&report.run, &report.figures);
    let mut out = format!("{}\n", paint.bold(&fit(&printable(&format!("assess: {}", run.subject)), COLUMNS)));
    out += &measurements(report);
    let mut section = |title: &str, text: String| out += &format!("\n{}\n{text}", paint.bold(title));
    section("Verdict", verdict(report, paint));
    section("Split into a CPU part and a GPU part", split(report, paint));
    let hot = run.hot.as_ref().map(|hot| functions(hot, run.cpu_seconds));
    section("Hot functions", hot.unwrap_or_else(|| "  not measured\n".into()));
    section("Expected bound (Amdahl)", bound(report));
    let plot = roofline::text(figures, &report.gpu);
    section("Roofline", plot.unwrap_or_else(|| "  no position: FLOPs or bytes were not measured\n".into()));
    if !run.not_measured.is_empty() {
        let line = |(name, reason): (&String, &String)| {
            format!("  {}\n", wrap(&printable(&format!("{name}: {reason}")), COLUMNS - 2, "    "))
        };
        section("Not measured", run.not_measured.iter().map(line).collect());
    }
    out
}

fn measurements(report: &AssessReport) -> String {
    let (run, figures) = (&report.run, &report.figures);
    let mut out = String::new();
    if run.computed {
        out += "  computed from known operation counts, not measured\n";
    }
    out += &format!("  wall time          {}{}\n", seconds(run.wall_seconds), ending(run.exit));
    let mut line = |name: &str, value: Option<String>, note: &str| {
        let value = value.unwrap_or_else(|| "not measured".into());
        out += format!("  {name:<18} {value:<16} {note}").trim_end();
        out += "\n";
    };
    line("CPU time", run.cpu_seconds.map(seconds), "all threads and children");
    let threads = match (run.threads, run.watch) {
        (None, _) => String::new(),
        (Some(threads), None) => format!("; the first process has up to {threads} threads"),
        (Some(threads), Some(_)) => format!("; {threads} threads"),
    };
    line("threads used", figures.threads_used.map(number), &format!("CPU time / wall time{threads}"));
    if let Some(system) = run.system {
        let faults = (system.minor_faults + system.major_faults) as f64;
        line("page faults", Some(number(faults)), &format!("{} needed a disk", system.major_faults));
        let switches = (system.voluntary_switches + system.involuntary_switches) as f64;
        let others = format!("{} involuntary", system.involuntary_switches);
        line("context switches", Some(number(switches)), &others);
    }
    let of_items = if run.watch.is_none() { "from --items" } else { "not of a running owner" };
    let per_line = "64 bytes per last-level miss, a lower bound";
    line("items/s", figures.items_per_second.map(number), of_items);
    line("instructions/cycle", figures.instructions_per_cycle.map(number), "");
    line("FLOP/s", figures.flops_per_second.map(number), &precisions(report));
    line("bytes/s, at least", figures.bytes_per_second.map(number), per_line);
    line("FLOPs/byte, at most", figures.density_at_most.map(number), "");
    line("cache misses", figures.llc_miss_ratio.map(percent), "of last-level references");
    if let Some(ratio) = run.counts.counted_ratio.filter(|ratio| *ratio < 0.99) {
        line("events counted", Some(percent(ratio)), "of the time or more; counts are scaled");
    }
    out
}

fn verdict(report: &AssessReport, paint: Painter) -> String {
    let verdict = report.judgement.verdict;
    let colour = match verdict {
        MoveVerdict::Suits | MoveVerdict::SuitsIfParallel => Colour::Green,
        MoveVerdict::NotJudged => Colour::Cyan,
        _ => Colour::Yellow,
    };
    let text = paint.colour(colour, &wrap(verdict.text(), COLUMNS - 5, "     "));
    format!("{}  -> {text}\n", table(&report.judgement.rows, paint))
}

fn split(report: &AssessReport, paint: Painter) -> String {
    let votes = report.split.votes;
    let decision = match report.split.split {
        Some(true) => format!("split: {votes} of 5 rows support it"),
        Some(false) => format!("keep one program: {votes} of 5 rows support a split, 3 are needed"),
        None => {
            format!("not decided: {votes} of 5 rows support a split, 3 are needed, and some rows are unknown")
        }
    };
    format!("{}  -> {decision}\n", table(&report.split.rows, paint))
}

fn table(rows: &[TableRow], paint: Painter) -> String {
    let line = |row: &TableRow| {
        let (mark, colour, says) = match row.says {
            Vote::For => ("✓", Colour::Green, "for"),
            Vote::Between => ("~", Colour::Cyan, "between"),
            Vote::Against => ("!", Colour::Yellow, "against"),
            Vote::NotMeasured => {
                ("?", Colour::Cyan, if row.value.is_some() { "not judged" } else { "unknown" })
            }
        };
        let limits = row.threshold.map_or(String::new(), |t| {
            let (good, bad) = if t.lower_is_better { ('<', '>') } else { ('>', '<') };
            let unit = |value: f64| format_value(row.what, value);
            format!("for {good} {}, against {bad} {}", unit(t.good), unit(t.bad))
        });
        let value = row.value.map_or("-".into(), |value| format_value(row.what, value));
        let text = format!("{:<17} {value:>10}  {says:<10}  {limits:<36} {}", row.what, row.note);
        format!("  {} {}\n", paint.colour(colour, mark), text.trim_end())
    };
    rows.iter().map(line).collect()
}

fn format_value(row: &str, value: f64) -> String {
    match row {
        "branch misses" => percent(value),
        "99th percentile" => seconds(value),
        "data a call" => format!("{}B", number(value)),
        _ => number(value),
    }
}

fn functions(hot: &HotFunctions, cpu_seconds: Option<f64>) -> String {
    let mut out = String::new();
    for function in hot.functions.iter().take(FUNCTIONS) {
        let callers = function.callers.iter().take(2);
        let callers: Vec<String> =
            callers.map(|caller| format!("{} {}", fit(&caller.name, 30), percent(caller.share))).collect();
        let from = if callers.is_empty() { String::new() } else { format!("  <- {}", callers.join(", ")) };
        let name = fit(&printable(&function.name), 48);
        out += &format!("  {:>7}  {name}{}\n", percent(function.share), printable(&from));
    }
    let kernel = if hot.with_kernel { "" } else { ", without time in the kernel" };
    out += &format!(
        "  {} samples at {} Hz of CPU time{kernel}; callers by frame pointer\n  shares are self time, as a fraction of the samples",
        hot.samples, hot.hertz
    );
    if let Some(seen) = hot.seen(cpu_seconds) {
        out += &format!("; the samples cover {:.0} % of the CPU time, and the rest stays", seen * 100.0);
    }
    out += "\n";
    let (unreadable, unnamed) = (hot.unreadable, hot.unnamed.saturating_sub(hot.unreadable));
    for (samples, code) in [
        (unnamed, "code without symbols (stripped, or generated at run time)"),
        (unreadable, "files that could not be read (in another root, deleted, or not permitted)"),
    ] {
        if samples > 0 {
            out += &format!("  {} in {code}\n", percent(samples as f64 / hot.samples.max(1) as f64));
        }
    }
    if hot.lost > 0 {
        out += &format!("  {} samples were lost\n", hot.lost);
    }
    out
}

fn bound(report: &AssessReport) -> String {
    let Some(bound) = &report.amdahl else {
        return format!("  {}\n", report.no_bound.as_deref().unwrap_or("no bound"));
    };
    let (share, interval) = (bound.share_interval, bound.share_of_time_interval);
    let names = fit(&printable(&bound.functions.join(", ")), 70);
    let mut out = format!("  moving {names}\n");
    let limit =
        |share: f64| if share < 1.0 { format!("{:.2}", 1.0 / (1.0 - share)) } else { "no bound".into() };
    let [own, low, high] = [bound.share, share.low, share.high].map(percent);
    out += &format!("  {own} of the CPU time is self time of these functions (95 %: {low} to {high})\n");
    let (time, less, wall) = match bound.of {
        BoundedTime::Wall => ("the wall time", "times as fast", ""),
        BoundedTime::Cpu => ("the CPU time", "times less CPU time", "; unknown for wall time"),
    };
    out += &format!(
        "  {} of {time}: {} (95 %: {} to {}){wall}\n",
        percent(bound.share_of_time),
        bound.at_most.map_or("no bound".into(), |most| format!("at most {most:.2} {less}")),
        limit(interval.low),
        limit(interval.high)
    );
    if let Some(GainedSpeedUp { gain, speed_up }) = bound.with_gain {
        out += &format!("  {speed_up:.2} {less} if these functions become {} times as fast\n", number(gain));
    }
    out
}

fn precisions(report: &AssessReport) -> String {
    let total: f64 = report.run.counts.flops.values().sum();
    let parts = report.run.counts.flops.iter().filter(|_| total > 0.0);
    let part = |(precision, flops): (&Precision, &f64)| {
        let name = serde_json::to_value(precision).ok()?;
        Some(format!("{} {}", percent(flops / total), name.as_str()?))
    };
    let parts: Vec<String> = parts.filter_map(part).collect();
    parts.join(", ")
}

fn ending(exit: Option<i32>) -> String {
    match exit {
        None | Some(0) => String::new(),
        Some(signal) if signal < 0 => format!("  (ended by signal {})", -signal),
        Some(code) => format!("  (exit code {code})"),
    }
}

/// Formats a number with three digits and a metric prefix.
pub fn number(value: f64) -> String {
    let (scale, prefix) = match value.abs() {
        size if size >= 1e12 => (1e12, " T"),
        size if size >= 1e9 => (1e9, " G"),
        size if size >= 1e6 => (1e6, " M"),
        size if size >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let scaled = value / scale;
    let digits = match scaled.abs() {
        size if size >= 100.0 || scaled.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{prefix}")
}

pub fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// Formats seconds with a suitable unit.
pub fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{} ms", number(value * 1e3)) } else { format!("{value:.3} s") }
}
