//! History that a Prometheus is given: OpenMetrics text made into blocks by promtool.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Fallible;
use crate::play::unix_seconds;
use crate::servers::tool;

/// Gives the Prometheus whose folder this is an hour in which no GPU of these clusters was out. Rules about burn
/// rates want to know more than the minutes of a game.
pub fn hour_of_health(dir: &Path, clusters: &[String]) -> Fallible<()> {
    fs::create_dir_all(dir.join("data"))?;
    if clusters.is_empty() {
        return Ok(());
    }
    let now = unix_seconds();
    let mut text = String::new();
    // All samples of a metric stand together.
    for name in ["job:gpu_unhealthy:ratio", "job:gpu_unhealthy:gpus"] {
        writeln!(text, "# TYPE {name} gauge")?;
        for cluster in clusters {
            for at in (now - 3600..now).step_by(15) {
                writeln!(text, "{name}{{cluster=\"{cluster}\",job=\"gpu-node-exporter\"}} 0 {at}")?;
            }
        }
    }
    text.push_str("# EOF\n");
    let file = dir.join("history.om");
    fs::write(&file, text)?;
    blocks(&file, &dir.join("data"))
}

/// Makes blocks of OpenMetrics text.
pub fn blocks(text: &Path, data: &Path) -> Fallible<()> {
    promtool(
        Command::new(tool("PROMTOOL", "promtool"))
            .args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
            .args([text, data]),
    )
    .map(|_| ())
}

/// Runs promtool; gives what it said, if all went well.
pub fn promtool(command: &mut Command) -> Fallible<String> {
    let output = command.output().map_err(|e| format!("promtool does not start: {e}"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(said) } else { Err(format!("promtool: {said}").into()) }
}
