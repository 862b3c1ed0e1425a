//! Windows of planned work: reads the directory of windows and sends changes to the ledger.

pub mod file;
pub mod store;

use model::catalog::CollectorName;
use std::time::Duration;

use ledger::inbox::LedgerEvent;
use model::clock::{Mono, unix_seconds};
use model::sample::{Batch, Rows};
use model::window::{self, Window};

use super::Context;
use store::WindowStore;

/// Interval between two readings of the directory.
const INTERVAL: Duration = Duration::from_secs(2);

pub(crate) fn run(context: Context) {
    let mut store = WindowStore::new(&context.config());
    // Last state sent to the ledger.
    let (mut known, mut known_problems) = (None, Vec::new());
    context.every(
        |_| INTERVAL,
        |config| {
            store.configure(config);
            let taken = Mono::now();
            let (windows, problems) = store.list(unix_seconds());
            for problem in problems.iter().filter(|problem| !known_problems.contains(*problem)) {
                tracing::warn!(%problem, "a window file is invalid");
            }
            let is_new = |window: &Window| !known.iter().flatten().any(|known| known == window);
            for window in windows.iter().filter(|window| window.cut && is_new(window)) {
                let end = window::write(window.end);
                tracing::warn!(window = window.name, end, "cut a window that exceeds windows.max_duration");
            }
            if known.as_ref() != Some(&windows) {
                context.inbox.event(LedgerEvent::Windows(windows.clone()));
                known = Some(windows);
            }
            if known_problems != problems {
                let text = (!problems.is_empty()).then(|| problems.join("; "));
                context.unavailable(CollectorName::Windows, text);
                known_problems = problems;
            }
            // The empty batch shows the ledger and `/readyz` that the directory is being read.
            let beat = Batch::of_node(CollectorName::Windows, taken, Some(INTERVAL * 5), Rows::default());
            context.inbox.batch(beat);
        },
    );
}
