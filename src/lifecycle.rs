//! Signals and systemd: when to end, and telling the service manager how things are.

use std::io;
use std::sync::Arc;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

use host::stop::Stop;

/// Waits for SIGTERM or SIGINT. SIGUSR1 calls `release`, SIGHUP `reload`.
pub async fn asked_to_end(release: impl Fn(), reload: impl Fn()) -> io::Result<&'static str> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    let mut usr1 = signal(SignalKind::user_defined1())?;
    loop {
        tokio::select! {
            _ = term.recv() => return Ok("SIGTERM"),
            _ = int.recv() => return Ok("SIGINT"),
            _ = hup.recv() => reload(),
            _ = usr1.recv() => release(),
        }
    }
}

/// Stops at the first SIGTERM or SIGINT: for a command, which has no runtime of its own.
pub fn stop_at_signals(stop: Arc<Stop>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // The handlers are in place when this returns.
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

/// Tells systemd, if it started us.
pub fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
