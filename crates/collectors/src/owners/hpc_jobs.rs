//! Jobs that a scheduler's hooks record for dcgm-exporter. The directory has one file per GPU (`3`) or GPU instance
//! (`3.5`), with one job per line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::views::GpuWork;
use attribution::text::label;
use host::Host;
use host::reader::DeadlineReader;
use host::stop::Stop;
use model::catalog::{self as m, AllocatedGpu, HpcJobInfo};
use model::plain_file;
use model::sample::Rows;

/// Maximum number of directory entries that are read.
const MAX_FILES: usize = 1024;
/// Maximum size of a file in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Maximum number of jobs per GPU.
const MAX_JOBS: usize = 32;

/// NVML's index of a GPU, and the ID of a GPU instance.
type JobPlace = (u32, Option<u32>);

/// Directory of the job files and its last content.
pub(super) struct HpcJobs {
    folder: PathBuf,
    reader: DeadlineReader,
    jobs: BTreeMap<JobPlace, Vec<String>>,
    /// Whether the directory was unreadable.
    failed: bool,
}

impl HpcJobs {
    /// Creates the reader of this directory of the host.
    pub(super) fn new(folder: &Path, host: &Host, timeout: Duration, stop: &Arc<Stop>) -> HpcJobs {
        let reader = DeadlineReader::new("hpc-reader", timeout, Arc::clone(stop));
        HpcJobs { folder: host.path(folder), reader, jobs: BTreeMap::new(), failed: false }
    }

    /// Reads the files. Jobs of unreadable files count as ended.
    pub(super) fn round(&mut self) {
        let folder = self.folder.clone();
        let read = self.reader.read(1, move || read(&folder));
        let failed = !matches!(read, Ok(Ok(_)));
        self.jobs = read.ok().and_then(Result::ok).unwrap_or_default();
        if failed && !self.failed {
            tracing::warn!(
                "failed to read the job files in {} (dcgm.hpc_job_dir); their jobs are missing",
                self.folder.display()
            );
        }
        self.failed = failed;
    }

    pub(super) fn add_rows(&self, rows: &mut Rows, work: &GpuWork) {
        for ((index, instance), jobs) in &self.jobs {
            let Some((gpu, _)) = work.gpus.iter().find(|(gpu, _)| gpu.gpu == *index) else { continue };
            let at = AllocatedGpu::new(gpu, *instance);
            for job in jobs {
                rows.entity(&at).info(&m::gpu_hpc_job_info, HpcJobInfo { hpc_job: job.clone() });
            }
        }
    }
}

fn read(folder: &Path) -> std::io::Result<BTreeMap<JobPlace, Vec<String>>> {
    let mut jobs = BTreeMap::new();
    for entry in fs::read_dir(folder)?.take(MAX_FILES) {
        let entry = entry?;
        let Some(place) = entry.file_name().to_str().and_then(place) else { continue };
        let Ok(text) = plain_file::read_text(&entry.path(), MAX_BYTES) else { continue };
        let mut of: Vec<String> = Vec::new();
        for job in text.lines().map(|line| label(line.trim())).filter(|job| !job.is_empty()) {
            if of.len() < MAX_JOBS && !of.contains(&job) {
                of.push(job);
            }
        }
        if !of.is_empty() {
            jobs.insert(place, of);
        }
    }
    Ok(jobs)
}

/// Parses a file name. Signs and blanks, which Rust's number parser accepts, are not allowed.
fn place(name: &str) -> Option<JobPlace> {
    if !name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    match name.split_once('.') {
        Some((gpu, instance)) => Some((gpu.parse().ok()?, Some(instance.parse().ok()?))),
        None => Some((name.parse().ok()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalog::Gpu;

    #[test]
    fn files_that_are_named_as_gpus_have_their_jobs() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("jobs");
        fs::create_dir(&folder).unwrap();
        for (name, text) in [
            ("0", "4711\n4712\n\n4711\n"),
            ("1.5", " job of an instance \n"),
            ("2", ""),
            ("9", "of no GPU here"),
            ("+3", "x"),
            ("3.", "x"),
            ("readme", "x"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink("0", folder.join("3")).unwrap();
        let timeout = Duration::from_secs(20);
        let host = Host::new(root.path());
        let mut jobs = HpcJobs::new(Path::new("/jobs"), &host, timeout, &Arc::default());
        jobs.round();
        let gpus = (0..4).map(|gpu| (Gpu { gpu, uuid: format!("GPU-{gpu}").into() }, Some(gpu)));
        let work = GpuWork { gpus: gpus.collect(), ..GpuWork::default() };
        let published = |jobs: &HpcJobs| {
            let mut rows = Rows::default();
            jobs.add_rows(&mut rows, &work);
            assert!(rows.conform());
            let mut lines = Vec::new();
            for (subject, rows) in rows.groups() {
                let at = subject.label_values();
                lines.extend(rows.iter().map(|row| format!("{}/{} {:?}", at[0], at[2], row.labels)));
            }
            lines
        };
        let found = published(&jobs);
        assert_eq!(found.len(), 3, "{found:?}");
        for (line, parts) in
            found.iter().zip([["0/ ", "4711"], ["0/ ", "4712"], ["1/5 ", "job of an instance"]])
        {
            assert!(line.starts_with(parts[0]) && line.contains(parts[1]), "{found:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
        jobs.round();
        assert!(published(&jobs).is_empty() && jobs.failed);
    }
}
