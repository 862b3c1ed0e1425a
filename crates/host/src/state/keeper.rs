//! Saves a document in the background until it is saved. A slow disk delays no other thread, and a disk that
//! was temporarily full or read-only loses nothing.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use model::sync::lock;

use super::{Document, Store};

/// Document that an earlier process left.
#[derive(Debug, PartialEq)]
pub enum StoredState<T> {
    /// There is no file.
    None,
    /// The document that was read.
    Document(T),
    /// The file could not be read. It is passed on when it can.
    Unread,
}

/// Receives a document that is read late; `None` if there is no file any longer.
type Late<T> = Box<dyn FnMut(Option<T>) + Send>;

impl Store {
    /// Reads the document of an earlier process, and starts the thread that saves new ones. A document that cannot be
    /// read counts as none for this process; its file is never overwritten.
    pub fn open<T: Document + Send + 'static>(&self) -> (Option<T>, Keeper<T>) {
        let (loaded, keeper) = self.start(None);
        (loaded.ok().flatten(), keeper)
    }

    /// Does the same for a document that must not start empty. The keeper retries until the file can be read and then
    /// passes the document to `late`. Documents that come before are dropped, because they lack the past.
    pub fn open_late<T: Document + Send + 'static>(
        &self,
        late: impl FnMut(Option<T>) + Send + 'static,
    ) -> (StoredState<T>, Keeper<T>) {
        let (loaded, keeper) = self.start(Some(Box::new(late)));
        let known = match loaded {
            Ok(Some(document)) => StoredState::Document(document),
            Ok(None) => StoredState::None,
            Err(_) => StoredState::Unread,
        };
        (known, keeper)
    }

    fn start<T: Document + Send + 'static>(
        &self,
        late: Option<Late<T>>,
    ) -> (io::Result<Option<T>>, Keeper<T>) {
        let (sender, documents) = channel::<T>();
        let loaded = self.load().inspect_err(|error| {
            tracing::warn!("failed to read {}.json in {}: {error}", T::KIND, self.dir.display());
            lock(&self.unkept).insert(T::KIND);
        });
        // Another process may still change the file that was read.
        let taken = self.is_taken();
        if taken {
            lock(&self.unkept).insert(T::KIND);
        }
        let saver = Saver { store: self.clone(), unsaved: None, unread: loaded.is_err(), taken, late };
        let thread = crate::thread::spawn("state", 256, move || saver.run(&documents));
        let thread = thread.inspect_err(|error| {
            lock(&self.unkept).insert(T::KIND);
            let kind = T::KIND;
            tracing::warn!(%error, "failed to start the state writer; {kind}.json will not survive a restart");
        });
        (loaded, Keeper(thread.ok().map(|thread| (sender, thread))))
    }
}

/// Saves documents in the background. Dropping the keeper waits until the last document is saved, or was tried once more.
/// The default keeper saves nothing.
#[derive(Debug)]
pub struct Keeper<T>(Option<(Sender<T>, JoinHandle<()>)>);

impl<T> Default for Keeper<T> {
    fn default() -> Keeper<T> {
        Keeper(None)
    }
}

impl<T: Document> Keeper<T> {
    /// Saves a document soon. A document that cannot be saved is retried until it is saved or a newer one comes.
    pub fn save(&self, document: T) {
        if let Some((sender, _)) = &self.0
            && sender.send(document).is_err()
        {
            tracing::warn!(kind = T::KIND, "the state writer has ended; nothing more is saved");
        }
    }
}

impl<T> Drop for Keeper<T> {
    fn drop(&mut self) {
        let Some((sender, thread)) = self.0.take() else { return };
        drop(sender);
        if thread.join().is_err() {
            tracing::warn!("the state writer panicked");
        }
    }
}

struct Saver<T> {
    store: Store,
    unsaved: Option<T>,
    /// Whether an unread file of an earlier process may exist.
    unread: bool,
    /// Whether another process owned the folder at the last check, and may have written newer content.
    taken: bool,
    /// Receives the document when it can be read; `None` if it may start again from nothing.
    late: Option<Late<T>>,
}

impl<T: Document> Saver<T> {
    fn run(mut self, documents: &Receiver<T>) {
        loop {
            let next = if self.unsaved.is_some() || self.unread || self.taken {
                documents.recv_timeout(self.store.retry)
            } else {
                documents.recv().map_err(RecvTimeoutError::from)
            };
            let ended = matches!(next, Err(RecvTimeoutError::Disconnected));
            // Only the newest document counts.
            if let Some(newest) = next.into_iter().chain(documents.try_iter()).last() {
                self.unsaved = Some(newest);
            }
            self.keep();
            if ended {
                return;
            }
        }
    }

    /// Saves the unsaved document.
    fn keep(&mut self) {
        let kept = self.take_over().and_then(|()| self.read_late()).and_then(|()| self.clear_the_place());
        let kept = kept.and_then(|()| match &self.unsaved {
            Some(document) => self.store.save(document),
            None => Ok(()),
        });
        let mut unkept = lock(&self.store.unkept);
        match kept {
            Ok(()) => {
                self.unsaved = None;
                if !self.unread {
                    unkept.remove(T::KIND);
                }
            }
            Err(error) => {
                if unkept.insert(T::KIND) {
                    let dir = self.store.dir.display();
                    tracing::warn!(
                        "failed to save {}.json in {dir}: {error}; trying again until it is saved",
                        T::KIND
                    );
                }
            }
        }
    }

    /// Locks the folder after its process has ended. A document that must not start empty is read again.
    fn take_over(&mut self) -> io::Result<()> {
        if self.taken {
            self.store.hold()?;
            self.taken = false;
            self.unread |= self.late.is_some();
        }
        Ok(())
    }

    /// Reads a document that could not be read at the start and must not start empty.
    fn read_late(&mut self) -> io::Result<()> {
        let Some(late) = self.late.as_mut().filter(|_| self.unread) else { return Ok(()) };
        self.unsaved = None;
        let known = self.store.load::<T>()?;
        tracing::info!(
            "read {}.json in {}, after it could not be read at the start",
            T::KIND,
            self.store.dir.display()
        );
        self.unread = false;
        late(known);
        Ok(())
    }

    /// Sets aside a file that could not be read at the start, because it has content that this process lacks.
    /// This happens only when a document replaces it; until then the next process may read it.
    fn clear_the_place(&mut self) -> io::Result<()> {
        if self.unread && (self.unsaved.is_some() || !self.store.has(T::KIND)?) {
            self.store.put_aside(T::KIND)?;
            self.unread = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use model::persisted::{Inventory, NodeHistory, SeenGpus};

    fn inventory(devices: usize) -> Inventory {
        Inventory { boot_id: "b".into(), seen: SeenGpus { devices, gpus: Vec::new() } }
    }

    fn store(dir: &Path) -> Store {
        Store::new(dir).with_retry(Duration::from_millis(1))
    }

    /// Waits for what the thread does by itself.
    fn wait_for(done: impl Fn() -> bool) {
        let pause = crate::stop::Stop::default();
        let deadline = model::clock::Mono::now() + Duration::from_secs(20);
        while !done() {
            assert!(model::clock::Mono::now() < deadline, "not within 20 s");
            pause.wait_until(model::clock::Mono::now() + Duration::from_millis(2));
        }
    }

    /// Puts a folder where a file is in one step: a look in between would find neither.
    fn put_in_place(folder: &Path, place: &Path) {
        let link = place.with_extension("link");
        std::os::unix::fs::symlink(folder, &link).unwrap();
        fs::rename(&link, place).unwrap();
    }

    #[test]
    fn the_last_document_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let (known, keeper) = store(dir.path()).open();
        assert_eq!(known, None);
        for devices in 0..20 {
            keeper.save(inventory(devices));
        }
        drop(keeper);
        let (known, keeper) = store(dir.path()).open();
        assert_eq!(known, Some(inventory(19)));
        drop(keeper);
    }

    #[test]
    fn a_folder_that_is_repaired_later_gets_the_last_document() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        // Also root cannot make a folder below a file.
        fs::write(&folder, "in the way").unwrap();
        let store = store(&folder);
        let (known, keeper) = store.open::<Inventory>();
        assert_eq!((known, store.unkept()), (None, vec!["inventory"]));
        keeper.save(inventory(2));
        keeper.save(inventory(3));
        fs::remove_file(&folder).unwrap();
        wait_for(|| store.unkept().is_empty());
        assert_eq!(store.load().unwrap(), Some(inventory(3)));
        // It fails later, as a full disk does.
        fs::rename(&folder, dir.path().join("away")).unwrap();
        fs::write(&folder, "in the way").unwrap();
        keeper.save(inventory(4));
        wait_for(|| !store.unkept().is_empty());
        fs::remove_file(&folder).unwrap();
        wait_for(|| store.unkept().is_empty());
        assert_eq!(store.load().unwrap(), Some(inventory(4)));
    }

    #[test]
    fn of_two_processes_one_writes_and_the_other_takes_over_when_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (store(dir.path()).exclusive(), store(dir.path()).exclusive());
        let (_, of_first) = first.open::<Inventory>();
        of_first.save(inventory(1));
        wait_for(|| first.load().unwrap() == Some(inventory(1)));
        let (sender, late) = channel();
        let (known, of_second) = second.open_late(move |known| sender.send(known).unwrap());
        assert_eq!(known, StoredState::Document(inventory(1)), "it may read");
        assert_eq!((first.unkept(), second.unkept()), (vec![], vec!["inventory"]));
        of_second.save(inventory(2));
        let refused = [second.save(&inventory(2)), second.probe()];
        for error in refused.map(Result::unwrap_err) {
            assert!(error.to_string().contains("another gpu-node-exporter keeps its state in"), "{error}");
        }
        fs::write(dir.path().join("history.json"), "{").unwrap();
        assert!(second.load::<NodeHistory>().is_err() && dir.path().join("history.json").exists());
        of_first.save(inventory(3));
        drop(of_first);
        assert_eq!(first.load().unwrap(), Some(inventory(3)), "the first one's alone");
        drop(first);
        assert_eq!(late.recv_timeout(Duration::from_secs(20)).unwrap(), Some(inventory(3)));
        wait_for(|| second.unkept().is_empty());
        assert!(second.probe().is_ok());
        of_second.save(inventory(4));
        drop(of_second);
        assert_eq!(second.load().unwrap(), Some(inventory(4)));
    }

    #[test]
    fn a_file_that_is_read_late_is_handed_over_and_never_replaced_before() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, away) = (dir.path().join("state"), dir.path().join("away"));
        store(&away).save(&inventory(8)).unwrap();
        fs::write(&folder, "in the way").unwrap();
        let store = store(&folder);
        let (sender, late) = channel();
        let (known, keeper) = store.open_late(move |known| sender.send(known).unwrap());
        assert_eq!((known, store.unkept()), (StoredState::Unread, vec!["inventory"]));
        keeper.save(inventory(7));
        put_in_place(&away, &folder);
        assert_eq!(late.recv_timeout(Duration::from_secs(20)).unwrap(), Some(inventory(8)));
        wait_for(|| store.unkept().is_empty());
        assert_eq!(store.load().unwrap(), Some(inventory(8)), "what came before is not joined with it");
        assert!(store.probe().is_ok(), "nothing is put aside");
        keeper.save(inventory(9));
        drop(keeper);
        assert_eq!(store.load().unwrap(), Some(inventory(9)));
    }

    #[test]
    fn a_file_that_could_not_be_read_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, away) = (dir.path().join("state"), dir.path().join("away"));
        store(&away).save(&inventory(1)).unwrap();
        fs::write(&folder, "in the way").unwrap();
        let store = store(&folder);
        let (_, keeper) = store.open();
        put_in_place(&away, &folder);
        assert_eq!(store.unkept(), ["inventory"], "until the next process reads it");
        keeper.save(inventory(2));
        wait_for(|| store.unkept().is_empty());
        drop(keeper);
        assert_eq!(store.load().unwrap(), Some(inventory(2)));
        let aside = folder.join("inventory.unread");
        assert!(fs::read_to_string(&aside).unwrap().contains("\"devices\":1"));
        assert!(store.probe().unwrap_err().to_string().contains("inventory.unread"));

        // Another one finds the place taken, and stays.
        let mut saver = Saver {
            store: store.clone(),
            unsaved: Some(inventory(3)),
            unread: true,
            taken: false,
            late: None,
        };
        saver.keep();
        assert_eq!((store.load().unwrap(), store.unkept()), (Some(inventory(2)), vec!["inventory"]));
        fs::remove_file(&aside).unwrap();
        saver.keep();
        assert_eq!((store.load().unwrap(), store.unkept()), (Some(inventory(3)), vec![]));
    }
}
