//! Log on standard error. The same warning is logged at most once an hour, because repeated warnings would bury other
//! lines. Events, which have the field `kind`, are always logged, because every event is a separate fault even if the
//! words are the same.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::io::{self, IsTerminal};
use std::os::linux::fs::MetadataExt;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use model::clock::Mono;
use model::sync::lock;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry, reload};

/// Time for which a repeated warning is suppressed.
const SILENCE: Duration = Duration::from_secs(3600);
/// Field that only the lines of events have.
const KIND: &str = "kind";
/// Maximum number of remembered warnings. The oldest is forgotten first and may then be logged again.
const MAX_KNOWN: usize = 256;

/// Function that changes the level, once the log is set up.
static SET_LEVEL: OnceLock<Box<dyn Fn(Level) + Send + Sync>> = OnceLock::new();

/// Changes the log level.
pub(crate) fn set_level(level: Level) {
    if let Some(set) = SET_LEVEL.get() {
        set(level);
    }
}

/// Sets up the log with this level.
pub(crate) fn to_stderr(level: Level) {
    let layer = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).with_target(false);
    let lines = Lines { level, warnings: Mutex::default() };
    // The two layers have different types.
    macro_rules! log_by {
        ($layer:expr) => {{
            let (lines, handle) = reload::Layer::new(lines);
            registry().with($layer.with_filter(lines)).init();
            SET_LEVEL.set(Box::new(move |level| drop(handle.modify(|lines: &mut Lines| lines.level = level))))
        }};
    }
    let first = if stderr_is_the_journal() { log_by!(layer.without_time()) } else { log_by!(layer) };
    debug_assert!(first.is_ok(), "there is one log");
}

/// Returns whether standard error is the journal, which adds time stamps itself. `JOURNAL_STREAM` is not sufficient,
/// because every program in a desktop session inherits it, even with a redirected standard error.
fn stderr_is_the_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let stderr = std::fs::metadata("/proc/self/fd/2").ok();
    stream.zip(stderr).is_some_and(|(stream, file)| stream == format!("{}:{}", file.st_dev(), file.st_ino()))
}

/// Filter by level and repetition.
struct Lines {
    level: Level,
    warnings: Mutex<Warnings>,
}

impl<S: Subscriber> Filter<S> for Lines {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *metadata.level() <= self.level
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if *event.metadata().level() != Level::WARN || event.fields().any(|field| field.name() == KIND) {
            return true;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        lock(&self.warnings).is_due(text.0, Mono::now())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }
}

/// Message and fields of a log line.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

/// Time at which every warning was last logged.
#[derive(Default)]
struct Warnings(HashMap<String, Mono>);

impl Warnings {
    /// Returns whether a warning must be logged now, and marks it as logged if so.
    fn is_due(&mut self, text: String, now: Mono) -> bool {
        if self.0.get(&text).is_some_and(|at| now.since(*at) < SILENCE) {
            return false;
        }
        if self.0.len() >= MAX_KNOWN
            && let Some(oldest) = self.0.iter().min_by_key(|(_, at)| **at).map(|(text, _)| text.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(text, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn the_same_warning_comes_once_an_hour_and_another_one_at_once() {
        let mut warnings = Warnings::default();
        let mut due = |text: &str, seconds| warnings.is_due(text.into(), at(seconds));
        assert!(due("a", 10));
        assert!(!due("a", 15));
        assert!(due("b", 15));
        assert!(!due("a", 3609));
        assert!(due("a", 3610));
        assert!(!due("a", 3611));
    }

    #[test]
    fn no_more_warnings_are_known_than_have_room() {
        let mut warnings = Warnings::default();
        for n in 0..3 * MAX_KNOWN as u64 {
            assert!(warnings.is_due(n.to_string(), at(n)));
            assert!(warnings.0.len() <= MAX_KNOWN);
        }
        assert!(!warnings.is_due((3 * MAX_KNOWN - 1).to_string(), at(1000)), "the newest are known");
    }

    #[test]
    fn an_event_is_filtered_by_its_message_and_its_fields() {
        let lines = Lines { level: Level::INFO, warnings: Mutex::default() };
        let written = Written::default();
        let layer = fmt::layer().with_writer(written.clone()).with_ansi(false).without_time();
        tracing::subscriber::with_default(registry().with(layer.with_filter(lines)), || {
            for gpu in [0, 0, 1, 0] {
                tracing::warn!(gpu, "a warning");
                tracing::warn!(gpu, kind = "xid", "a fault");
                tracing::info!(gpu, "a notice");
                tracing::debug!(gpu, "a detail");
            }
        });
        let text = String::from_utf8(lock(&written.0).clone()).unwrap();
        let count = |what: &str| text.matches(what).count();
        assert_eq!((count("a warning"), count("a notice"), count("a detail")), (2, 4, 0), "{text}");
        assert_eq!(count("a fault"), 4, "each one counts: {text}");
    }

    #[derive(Clone, Default)]
    struct Written(std::sync::Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> fmt::MakeWriter<'a> for Written {
        type Writer = Written;

        fn make_writer(&'a self) -> Written {
            self.clone()
        }
    }
}
