//! Formats figures for people.

use model::canary::Rate;

/// Formats a rate with its unit.
pub fn rate(rate: Rate) -> String {
    match rate {
        Rate::WorkPerCycle(value) => work_per_cycle(value),
        Rate::BytesPerSecond(value) => bytes_per_second(value),
        Rate::BytesPerCycle(value) => bytes_per_cycle(value),
        Rate::Seconds(value) => seconds(value),
    }
}

pub fn work_per_cycle(value: f64) -> String {
    format!("{value:.2} FMA/clk/SM")
}

pub fn bytes_per_cycle(value: f64) -> String {
    format!("{value:.0} B/clk")
}

pub fn bytes_per_second(value: f64) -> String {
    match value {
        v if v >= 1e12 => format!("{:.3} TB/s", v / 1e12),
        v if v >= 1e9 => format!("{:.1} GB/s", v / 1e9),
        v => format!("{:.1} MB/s", v / 1e6),
    }
}

pub fn seconds(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0} s"),
        v if v >= 1.0 => format!("{v:.2} s"),
        v if v >= 1e-3 => format!("{:.1} ms", v * 1e3),
        v => format!("{:.1} us", v * 1e6),
    }
}

pub fn megahertz(hertz: f64) -> String {
    format!("{:.1} MHz", hertz / 1e6)
}

/// Formats a share as a percentage. Shares close to 100 % have more digits, because a tenth of a percent matters there.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match (percent - 100.0).abs() < 1.0 {
        true => format!("{percent:.2} %"),
        false => format!("{percent:.1} %"),
    }
}

/// Returns `1 thing` or `2 things`.
pub fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// Lists up to eight numbers.
pub fn listed(numbers: &[u32]) -> String {
    let mut text: Vec<String> = numbers.iter().take(8).map(u32::to_string).collect();
    if numbers.len() > 8 {
        text.push(format!("and {} more", numbers.len() - 8));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(rate(Rate::WorkPerCycle(121.923)), "121.92 FMA/clk/SM");
        assert_eq!(bytes_per_second(4.25e12), "4.250 TB/s");
        assert_eq!(bytes_per_second(54.8e9), "54.8 GB/s");
        assert_eq!(seconds(8.7e-6), "8.7 us");
        assert_eq!((percent(0.9987), percent(0.953)), ("99.87 %".into(), "95.3 %".into()));
        assert_eq!((counted(1, "run"), counted(2, "run")), ("1 run".into(), "2 runs".into()));
        assert_eq!(listed(&(0..10).collect::<Vec<u32>>()), "0, 1, 2, 3, 4, 5, 6, 7, and 2 more");
    }
}
