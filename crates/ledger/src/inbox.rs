//! Inbox of the ledger. Writers never wait. Rows are state, so the newer of two unfolded batches of one part replaces
//! the older one. Events are kept in order, up to a limit. Fast batches, whose states are added up to seconds, are
//! also kept up to a limit: the batches of a second arrive and are folded together.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};

use super::LiveSettings;
use model::canary::CanaryEvent;
use model::catalog::{CollectorName, DriverError, Gpu, RecordingOutcome, SamplerEnd, Tier};
use model::clock::Mono;
use model::driver_module::ModuleState;
use model::fact::Fact;
use model::persisted::NodeHistory;
use model::sample::{Batch, BatchKey};
use model::window::Window;
use model::{owners, topology};

/// Maximum number of events kept while the ledger is behind, far more than one second produces.
const MAX_EVENTS: usize = 4096;

/// Maximum number of facts kept while the ledger is behind: one second of a storm in the kernel log.
const MAX_FACTS: usize = 16_384;

/// Maximum number of drained readings kept per part while the ledger is behind: several minutes.
const MAX_DRAINED: usize = 256;

/// Maximum number of fast batches kept: more than two seconds of eight GPUs at ten per second, or of 64 GPUs at five.
const MAX_FAST: usize = 256;

/// Maximum number of batches kept because their process list differs from the next one of their part.
const MAX_LISTED: usize = 64;

/// Anything that is not a value of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum LedgerEvent {
    DriverUp,
    /// The driver is absent or was removed. All its values are void.
    DriverAway {
        error: DriverError,
        text: String,
        /// Batches of lower epochs belong to the removed driver.
        epoch: u64,
    },
    NoSampler {
        text: String,
    },
    /// No handle on a GPU could be obtained.
    AttachFailed {
        index: u32,
        error: DriverError,
        text: String,
    },
    /// The driver was released, or the progress of its release changed. All its measured values are void.
    Released(Pause),
    Resumed,
    /// The state of the kernel module changed.
    Module {
        state: ModuleState,
        at: Mono,
        unix_seconds: f64,
    },
    /// The driver is stuck as a whole, or no longer stuck.
    DriverStuck(bool),
    GpuAttached(Gpu),
    /// All driver calls that are taking long.
    Stalls(Vec<Stall>),
    /// Number of live sampler processes.
    Samplers(usize),
    SamplerStarted,
    /// A sampler was abandoned at this time. The driver's state is unknown until another sampler reports it.
    SamplerEnded(SamplerEnd, Mono),
    /// A batch came from an abandoned sampler.
    LateBatch,
    Canary(CanaryEvent),
    Topology(topology::TopologyUpdate),
    Owners(owners::OwnerUpdate),
    /// All windows that are open, planned, or ended within the last hour.
    Windows(Vec<Window>),
    /// A collector cannot work for this reason; `None`: it works.
    CollectorUnavailable(CollectorName, Option<String>),
    /// Time since which the kernel log is read and every fault is reported; `None`: it is not read.
    ReadsKernelLog(Option<Mono>),
    /// History of earlier daemons, read late; `None`: it cannot be read yet.
    History(Option<NodeHistory>),
    /// The configuration was reloaded at this time, in seconds since 1970; `None`: it is invalid.
    Reloaded(Option<Box<LiveSettings>>, f64),
    /// Outcome of the recordings of this many faults, or of one recording.
    Recording(RecordingOutcome, u64),
    /// An operator reported a reset of the NVSwitches: who, and why.
    SwitchesCleared(String),
}

/// Release of the driver.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// Time of the request.
    pub since: Mono,
    pub unix_seconds: f64,
    /// Batches of lower epochs belong to ended samplers.
    pub epoch: u64,
    /// Processes that still use the driver.
    pub holders: Vec<i32>,
}

/// Driver call that is taking long.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// GPU of the call; `None`: a call about the node.
    pub gpu: Option<Gpu>,
    pub call: String,
    pub since: Mono,
    /// Whether the call is past its deadline, which is longer for calls that open the driver or a GPU. An overdue
    /// call is stuck, and its subject has no values.
    pub overdue: bool,
}

/// Content of the inbox.
#[derive(Debug, Default)]
pub struct Pending {
    /// Newest batch of each part, preceded by earlier fast batches, in order.
    pub batches: Vec<Batch>,
    pub events: VecDeque<LedgerEvent>,
    /// Facts in order, with the life of their source. Each life numbers its facts from 1.
    pub facts: VecDeque<(u64, Fact)>,
    /// Number of events that did not fit.
    pub lost: u64,
}

/// Batches, events and facts on their way to the ledger.
#[derive(Debug, Default)]
pub struct Inbox {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    pending: Pending,
    at: HashMap<BatchKey, usize>,
    fast: usize,
    listed: usize,
    /// Reloads that arrived while the event queue was full: the newest one, preceded by the newest successful one.
    reloads: Vec<LedgerEvent>,
    closed: bool,
}

impl Inbox {
    /// Adds a batch. It replaces an older one of the same part, whose calls still count.
    pub fn batch(&self, mut batch: Batch) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Queue { pending, at, fast, listed, .. } = &mut *queue;
        let older = at.get(&batch.part).and_then(|at| pending.batches.get_mut(*at));
        let apart = match &older {
            _ if batch.part.tier == Tier::Fast && *fast < MAX_FAST => {
                *fast += 1;
                true
            }
            None => true,
            // A new epoch voids everything read before it, so it must be folded later.
            Some(older) if batch.epoch > older.epoch => true,
            // A process that was listed for one second still counts for its owner.
            Some(older) => {
                let differs = older.processes.is_some() && older.processes != batch.processes;
                let fits = differs && *listed < MAX_LISTED;
                *listed += usize::from(fits);
                fits
            }
        };
        let Some(older) = older.filter(|_| !apart) else {
            at.insert(batch.part.clone(), pending.batches.len());
            pending.batches.push(batch);
            return;
        };
        let mut calls = std::mem::take(&mut older.calls);
        let mut drained = std::mem::take(&mut older.drained);
        calls.append(&mut batch.calls);
        if drained.len() < MAX_DRAINED {
            // Readings that do not fit show as a gap between the samples.
            drained.append(&mut batch.drained);
        }
        if batch.epoch >= older.epoch {
            *older = batch;
        }
        (older.calls, older.drained) = (calls, drained);
    }

    /// Adds an event and wakes the ledger.
    pub fn event(&self, event: LedgerEvent) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.pending.events.len() < MAX_EVENTS {
            queue.pending.events.push_back(event);
        } else if let LedgerEvent::Reloaded(settings, _) = &event {
            // If a reload were lost, only the ledger would use the old settings.
            let replaced =
                |known: &LedgerEvent| settings.is_some() || matches!(known, LedgerEvent::Reloaded(None, _));
            queue.reloads.retain(|known| !replaced(known));
            queue.reloads.push(event);
        } else {
            queue.pending.lost += 1;
        }
        self.arrived.notify_one();
    }

    /// Adds a fact and wakes the ledger. A fact that does not fit shows as a gap in the numbers.
    pub fn fact(&self, life: u64, fact: Fact) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.pending.facts.len() < MAX_FACTS {
            queue.pending.facts.push_back((life, fact));
        }
        self.arrived.notify_one();
    }

    /// Closes the inbox for good.
    pub fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.arrived.notify_all();
    }

    /// Waits until `when` or the next event or fact, then empties the inbox. Returns `None` once the inbox is closed.
    /// Batches do not wake the ledger, because they are folded when a snapshot is due.
    pub fn wait_until(&self, when: Mono) -> Option<Pending> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if queue.closed {
                return None;
            }
            let left = when.since(Mono::now());
            let urgent = !queue.pending.events.is_empty() || !queue.pending.facts.is_empty();
            if urgent || left.is_zero() {
                queue.at.clear();
                (queue.fast, queue.listed) = (0, 0);
                let reloads = std::mem::take(&mut queue.reloads);
                queue.pending.events.extend(reloads);
                return Some(std::mem::take(&mut queue.pending));
            }
            queue = self.arrived.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::owners::GpuProcess;
    use model::sample::{CallCost, Rows};

    fn batch(epoch: u64, nanos: u64) -> Batch {
        Batch {
            part: BatchKey { collector: CollectorName::Nvml, gpu: None, tier: Tier::Slow },
            epoch,
            taken: Mono(nanos),
            nanos,
            lifetime_nanos: None,
            rows: Rows::default(),
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: None,
            answered: true,
            calls: vec![CallCost { call: "x".into(), nanos }],
        }
    }

    #[test]
    fn the_newest_batch_of_a_part_wins_and_no_call_is_lost() {
        let inbox = Inbox::default();
        inbox.batch(batch(1, 1));
        inbox.batch(batch(1, 2));
        inbox.batch(batch(0, 3));
        let pending = inbox.wait_until(Mono(0)).unwrap();
        assert_eq!(pending.batches.len(), 1);
        assert_eq!(pending.batches[0].taken, Mono(2), "an older epoch does not win");
        assert_eq!(pending.batches[0].calls.len(), 3);
        inbox.batch(batch(1, 4));
        assert_eq!(inbox.wait_until(Mono(0)).unwrap().batches.len(), 1, "the inbox was emptied");
    }

    #[test]
    fn fast_batches_are_kept_in_order_up_to_a_bound() {
        let inbox = Inbox::default();
        let many = MAX_FAST as u64 + 10;
        for n in 0..many {
            let part = BatchKey { collector: CollectorName::Nvml, gpu: None, tier: Tier::Fast };
            inbox.batch(Batch { part, ..batch(1, n) });
        }
        let pending = inbox.wait_until(Mono(0)).unwrap();
        assert_eq!(pending.batches.len(), MAX_FAST);
        assert!(pending.batches.is_sorted_by_key(|b| b.taken));
        assert_eq!(pending.batches.last().map(|b| b.taken), Some(Mono(many - 1)), "the newest wins");
        assert_eq!(pending.batches.iter().map(|b| b.calls.len()).sum::<usize>(), many as usize);
    }

    #[test]
    fn a_new_epoch_is_folded_after_what_came_before_it() {
        let inbox = Inbox::default();
        let fast = BatchKey { collector: CollectorName::Nvml, gpu: None, tier: Tier::Fast };
        inbox.batch(batch(1, 1));
        inbox.batch(Batch { part: fast, ..batch(1, 2) });
        inbox.batch(batch(2, 3));
        let epochs: Vec<u64> = inbox.wait_until(Mono(0)).unwrap().batches.iter().map(|b| b.epoch).collect();
        assert_eq!(epochs, [1, 1, 2]);
    }

    #[test]
    fn a_list_of_processes_that_differs_from_the_next_is_kept() {
        let (inbox, on) = (Inbox::default(), |pid| GpuProcess { pid, instance: None, memory: None });
        for (n, list) in [vec![], vec![on(7)], vec![on(7)], vec![]].into_iter().enumerate() {
            inbox.batch(Batch { processes: Some(list), ..batch(1, n as u64) });
        }
        let lists: Vec<_> =
            inbox.wait_until(Mono(0)).unwrap().batches.into_iter().map(|b| b.processes).collect();
        assert_eq!(lists, [Some(vec![]), Some(vec![on(7)]), Some(vec![])]);
        for pid in 0..MAX_LISTED as u32 + 10 {
            inbox.batch(Batch { processes: Some(vec![on(pid)]), ..batch(1, 1) });
        }
        assert_eq!(inbox.wait_until(Mono(0)).unwrap().batches.len(), MAX_LISTED + 1, "up to a bound");
    }

    #[test]
    fn events_are_bounded_and_what_found_no_room_is_counted() {
        let inbox = Inbox::default();
        for _ in 0..MAX_EVENTS + 3 {
            inbox.event(LedgerEvent::LateBatch);
        }
        let pending = inbox.wait_until(Mono(0)).unwrap();
        assert_eq!((pending.events.len(), pending.lost), (MAX_EVENTS, 3));
        inbox.close();
        assert!(inbox.wait_until(Mono(0)).is_none());
    }

    #[test]
    fn the_newest_reload_has_room() {
        let inbox = Inbox::default();
        for _ in 0..MAX_EVENTS {
            inbox.event(LedgerEvent::LateBatch);
        }
        let live = LiveSettings::from_config(&settings::Config::default(), None);
        let loaded = |second| LedgerEvent::Reloaded(Some(Box::new(live.clone())), second);
        let failed = |second| LedgerEvent::Reloaded(None, second);
        for event in [failed(1.0), loaded(2.0), loaded(3.0), failed(4.0), failed(5.0)] {
            inbox.event(event);
        }
        let pending = inbox.wait_until(Mono(0)).unwrap();
        assert_eq!(pending.lost, 0);
        assert_eq!(
            pending.events.into_iter().skip(MAX_EVENTS).collect::<Vec<_>>(),
            [loaded(3.0), failed(5.0)]
        );
    }
}
