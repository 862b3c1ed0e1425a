//! What the kubelet has given out: devices by resource, and which pods have them. Asked every 10 s over its
//! pod-resources socket; where it does not answer, ever less often. No thread waits for it.

pub mod devices;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::{Context, lifetime};
use attribution::kubelet::{self as pod_resources, KubeletAnswer, KubeletFailure};
use attribution::pods::{Claims, KubeletStatus, Pods};
use host::Host;
use host::stop::Stop;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, KubeletError, Node};
use model::clock::{Cadence, Mono, nanos};
use model::sample::{Batch, Rows};

/// Time between two visits.
const EVERY: Duration = Duration::from_secs(10);
/// Longest time between two tries while it does not answer, in visits.
const MOST_PAUSED: u32 = 6;
/// Time between two looks whether it is time to end.
const LOOK: Duration = Duration::from_millis(100);
/// So long after its last answer, its answer counts no more.
const FORGOTTEN: Duration = Duration::from_secs(35);
/// So long after its last answer a kubelet without a socket may be one that is being replaced: pods keep what they
/// were given meanwhile.
const REPLACED: Duration = Duration::from_secs(600);

/// Starts the collector.
pub fn start(context: Context, pods: Arc<Pods>) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    host::thread::spawn("kubelet", 1024, move || {
        let socket = &context.config.owners.kubelet_socket;
        if socket.as_os_str().is_empty() {
            pods.set_status(KubeletStatus::Off);
            return context.switched_off(CollectorName::Kubelet, "owners.kubelet_socket");
        }
        let socket = Host::new(&context.config.host.root).path(socket);
        KubeletCollector::new(&context, pods, runtime, socket).run();
    })
}

struct KubeletCollector<'a> {
    context: &'a Context,
    pods: Arc<Pods>,
    runtime: Runtime,
    socket: PathBuf,
    every: Duration,
    errors: [u64; KubeletError::ALL.len()],
    /// The last answer, and when it came.
    answer: Option<(KubeletAnswer, Mono)>,
    /// When it answered last.
    answered: Option<Mono>,
    /// Tries in a row that failed.
    failed: u32,
    unavailable: Option<String>,
    /// How long the last visit took.
    took: Duration,
}

impl<'a> KubeletCollector<'a> {
    fn new(context: &'a Context, pods: Arc<Pods>, runtime: Runtime, socket: PathBuf) -> KubeletCollector<'a> {
        let every = EVERY.min(context.config.sampler.slow_interval);
        KubeletCollector {
            context,
            pods,
            runtime,
            socket,
            every,
            errors: [0; KubeletError::ALL.len()],
            answer: None,
            answered: None,
            failed: 0,
            unavailable: None,
            took: Duration::ZERO,
        }
    }

    fn run(&mut self) {
        let mut cadence = Cadence::new(self.every, Duration::ZERO);
        let mut again = Mono::default();
        while !self.context.stop.stopped() {
            let now = Mono::now();
            if cadence.take(now) {
                if now >= again {
                    self.visit();
                    self.took = Mono::now().since(now);
                    again = Mono::now() + pause(self.failed, self.every);
                }
                self.publish();
            }
            self.context.stop.wait_until(cadence.next());
        }
    }

    /// Asks, and takes in what came of it.
    fn visit(&mut self) {
        let outcome = match pod_resources::look(&self.socket) {
            Ok(false) => {
                (self.answer, self.failed) = (None, 0);
                self.pods.put(Claims::default());
                self.pods.set_status(absent(self.answered, Mono::now()));
                return self.set_unavailable(None);
            }
            Ok(true) => {
                let (socket, deadline) = (&self.socket, self.context.config.owners.read_timeout);
                let stop = &self.context.stop;
                let asked = self.runtime.block_on(async {
                    tokio::select! {
                        answer = pod_resources::ask(socket, deadline) => Some(answer),
                        () = stopped(stop) => None,
                    }
                });
                let Some(answer) = asked else { return };
                answer
            }
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(answer) => {
                self.failed = 0;
                let trouble = answer.allocatable.as_ref().err().and_then(|failure| self.count(failure));
                self.set_unavailable(trouble);
                let now = Mono::now();
                self.pods.put(Claims { listed_at: Some(now), all: devices::claims(&answer.pods) });
                self.pods.set_status(KubeletStatus::Answers);
                self.answer = Some((answer, now));
                self.answered = Some(now);
            }
            Err(failure) => {
                self.failed = self.failed.saturating_add(1);
                // Also one that does not know the request: of this list it must.
                let known =
                    KubeletFailure { error: failure.error.or(Some(KubeletError::Refused)), ..failure };
                let text = self.count(&known).unwrap_or(known.text);
                self.pods.set_status(KubeletStatus::Silent(text.clone()));
                self.set_unavailable(Some(text));
            }
        }
    }

    /// Counts a failure; gives its text, unless it is none.
    fn count(&mut self, failure: &KubeletFailure) -> Option<String> {
        let error = failure.error?;
        let at = KubeletError::ALL.iter().position(|known| *known == error)?;
        self.errors[at] += 1;
        Some(format!("{}: {}", self.socket.display(), failure.text))
    }

    fn set_unavailable(&mut self, why: Option<String>) {
        if self.unavailable != why {
            if let Some(why) = &why {
                tracing::warn!(%why, "the kubelet");
            }
            self.context.unavailable(CollectorName::Kubelet, why.clone());
            self.unavailable = why;
        }
    }

    fn publish(&mut self) {
        let now = Mono::now();
        if self.answer.as_ref().is_some_and(|(_, at)| now.since(*at) > FORGOTTEN.max(self.every * 3)) {
            self.answer = None;
            self.pods.put(Claims::default());
        }
        let mut rows = Rows::default();
        for (error, count) in KubeletError::ALL.iter().zip(self.errors) {
            let _ = rows.of(&Node {}).put(&m::gpu_exporter_kubelet_errors_total, (*error,), count as f64);
        }
        if let Some((answer, _)) = &self.answer {
            devices::rows(&answer.pods, answer.allocatable.as_ref().ok(), &mut rows);
        }
        let lifetime = lifetime(self.every) + self.context.config.owners.read_timeout * 3;
        self.context.inbox.batch(Batch {
            nanos: nanos(self.took),
            // That there is no kubelet is an answer.
            answered: self.failed == 0,
            ..Batch::of_node(CollectorName::Kubelet, now, Some(lifetime), rows)
        });
    }
}

/// Resolves when it is time to end. Looked at only while the kubelet is waited for.
async fn stopped(stop: &Stop) {
    while !stop.stopped() {
        tokio::time::sleep(LOOK).await;
    }
}

/// What it means that there is no socket, by when the kubelet answered last.
fn absent(answered: Option<Mono>, now: Mono) -> KubeletStatus {
    match answered {
        Some(at) if now.since(at) <= REPLACED => KubeletStatus::Silent("its socket is gone".into()),
        _ => KubeletStatus::Absent,
    }
}

/// How long it is left alone after so many failures in a row.
fn pause(failed: u32, every: Duration) -> Duration {
    match failed {
        0 => Duration::ZERO,
        n => (every * 2u32.saturating_pow(n - 1)).min(every * MOST_PAUSED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whose_socket_went_away_lately_may_come_back() {
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        assert_eq!(absent(None, at(1)), KubeletStatus::Absent);
        assert!(matches!(absent(Some(at(1)), at(600)), KubeletStatus::Silent(_)));
        assert_eq!(absent(Some(at(1)), at(602)), KubeletStatus::Absent);
    }

    #[test]
    fn a_kubelet_that_does_not_answer_is_asked_ever_less_often() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 40].map(|n| pause(n, EVERY).as_secs()).into();
        assert_eq!(pauses, [0, 10, 20, 40, 60, 60]);
    }
}
