//! A folder of windows: a file each, `NAME.toml`. Looked at often and cheaply: only what changed is read again.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::file::{self, Plan};
use model::clock::unix_seconds;
use model::text;
use model::window::MOST;

/// Entries of the folder that are looked at, whatever they are.
const MAX_ENTRIES: usize = 4096;
/// A file that was changed so many seconds ago may change once more without another look of its times.
const UNSETTLED: f64 = 5.0;
/// Problems that are told; more are counted.
const MAX_PROBLEMS: usize = 8;

/// A folder, and what its files said when they were read last.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    said: Result<Plan, Vec<String>>,
}

/// What tells that a file is still the same.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
    written: (i64, i64),
}

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        Stamp {
            inode: file.ino(),
            bytes: file.len(),
            changed: (file.ctime(), file.ctime_nsec()),
            written: (file.mtime(), file.mtime_nsec()),
        }
    }

    fn is_settled(&self, now: f64) -> bool {
        (now - self.changed.0 as f64).abs() > UNSETTLED
    }
}

impl Folder {
    /// The folder at this path, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Folder {
        Folder { path: path.into(), files: BTreeMap::new() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of a window.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.toml"))
    }

    /// What its files plan, by name.
    pub fn plans(&self) -> impl Iterator<Item = (&str, &Plan)> {
        self.files.iter().filter_map(|(name, known)| Some((name.as_str(), known.said.as_ref().ok()?)))
    }

    /// Whether there is a file of this name, good or bad.
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Looks at the folder. Gives what is wrong, each with its file; the good files count all the same.
    pub fn look(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        let names = match names(&self.path, &mut problems) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.clear();
                return problems;
            }
            Err(error) => {
                // What it said last stands: a folder that cannot be read now ends no window.
                return vec![format!("{}: {error}", self.path.display())];
            }
        };
        self.files.retain(|name, _| names.contains(name));
        let now = unix_seconds();
        for name in names {
            let path = self.file(&name);
            let stamp = fs::metadata(&path).map(|file| Stamp::of(&file));
            let same = |known: &Known| stamp.as_ref().is_ok_and(|s| *s == known.stamp && s.is_settled(now));
            if self.files.get(&name).is_some_and(same) {
                continue;
            }
            match read(&path) {
                Ok((stamp, bytes)) => {
                    self.files.insert(name, Known { stamp, said: file::read(&bytes) });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.files.remove(&name);
                }
                Err(error) if self.files.get(&name).is_some_and(|known| known.said.is_ok()) => {
                    problems.push(format!("{}: {error}", path.display()));
                }
                Err(error) => {
                    let stamp = Stamp { inode: 0, bytes: 0, changed: (0, 0), written: (0, 0) };
                    self.files.insert(name, Known { stamp, said: Err(vec![error.to_string()]) });
                }
            }
        }
        for (name, known) in &self.files {
            if let Err(why) = &known.said {
                problems.push(format!("{}: {}", self.file(name).display(), why.join("; ")));
            }
        }
        if problems.len() > MAX_PROBLEMS {
            let more = problems.len() - MAX_PROBLEMS;
            problems.truncate(MAX_PROBLEMS);
            problems.push(format!("and {more} more problems in {}", self.path.display()));
        }
        problems
    }
}

/// The names of the first files in a folder that may be windows.
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
    if names.len() > MOST {
        problems.push(format!("{}: {} files, of which the first {MOST} count", path.display(), names.len()));
        names.truncate(MOST);
    }
    Ok(names)
}

/// Reads a file, if it is one: what is something else, as a pipe, must not hold us up.
fn read(path: &Path) -> io::Result<(Stamp, Vec<u8>)> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let seen = file.metadata()?;
    if !seen.is_file() {
        return Err(io::Error::other("is no file"));
    }
    let mut bytes = Vec::new();
    file.take(file::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((Stamp::of(&seen), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "start = 2026-11-22T08:00:00Z\nfor = '2h'\n";

    fn names(folder: &Folder) -> Vec<&str> {
        folder.plans().map(|(name, _)| name).collect()
    }

    #[test]
    fn files_come_change_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path().join("windows.d"));
        assert!(folder.look().is_empty(), "no folder is no problem");
        fs::create_dir(folder.path()).unwrap();
        fs::write(folder.file("a"), PLAN).unwrap();
        fs::write(folder.path().join(".a.toml.swp"), "x").unwrap();
        fs::write(folder.path().join("README"), "x").unwrap();
        assert!(folder.look().is_empty());
        assert_eq!(names(&folder), ["a"]);
        // The same length, within the same tick of the file system's clock.
        fs::write(folder.file("a"), PLAN.replace("2h", "3h")).unwrap();
        folder.look();
        let plan = folder.plans().next().unwrap().1.clone();
        assert_eq!(plan.end - plan.start, 3.0 * 3600.0);
        fs::remove_file(folder.file("a")).unwrap();
        folder.look();
        assert!(folder.is_empty());
    }

    #[test]
    fn a_bad_file_is_named_and_the_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path());
        fs::write(folder.file("good"), PLAN).unwrap();
        fs::write(folder.file("bad"), "start = 'soon'").unwrap();
        fs::write(folder.path().join("not a name.toml"), PLAN).unwrap();
        fs::create_dir(folder.file("folder")).unwrap();
        nix::unistd::mkfifo(&folder.file("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(folder.file("huge"), vec![b'#'; file::MAX_BYTES + 1]).unwrap();
        let problems = folder.look().join("\n");
        assert_eq!(names(&folder), ["good"]);
        for said in [
            "bad.toml: key `start`",
            "not a name.toml: a name is",
            "folder.toml",
            "pipe.toml: is no file",
            "huge.toml: larger",
        ] {
            assert!(problems.contains(said), "{said}: {problems}");
        }
        assert_eq!(folder.look().join("\n"), problems, "and again as long as it is so");
        fs::write(folder.file("bad"), PLAN).unwrap();
        folder.look();
        assert_eq!(names(&folder), ["bad", "good"]);
    }

    #[test]
    fn no_more_than_so_many_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path());
        for n in 0..MOST + 3 {
            fs::write(folder.file(&format!("w{n:03}")), PLAN).unwrap();
        }
        let problems = folder.look().join("\n");
        assert!(problems.contains("67 files, of which the first 64"), "{problems}");
        assert_eq!((folder.len(), folder.has("w063"), folder.has("w064")), (MOST, true, false));
    }

    #[test]
    fn a_folder_that_cannot_be_read_ends_no_window() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path().join("d"));
        fs::create_dir(folder.path()).unwrap();
        fs::write(folder.file("a"), PLAN).unwrap();
        folder.look();
        fs::rename(folder.path(), dir.path().join("e")).unwrap();
        fs::write(folder.path(), "a file now").unwrap();
        assert_eq!(folder.look().len(), 1);
        assert_eq!(names(&folder), ["a"]);
    }
}
