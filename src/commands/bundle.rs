//! `gpu-node-exporter doctor --bundle FILE`: what a support case needs, in one compressed archive.
//!
//! No value of a key that may be secret is in it ([`crate::redaction`]), and with `--without-owners` no name of work, user or process. What
//! cannot be had is named in `CONTENT.txt` with its reason; the bundle is written all the same.

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

use super::{control_socket, doctor};
use crate::control;
use crate::recorder::folder::RecordingFolder;
use crate::redaction::without_secrets;
use exposition::nameless::OWNER_LABELS;
use host::reader::DeadlineReader;
use model::clock::unix_seconds;
use model::plain_file;
use settings::Loaded;

/// Bytes of recordings, the newest first.
const MAX_RECORDINGS: u64 = 64 << 20;
/// Lines of the log, and the time that the journal has for them.
const LOG_LINES: &str = "--lines=5000";
const LOG_TIMEOUT: Duration = Duration::from_secs(20);
/// Where the names of work are in our documents, beside those of labels.
const OWNER_KEYS: [&str; 3] = ["cgroup", "process", "slurm_step"];
const REMOVED: &str = "[removed]";
/// Words of ours and of many others: as a name of work they say nothing.
const KNOWN_WORDS: &str =
    "canary claim container default docker gpu job main node none other pod root slurm unit unknown user vm";
/// Our own sentences, which name no work.
const OWN_TEXTS: [&str; 3] = ["help", "meaning", "mnemonic"];

/// What stays out.
#[derive(Debug)]
struct Redaction {
    /// Whether names of work stay out.
    owners: bool,
    /// Those that were met: they are removed from lines of text, too. The longest first: one may be a part of another.
    names: BTreeSet<(Reverse<usize>, String)>,
}

/// Writes the bundle. Gives what to print.
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
        // Documents before texts: they have the names.
        ask_daemon(loaded, &mut archive, &mut redaction)?;
        recordings(loaded, &mut archive, &mut redaction)?;
        settings_in_force(loaded, &mut archive)?;
        if !config_errors.is_empty() {
            let errors = config_errors.iter().map(|error| format!("{error}\n")).collect::<String>();
            archive.add("config-errors.txt", Ok(redaction.text(&errors).into_bytes()))?;
        }
        let report = doctor::examine(&loaded.config, config_errors).text(false);
        archive.add("doctor.txt", Ok(redaction.text(&report).into_bytes()))?;
        archive.add("log.txt", journal().map(|log| redaction.text(&log).into_bytes()))?;
        archive.finish()
    };
    let content = write().map_err(|error| {
        // Half of it is no archive, and would keep the next one from being written.
        let _ = fs::remove_file(file);
        named(error)
    })?;
    Ok(format!("{content}\nwritten: {}. Look through it before you send it.\n", file.display()))
}

fn fetch(loaded: &Loaded, request: &str) -> Result<Vec<u8>, String> {
    control_socket(&loaded.config)
        .and_then(|socket| control::fetch(socket, request))
        .map_err(|error| error.to_string())
}

/// The daemon's settings: it may have other variables and flags than this command, whose own are there in place of them.
fn settings_in_force(loaded: &Loaded, archive: &mut Archive) -> io::Result<()> {
    let settings = fetch(loaded, "config").unwrap_or_else(|error| {
        let error = error.replace('\n', " ");
        let why = format!("settings of this command, as the daemon has not given its own: {error}");
        archive.content.push_str(&format!("config.toml: {why}\n"));
        format!("# {why}\n{}", without_secrets(&loaded.to_toml())).into_bytes()
    });
    archive.add("config.toml", Ok(settings))
}

/// What the daemon publishes.
fn ask_daemon(loaded: &Loaded, archive: &mut Archive, redaction: &mut Redaction) -> io::Result<()> {
    for document in ["snapshot", "events", "owners", "topology"] {
        let of_owners = redaction.owners && document == "owners";
        let request = if document == "snapshot" { "snapshot json".into() } else { document.to_owned() };
        let json = fetch(loaded, &request).and_then(|bytes| redaction.document(&bytes));
        // The document still says which names are to be removed from the others.
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
            false => Err("left out: too large together with the newer ones".to_owned()),
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
        Err(_) => Err(format!("journalctl has not answered within {} s", LOG_TIMEOUT.as_secs())),
    }
}

/// A text without a name, where that is a word of its own.
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

/// A text without the values of keys that name work: `pod="x"`, `pod=x`, and the process in a line of the kernel, which
/// ends with the next comma.
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
    /// A text without secrets, and without the names that were met.
    fn text(&self, text: &str) -> String {
        let text = without_secrets(text);
        if !self.owners {
            return text;
        }
        // Before the keys: a name may have spaces and commas.
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

    /// A value of a document that no key names as one of work. Only where words follow one another may a name be among
    /// them; anything else is a word of ours, unless it is a name as a whole.
    fn value(&self, text: &str) -> String {
        if text.contains([' ', '/']) {
            return self.text(text);
        }
        let is_name = self.owners && self.names.contains(&(Reverse(text.len()), text.to_owned()));
        if is_name { REMOVED.to_owned() } else { without_secrets(text) }
    }

    fn document(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut document: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        // Twice: a name may be met after a text that has it.
        self.clean(&mut document.clone());
        self.clean(&mut document);
        serde_json::to_vec(&document).map_err(|error| error.to_string())
    }

    /// A recording, written again without secrets and names; a truncated one up to its end.
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

    /// Removes the names of work from a document and remembers them; secrets go from every text.
    fn clean(&mut self, value: &mut Value) {
        match value {
            Value::Object(object) => {
                if self.owners && object.keys().any(|key| key.contains("=\"")) {
                    // Series of a recording: their labels are in the key.
                    let series = std::mem::take(object).into_iter();
                    *object = series.map(|(key, value)| (without_owner_keys(&key), value)).collect();
                }
                for (key, value) in object {
                    // A unit of systemd has a dot, one of a GPU has none.
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
                // A short number is the number of anything.
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

/// Whether this key has a name of work. A process id is none.
fn names_owner(key: &str) -> bool {
    (OWNER_LABELS.contains(&key) && key != "pid") || OWNER_KEYS.contains(&key)
}

/// The archive, and the list of its content.
struct Archive {
    tar: tar::Builder<GzEncoder<std::fs::File>>,
    content: String,
    time: u64,
}

impl Archive {
    /// Makes the file, readable by its owner alone. One that is there stays.
    fn create(file: &Path) -> io::Result<Archive> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        let about = format!("gpu-node-exporter {} support bundle\n\n", env!("CARGO_PKG_VERSION"));
        Ok(Archive { tar, content: about, time: unix_seconds() as u64 })
    }

    /// Adds a file, or why there is none.
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

    /// Ends the archive. Gives the list of its content.
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
