//! What a process costs, from /proc.

use std::error::Error;

use procfs::process::Process;

/// CPU seconds a process has used.
pub fn cpu_seconds(pid: i32) -> Result<f64, Box<dyn Error>> {
    let stat = Process::new(pid)?.stat()?;
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

/// Proportional set size: private pages and its share of the others, in MiB.
pub fn pss_mib(pid: i32) -> Result<f64, Box<dyn Error>> {
    rollup_mib(pid, "Pss:")
}

/// Private pages that were written to: memory of its own, no matter which other processes map the same files, in MiB.
pub fn own_mib(pid: i32) -> Result<f64, Box<dyn Error>> {
    rollup_mib(pid, "Private_Dirty:")
}

fn rollup_mib(pid: i32, name: &str) -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find(|l| l.starts_with(name)).ok_or("not in smaps_rollup")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number in smaps_rollup")?.parse()?;
    Ok(kib / 1024.0)
}

/// Resident set size, in MiB.
pub fn rss_mib(pid: i32) -> Result<f64, Box<dyn Error>> {
    let kib = Process::new(pid)?.status()?.vmrss.ok_or("no VmRSS")?;
    Ok(kib as f64 / 1024.0)
}

/// Resident set size now and at most, in MiB.
pub fn resident_mib(pid: i32) -> Result<(f64, f64), Box<dyn Error>> {
    let status = Process::new(pid)?.status()?;
    let mib = |kib: Option<u64>| kib.map(|kib| kib as f64 / 1024.0).ok_or("no resident memory");
    Ok((mib(status.vmrss)?, mib(status.vmhwm)?))
}

/// Child processes.
pub fn children(pid: i32) -> Result<Vec<i32>, Box<dyn Error>> {
    let mut pids = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("children"))?;
        pids.extend(text.split_whitespace().filter_map(|p| p.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// The value below which this share of the sorted values lies.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
