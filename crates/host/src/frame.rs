//! Frames on the pipes between a parent and its children: magic number, length, build and postcard bytes.
//!
//! The reader never resynchronises an invalid stream. It returns one clear error, and the parent replaces or
//! ends the child, because a wrong value that looks right would be worse than none. Both ends run the same
//! program ([`crate::child::this_program`]), and the build in each frame rejects any other.

use std::io::{self, Read, Write};
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// First bytes of every frame.
const MAGIC: [u8; 4] = *b"GNE1";
/// Maximum payload in bytes. The topology of a machine with 16 GPUs, with hwloc's own XML, takes about 2 MiB,
/// and the largest batch takes 20 KiB.
pub const MAX_PAYLOAD: usize = 8 << 20;
const HEADER: usize = 12;

/// Error of reading or encoding a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("invalid frame: {0}")]
    Invalid(String),
    /// The header announces more bytes than any frame may have.
    #[error("the frame has {0} bytes; the maximum is {MAX_PAYLOAD}")]
    Oversized(u64),
    #[error("the stream ended inside a frame")]
    Truncated,
    #[error("the frame comes from another build")]
    OtherBuild,
    #[error("failed to read a frame: {0}")]
    Io(#[from] io::Error),
}

/// Fingerprint of the catalogue, by which numbers identify metrics. Both ends must have the same.
static BUILD: LazyLock<[u8; 4]> = LazyLock::new(|| {
    let fingerprint = model::catalog::fingerprint();
    ((fingerprint ^ (fingerprint >> 32)) as u32).to_le_bytes()
});

/// Encodes a frame. Fails if the payload is too long.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; HEADER])
        .map_err(|error| FrameError::Invalid(error.to_string()))?;
    let length = frame.len() - HEADER;
    if length > MAX_PAYLOAD {
        return Err(FrameError::Oversized(length as u64));
    }
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    frame[8..HEADER].copy_from_slice(&*BUILD);
    Ok(frame)
}

/// Writes one frame with one write.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let frame = encode(message).map_err(io::Error::other)?;
    to.write_all(&frame)
}

/// Reads exactly one frame. Returns `None` if the stream ends between frames.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>, FrameError> {
    // Only the magic number is read first, so that a child that writes less than a header is detected at once.
    let mut header = up_to(from, MAGIC.len())?;
    if header.is_empty() {
        return Ok(None);
    }
    if !MAGIC.starts_with(&header) {
        return Err(FrameError::Invalid(format!("it begins with `{}`", header.escape_ascii())));
    }
    header.extend(up_to(from, HEADER - header.len())?);
    if header.len() < HEADER {
        return Err(FrameError::Truncated);
    }
    let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
    if length > MAX_PAYLOAD {
        return Err(FrameError::Oversized(length as u64));
    }
    let payload = up_to(from, length)?;
    if payload.len() < length {
        return Err(FrameError::Truncated);
    }
    if header[8..] != *BUILD {
        return Err(FrameError::OtherBuild);
    }
    match postcard::take_from_bytes(&payload) {
        Ok((message, [])) => Ok(Some(message)),
        Ok(_) => Err(FrameError::Invalid("bytes left over after the message".into())),
        Err(error) => Err(FrameError::Invalid(error.to_string())),
    }
}

/// Reads `most` bytes, or fewer if the stream ends.
fn up_to(from: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(most);
    from.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Message = (usize, Option<String>);

    fn message(n: usize) -> Message {
        (n, Some("00000000:06:00.0".into()))
    }

    #[test]
    fn frames_come_back_in_order_and_the_end_is_clean() {
        let mut stream = Vec::new();
        for n in 0..3 {
            write(&mut stream, &message(n)).unwrap();
        }
        let mut reader = stream.as_slice();
        for n in 0..3 {
            assert_eq!(read::<Message>(&mut reader).unwrap(), Some(message(n)));
        }
        assert!(read::<Message>(&mut reader).unwrap().is_none());
    }

    #[test]
    fn a_frame_is_read_and_nothing_behind_it() {
        let mut bytes = encode(&message(1)).unwrap();
        bytes.extend_from_slice(b"more");
        let mut pipe = &bytes[..];
        assert_eq!(read::<Message>(&mut pipe).unwrap(), Some(message(1)));
        assert_eq!(pipe, b"more");
    }

    #[test]
    fn an_oversized_frame_is_refused_before_memory_is_taken_and_never_made() {
        let mut frame = encode(&message(1)).unwrap();
        frame[4..8].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert!(matches!(read::<Message>(&mut frame.as_slice()), Err(FrameError::Oversized(_))));
        assert!(matches!(encode(&"x".repeat(MAX_PAYLOAD)), Err(FrameError::Oversized(_))));
    }

    #[test]
    fn another_build_is_refused() {
        let mut frame = encode(&message(1)).unwrap();
        frame[8] ^= 1;
        assert!(matches!(read::<Message>(&mut frame.as_slice()), Err(FrameError::OtherBuild)));
    }

    proptest! {
        #[test]
        fn a_cut_frame_or_a_changed_header_never_passes(cut in 1usize..40, at in 0..HEADER, bit in 0u8..8) {
            let frame = encode(&message(5)).unwrap();
            let cut = cut.min(frame.len() - 1);
            let truncated = read::<Message>(&mut &frame[..cut]);
            prop_assert!(matches!(truncated, Err(FrameError::Truncated)), "{truncated:?}");
            let mut changed = frame.clone();
            changed[at] ^= 1 << bit;
            prop_assert!(read::<Message>(&mut changed.as_slice()).is_err());
        }

        #[test]
        fn random_bytes_never_pass_and_never_panic(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            prop_assert!(read::<Message>(&mut bytes.as_slice()).is_err());
        }
    }
}
