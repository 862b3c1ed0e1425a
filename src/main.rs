//! Parses the command line, runs the command, prints its output, and exits with its code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::FromArgMatches;
use gpu_node_exporter::commands::{Cli, EXIT_BAD_CONFIG, Failure, Output};

fn main() -> ExitCode {
    share_one_heap();
    let parsed = Cli::definition().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // clap also reports --help and --version as errors, and prints these two to standard output.
            let is_wrong = error.use_stderr();
            let _ = error.print();
            return if is_wrong { ExitCode::from(EXIT_BAD_CONFIG) } else { ExitCode::SUCCESS };
        }
    };
    match cli.run(trim_heap).and_then(|output| print(&output).map(|()| output.code)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            for message in &failure.messages {
                eprintln!("gpu-node-exporter: {message}");
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Writes the text to standard output, and ends it with a newline. A closed pipe (`| head`) is not an error.
fn print(output: &Output) -> Result<(), Failure> {
    let end = if output.text.is_empty() || output.text.ends_with('\n') { "" } else { "\n" };
    let mut out = io::stdout().lock();
    match write!(out, "{}{end}", output.text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Makes all threads share one heap of the C library, and return freed memory early. By default every thread has a heap
/// of its own, which costs 1 MiB for threads that rarely allocate and never at the same time.
fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets parameters of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
    }
}

/// Returns all free pages of the heap to the kernel, including pages below allocated memory.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own lock and touches no allocated memory.
    unsafe {
        libc::malloc_trim(0);
    }
}
