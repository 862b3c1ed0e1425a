//! The ledger's inbox. Writers never wait: rows are state, so of two batches of one part that were
//! not folded yet the newer wins; events are kept in order up to a bound. Fast batches, whose states are
//! added up to seconds, are kept up to a bound too: those of a second come in one go and are folded in one.

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

/// Events kept while the ledger is behind; far more than one second can hold.
const MAX_EVENTS: usize = 4096;

/// Facts kept while the ledger is behind: a second of a storm in the kernel log.
const MAX_FACTS: usize = 16_384;

/// Drained readings kept of one part while the ledger is behind: minutes of them.
const MAX_DRAINED: usize = 256;

/// Fast batches kept; more than two seconds of eight GPUs at ten a second, and of 64 GPUs at five.
const MAX_FAST: usize = 256;

/// Batches kept because they list other processes than the next one of their part.
const MAX_LISTED: usize = 64;

/// Something that is no value of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum LedgerEvent {
    /// The driver answers.
    DriverUp,
    /// The driver is absent or went away; every value of it is void.
    DriverAway {
        /// Kind of the failure.
        error: DriverError,
        /// Why.
        text: String,
        /// Batches of epochs below this are of the driver that went.
        epoch: u64,
    },
    /// No sampler can be started.
    NoSampler {
        /// Why.
        text: String,
    },
    /// There is no handle on a GPU.
    AttachFailed {
        /// NVML's index.
        index: u32,
        /// Kind of the failure.
        error: DriverError,
        /// Why.
        text: String,
    },
    /// The driver is released, or how far that is has changed; every measured value of it is void.
    Released(Pause),
    /// The driver is resumed.
    Resumed,
    /// The kernel module is in another state than before.
    Module {
        /// Its state now.
        state: ModuleState,
        /// When.
        at: Mono,
        /// The same in seconds since 1970.
        unix_seconds: f64,
    },
    /// The driver is stuck as a whole, or no longer.
    DriverStuck(bool),
    /// A GPU has a worker.
    GpuAttached(Gpu),
    /// All driver calls that last for long: no other one does any more.
    Stalls(Vec<Stall>),
    /// Sampler processes alive.
    Samplers(usize),
    /// A sampler was started.
    SamplerStarted,
    /// A sampler was abandoned. Until another says that the driver answers, that is not known.
    SamplerEnded(SamplerEnd, Mono),
    /// A batch came from a sampler that was already abandoned.
    LateBatch,
    /// From the canary.
    Canary(CanaryEvent),
    /// The topology of the machine.
    Topology(topology::TopologyUpdate),
    /// From the finder of owners.
    Owners(owners::OwnerUpdate),
    /// Every window that is open, to come, or ended within the last hour.
    Windows(Vec<Window>),
    /// A collector cannot work, and why; `None`: it can (again).
    CollectorUnavailable(CollectorName, Option<String>),
    /// Since when the kernel log is read: every fault from then on is reported. `None`: it is not read.
    ReadsKernelLog(Option<Mono>),
    /// What earlier daemons knew beyond a reboot, read late; `None`: it cannot be read yet.
    History(Option<NodeHistory>),
    /// The configuration was loaded again, and when, in seconds since 1970; `None`: it cannot be used.
    Reloaded(Option<Box<LiveSettings>>, f64),
    /// What became of the recordings of so many faults, or of one recording.
    Recording(RecordingOutcome, u64),
    /// An operator says that the NVSwitches were reset: who, and why.
    SwitchesCleared(String),
}

/// A release of the driver.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// When it was asked for.
    pub since: Mono,
    /// The same in seconds since 1970.
    pub unix_seconds: f64,
    /// Batches of epochs below this are of samplers that were ended.
    pub epoch: u64,
    /// Processes that still have the driver open.
    pub holders: Vec<i32>,
}

/// A driver call that lasts for long.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The GPU it is about; `None`: about the node.
    pub gpu: Option<Gpu>,
    /// NVML function.
    pub call: String,
    /// When it was entered.
    pub since: Mono,
    /// Whether it is past its deadline, which is longer for the calls that open the driver and the GPUs: then it is
    /// stuck, and what it is about has no values.
    pub overdue: bool,
}

/// What was in the inbox.
#[derive(Debug, Default)]
pub struct Pending {
    /// The newest batch of each part, and fast batches that came before the newest, in order.
    pub batches: Vec<Batch>,
    /// Events in order.
    pub events: VecDeque<LedgerEvent>,
    /// Facts in order, each with the life of its source: numbers start again with each life.
    pub facts: VecDeque<(u64, Fact)>,
    /// Events that found no room.
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
    /// Reloads that found the events full: the newest one, and before it the newest that was successful.
    reloads: Vec<LedgerEvent>,
    closed: bool,
}

impl Inbox {
    /// Puts a batch in. An older one of the same part gives way, but the calls it counted stay counted.
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
            // A new epoch voids what was read before it, so it must not be folded before that.
            Some(older) if batch.epoch > older.epoch => true,
            // A process that was there for a second counts for its owner.
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
            // What finds no room shows as a gap between the samples.
            drained.append(&mut batch.drained);
        }
        if batch.epoch >= older.epoch {
            *older = batch;
        }
        (older.calls, older.drained) = (calls, drained);
    }

    /// Puts an event in and wakes the ledger.
    pub fn event(&self, event: LedgerEvent) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.pending.events.len() < MAX_EVENTS {
            queue.pending.events.push_back(event);
        } else if let LedgerEvent::Reloaded(settings, _) = &event {
            // Lost, its settings would be in use by all but the ledger.
            let replaced =
                |known: &LedgerEvent| settings.is_some() || matches!(known, LedgerEvent::Reloaded(None, _));
            queue.reloads.retain(|known| !replaced(known));
            queue.reloads.push(event);
        } else {
            queue.pending.lost += 1;
        }
        self.arrived.notify_one();
    }

    /// Puts a fact in and wakes the ledger. One that finds no room shows in the numbers of those after it.
    pub fn fact(&self, life: u64, fact: Fact) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.pending.facts.len() < MAX_FACTS {
            queue.pending.facts.push_back((life, fact));
        }
        self.arrived.notify_one();
    }

    /// Ends [`Inbox::wait_until`]'s queue for good.
    pub fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.arrived.notify_all();
    }

    /// Waits until `when`, or for an event, then empties the inbox. `None` once it is closed. Batches do not
    /// wake: they are folded when something is to be published.
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
