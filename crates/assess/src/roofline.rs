//! Roofline of a GPU with the position of the program, as text or SVG.

use serde::Serialize;

use crate::figures::RunFigures;

/// Limits of a GPU from its data sheet, without sparsity and tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuRoof {
    pub name: &'static str,
    pub bytes_per_second: f64,
    pub fp64_per_second: f64,
    pub fp32_per_second: f64,
}

/// GPUs with the figures of their data sheets (SXM; L4: PCIe).
pub const GPUS: [GpuRoof; 4] = [
    GpuRoof { name: "h200", bytes_per_second: 4.8e12, fp64_per_second: 34e12, fp32_per_second: 67e12 },
    GpuRoof { name: "h100", bytes_per_second: 3.35e12, fp64_per_second: 34e12, fp32_per_second: 67e12 },
    GpuRoof { name: "a100", bytes_per_second: 2.039e12, fp64_per_second: 9.7e12, fp32_per_second: 19.5e12 },
    GpuRoof { name: "l4", bytes_per_second: 0.3e12, fp64_per_second: 0.47e12, fp32_per_second: 30.3e12 },
];

impl GpuRoof {
    /// Returns the maximum FLOPs per second at a density in FLOPs per byte.
    pub fn attainable(&self, density: f64, peak: f64) -> f64 {
        peak.min(density * self.bytes_per_second)
    }
}

/// Powers of ten of FLOPs per byte and of FLOPs per second.
const X: (f64, f64) = (-2.0, 3.0);
const Y: (f64, f64) = (6.0, 14.0);
const COLUMNS: usize = 60;
/// Height of the plot. Every third line is a power of ten.
const LINES: usize = 13;

/// Returns the position of the program if both values were measured and are above zero.
fn point(figures: &RunFigures) -> Option<(f64, f64)> {
    let density = figures.density_at_most.filter(|density| *density > 0.0)?;
    Some((density, figures.flops_per_second.filter(|rate| *rate > 0.0)?))
}

/// Position of a value on a logarithmic axis, from 0 to 1.
fn position(value: f64, (low, high): (f64, f64)) -> f64 {
    ((value.log10() - low) / (high - low)).clamp(0.0, 1.0)
}

/// Plots for a terminal; `None` if the position of the program is unknown.
pub fn text(figures: &RunFigures, gpu: &GpuRoof) -> Option<String> {
    let (density, rate) = point(figures)?;
    let mut grid = vec![vec![' '; COLUMNS]; LINES];
    let mut mark_at = |column: usize, rate: f64, mark: char| {
        let line = LINES - 1 - (position(rate, Y) * (LINES - 1) as f64).round() as usize;
        grid[line][column] = mark;
    };
    for column in 0..COLUMNS {
        let at = 10f64.powf(X.0 + (X.1 - X.0) * column as f64 / (COLUMNS - 1) as f64);
        mark_at(column, gpu.attainable(at, gpu.fp32_per_second), '-');
        mark_at(column, gpu.attainable(at, gpu.fp64_per_second), '=');
    }
    mark_at((position(density, X) * (COLUMNS - 1) as f64).round() as usize, rate, 'x');
    let mut out = String::from("  FLOP/s\n");
    for (at, row) in grid.iter().enumerate() {
        let decade = Y.1 - (Y.1 - Y.0) * at as f64 / (LINES - 1) as f64;
        let mark = if at % 3 == 0 { format!("1e{decade:<2.0}") } else { String::new() };
        let row: String = row.iter().collect();
        out += &format!("  {mark:>7} |{}\n", row.trim_end());
    }
    out += &format!("  {:>7} +{}\n", "", "-".repeat(COLUMNS));
    let step = COLUMNS / (X.1 - X.0) as usize;
    let marks: String = (0..5).map(|at| format!("{:<step$}", 10f64.powi(X.0 as i32 + at))).collect();
    out += &format!("  {:>7}  {marks}FLOPs/byte\n", "");
    out += &format!("  x this program, = {} FP64, - FP32 (data sheet)\n", gpu.name.to_uppercase());
    Some(out)
}

/// Plots as an SVG document.
pub fn svg(figures: &RunFigures, gpu: &GpuRoof, title: &str) -> String {
    let (left, top, width, height) = (70.0, 50.0, 560.0, 320.0);
    let x = |density: f64| left + position(density, X) * width;
    let y = |rate: f64| top + (1.0 - position(rate, Y)) * height;
    let line = |x1: f64, x2: f64, y1: f64, y2: f64| {
        format!("<line class=\"grid\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>\n")
    };
    let label = |x: f64, y: f64, anchor: &str, text: String| {
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
    };
    let (right, bottom) = (left + width, top + height);
    let mut body = String::new();
    for decade in X.0 as i32..=X.1 as i32 {
        let (at, value) = (x(10f64.powi(decade)), 10f64.powi(decade).to_string());
        body += &(line(at, at, top, bottom) + &label(at, bottom + 18.0, "middle", value));
    }
    for decade in (Y.0 as i32..=Y.1 as i32).step_by(2) {
        let at = y(10f64.powi(decade));
        body += &(line(left, right, at, at) + &label(left - 6.0, at + 4.0, "end", format!("1e{decade}")));
    }
    for (name, class, peak) in [("FP64", "fp64", gpu.fp64_per_second), ("FP32", "fp32", gpu.fp32_per_second)]
    {
        let (low, ridge, high) = (10f64.powf(X.0), peak / gpu.bytes_per_second, 10f64.powf(X.1));
        let corners = [low, ridge, high].map(|at| format!("{:.1},{:.1}", x(at), y(gpu.attainable(at, peak))));
        body += &format!("<polyline class=\"{class}\" points=\"{}\"/>\n", corners.join(" "));
        let above = if class == "fp32" { -6.0 } else { 14.0 };
        body += &label(right, y(peak) + above, "end", format!("{} {name}", gpu.name.to_uppercase()));
    }
    let note = match point(figures) {
        Some((density, rate)) => {
            body += &format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"6\"/>\n", x(density), y(rate));
            format!("at most {density:.3} FLOPs/byte, {rate:.3e} FLOP/s")
        }
        None => "the position of the program was not measured".into(),
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 660 420\" width=\"660\" height=\"420\" role=\"img\">\n\
         <title>Roofline of {title}</title>\n<style>svg{{background:#fff;font:12px sans-serif}}\
         .grid{{stroke:#ddd}}polyline{{fill:none;stroke-width:2}}.fp64{{stroke:#333}}.fp32{{stroke:#888;stroke-dasharray:6 3}}\
         circle{{fill:#c00}}</style>\n<text x=\"{left}\" y=\"20\" font-size=\"15\">{title}</text>\n\
         <text x=\"{left}\" y=\"38\">{note}</text>\n{body}<text x=\"{:.1}\" y=\"412\" text-anchor=\"middle\">FLOPs/byte</text>\n</svg>\n",
        left + width / 2.0,
        title = escape(title),
    )
}

fn escape(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).fold(String::new(), |out, c| match c {
        '&' => out + "&amp;",
        '<' => out + "&lt;",
        '>' => out + "&gt;",
        '"' => out + "&quot;",
        c => out + c.encode_utf8(&mut [0; 4]),
    })
}
