//! Windows of planned work: looks at the folders of windows, and tells the ledger what has changed.

pub mod desk;
pub mod file;
pub mod folder;
pub mod moment;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Context;
use model::clock::{Cadence, Mono, unix_seconds};
use model::sample::{Batch, Rows, Source};

/// Time between two looks; what is ordered over the control socket is told at once.
const EVERY: Duration = Duration::from_secs(2);

/// Starts the collector.
pub fn start(context: Context, windows: Arc<desk::Desk>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("windows".into()).stack_size(512 * 1024).spawn(move || {
        let mut cadence = Cadence::new(EVERY, Duration::ZERO);
        while !context.stop.stopped() {
            if cadence.take(Mono::now()) {
                visit(&context, &windows);
            }
            context.stop.wait_until(cadence.next());
        }
    })
}

fn visit(context: &Context, windows: &desk::Desk) {
    let taken = Mono::now();
    windows.look(&context.inbox, unix_seconds());
    // There are no values: the ledger and `/readyz` know by it that folders are looked at.
    context.inbox.batch(Batch::of_node(Source::Windows, taken, Some(EVERY * 5), Rows::default()));
}
