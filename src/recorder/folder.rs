//! The directory of the recordings: bounded by bytes and files, the oldest go first.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use settings::Config;

const PREFIX: &str = "recording-";
const ENDING: &str = ".json.gz";
/// What is being written; left behind by a daemon that was killed meanwhile.
const UNFINISHED: &str = ".new";

/// The name of a recording's file.
pub fn name_of(what: &str) -> String {
    format!("{PREFIX}{what}{ENDING}")
}

/// The directory.
#[derive(Clone, Debug)]
pub struct RecordingFolder {
    dir: PathBuf,
    max_bytes: u64,
    max_files: usize,
}

/// A recording in it.
#[derive(Debug)]
pub struct RecordingFile {
    modified: SystemTime,
    pub path: PathBuf,
    pub bytes: u64,
}

impl RecordingFolder {
    /// The directory that the settings name.
    pub fn of(config: &Config) -> RecordingFolder {
        let settings = &config.recorder;
        let dir = match settings.dir.as_os_str().is_empty() {
            true => config.state.dir.join("recordings"),
            false => settings.dir.clone(),
        };
        let (max_bytes, max_files) = (u64::from(settings.max_bytes), settings.max_files as usize);
        RecordingFolder { dir, max_bytes, max_files }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The recordings, the oldest first. Other files are left alone.
    pub fn list(&self) -> io::Result<Vec<RecordingFile>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Links are not followed: `metadata` of an entry is the link's own.
            let Ok(about) = entry.metadata() else { continue };
            if about.is_file() && name.starts_with(PREFIX) && name.ends_with(ENDING) {
                let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(RecordingFile { modified, path: entry.path(), bytes: about.len() });
            }
        }
        found.sort_by(|a, b| (a.modified, &a.path).cmp(&(b.modified, &b.path)));
        Ok(found)
    }

    /// Stores a recording, after the oldest ones have made room for it.
    pub fn store(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        if bytes.len() as u64 > self.max_bytes {
            let text = format!("{} bytes, recorder.max_bytes is {}", bytes.len(), self.max_bytes);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        self.make_room(bytes.len() as u64)?;
        let path = self.dir.join(name);
        let unfinished = self.dir.join(format!("{PREFIX}{UNFINISHED}"));
        let _ = fs::remove_file(&unfinished);
        let written = write_new(&unfinished, bytes)
            .and_then(|()| fs::rename(&unfinished, &path))
            .and_then(|()| fs::File::open(&self.dir)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written.map(|()| path)
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

/// Writes a file that is not there yet, down to the disk: a fault is often followed by a reset of the machine.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(dir: &Path, max_bytes: u64, max_files: usize) -> RecordingFolder {
        RecordingFolder { dir: dir.join("recordings"), max_bytes, max_files }
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
            folder.store(&kept[n], &[0; 20]).unwrap();
        }
        fs::write(folder.dir().join("notes.txt"), [0; 500]).unwrap();
        assert_eq!(names(&folder), kept[3..], "three files");
        folder.store(&name_of("6"), &[0; 70]).unwrap();
        assert_eq!(names(&folder), [kept[5].clone(), name_of("6")], "a hundred bytes");
        assert!(folder.store(&name_of("7"), &[0; 101]).is_err());
        assert_eq!(names(&folder).len(), 2, "what cannot fit displaces none");
        assert!(folder.dir().join("notes.txt").exists());
    }

    #[test]
    fn what_cannot_be_written_leaves_no_part_behind() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("recordings"), "in the way").unwrap();
        let folder = folder(dir.path(), 100, 3);
        assert!(folder.store(&name_of("1"), b"x").is_err());
        fs::remove_file(dir.path().join("recordings")).unwrap();
        // A daemon that was killed left this.
        fs::create_dir(folder.dir()).unwrap();
        fs::write(folder.dir().join(format!("{PREFIX}{UNFINISHED}")), "half").unwrap();
        folder.store(&name_of("2"), b"x").unwrap();
        // A folder has the name: the rename fails.
        fs::create_dir(folder.dir().join(name_of("3"))).unwrap();
        assert!(folder.store(&name_of("3"), b"x").is_err());
        assert_eq!((names(&folder), fs::read_dir(folder.dir()).unwrap().count()), (vec![name_of("2")], 2));
    }
}
