//! Signals, and notifications to systemd.

use std::io;
use std::sync::Arc;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use host::stop::Stop;

/// Signal handlers of the daemon. While they exist, none of these signals ends the process.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    usr1: Signal,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for SIGTERM or SIGINT and returns its name. SIGUSR1 calls `release`, and SIGHUP calls `reload`.
    pub(crate) async fn wait_for_end(mut self, release: impl Fn(), reload: impl Fn()) -> &'static str {
        loop {
            tokio::select! {
                _ = self.term.recv() => return "SIGTERM",
                _ = self.int.recv() => return "SIGINT",
                _ = self.hup.recv() => reload(),
                _ = self.usr1.recv() => release(),
            }
        }
    }
}

/// Sets `stop` at the first SIGTERM or SIGINT, for commands without a runtime of their own.
pub(crate) fn stop_at_signals(stop: Arc<Stop>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // The handlers are installed before this function returns.
    let handlers =
        async { io::Result::Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)) };
    let (mut term, mut int) = runtime.block_on(handlers)?;
    let wait = move || {
        runtime.block_on(async {
            tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
        });
        stop.stop();
    };
    host::thread::spawn("signals", 256, wait).map(drop)
}

/// Notifies systemd if it started the daemon.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "failed to notify systemd");
    }
}
