//! Threads that run as long as the daemon.

use std::thread::JoinHandle;
use std::time::Duration;

use super::THREAD_CHECK;
use host::stop::Stop;
use ledger::inbox::Inbox;
use model::clock::Mono;

/// Share of the time until the deadline that is reserved for the ledger, which saves its documents.
const LEDGER_TIME: Duration = Duration::from_secs(1);

pub(super) struct Threads {
    pub(super) ledger: JoinHandle<()>,
    pub(super) reload: JoinHandle<()>,
    pub(super) collectors: Vec<(&'static str, JoinHandle<()>)>,
}

impl Threads {
    /// Resolves with the name of the first thread that has ended.
    pub(super) async fn first_ended(&self) -> &'static str {
        let own = [("ledger", &self.ledger), ("reload", &self.reload)];
        loop {
            let collectors = self.collectors.iter().map(|(name, thread)| (*name, thread));
            if let Some((name, _)) =
                own.into_iter().chain(collectors).find(|(_, thread)| thread.is_finished())
            {
                return name;
            }
            tokio::time::sleep(THREAD_CHECK).await;
        }
    }

    /// Waits until `deadline` for all threads. A thread that is still running then ends with the process.
    pub(super) fn join(self, inbox: &Inbox, recording: Option<JoinHandle<()>>, deadline: Mono) {
        let for_collectors = Mono(deadline.0.saturating_sub(LEDGER_TIME.as_nanos() as u64));
        for (name, thread) in self.collectors {
            join_until(name, thread, for_collectors);
        }
        inbox.close();
        join_until("ledger", self.ledger, deadline);
        // A reload may hang on a file, which must not use up the ledger's time.
        join_until("reload", self.reload, deadline);
        recording.into_iter().for_each(|thread| join_until("recording", thread, deadline));
    }
}

fn join_until(name: &str, thread: JoinHandle<()>, deadline: Mono) {
    let pause = Stop::default();
    while !thread.is_finished() && Mono::now() < deadline {
        pause.wait_until(Mono::now() + Duration::from_millis(5));
    }
    if !thread.is_finished() {
        tracing::warn!("the {name} thread did not end in time");
    } else if thread.join().is_err() {
        tracing::error!("the {name} thread panicked");
    }
}
