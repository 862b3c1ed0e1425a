//! Frames between parent and sampler: magic, length, checksum, postcard bytes.
//!
//! A stream that holds anything else is never resynchronised: the reader gives one clear error and the
//! parent replaces the sampler. A wrong value that looks right would be worse than none.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use model::catalog::{Gpu, Tier};
use model::fact::Fact;
use model::sample::{Batch, ErrorKind};

/// First bytes of every frame.
const MAGIC: [u8; 4] = *b"GNE1";
/// Longest payload. The largest batch of a GPU with seven MIG instances has some 20 KiB.
pub const MAX_PAYLOAD: usize = 1 << 20;
const HEADER: usize = 12;

/// What the sampler says.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromSampler {
    /// First frame: the catalogue's fingerprint, which must be the parent's.
    Hello {
        /// [`model::catalog::fingerprint`].
        fingerprint: u64,
    },
    /// The driver answers; batches follow.
    DriverUp,
    /// The driver is absent or went away; the sampler ends.
    DriverAway {
        /// Kind of the failure.
        error: ErrorKind,
        /// Why, in words.
        text: String,
    },
    /// A GPU's handle cannot be had.
    NoHandle {
        /// NVML's index.
        index: u32,
        /// Kind of the failure.
        error: ErrorKind,
        /// Why, in words.
        text: String,
    },
    /// A GPU has a worker.
    Seated(Seat),
    /// What a visit learned.
    Batch(Batch),
    /// Something that happened.
    Fact(Fact),
}

/// What the parent says.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToSampler {
    /// First frame: how to work.
    Start(Box<Orders>),
    /// A GPU that was to be left alone may be asked again.
    Include {
        /// Its slot.
        slot: usize,
        /// What is known of it.
        seat: Option<Seat>,
    },
    /// Whether the profiling counters (GPM) are to be read. They have one reader at a time: while they are
    /// not, a profiler can have them.
    Gpm(bool),
}

/// A GPU with its worker's slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Slot in the in-flight table.
    pub slot: usize,
    /// The GPU.
    pub gpu: Gpu,
    /// PCI address as NVML gives it: the way to a handle that touches no other GPU.
    pub pci_bus_id: String,
}

/// How a sampler works.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Orders {
    /// Library to load; `None`: the loader's search.
    pub library: Option<std::path::PathBuf>,
    /// GPUs that are known, to be asked for by PCI address. Others are asked for by index.
    pub known: Vec<Seat>,
    /// Slots of GPUs to leave alone: another process is stuck on them.
    pub avoid: Vec<usize>,
    /// Epochs of this sampler are above this number.
    pub epoch: u64,
    /// Metrics that are switched off and that nothing else is made of: calls that serve no other are not made.
    pub off: Vec<model::catalog::MetricId>,
    /// Below which the host's files are.
    pub root: std::path::PathBuf,
    /// Most processes of one GPU with rows of their own; `None`: none has.
    pub processes: Option<u32>,
    /// Whether the profiling counters (GPM) are to be read; [`ToSampler::Gpm`] changes it.
    pub gpm: bool,
    /// Cadences.
    pub intervals: Intervals,
    /// How long a call may take.
    pub call_deadline: Duration,
    /// How long initialising the library or getting a handle may take.
    pub init_deadline: Duration,
}

/// Time between two visits, by tier.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Intervals {
    /// Of the fast tier.
    pub fast: Duration,
    /// Of the normal tier.
    pub normal: Duration,
    /// Of the samples tier.
    pub samples: Duration,
    /// Of the slow tier.
    pub slow: Duration,
    /// Of the rare tier.
    pub rare: Duration,
    /// Of the nvlink tier.
    pub nvlink: Duration,
}

impl Intervals {
    /// That of a tier; `None` for tiers that are not visited again and again.
    pub fn of(&self, tier: Tier) -> Option<Duration> {
        match tier {
            Tier::Fast => Some(self.fast),
            Tier::Normal => Some(self.normal),
            Tier::Samples => Some(self.samples),
            Tier::Slow => Some(self.slow),
            Tier::Rare => Some(self.rare),
            Tier::Nvlink => Some(self.nvlink),
            Tier::Identity | Tier::Once | Tier::Computed => None,
        }
    }
}

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Not a frame, or not intact.
    #[error("garbage where a frame should be: {0}")]
    Garbage(String),
    /// A frame that says it is longer than any may be.
    #[error("a frame of {0} bytes, the most is {MAX_PAYLOAD}")]
    Oversized(u64),
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// Reading failed.
    #[error("reading a frame: {0}")]
    Io(#[from] io::Error),
}

/// The bytes of a frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; HEADER])
        .map_err(|error| FrameError::Garbage(error.to_string()))?;
    let payload = &frame[HEADER..];
    if payload.len() > MAX_PAYLOAD {
        return Err(FrameError::Oversized(payload.len() as u64));
    }
    let (length, checksum) = (payload.len() as u32, crc32fast::hash(payload));
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..8].copy_from_slice(&length.to_le_bytes());
    frame[8..12].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame)
}

/// Writes one frame with one write.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let frame = encode(message).map_err(io::Error::other)?;
    to.write_all(&frame)
}

/// Reads one frame; `None` when the stream ends between frames.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>, FrameError> {
    let mut header = [0u8; HEADER];
    match fill(from, &mut header)? {
        0 => return Ok(None),
        HEADER => {}
        n if header[..n.min(4)] == MAGIC[..n.min(4)] => return Err(FrameError::Truncated),
        n => return Err(FrameError::Garbage(format!("{:02x?}", &header[..n]))),
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if header[..4] != MAGIC {
        return Err(FrameError::Garbage(format!("{:02x?}", &header[..])));
    }
    let length = word(4) as usize;
    if length > MAX_PAYLOAD {
        return Err(FrameError::Oversized(length as u64));
    }
    let mut payload = vec![0; length];
    if fill(from, &mut payload)? < length {
        return Err(FrameError::Truncated);
    }
    if crc32fast::hash(&payload) != word(8) {
        return Err(FrameError::Garbage("the checksum does not match".into()));
    }
    match postcard::take_from_bytes(&payload) {
        Ok((message, [])) => Ok(Some(message)),
        Ok(_) => Err(FrameError::Garbage("bytes left over after the message".into())),
        Err(error) => Err(FrameError::Garbage(error.to_string())),
    }
}

/// Reads until the buffer is full or the stream ends; gives the number of bytes read.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seat(n: usize) -> ToSampler {
        let gpu = Gpu { gpu: n as u32, uuid: "GPU-x".into() };
        let seat = Seat { slot: n, gpu, pci_bus_id: "00000000:06:00.0".into() };
        ToSampler::Include { slot: n, seat: Some(seat) }
    }

    #[test]
    fn frames_come_back_in_order_and_the_end_is_clean() {
        let mut stream = Vec::new();
        for n in 0..3 {
            write(&mut stream, &seat(n)).unwrap();
        }
        let mut reader = stream.as_slice();
        for n in 0..3 {
            match read::<ToSampler>(&mut reader).unwrap() {
                Some(ToSampler::Include { slot, .. }) => assert_eq!(slot, n),
                other => panic!("{other:?}"),
            }
        }
        assert!(read::<ToSampler>(&mut reader).unwrap().is_none());
    }

    #[test]
    fn the_most_processes_fit_in_a_frame_and_more_are_refused() {
        use model::owners::GpuProcess;
        use model::sample::{BatchKey, MAX_PROCESSES, Rows, Source};
        let widest =
            GpuProcess { pid: u32::MAX, instance: Some((u32::MAX, u32::MAX)), memory: Some(u64::MAX) };
        let batch = |count| Batch {
            part: BatchKey { collector: Source::Nvml, gpu: None, tier: Tier::Normal },
            epoch: 0,
            taken: model::clock::Mono(0),
            nanos: 0,
            lifetime_nanos: None,
            answered: true,
            rows: Rows::default(),
            gaps: Vec::new(),
            drained: Vec::new(),
            processes: Some(vec![widest; count]),
            calls: Vec::new(),
        };
        assert!(batch(MAX_PROCESSES).conform() && !batch(MAX_PROCESSES + 1).conform());
        assert!(encode(&FromSampler::Batch(batch(MAX_PROCESSES))).unwrap().len() < MAX_PAYLOAD / 2);
    }

    #[test]
    fn an_oversized_frame_is_refused_before_memory_is_taken() {
        let mut frame = encode(&seat(1)).unwrap();
        frame[4..8].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert!(matches!(read::<ToSampler>(&mut frame.as_slice()), Err(FrameError::Oversized(_))));
    }

    proptest! {
        #[test]
        fn a_cut_or_changed_frame_never_passes(cut in 1usize..40, flip in 0usize..40, bit in 0u8..8) {
            let frame = encode(&seat(5)).unwrap();
            let cut = cut.min(frame.len() - 1);
            let truncated = read::<ToSampler>(&mut &frame[..cut]);
            prop_assert!(matches!(truncated, Err(FrameError::Truncated)), "{truncated:?}");
            let mut changed = frame.clone();
            let at = flip % changed.len();
            changed[at] ^= 1 << bit;
            prop_assert!(read::<ToSampler>(&mut changed.as_slice()).is_err());
        }

        #[test]
        fn random_bytes_never_pass_and_never_panic(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            prop_assert!(read::<FromSampler>(&mut bytes.as_slice()).is_err());
        }
    }
}
