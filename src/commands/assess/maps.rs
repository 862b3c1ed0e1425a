//! Mappings of processes, to find the file that contains the code at an address.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use host::Host;
use nix::fcntl::{self, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

/// Position of code in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CodePlace {
    /// Index of the file; values below [`FIRST_FILE`] are no file.
    pub file: u32,
    pub offset: u64,
}

/// Index of the first file.
pub(crate) const FIRST_FILE: u32 = 2;
/// Maximum number of files. A program may create and map new files for hours.
const MOST_FILES: usize = 100_000;
/// Maximum size of a file in bytes. Larger files are not read.
const MOST_BYTES: u64 = 8 << 30;
/// Maximum number of open files.
const MOST_OPEN: usize = 128;

impl CodePlace {
    pub const KERNEL: CodePlace = CodePlace { file: 0, offset: 0 };
    /// Code of no known file, for example code generated at run time.
    pub const UNKNOWN: CodePlace = CodePlace { file: 1, offset: 0 };
}

#[derive(Clone, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: u32,
}

/// Mappings of every running process.
#[derive(Debug, Default)]
pub(crate) struct AddressSpaces {
    processes: HashMap<u32, Rc<Vec<Mapping>>>,
    files: Vec<MappedFile>,
    by_path: HashMap<(String, u64), u32>,
    /// The first files, opened when they were first mapped, because the root of a process ends with it.
    /// `None` if the file could not be opened.
    open: Vec<Option<File>>,
}

/// File that contains code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    /// Path in the mount namespace of the process.
    pub path: String,
    /// Inode number, because the path may belong to another file later or elsewhere; 0 if unknown.
    pub inode: u64,
    /// Process that mapped the file last.
    pub pid: u32,
}

impl AddressSpaces {
    /// Returns a file by its index.
    pub fn file(&self, index: u32) -> Option<&MappedFile> {
        self.files.get(usize::try_from(index.checked_sub(FIRST_FILE)?).ok()?)
    }

    /// Returns a file that was opened while its process was running.
    pub fn opened(&self, index: u32) -> Option<File> {
        let open = self.open.get(usize::try_from(index.checked_sub(FIRST_FILE)?).ok()?)?.as_ref()?;
        open.try_clone().ok()
    }

    /// Opens the new files.
    pub fn open_new(&mut self, host: &Host) {
        for file in self.files.iter().take(MOST_OPEN).skip(self.open.len()) {
            self.open.push(open(&host.path(format!("/proc/{}/root", file.pid)), file));
        }
    }

    /// Copies the mappings of the parent to a new child.
    pub fn fork(&mut self, parent: u32, child: u32) {
        if let Some(mappings) = self.processes.get(&parent) {
            self.processes.insert(child, Rc::clone(mappings));
        }
    }

    pub fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Adds a mapping, which replaces the older mappings that it overlaps.
    pub fn map(&mut self, pid: u32, start: u64, length: u64, offset: u64, file: &str, inode: u64) {
        let end = start.saturating_add(length);
        let file = self.index(file, inode, pid);
        let mappings = Rc::make_mut(self.processes.entry(pid).or_default());
        mappings.retain(|old| old.end <= start || end <= old.start);
        mappings.push(Mapping { start, end, offset, file });
    }

    /// Reads `/proc/PID/maps` of a running process. Adds nothing for a process that has exited.
    pub fn read_maps(&mut self, pid: u32, host: &Host) -> io::Result<()> {
        let text = match std::fs::read_to_string(host.path(format!("/proc/{pid}/maps"))) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let text = "not permitted to read /proc/PID/maps, which is needed to name functions: run as root or with CAP_SYS_PTRACE";
                return Err(io::Error::other(text));
            }
            text => text.unwrap_or_default(),
        };
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (Some(range), Some(rights), Some(offset)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let bounds = range.split_once('-').and_then(|(start, end)| Some((hex(start)?, hex(end)?)));
            let path = line.find(['/', '[']).map_or("", |at| &line[at..]);
            if let (true, Some((start, end)), Some(offset)) = (rights.contains('x'), bounds, hex(offset)) {
                let inode = fields.nth(1).and_then(|inode| inode.parse().ok()).unwrap_or(0);
                self.map(pid, start, end.saturating_sub(start), offset, path, inode);
            }
        }
        Ok(())
    }

    pub fn place(&self, pid: u32, address: u64) -> CodePlace {
        let mappings = self.processes.get(&pid).map_or(&[][..], |mappings| mappings);
        let found = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        found.map_or(CodePlace::UNKNOWN, |mapping| CodePlace {
            file: mapping.file,
            offset: address - mapping.start + mapping.offset,
        })
    }

    fn index(&mut self, path: &str, inode: u64, pid: u32) -> u32 {
        let key = (path.to_owned(), inode);
        if let Some(index) = self.by_path.get(&key) {
            self.files[(*index - FIRST_FILE) as usize].pid = pid;
            return *index;
        }
        if self.files.len() >= MOST_FILES {
            return CodePlace::UNKNOWN.file;
        }
        let index = FIRST_FILE + u32::try_from(self.files.len()).unwrap_or(u32::MAX - FIRST_FILE);
        self.files.push(MappedFile { path: path.to_owned(), inode, pid });
        self.by_path.insert(key, index);
        index
    }
}

/// Opens a mapped file below a root that the process may control. No link leads out of that root, and a pipe
/// does not block.
pub fn open(root: &Path, mapped: &MappedFile) -> Option<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let folder =
        fcntl::open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(folder, mapped.path.as_str(), how).ok()?);
    let found = file.metadata().ok()?;
    let same = mapped.inode == 0 || found.ino() == mapped.inode;
    (found.is_file() && same && found.len() <= MOST_BYTES).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_mapping_covers_an_older_one_and_a_child_has_its_parents() {
        let mut spaces = AddressSpaces::default();
        spaces.map(1, 0x1000, 0x1000, 0x400, "/bin/a", 7);
        let a = CodePlace { file: FIRST_FILE, offset: 0x500 };
        assert_eq!(spaces.place(1, 0x1100), a);
        spaces.fork(1, 2);
        spaces.map(2, 0x1000, 0x800, 0, "/bin/b", 8);
        assert_eq!((spaces.place(1, 0x1100), spaces.place(2, 0x1100).file), (a, FIRST_FILE + 1));
        let b = MappedFile { path: "/bin/b".into(), inode: 8, pid: 2 };
        assert_eq!(spaces.file(FIRST_FILE + 1).unwrap(), &b);
        // Another file by the same name is another file.
        spaces.map(2, 0x9000, 0x800, 0, "/bin/b", 9);
        assert_eq!(spaces.place(2, 0x9000).file, FIRST_FILE + 2);
        spaces.forget(2);
        assert_eq!(
            (spaces.place(2, 0x1100), spaces.place(1, 0x2000)),
            (CodePlace::UNKNOWN, CodePlace::UNKNOWN)
        );
    }

    #[test]
    fn maps_of_this_process_have_its_code() {
        let mut spaces = AddressSpaces::default();
        let pid = std::process::id();
        spaces.read_maps(pid, &Host::new("/")).unwrap();
        let place = spaces.place(pid, maps_of_this_process_have_its_code as *const () as u64);
        let (file, own) = (spaces.file(place.file).unwrap(), std::env::current_exe().unwrap());
        assert_eq!(file.path.as_str(), own.to_str().unwrap());
        let inode = std::os::unix::fs::MetadataExt::ino(&own.metadata().unwrap());
        assert_eq!(file.inode, inode);
    }

    #[test]
    fn neither_a_pipe_nor_a_link_leads_astray() {
        let root = tempfile::TempDir::new().unwrap();
        let open = |path: &str| open(root.path(), &MappedFile { path: path.into(), inode: 0, pid: 1 });
        nix::unistd::mkfifo(&root.path().join("pipe"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", root.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/own", root.path().join("inside")).unwrap();
        std::fs::write(root.path().join("own"), "x").unwrap();
        assert!(open("/pipe").is_none() && open("/link").is_none() && open("/../../etc/passwd").is_none());
        assert!(open("/inside").is_some(), "links are those of the root");
    }
}
