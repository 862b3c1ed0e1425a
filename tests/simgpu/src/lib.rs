//! A simulated libnvidia-ml and libcuda: the functions that an exporter calls, answered from a scenario
//! file. See the crate's README for the scenario's format.
//!
//! The dynamic library is what a process under test loads. The Rust library is the other side: a
//! test reads scenarios ([`Scenario`]), opens gates and reads the account ([`State`]).

mod call;
mod cuda;
mod curve;
mod device;
mod error;
mod functions;
mod hardware;
pub mod host;
mod kmsg;
mod live;
mod mig;
mod model;
mod nvml;
mod os;
mod presence;
mod process;
mod scenario;
mod sim;
mod state;
mod step;
mod units;
mod value;

use std::path::PathBuf;

pub use error::Error;
pub use functions::Function;
pub use scenario::Scenario;
pub use state::State;

/// The environment variable that names the scenario file.
pub const SCENARIO_ENV: &str = "GPU_SIM_SCENARIO";

/// The environment variable that names the state file.
pub const STATE_ENV: &str = "GPU_SIM_STATE";

/// The environment variable with the path of the simulated kernel log.
pub const KMSG_ENV: &str = "GPU_SIM_KMSG";

/// The dynamic library that cargo built beside the running test or program.
pub fn library_path() -> Result<PathBuf, Error> {
    let exe = std::env::current_exe().map_err(|e| Error::new(format!("no path of this program: {e}")))?;
    let folders = exe.ancestors().skip(1).take(2).flat_map(|d| [d.to_path_buf(), d.join("deps")]);
    let files: Vec<PathBuf> = folders.map(|d| d.join("libsimgpu.so")).filter(|f| f.is_file()).collect();
    // Cargo leaves an older copy in one folder when it builds into the other.
    let newest = files.into_iter().max_by_key(|f| f.metadata().and_then(|m| m.modified()).ok());
    newest.ok_or_else(|| Error::new(format!("no libsimgpu.so near {}", exe.display())))
}
