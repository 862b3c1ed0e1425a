//! Directory of the recordings, bounded by bytes and number of files. The oldest recordings are removed first.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use settings::Config;

const PREFIX: &str = "recording-";
const ENDING: &str = ".json.gz";
/// Ending of a file that is being written. A killed daemon may leave such a file behind.
const UNFINISHED: &str = ".new";

fn name_of(what: &str) -> String {
    format!("{PREFIX}{what}{ENDING}")
}

/// Directory of the recordings with its limits.
#[derive(Clone, Debug)]
pub(crate) struct RecordingFolder {
    dir: PathBuf,
    max_bytes: u64,
    max_files: usize,
}

/// Recording in the directory.
#[derive(Debug)]
pub(crate) struct RecordingFile {
    modified: SystemTime,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

impl RecordingFolder {
    /// Uses the directory and limits of the settings.
    pub(crate) fn new(config: &Config) -> RecordingFolder {
        let settings = &config.recorder;
        let dir = settings.dir.clone().unwrap_or_else(|| config.state.dir.join("recordings"));
        let (max_bytes, max_files) = (u64::from(settings.max_bytes), settings.max_files as usize);
        RecordingFolder { dir, max_bytes, max_files }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the recordings, the oldest first. Other files are ignored.
    pub(crate) fn list(&self) -> io::Result<Vec<RecordingFile>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Links are not followed: `metadata` of an entry describes the link itself.
            let Ok(about) = entry.metadata() else { continue };
            if about.is_file() && name.starts_with(PREFIX) && name.ends_with(ENDING) {
                let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(RecordingFile { modified, path: entry.path(), bytes: about.len() });
            }
        }
        found.sort_by(|a, b| (a.modified, &a.path).cmp(&(b.modified, &b.path)));
        Ok(found)
    }

    /// Stores a recording. `what` becomes part of its name, and `write` fills the file. Old recordings are removed only
    /// after the new one is written. On a full disk the oldest one is removed first, and `write` is called once more.
    pub(crate) fn store(
        &self,
        what: &str,
        write: impl Fn(&mut File) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let unfinished = self.dir.join(format!("{PREFIX}{UNFINISHED}"));
        let written = match write_new(&unfinished, &write) {
            Err(error) if is_full(&error) && self.remove_oldest(&unfinished)? => {
                write_new(&unfinished, &write)
            }
            written => written,
        };
        let stored = written.and_then(|bytes| self.finish(&unfinished, what, bytes));
        if stored.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        stored
    }

    /// Makes room for a written file and renames it.
    fn finish(&self, unfinished: &Path, what: &str, bytes: u64) -> io::Result<PathBuf> {
        if bytes > self.max_bytes {
            let text = format!("{bytes} bytes, recorder.max_bytes is {}", self.max_bytes);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.make_room(bytes)?;
        let path = self.free_path(what);
        fs::rename(unfinished, &path)?;
        File::open(&self.dir)?.sync_all()?;
        Ok(path)
    }

    /// Returns an unused path. After a change of the clock, the same second, GPU and fault may occur again.
    fn free_path(&self, what: &str) -> PathBuf {
        let (mut path, mut count) = (self.dir.join(name_of(what)), 1);
        while path.symlink_metadata().is_ok() {
            count += 1;
            path = self.dir.join(name_of(&format!("{what}-{count}")));
        }
        path
    }

    /// Removes the unfinished file and the oldest recording. Returns whether there was a recording.
    fn remove_oldest(&self, unfinished: &Path) -> io::Result<bool> {
        let _ = fs::remove_file(unfinished);
        let oldest = self.list()?.into_iter().next();
        oldest.map_or(Ok(false), |oldest| fs::remove_file(&oldest.path).map(|()| true))
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let found = self.list()?;
        let (mut files, mut total) = (found.len(), found.iter().map(|file| file.bytes).sum::<u64>());
        for oldest in found {
            if files < self.max_files && total + bytes <= self.max_bytes {
                break;
            }
            fs::remove_file(&oldest.path)?;
            files -= 1;
            total -= oldest.bytes;
        }
        Ok(())
    }
}

/// Writes a new file and syncs it, because a reset of the machine often follows a fault. Returns its size in bytes.
fn write_new(path: &Path, write: impl Fn(&mut File) -> io::Result<()>) -> io::Result<u64> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    write(&mut file)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Returns whether the disk is full or the quota of the user is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use super::*;

    fn folder(dir: &Path, max_bytes: u64, max_files: usize) -> RecordingFolder {
        RecordingFolder { dir: dir.join("recordings"), max_bytes, max_files }
    }

    fn store(folder: &RecordingFolder, what: &str, bytes: usize) -> io::Result<PathBuf> {
        folder.store(what, |file| file.write_all(&vec![0; bytes]))
    }

    fn names(folder: &RecordingFolder) -> Vec<String> {
        let name = |file: RecordingFile| file.path.file_name().unwrap().to_string_lossy().into_owned();
        folder.list().unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn the_oldest_make_room_by_files_and_by_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path(), 100, 3);
        let mut kept = Vec::new();
        for n in 0..6 {
            kept.push(name_of(&format!("{n}")));
            store(&folder, &n.to_string(), 20).unwrap();
        }
        fs::write(folder.dir().join("notes.txt"), [0; 500]).unwrap();
        assert_eq!(names(&folder), kept[3..], "three files");
        store(&folder, "6", 70).unwrap();
        assert_eq!(names(&folder), [kept[5].clone(), name_of("6")], "a hundred bytes");
        assert!(store(&folder, "7", 101).is_err());
        assert_eq!(names(&folder).len(), 2, "what cannot fit displaces none");
        assert!(folder.dir().join("notes.txt").exists());
    }

    #[test]
    fn what_cannot_be_written_leaves_no_part_behind() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("recordings"), "in the way").unwrap();
        let folder = folder(dir.path(), 100, 3);
        assert!(store(&folder, "1", 1).is_err());
        fs::remove_file(dir.path().join("recordings")).unwrap();
        // A daemon that was killed left this.
        fs::create_dir(folder.dir()).unwrap();
        fs::write(folder.dir().join(format!("{PREFIX}{UNFINISHED}")), "half").unwrap();
        store(&folder, "2", 1).unwrap();
        let broken = |file: &mut File| file.write_all(b"half").and(Err(io::ErrorKind::Other.into()));
        assert!(folder.store("3", broken).is_err());
        assert_eq!((names(&folder), fs::read_dir(folder.dir()).unwrap().count()), (vec![name_of("2")], 1));
    }

    #[test]
    fn a_name_that_is_taken_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path(), 100, 9);
        // A folder and a link have a name as well.
        fs::create_dir_all(folder.dir().join(name_of("1-2"))).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.dir().join(name_of("1-3"))).unwrap();
        for bytes in [1, 2] {
            store(&folder, "1", bytes).unwrap();
        }
        assert_eq!(names(&folder), [name_of("1"), name_of("1-4")]);
    }

    #[test]
    fn on_a_full_disk_the_oldest_goes_once_and_a_write_that_fails_otherwise_costs_none() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path(), 100, 3);
        for what in ["1", "2", "3"] {
            store(&folder, what, 1).unwrap();
        }
        let tries = Cell::new(0);
        let fails = |times, kind: io::ErrorKind| {
            tries.set(0);
            let tries = &tries;
            move |file: &mut File| {
                file.write_all(b"x")?;
                tries.set(tries.get() + 1);
                if tries.get() <= times { Err(io::Error::from(kind)) } else { Ok(()) }
            }
        };
        assert!(folder.store("4", fails(9, io::ErrorKind::PermissionDenied)).is_err());
        assert_eq!((tries.get(), names(&folder).len()), (1, 3));
        folder.store("5", fails(1, io::ErrorKind::StorageFull)).unwrap();
        assert_eq!((tries.get(), names(&folder)), (2, ["2", "3", "5"].map(name_of).to_vec()));
        assert!(folder.store("6", fails(9, io::ErrorKind::QuotaExceeded)).is_err());
        assert_eq!((tries.get(), names(&folder)), (2, ["3", "5"].map(name_of).to_vec()));
        assert_eq!(fs::read_dir(folder.dir()).unwrap().count(), 2, "no part is left");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test itself is the child")]
    fn a_write_that_ends_in_its_midst_leaves_the_recordings_before() {
        let name = "recorder::folder::tests::a_write_that_ends_in_its_midst_leaves_the_recordings_before";
        if let Some(dir) = std::env::var_os("GNE_TEST_STATE_DIR") {
            let error = store(&folder(Path::new(&dir), 1 << 20, 2), "3", 64 << 10).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path(), 1 << 20, 2);
        for what in ["1", "2"] {
            store(&folder, what, 1).unwrap();
        }
        // A limit on the size of files ends a write as a full disk does.
        let mut child = std::process::Command::new("sh");
        child
            .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap());
        child
            .args(["--exact", name])
            .env("GNE_TEST_STATE_DIR", dir.path())
            .stdout(std::process::Stdio::null());
        assert!(child.status().unwrap().success());
        assert_eq!(names(&folder), ["1", "2"].map(name_of));
        assert_eq!(fs::read_dir(folder.dir()).unwrap().count(), 2, "no part is left");
    }
}
