//! Reading of files written by people and by earlier daemons. Other kinds of files are refused, so that they cannot
//! block or mislead the reader: a FIFO waits for a writer, a device has no end, and a symbolic link can point
//! anywhere.

use std::fs::{self, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use crate::text;

/// Maximum length of a link target in an error message, in bytes.
const MAX_TARGET: usize = 400;

/// Reads a plain file of at most `max` bytes. Fails without waiting if the path is another kind of file, or if the
/// file is longer.
pub fn read(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let about = fs::symlink_metadata(path)?;
    if about.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        let target = text::clean(&target.to_string_lossy(), MAX_TARGET);
        return Err(not_plain(&format!("a symbolic link; name the file itself: {target}")));
    }
    read_of(&about, path, O_NOFOLLOW, max)
}

/// Same as [`read`], but follows symbolic links.
pub fn read_linked(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    read_of(&fs::metadata(path)?, path, 0, max)
}

fn read_of(about: &Metadata, path: &Path, flags: i32, max: usize) -> io::Result<Vec<u8>> {
    // Opening a device can have side effects.
    check(about.file_type())?;
    let file = OpenOptions::new().read(true).custom_flags(flags | O_NONBLOCK).open(path)?;
    check(file.metadata()?.file_type())?;
    // The kernel does not report the length of its virtual files in advance.
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {max} bytes")));
    }
    Ok(bytes)
}

/// Same as [`read`], for UTF-8 text.
pub fn read_text(path: &Path, max: usize) -> io::Result<String> {
    String::from_utf8(read(path, max)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

fn check(kind: FileType) -> io::Result<()> {
    let is = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a folder, not a file",
        kind if kind.is_fifo() => "a FIFO, not a file",
        kind if kind.is_socket() => "a socket, not a file",
        _ => "a device, not a file",
    };
    Err(not_plain(is))
}

fn not_plain(is: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("is {is}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_plain_file_within_the_bound_is_read() {
        // The crate has no temporary folders of its own.
        let dir = std::env::temp_dir().join(format!("plain-file-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (file, link, fifo) = (dir.join("file"), dir.join("link"), dir.join("fifo"));
        fs::write(&file, "four").unwrap();
        symlink(&file, &link).unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "four");
        let said = |path: &Path| read(path, 3).unwrap_err().to_string();
        assert_eq!(said(&file), "longer than 3 bytes");
        assert_eq!(said(&link), format!("is a symbolic link; name the file itself: {}", file.display()));
        assert_eq!(read_linked(&link, 4).unwrap(), b"four");
        assert_eq!(read_linked(&link, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let to_fifo = dir.join("to-fifo");
        symlink(&fifo, &to_fifo).unwrap();
        assert_eq!(read_linked(&to_fifo, 3).unwrap_err().to_string(), "is a FIFO, not a file");
        assert_eq!(said(&fifo), "is a FIFO, not a file");
        assert_eq!(said(&dir), "is a folder, not a file");
        assert_eq!(said(Path::new("/dev/zero")), "is a device, not a file");
        assert_eq!(read(&dir.join("none"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&dir).unwrap();
    }
}
