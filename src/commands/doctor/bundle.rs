//! `gpu-node-exporter doctor --bundle FILE`: writes a compressed archive with everything that a support case
//! needs.
//!
//! The bundle contains no values of keys that may be secret ([`crate::redaction`]), and with
//! `--without-owners` no names of work, users or processes. `CONTENT.txt` lists every file, and the reason
//! for every missing one.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use regex_lite::Regex;
use serde_json::Value;

use super::examine;
use crate::commands::control_socket;
use crate::control;
use crate::recorder::folder::RecordingFolder;
use crate::redaction::without_secrets;
use exposition::nameless::OWNER_LABELS;
use host::reader::DeadlineReader;
use model::clock::unix_seconds;
use model::plain_file;
use settings::Loaded;

/// Maximum size of all recordings in bytes. The newest recordings come first.
const MAX_RECORDINGS: u64 = 64 << 20;
/// Number of log lines, and the time limit for reading them from the journal.
const LOG_LINES: &str = "--lines=5000";
const LOG_TIMEOUT: Duration = Duration::from_secs(20);
/// Keys that contain names of work, in addition to the labels.
const OWNER_KEYS: [&str; 3] = ["cgroup", "process", "slurm_step"];
const REMOVED: &str = "[removed]";
/// Common words, which also occur outside of names of work and reveal nothing.
const KNOWN_WORDS: &str =
    "canary claim container default docker gpu job main node none other pod root slurm unit unknown user vm";
/// Keys of this program's own sentences, which contain no names of work.
const OWN_TEXTS: [&str; 3] = ["help", "meaning", "mnemonic"];

/// Rules for the content of the bundle.
#[derive(Debug)]
struct Redaction {
    /// True if names of work are removed.
    owners: bool,
    /// Names found so far, which are also removed from text. Longer names come first, because one name may be
    /// part of another.
    names: BTreeSet<(Reverse<usize>, String)>,
}

/// Writes the bundle. Returns the list of its files.
pub fn run(
    loaded: &Loaded,
    config_errors: &[String],
    file: &Path,
    without_owners: bool,
) -> Result<String, String> {
    let named = |error: io::Error| format!("{}: {error}", file.display());
    let mut redaction = Redaction { owners: without_owners, names: BTreeSet::new() };
    let mut archive = Archive::create(file).map_err(named)?;
    let mut write = || {
        // Documents come before texts, because they contain the names to remove.
        ask_daemon(loaded, &mut archive, &mut redaction)?;
        recordings(loaded, &mut archive, &mut redaction)?;
        settings_in_force(loaded, &mut archive)?;
        if !config_errors.is_empty() {
            let errors = config_errors.iter().map(|error| format!("{error}\n")).collect::<String>();
            archive.add("config-errors.txt", Ok(redaction.text(&errors).into_bytes()))?;
        }
        let report = examine(&loaded.config, config_errors).text(false);
        archive.add("doctor.txt", Ok(redaction.text(&report).into_bytes()))?;
        archive.add("log.txt", journal().map(|log| redaction.text(&log).into_bytes()))?;
        archive.finish()
    };
    let content = write().map_err(|error| {
        // A partial archive is useless, and would prevent the next attempt.
        let _ = fs::remove_file(file);
        named(error)
    })?;
    Ok(format!("{content}\nWrote {}. Review its content before you send it.\n", file.display()))
}

fn fetch(loaded: &Loaded, request: &str) -> Result<Vec<u8>, String> {
    control_socket(&loaded.config)
        .and_then(|socket| control::fetch(socket, request))
        .map_err(|error| error.to_string())
}

/// Adds the settings of the daemon. If the daemon does not answer, adds the settings of this command, which
/// may have other environment variables and options.
fn settings_in_force(loaded: &Loaded, archive: &mut Archive) -> io::Result<()> {
    let settings = fetch(loaded, "config").unwrap_or_else(|error| {
        let error = error.replace('\n', " ");
        let why = format!("settings of this command, because the daemon did not send its own: {error}");
        archive.content.push_str(&format!("config.toml: {why}\n"));
        format!("# {why}\n{}", without_secrets(&loaded.to_toml())).into_bytes()
    });
    archive.add("config.toml", Ok(settings))
}

/// Adds the documents that the daemon publishes.
fn ask_daemon(loaded: &Loaded, archive: &mut Archive, redaction: &mut Redaction) -> io::Result<()> {
    for document in ["snapshot", "events", "owners", "topology"] {
        let of_owners = redaction.owners && document == "owners";
        let request = if document == "snapshot" { "snapshot json".into() } else { document.to_owned() };
        let json = fetch(loaded, &request).and_then(|bytes| redaction.document(&bytes));
        // The document was still needed to find the names to remove.
        let json = if of_owners { Err("left out: --without-owners".to_owned()) } else { json };
        archive.add(&format!("{document}.json"), json)?;
    }
    Ok(())
}

fn recordings(loaded: &Loaded, archive: &mut Archive, redaction: &mut Redaction) -> io::Result<()> {
    let folder = RecordingFolder::new(&loaded.config);
    let found = match folder.list() {
        Ok(found) => found,
        Err(error) => {
            let none = format!("none: {}: {error}", folder.dir().display());
            return archive.add("recordings", Err(none));
        }
    };
    let mut bytes = 0;
    for recording in found.into_iter().rev() {
        bytes += recording.bytes;
        let name = recording.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let content = match bytes <= MAX_RECORDINGS {
            true => plain_file::read(&recording.path, MAX_RECORDINGS as usize)
                .map_err(|error| error.to_string())
                .and_then(|content| redaction.recording(&content)),
            false => Err("left out: the newer recordings use up the size limit".to_owned()),
        };
        archive.add(&format!("recordings/{name}"), content)?;
    }
    Ok(())
}

/// Returns the newest lines of the daemon's log.
fn journal() -> Result<String, String> {
    let read = || {
        #[expect(
            clippy::disallowed_methods,
            reason = "a program of the system that opens no GPU, and is left behind if it hangs"
        )]
        let mut journal = Command::new("journalctl");
        journal.args(["--unit=gpu-node-exporter", LOG_LINES, "--no-pager", "--output=short-iso"]);
        journal.stdin(Stdio::null()).output()
    };
    match DeadlineReader::new("journal", LOG_TIMEOUT, Arc::default()).read(1, read) {
        Ok(Ok(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(Ok(output)) => Err(format!("journalctl: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Ok(Err(error)) => Err(format!("journalctl: {error}")),
        Err(_) => Err(format!("journalctl did not answer within {} s", LOG_TIMEOUT.as_secs())),
    }
}

/// Removes a name from a text where it is a separate word. Returns `None` if the text does not contain it.
fn without_name(text: &str, name: &str) -> Option<String> {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut rest, mut cleaned, mut from) = (text, String::new(), 0);
    while let Some(at) = rest.get(from..).and_then(|rest| rest.find(name)).map(|at| from + at) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let joined_before = is_part(name.chars().next()) && is_part(before.chars().next_back());
        let joined_after = is_part(name.chars().next_back()) && is_part(after.chars().next());
        if joined_before || joined_after {
            from = at + name.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        cleaned.push_str(before);
        cleaned.push_str(REMOVED);
        (rest, from) = (after, 0);
    }
    (rest.len() < text.len()).then(|| cleaned + rest)
}

/// Removes the values of keys that name work: `pod="x"`, `pod=x`, and the process in a kernel log line, which
/// ends at the next comma.
fn without_owner_keys(text: &str) -> String {
    static RULES: LazyLock<Vec<Regex>> = LazyLock::new(|| {
        let keys = OWNER_LABELS.iter().filter(|key| **key != "pid").chain(&OWNER_KEYS);
        let keys = keys.copied().collect::<Vec<_>>().join("|");
        let rules = [
            r"(\bpid=[^,\n]*, *name=)([^,\n]+)".to_owned(),
            format!(r#"(\b(?:{keys}|name)=)("(?:[^"\\]|\\.)*"|[^,\s}}]+)"#),
        ];
        rules.iter().filter_map(|rule| Regex::new(rule).ok()).collect()
    });
    let mut text = text.to_owned();
    for rule in RULES.iter() {
        text = rule.replace_all(&text, "${1}[removed]").into_owned();
    }
    text
}

impl Redaction {
    /// Removes secrets and the names found so far from a text.
    fn text(&self, text: &str) -> String {
        let text = without_secrets(text);
        if !self.owners {
            return text;
        }
        // Names come before keys, because a name may contain spaces and commas.
        without_owner_keys(&self.without_names(text))
    }

    fn without_names(&self, mut text: String) -> String {
        for (_, name) in &self.names {
            if let Some(cleaned) = without_name(&text, name) {
                text = cleaned;
            }
        }
        text
    }

    /// Cleans a value whose key does not name work. Only a value with several words can contain a name. Any
    /// other value is one of this program's words, unless the whole value is a name.
    fn value(&self, text: &str) -> String {
        if text.contains([' ', '/']) {
            return self.text(text);
        }
        let is_name = self.owners && self.names.contains(&(Reverse(text.len()), text.to_owned()));
        if is_name { REMOVED.to_owned() } else { without_secrets(text) }
    }

    fn document(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut document: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        // Two passes, because a name may be found after a text that contains it.
        self.clean(&mut document.clone());
        self.clean(&mut document);
        serde_json::to_vec(&document).map_err(|error| error.to_string())
    }

    /// Rewrites a recording without secrets and names, up to the end of a truncated file.
    fn recording(&mut self, content: &[u8]) -> Result<Vec<u8>, String> {
        let recording = recorder::file::decode(content).map_err(|error| error.to_string())?;
        let mut cleaned = recording.lines;
        cleaned.iter_mut().for_each(|line| self.clean(line));
        let header = serde_json::to_value(&recording.header).map_err(|error| error.to_string())?;
        let mut lines = vec![header];
        lines.append(&mut cleaned);
        if recording.truncated.is_none() {
            lines.push(serde_json::json!({ "end": lines.len() }));
        }
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        for mut line in lines {
            self.clean(&mut line);
            writeln!(out, "{line}").map_err(|error| error.to_string())?;
        }
        out.finish().map_err(|error| error.to_string())
    }

    /// Removes names of work from a document and stores them, and removes secrets from every text.
    fn clean(&mut self, value: &mut Value) {
        match value {
            Value::Object(object) => {
                if self.owners && object.keys().any(|key| key.contains("=\"")) {
                    // The keys of a recording's series contain their labels.
                    let series = std::mem::take(object).into_iter();
                    *object = series.map(|(key, value)| (without_owner_keys(&key), value)).collect();
                }
                for (key, value) in object {
                    // The name of a systemd unit contains a dot, unlike a unit of measurement.
                    let unit = key == "unit" && value.as_str().is_some_and(|unit| unit.contains('.'));
                    if self.owners && (unit || names_owner(key)) {
                        self.remove(value);
                    } else if !OWN_TEXTS.contains(&key.as_str()) {
                        self.clean(value);
                    }
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.clean(value)),
            Value::String(text) => *text = self.value(text),
            _ => {}
        }
    }

    fn remove(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => {
                // A short number could mean anything.
                let says_something = text.len() >= 4 || text.len() >= 2 && text.contains(char::is_alphabetic);
                if says_something && !KNOWN_WORDS.split(' ').any(|word| word == text) {
                    self.names.insert((Reverse(text.len()), text.clone()));
                }
                *value = REMOVED.into();
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.remove(value)),
            Value::Object(object) => {
                object.values_mut().filter(|value| value.is_string()).for_each(|value| self.remove(value));
            }
            _ => {}
        }
    }
}

/// Returns true for a key whose value names work. A process ID does not.
fn names_owner(key: &str) -> bool {
    (OWNER_LABELS.contains(&key) && key != "pid") || OWNER_KEYS.contains(&key)
}

/// Archive with the list of its files.
struct Archive {
    tar: tar::Builder<GzEncoder<std::fs::File>>,
    content: String,
    time: u64,
}

impl Archive {
    /// Creates the file, readable only by its owner. An existing file is an error.
    fn create(file: &Path) -> io::Result<Archive> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        let about = format!("gpu-node-exporter {} support bundle\n\n", env!("CARGO_PKG_VERSION"));
        Ok(Archive { tar, content: about, time: unix_seconds() as u64 })
    }

    /// Adds a file, or the reason why it is missing.
    fn add(&mut self, name: &str, content: Result<Vec<u8>, String>) -> io::Result<()> {
        match content {
            Ok(bytes) => {
                self.content.push_str(&format!("{name}: {} bytes\n", bytes.len()));
                self.append(name, &bytes)
            }
            Err(why) => {
                self.content.push_str(&format!("{name}: {why}\n"));
                Ok(())
            }
        }
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        self.tar.append_data(&mut header, format!("gpu-node-exporter-bundle/{name}"), bytes)
    }

    /// Completes the archive. Returns the list of its files.
    fn finish(&mut self) -> io::Result<String> {
        let content = self.content.clone();
        self.append("CONTENT.txt", content.as_bytes())?;
        self.tar.finish()?;
        self.tar.get_mut().try_finish()?;
        self.tar.get_ref().get_ref().sync_all()?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction(owners: bool) -> Redaction {
        Redaction { owners, names: BTreeSet::new() }
    }

    #[test]
    fn names_of_work_are_removed_from_documents_and_then_from_lines() {
        let document = r#"{"events":[{"owner":"pod/team-a/train-0/main","process":"train.py","pid":7,
            "text":"pid=7, name=train.py, GPU has fallen off"}],"metrics":[{"labels":{"gpu":"3","namespace":"team-a",
            "pod":""}}],"owners":[{"processes":[1,2]}]}"#;
        let mut without = redaction(true);
        let cleaned = String::from_utf8(without.document(document.as_bytes()).unwrap()).unwrap();
        for name in ["team-a", "train"] {
            assert!(!cleaned.contains(name), "{cleaned}");
        }
        assert!(cleaned.contains("GPU has fallen off") && cleaned.contains("\"gpu\":\"3\""), "{cleaned}");
        assert_eq!(without.text("owner pod/team-a/train-0/main is gone"), "owner [removed] is gone");
        let whole = String::from_utf8(redaction(false).document(document.as_bytes()).unwrap()).unwrap();
        assert!(whole.contains("team-a") && whole.contains("train.py"));
    }

    #[test]
    fn names_are_whole_words_of_free_texts_and_may_be_short_or_have_spaces() {
        let document = r#"{"owners":[{"user":"al","process":"my job, v2","namespace":"power","pod":"gpu"}],
            "help":"Limit of the power.","name":"gpu_power_watts","unit":"power",
            "text":"al has power, also gpu_power_watts","keys":{"power":1}}"#;
        let mut without = redaction(true);
        let cleaned: Value = serde_json::from_slice(&without.document(document.as_bytes()).unwrap()).unwrap();
        let cleaned = cleaned.to_string();
        for kept in ["gpu_power_watts", "Limit of the power.", "\"power\":1"] {
            assert!(cleaned.contains(kept), "{kept}: {cleaned}");
        }
        assert!(cleaned.contains("[removed] has [removed], also gpu_power_watts"), "{cleaned}");
        assert_eq!(without.text("al: also my job, v2 on a gpu"), "[removed]: also [removed] on a gpu");
    }

    #[test]
    fn what_keys_of_a_line_name_is_removed_though_it_was_never_met() {
        let without = redaction(true);
        let line = "NVRM: Xid (PCI:0000:1a:00): 31, pid=7, name=python my train.py, Ch 00000008\n\
            WARN late namespace=team-b claim=\"c \\\"1\\\"\" gpu=3 metric=gpu_up\n";
        assert_eq!(
            without.text(line),
            "NVRM: Xid (PCI:0000:1a:00): 31, pid=7, name=[removed], Ch 00000008\n\
            WARN late namespace=[removed] claim=[removed] gpu=3 metric=gpu_up\n"
        );
    }
}
