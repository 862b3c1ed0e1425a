//! Files kept over restarts: one versioned JSON file a kind, replaced atomically, bounded in size. An invalid file is
//! renamed and never stops the daemon.

mod keeper;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use model::event_history::{self, EventHistory};
use model::owner_records::{self, OwnerRecords};
use model::persisted::{FaultBooks, Inventory, KnownWrongResults, NodeHistory};
use model::plain_file;
use model::sync::lock;

pub use keeper::{Keeper, StoredState};

/// Faults of a node and names of its jobs are not for every user.
const STATE_MODE: u32 = 0o600;
/// Ending of a file that is being written.
const NEW: &str = "new";
/// Ending of a file that could not be read and holds what no process knows.
const UNREAD: &str = "unread";
/// Ending of a file that was read and is none of a document.
const CORRUPT: &str = "corrupt";
/// The file whose lock the one process has that writes to the folder.
const LOCK: &str = "lock";
/// Time between attempts to save.
const RETRY: Duration = Duration::from_secs(60);

/// A type with a state file of its own.
pub trait Document: Serialize + DeserializeOwned {
    /// Name of the file, without ending.
    const KIND: &'static str;
    /// Raised with the content. A field never changes its meaning: it gives way to one of another name, is written for one
    /// more version, and each new field has a default. So a file of a later version is read as far as it is known, and an
    /// update can be taken back.
    const VERSION: u32;
    /// The oldest version that can be read; a file of an older one is set aside. Stays while [`VERSION`](Self::VERSION) is raised,
    /// and no file in `tests/data/state/older` changes.
    const OLDEST: u32;
    /// Largest file that is written or read.
    const MAX_BYTES: usize;
}

/// How far the kernel log was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLogPosition {
    /// The boot that numbered the records.
    pub boot_id: String,
    /// Number of the newest record that was processed.
    pub sequence: u64,
}

macro_rules! documents {
    ($($document:ty: $kind:literal, versions $oldest:literal to $version:literal, $most:expr;)*) => {$(
        impl Document for $document {
            const KIND: &'static str = $kind;
            const VERSION: u32 = $version;
            const OLDEST: u32 = $oldest;
            const MAX_BYTES: usize = $most;
        }
    )*};
}

documents! {
    Inventory: "inventory", versions 2 to 2, 64 * 1024;
    KernelLogPosition: "kernel-log", versions 1 to 1, 4096;
    FaultBooks: "faults", versions 1 to 1, 128 * 1024;
    KnownWrongResults: "wrong-results", versions 1 to 1, 1024 * 1024;
    EventHistory: "events", versions 1 to 1, event_history::MAX_BYTES;
    OwnerRecords: "owner-records", versions 1 to 1, owner_records::MAX_BYTES;
    NodeHistory: "history", versions 1 to 1, 64 * 1024;
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    kind: String,
    version: u32,
    data: T,
}

/// The folder of the state files. Clones know of each other's documents that are not saved.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    retry: Duration,
    /// Kinds of which a document is not saved, or could not be read.
    unkept: Arc<Mutex<BTreeSet<&'static str>>>,
    /// The lock of the folder, once it is held; `None`: no other process writes here.
    lock: Option<Arc<Mutex<Option<Flock<File>>>>>,
}

impl Store {
    /// The store in this folder, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into(), retry: RETRY, unkept: Arc::default(), lock: None }
    }

    /// The same, that tries again after this time to save what could not be saved.
    #[must_use]
    pub fn with_retry(self, retry: Duration) -> Store {
        Store { retry, ..self }
    }

    /// The same, that writes only while no other process has the folder. The first one has it until it ends.
    #[must_use]
    pub fn exclusive(self) -> Store {
        Store { lock: Some(Arc::default()), ..self }
    }

    /// Takes the folder, if this process has to and does not have it yet.
    fn hold(&self) -> io::Result<()> {
        let Some(shared) = &self.lock else { return Ok(()) };
        let mut held = lock(shared);
        if held.is_some() {
            return Ok(());
        }
        fs::create_dir_all(&self.dir)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW).mode(STATE_MODE);
        let file = options.open(self.dir.join(LOCK))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(taken) => *held = Some(taken),
            Err((_, Errno::EWOULDBLOCK)) => {
                let text = format!(
                    "another gpu-node-exporter keeps its state in {}: this one keeps nothing until the other has ended",
                    self.dir.display()
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err((_, error)) => return Err(error.into()),
        }
        Ok(())
    }

    fn path(&self, kind: &str, ending: &str) -> PathBuf {
        self.dir.join(format!("{kind}.{ending}"))
    }

    /// Reads a document; `None` if there is none. An invalid one is renamed to `KIND.corrupt`, which [`Store::probe`] reports,
    /// and counts as none. That of a process that has the folder is left alone.
    pub fn load<T: Document>(&self) -> io::Result<Option<T>> {
        if self.is_taken() {
            return self.look();
        }
        match self.read(T::KIND, T::MAX_BYTES)?.map(|bytes| parse(&bytes?)) {
            None => Ok(None),
            Some(Ok(document)) => Ok(Some(document)),
            Some(Err(why)) => {
                let (path, aside) = (self.path(T::KIND, "json"), self.path(T::KIND, CORRUPT));
                tracing::warn!(file = %path.display(), %why, "set aside as {}", aside.display());
                fs::rename(&path, aside)?;
                Ok(None)
            }
        }
    }

    /// Reads a document of another process and changes nothing. An invalid one is an error.
    pub fn look<T: Document>(&self) -> io::Result<Option<T>> {
        let parsed = self.read(T::KIND, T::MAX_BYTES)?.map(|bytes| parse(&bytes?));
        parsed.transpose().map_err(io::Error::other)
    }

    /// The bytes of a file, or why it is none of a document.
    fn read(&self, kind: &str, most: usize) -> io::Result<Option<Result<Vec<u8>, String>>> {
        match plain_file::read(&self.path(kind, "json"), most) {
            Ok(bytes) => Ok(Some(Ok(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // What is there is no document, whatever it is.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge) =>
            {
                Ok(Some(Err(error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a document could be saved now, and none of an earlier process is put aside.
    pub fn probe(&self) -> io::Result<()> {
        self.hold()?;
        let path = self.path("probe", NEW);
        fs::create_dir_all(&self.dir)?;
        create(&path, STATE_MODE)?.write_all(b"{}")?;
        fs::remove_file(&path)?;
        match self.set_aside()?.first() {
            Some(file) => Err(io::Error::other(format!("{} could not be read at a start", file.display()))),
            None => Ok(()),
        }
    }

    /// The files that could not be read at a start, in the place where they wait for a person.
    pub fn set_aside(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for file in fs::read_dir(&self.dir)? {
            let file = file?.path();
            if file.extension().is_some_and(|ending| ending == UNREAD || ending == CORRUPT) {
                found.push(file);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Writes a document: to a new file beside it, to the disk, then in its place.
    pub fn save<T: Document>(&self, document: &T) -> io::Result<()> {
        let envelope = Envelope { kind: T::KIND.to_owned(), version: T::VERSION, data: document };
        let bytes = serde_json::to_vec(&envelope).map_err(io::Error::other)?;
        if bytes.len() > T::MAX_BYTES {
            let text = format!("{} bytes of {}, the most is {}", bytes.len(), T::KIND, T::MAX_BYTES);
            return Err(io::Error::other(text));
        }
        self.hold()?;
        replace(&self.path(T::KIND, "json"), &bytes, STATE_MODE)
    }

    /// Whether another process has the folder.
    fn is_taken(&self) -> bool {
        self.hold().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Whether there is a file of a document.
    fn has(&self, kind: &str) -> io::Result<bool> {
        match fs::symlink_metadata(self.path(kind, "json")) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renames the file of a document, if there is one, to `KIND.unread`, where it stays until a person takes it away.
    fn put_aside(&self, kind: &str) -> io::Result<()> {
        if !self.has(kind)? {
            return Ok(());
        }
        let (path, aside) = (self.path(kind, "json"), self.path(kind, UNREAD));
        if fs::symlink_metadata(&aside).is_ok() {
            return Err(io::Error::other(format!("{} is in the way", aside.display())));
        }
        tracing::warn!(file = %path.display(), "could not be read at the start; put aside as {}", aside.display());
        fs::rename(&path, aside)
    }

    /// The documents that cannot be saved now, or could not be read.
    pub fn unkept(&self) -> Vec<&'static str> {
        lock(&self.unkept).iter().copied().collect()
    }
}

/// Replaces a file: writes a new one of this mode beside it, with the ending `new`, to the disk, then renames it.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let fresh = path.with_extension(NEW);
    let mut file = create(&fresh, mode)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(dir)?.sync_all()
}

/// Makes a file. One that is there was left behind, or is another user's: it is removed, never written to.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).mode(mode).open(path)
}

fn parse<T: Document>(bytes: &[u8]) -> Result<T, String> {
    let envelope: Envelope<serde_json::Value> = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if envelope.kind != T::KIND || envelope.version < T::OLDEST {
        let Envelope { kind, version, .. } = envelope;
        return Err(format!("{kind} version {version}, not {} version {} or later", T::KIND, T::OLDEST));
    }
    serde_json::from_value(envelope.data).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
