//! Windows of planned work: reads the directory of windows and sends changes to the ledger.

pub mod file;
pub mod store;
pub mod timestamp;

use model::catalog::CollectorName;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use ledger::inbox::LedgerEvent;
use model::clock::{Cadence, Mono, unix_seconds};
use model::sample::{Batch, Rows};
use model::window::{self, Window};

use super::Context;
use store::WindowStore;

/// Interval between two readings of the directory.
const INTERVAL: Duration = Duration::from_secs(2);

/// Starts the collector.
pub fn start(context: Context) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("windows".into()).stack_size(512 * 1024).spawn(move || {
        let mut cadence = Cadence::new(INTERVAL, Duration::ZERO);
        let mut collector = Collector { store: WindowStore::new(&context.config), context, sent: None };
        while !collector.context.stop.stopped() {
            if cadence.take(Mono::now()) {
                collector.visit();
            }
            collector.context.stop.wait_until(cadence.next());
        }
    })
}

struct Collector {
    context: Context,
    store: WindowStore,
    /// The windows and problems that the ledger has.
    sent: Option<(Vec<Window>, Vec<String>)>,
}

impl Collector {
    fn visit(&mut self) {
        let taken = Mono::now();
        let (windows, problems) = self.store.list(unix_seconds());
        let (known, known_problems) = self.sent.take().unzip();
        let inbox = &self.context.inbox;
        for problem in
            problems.iter().filter(|problem| !known_problems.iter().flatten().any(|known| known == *problem))
        {
            tracing::warn!(%problem, "a window of planned work");
        }
        for window in windows
            .iter()
            .filter(|window| window.cut && !known.iter().flatten().any(|known| known == *window))
        {
            let end = window::write(window.end);
            tracing::warn!(window = window.name, end, "longer than windows.max_duration: cut");
        }
        if known.as_ref() != Some(&windows) {
            inbox.event(LedgerEvent::Windows(windows.clone()));
        }
        if known_problems.unwrap_or_default() != problems {
            let text = (!problems.is_empty()).then(|| problems.join("; "));
            inbox.event(LedgerEvent::CollectorUnavailable(CollectorName::Windows, text));
        }
        self.sent = Some((windows, problems));
        // Without values: the batch proves to the ledger and `/readyz` that the directory is read.
        inbox.batch(Batch::of_node(CollectorName::Windows, taken, Some(INTERVAL * 5), Rows::default()));
    }
}
