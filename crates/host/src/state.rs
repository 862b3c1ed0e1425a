//! Files kept across restarts: one versioned JSON file per kind, replaced atomically and limited in size. An
//! invalid file is renamed and never stops the daemon.

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

/// Mode of the files, because faults of a node and names of its jobs are not for every user.
const STATE_MODE: u32 = 0o600;
/// Suffix of a file that is being written.
const NEW: &str = "new";
/// Suffix of a file that could not be read and whose content may be lost otherwise.
const UNREAD: &str = "unread";
/// Suffix of a file that was read but is not a valid document.
const CORRUPT: &str = "corrupt";
/// File whose lock belongs to the one process that writes to the folder.
const LOCK: &str = "lock";
/// Time between attempts to save.
const RETRY: Duration = Duration::from_secs(60);

/// A type with a state file of its own.
pub trait Document: Serialize + DeserializeOwned {
    /// Name of the file, without suffix.
    const KIND: &'static str;
    /// Version of the content. A field never changes its meaning. It is replaced by a field with another name
    /// and written for one more version, and every new field has a default. A file of a later version can
    /// therefore be read as far as its fields are known, and an update can be undone.
    const VERSION: u32;
    /// Oldest version that can be read; an older file is set aside. Keep it when [`VERSION`](Self::VERSION)
    /// increases, and change no file in `tests/data/state/older`.
    const OLDEST: u32;
    /// Maximum size of the file in bytes, for reading and writing.
    const MAX_BYTES: usize;
}

/// Position up to which the kernel log was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLogPosition {
    /// Id of the boot that numbered the records.
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

/// Folder of the state files. Clones share the list of documents that are not saved.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    retry: Duration,
    /// Kinds whose document has not been saved or could not be read.
    unkept: Arc<Mutex<BTreeSet<&'static str>>>,
    /// Lock of the folder, once it is held; `None` if no other process writes to the folder.
    lock: Option<Arc<Mutex<Option<Flock<File>>>>>,
}

impl Store {
    /// Returns a store in this folder, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into(), retry: RETRY, unkept: Arc::default(), lock: None }
    }

    /// Returns the store with another time between attempts to save.
    #[must_use]
    pub fn with_retry(self, retry: Duration) -> Store {
        Store { retry, ..self }
    }

    /// Returns the store in a form that writes only while no other process owns the folder. The first process
    /// owns it until it ends.
    #[must_use]
    pub fn exclusive(self) -> Store {
        Store { lock: Some(Arc::default()), ..self }
    }

    /// Locks the folder, if that is required and not done yet.
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
                    "another gpu-node-exporter keeps its state in {}; this one saves nothing until the other has ended",
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

    /// Reads a document, or returns `None` if there is none. An invalid file is renamed to `KIND.corrupt`,
    /// which [`Store::probe`] reports, and counts as none. Files in a folder of another process are not
    /// renamed.
    pub fn load<T: Document>(&self) -> io::Result<Option<T>> {
        if self.is_taken() {
            return self.look();
        }
        match self.read(T::KIND, T::MAX_BYTES)?.map(|bytes| parse(&bytes?)) {
            None => Ok(None),
            Some(Ok(document)) => Ok(Some(document)),
            Some(Err(why)) => {
                let (path, aside) = (self.path(T::KIND, "json"), self.path(T::KIND, CORRUPT));
                tracing::warn!(
                    "failed to read {}: {why}; renamed to {}, and a new file is started",
                    path.display(),
                    aside.display()
                );
                fs::rename(&path, aside)?;
                Ok(None)
            }
        }
    }

    /// Reads a document of another process without changing anything. Fails if the file is invalid.
    pub fn look<T: Document>(&self) -> io::Result<Option<T>> {
        let parsed = self.read(T::KIND, T::MAX_BYTES)?.map(|bytes| parse(&bytes?));
        parsed.transpose().map_err(io::Error::other)
    }

    /// Returns the bytes of a file, or the reason why it is not a document.
    fn read(&self, kind: &str, most: usize) -> io::Result<Option<Result<Vec<u8>, String>>> {
        match plain_file::read(&self.path(kind, "json"), most) {
            Ok(bytes) => Ok(Some(Ok(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A special or oversized file is not a document.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge) =>
            {
                Ok(Some(Err(error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    /// Fails if a document could not be saved now, or if a file of an earlier process was set aside.
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

    /// Returns the files that were set aside, which stay until a person removes them.
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

    /// Saves a document: writes a new file, syncs it to the disk and renames it. Fails if the document is too
    /// large, the folder belongs to another process or the disk refuses it.
    pub fn save<T: Document>(&self, document: &T) -> io::Result<()> {
        let envelope = Envelope { kind: T::KIND.to_owned(), version: T::VERSION, data: document };
        let bytes = serde_json::to_vec(&envelope).map_err(io::Error::other)?;
        if bytes.len() > T::MAX_BYTES {
            let text = format!("{}.json has {} bytes; the maximum is {}", T::KIND, bytes.len(), T::MAX_BYTES);
            return Err(io::Error::other(text));
        }
        self.hold()?;
        replace(&self.path(T::KIND, "json"), &bytes, STATE_MODE)
    }

    /// Returns whether another process owns the folder.
    fn is_taken(&self) -> bool {
        self.hold().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Returns whether a document has a file.
    fn has(&self, kind: &str) -> io::Result<bool> {
        match fs::symlink_metadata(self.path(kind, "json")) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renames the file of a document, if there is one, to `KIND.unread`, where it stays until a person removes
    /// it.
    fn put_aside(&self, kind: &str) -> io::Result<()> {
        if !self.has(kind)? {
            return Ok(());
        }
        let (path, aside) = (self.path(kind, "json"), self.path(kind, UNREAD));
        if fs::symlink_metadata(&aside).is_ok() {
            return Err(io::Error::other(format!("{} already exists; remove it", aside.display())));
        }
        tracing::warn!("{} could not be read at the start; renamed to {}", path.display(), aside.display());
        fs::rename(&path, aside)
    }

    /// Returns the kinds of documents that cannot be saved now or could not be read.
    pub fn unkept(&self) -> Vec<&'static str> {
        lock(&self.unkept).iter().copied().collect()
    }
}

/// Replaces a file: writes a file with the suffix `new` and this mode, syncs it to the disk, and renames it.
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

/// Creates a file. An existing file is a leftover or belongs to another user, so it is removed and never
/// written to.
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
