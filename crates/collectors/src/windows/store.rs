//! Directory of windows. Every window is a file `NAME.toml`, written by the administrator or by `gpu-node-exporter
//! window`.
//!
//! The collector reads the directory every few seconds, at most 64 files of 64 KiB.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::Host;
use host::state::replace;
use model::catalog::WindowKind;
use model::catalog::schema::KnownLabel;
use model::plain_file;
use model::text;
use model::window::{self, MAX_WINDOWS, Window};
use settings::Config;

use super::file;

/// Mode of a file. All users may read windows.
const MODE: u32 = 0o644;
/// Maximum number of directory entries that are read.
const MAX_ENTRIES: usize = 4096;
/// Seconds for which the file of an ended window stays when another window starts.
const RETENTION: f64 = 24.0 * 3600.0;
/// Maximum number of listed problems; the others are counted.
const MAX_PROBLEMS: usize = 8;

/// Directory of windows and the last content of its files.
#[derive(Debug)]
pub struct WindowStore {
    dir: PathBuf,
    max_duration: Duration,
    files: BTreeMap<String, Result<Window, Vec<String>>>,
}

impl WindowStore {
    /// Opens the configured directory. An empty path means a directory without windows.
    pub fn new(config: &Config) -> WindowStore {
        let dir = config.windows.dir.as_ref().map(|dir| Host::new(&config.host.root).path(dir));
        let dir = dir.unwrap_or_default();
        WindowStore { dir, max_duration: config.windows.max_duration, files: BTreeMap::new() }
    }

    /// Applies a new configuration. Files are reread if the directory or the maximum duration has changed.
    pub(crate) fn configure(&mut self, config: &Config) {
        let store = WindowStore::new(config);
        if (&store.dir, store.max_duration) != (&self.dir, self.max_duration) {
            *self = store;
        }
    }

    /// Returns the path of a window's file.
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.toml"))
    }

    /// Returns the windows of all files, by name.
    fn windows(&self) -> impl Iterator<Item = Window> {
        self.files.values().filter_map(|content| content.clone().ok())
    }

    /// Returns all windows that are open, planned, or ended within the last hour, and the problems of the files.
    pub fn list(&mut self, now: f64) -> (Vec<Window>, Vec<String>) {
        let problems = self.read();
        let mut windows: Vec<Window> = self.windows().filter(|window| window.is_published(now)).collect();
        windows.sort_by(|a, b| a.start.total_cmp(&b.start).then_with(|| a.name.cmp(&b.name)));
        (windows, problems)
    }

    /// Starts a window by writing its file. A window without a name gets one.
    pub fn start(&mut self, planned: Window, now: f64) -> Result<Window, String> {
        if self.dir.as_os_str().is_empty() {
            return Err("windows.dir is empty; set it to a directory".into());
        }
        let (windows, _) = self.list(now);
        let window = file::cut(planned, self.max_duration);
        if window.end <= now {
            return Err("the window would already have ended; check --at and --for".into());
        }
        let name = match window.name.as_str() {
            "" => self.free_name(window.kind, window.start),
            name if !file::is_name(name) => return Err(format!("--name: {}", file::NAME_RULE)),
            name => name.to_owned(),
        };
        if let Some(known) = windows.iter().find(|window| window.name == name && now < window.end) {
            return Err(format!(
                "there is a window {name} until {}; end it with `gpu-node-exporter window end {name}`, or choose \
                 another --name",
                window::write(known.end)
            ));
        }
        if self.files.get(&name).is_some_and(Result::is_err) {
            let file = self.file(&name);
            return Err(format!(
                "{} is there and no window; correct it, or choose another --name",
                file.display()
            ));
        }
        let over: Vec<String> =
            self.windows().filter(|window| window.end + RETENTION < now).map(|window| window.name).collect();
        for name in over {
            remove(&self.file(&name))?;
            self.files.remove(&name);
        }
        if self.files.len() >= MAX_WINDOWS && !self.files.contains_key(&name) {
            return Err(format!(
                "there are {MAX_WINDOWS} windows already; remove files that are not needed from {}",
                self.dir.display()
            ));
        }
        let window = Window { name, ..window };
        self.write(&window)?;
        Ok(window)
    }

    /// Ends a window, or all open and planned windows if no name is given.
    pub fn end(&mut self, name: Option<&str>, now: f64) -> Result<Vec<Window>, String> {
        let (windows, _) = self.list(now);
        let mut current: Vec<Window> = windows.into_iter().filter(|window| now < window.end).collect();
        if let Some(name) = name {
            if !current.iter().any(|window| window.name == name) {
                let known: Vec<&str> = current.iter().map(|window| window.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let name = text::clean(name, 64);
                return Err(format!("no window {name} is open or planned; current windows: {known}"));
            }
            current.retain(|window| window.name == name);
        }
        for window in &mut current {
            if window.start >= now {
                remove(&self.file(&window.name))?;
                continue;
            }
            // The end is in whole seconds, as in the file, and after the start.
            window.end = now.floor().max(window.start.floor() + 1.0);
            self.write(window)?;
        }
        Ok(current)
    }

    /// Returns a name without a file, made of the kind and the start.
    fn free_name(&self, kind: WindowKind, start: f64) -> String {
        let digits: String = window::write(start).chars().filter(char::is_ascii_digit).take(12).collect();
        let first = format!("{}-{digits}", kind.known());
        let names = std::iter::once(first.clone()).chain((2..).map(|n| format!("{first}-{n}")));
        names.into_iter().find(|name| !self.files.contains_key(name)).unwrap_or(first)
    }

    /// Writes a file. The temporary file has another ending, so it is not read as a window.
    fn write(&self, window: &Window) -> Result<(), String> {
        let file = self.file(&window.name);
        replace(&file, file::write(window).as_bytes(), MODE).map_err(|error| {
            format!("{}: {error}; who may write to windows.dir may make windows", file.display())
        })
    }

    /// Reads the files. Returns the problems with their files; valid files still count.
    fn read(&mut self) -> Vec<String> {
        if self.dir.as_os_str().is_empty() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        let names = match names(&self.dir, &mut problems) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.clear();
                return problems;
            }
            Err(error) => {
                // The last content stays: an unreadable directory ends no window.
                return vec![format!("{}: {error}", self.dir.display())];
            }
        };
        self.files.retain(|name, _| names.contains(name));
        for name in names {
            let path = self.file(&name);
            match plain_file::read_linked(&path, file::MAX_BYTES) {
                Ok(bytes) => {
                    let named =
                        |window| Window { name: name.clone(), ..file::cut(window, self.max_duration) };
                    let content = file::read(&bytes).map(named);
                    self.files.insert(name, content);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.files.remove(&name);
                }
                // The last content stays while the file is unreadable.
                Err(error)
                    if error.kind() != io::ErrorKind::FileTooLarge
                        && self.files.get(&name).is_some_and(Result::is_ok) =>
                {
                    problems.push(format!("{}: {error}", path.display()));
                }
                Err(error) => {
                    self.files.insert(name, Err(vec![error.to_string()]));
                }
            }
        }
        for (name, content) in &self.files {
            if let Err(why) = content {
                problems.push(format!("{}: {}", self.file(name).display(), why.join("; ")));
            }
        }
        if problems.len() > MAX_PROBLEMS {
            let more = problems.len() - MAX_PROBLEMS;
            problems.truncate(MAX_PROBLEMS);
            problems.push(format!("and {more} more problems in {}", self.dir.display()));
        }
        problems
    }
}

/// Returns the names of the first files in a directory that may be windows.
fn names(path: &Path, problems: &mut Vec<String>) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)?.take(MAX_ENTRIES) {
        let file = entry?.file_name();
        // Editors leave such files behind.
        let Some(file) = file.to_str().filter(|file| !file.starts_with('.')) else { continue };
        let Some(name) = file.strip_suffix(".toml") else { continue };
        match file::is_name(name) {
            true => names.push(name.to_owned()),
            false => {
                problems.push(format!("{}: {}", path.join(text::clean(file, 80)).display(), file::NAME_RULE))
            }
        }
    }
    names.sort_unstable();
    if names.len() > MAX_WINDOWS {
        problems.push(format!(
            "{}: {} files, of which the first {MAX_WINDOWS} count",
            path.display(),
            names.len()
        ));
        names.truncate(MAX_WINDOWS);
    }
    Ok(names)
}

fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{}: {error}", path.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "start = 2027-01-15T08:00:00Z\nfor = '2h'\n";
    /// 2027-01-15T08:00:00Z.
    const NOW: f64 = 1_800_000_000.0;

    struct Bench {
        dir: tempfile::TempDir,
        store: WindowStore,
    }

    impl Bench {
        fn new() -> Bench {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("etc/windows.d")).unwrap();
            Bench { store: store(dir.path()), dir }
        }

        fn write_file(&self, name: &str, text: &str) {
            fs::write(self.dir.path().join("etc/windows.d").join(name), text).unwrap();
        }

        fn start(&mut self, name: &str, start: f64, lasts: f64) -> Result<Window, String> {
            self.store.start(planned(name, start, lasts), NOW)
        }

        fn names(&mut self, now: f64) -> Vec<String> {
            self.store.list(now).0.into_iter().map(|window| window.name).collect()
        }
    }

    fn planned(name: &str, start: f64, lasts: f64) -> Window {
        let (kind, reason) = (WindowKind::Maintenance, "disk".into());
        Window { name: name.into(), kind, reason, start, end: start + lasts, cut: false, expected_gpus: None }
    }

    fn store(root: &Path) -> WindowStore {
        let mut config = Config::default();
        config.host.root = root.to_owned();
        config.windows.dir = Some("/etc/windows.d".into());
        config.windows.max_duration = Duration::from_secs(7200);
        WindowStore::new(&config)
    }

    #[test]
    fn a_window_is_started_kept_and_ended() {
        let mut bench = Bench::new();
        let window = bench.start("disk", NOW, 600.0).unwrap();
        assert_eq!((window.end, window.cut), (NOW + 600.0, false));
        assert_eq!(store(bench.dir.path()).list(NOW).0, [window], "another process reads the same");
        let ended = bench.store.end(Some("disk"), NOW + 10.5).unwrap();
        assert_eq!(ended[0].end, NOW + 10.0);
        assert_eq!(bench.names(NOW + 3609.0), ["disk"], "published for an hour");
        assert!(bench.names(NOW + 3611.0).is_empty());
        let error = bench.store.end(Some("disk"), NOW + 20.0).unwrap_err();
        assert!(error.contains("no window disk") && error.contains("current windows: none"), "{error}");
        assert!(bench.store.start(planned("disk", NOW, 60.0), NOW + 20.0).is_ok(), "the name is free again");
    }

    #[test]
    fn windows_to_come_are_removed_and_all_end_together() {
        let mut bench = Bench::new();
        bench.start("later", NOW + 100.0, 60.0).unwrap();
        bench.start("", NOW - 5.0, 60.0).unwrap();
        bench.start("", NOW - 5.0, 60.0).unwrap();
        bench.write_file("fixed.toml", PLAN);
        assert_eq!(bench.names(NOW).len(), 4);
        assert_eq!(bench.store.end(None, NOW).unwrap().len(), 4);
        assert!(!bench.names(NOW).contains(&"later".to_owned()));
        assert_eq!(bench.store.end(None, NOW + 1.0), Ok(Vec::new()));
    }

    #[test]
    fn requests_that_cannot_be_met_are_refused_with_the_next_step() {
        let mut bench = Bench::new();
        bench.start("disk", NOW, 600.0).unwrap();
        bench.write_file("bad.toml", "start = 'soon'");
        for (name, start, part) in [
            ("disk", NOW, "window end disk"),
            ("bad", NOW, "choose another --name"),
            ("../up", NOW, "a name is"),
            ("past", NOW - 900.0, "--at"),
        ] {
            let error = bench.start(name, start, 600.0).unwrap_err();
            assert!(error.contains(part), "{name}: {error}");
        }
        let long = bench.start("long", NOW, 1e9).unwrap();
        assert_eq!((long.end, long.cut), (NOW + 7200.0, true));
        bench.store.dir = PathBuf::new();
        assert!(bench.start("x", NOW, 1.0).unwrap_err().contains("windows.dir"));
    }

    #[test]
    fn the_directory_does_not_fill_up() {
        let mut bench = Bench::new();
        for n in 0..MAX_WINDOWS {
            bench.start(&format!("w{n}"), NOW, 60.0).unwrap();
        }
        let error = bench.start("one-more", NOW, 60.0).unwrap_err();
        assert!(error.contains("64 windows already"), "{error}");
        let later = planned("", NOW + 1e5, 1e4);
        assert!(bench.store.start(later, NOW + 90_000.0).is_ok(), "files of windows long over are removed");
    }

    #[test]
    fn a_clock_that_goes_back_loses_nothing() {
        let mut bench = Bench::new();
        bench.start("disk", NOW, 600.0).unwrap();
        assert!(bench.names(NOW + 1e6).is_empty());
        assert_eq!(bench.names(NOW - 1e6), ["disk"]);
    }

    #[test]
    fn files_come_change_and_go() {
        let mut bench = Bench::new();
        bench.write_file("a.toml", PLAN);
        bench.write_file(".a.toml.swp", "x");
        bench.write_file("README", "x");
        assert_eq!(bench.store.list(NOW).1, [""; 0]);
        // The same length, within the same tick of the file system's clock.
        bench.write_file("a.toml", &PLAN.replace("2h", "1h"));
        assert_eq!(bench.store.list(NOW).0[0].end, NOW + 3600.0);
        fs::remove_file(bench.store.file("a")).unwrap();
        assert!(bench.names(NOW).is_empty());
        fs::remove_dir_all(bench.dir.path().join("etc")).unwrap();
        assert_eq!(bench.store.list(NOW), (Vec::new(), Vec::new()), "no directory is no problem");
    }

    #[test]
    fn a_bad_file_is_named_and_the_others_stay() {
        let mut bench = Bench::new();
        bench.write_file("good.toml", PLAN);
        bench.write_file("bad.toml", "start = 'soon'");
        bench.write_file("not a name.toml", PLAN);
        fs::create_dir(bench.store.file("folder")).unwrap();
        nix::unistd::mkfifo(&bench.store.file("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(bench.store.file("huge"), vec![b'#'; file::MAX_BYTES + 1]).unwrap();
        let problems = bench.store.list(NOW).1.join("\n");
        assert_eq!(bench.names(NOW), ["good"]);
        for part in [
            "bad.toml: key `start`",
            "not a name.toml: a name is",
            "folder.toml",
            "pipe.toml: is a FIFO",
            "huge.toml: longer",
        ] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert_eq!(bench.store.list(NOW).1.join("\n"), problems, "and again as long as nothing changes");
        bench.write_file("bad.toml", PLAN);
        assert_eq!(bench.names(NOW), ["bad", "good"]);
    }

    #[test]
    fn the_number_of_windows_is_bounded() {
        let mut bench = Bench::new();
        for n in 0..MAX_WINDOWS + 3 {
            bench.write_file(&format!("w{n:03}.toml"), PLAN);
        }
        let problems = bench.store.list(NOW).1.join("\n");
        assert!(problems.contains("67 files, of which the first 64"), "{problems}");
        let names = bench.names(NOW);
        assert_eq!((names.len(), names.last().unwrap().as_str()), (MAX_WINDOWS, "w063"));
    }

    #[test]
    fn a_directory_that_cannot_be_read_ends_no_window() {
        let mut bench = Bench::new();
        bench.write_file("a.toml", PLAN);
        assert_eq!(bench.names(NOW), ["a"]);
        let dir = bench.store.dir.clone();
        fs::rename(&dir, bench.dir.path().join("e")).unwrap();
        fs::write(&dir, "a file now").unwrap();
        assert_eq!(bench.store.list(NOW).1.len(), 1);
        assert_eq!(bench.names(NOW), ["a"]);
    }
}
