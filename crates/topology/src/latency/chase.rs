//! A buffer whose lines point to one another in one random ring, and the timed walk through it.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use memmap2::{Advice, MmapMut};

use super::mempolicy;

/// Distance between two lines in bytes, large enough that prefetching one line never loads another.
const LINE: usize = 256;
/// Number of loads per walk.
const LOADS: u32 = 1 << 18;
/// Number of walks. Only the fastest counts, because the others were interrupted.
const WALKS: u32 = 4;

pub(crate) struct ChaseBuffer(MmapMut);

impl ChaseBuffer {
    /// Allocates a buffer of `bytes` bytes, in the memory of `node` if it is set.
    pub fn new(bytes: usize, node: Option<u32>) -> io::Result<ChaseBuffer> {
        let mut memory = MmapMut::map_anon(bytes)?;
        // Huge pages reduce the TLB misses in the result. They are optional.
        let _ = memory.advise(Advice::HugePage);
        if let Some(node) = node {
            mempolicy::bind(&mut memory, node)?;
        }
        let mut buffer = ChaseBuffer(memory);
        buffer.link();
        if let Some(node) = node {
            buffer.is_on(node)?;
        }
        Ok(buffer)
    }

    /// Links all lines into one ring (Sattolo's shuffle).
    fn link(&mut self) {
        let lines = self.0.len() / LINE;
        for line in 0..lines {
            self.set(line, line);
        }
        // xorshift64 is sufficient: the order only has to be free of patterns.
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for line in (1..lines).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let other = usize::try_from(random % line as u64).unwrap_or(0);
            let (one, two) = (self.next(line), self.next(other));
            self.set(line, two);
            self.set(other, one);
        }
    }

    fn set(&mut self, line: usize, next: usize) {
        let to = u32::try_from(next).unwrap_or(0).to_ne_bytes();
        if let Some(bytes) = self.0.get_mut(line * LINE..line * LINE + to.len()) {
            bytes.copy_from_slice(&to);
        }
    }

    /// Returns the line that this line points to.
    fn next(&self, line: usize) -> usize {
        let bytes = self.0.get(line * LINE..).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize)
    }

    /// Checks a sample of the pages and returns an error if one is not on this node.
    fn is_on(&self, node: u32) -> io::Result<()> {
        for at in [0, self.0.len() / 2, self.0.len() - 1] {
            let Some(byte) = self.0.get(at) else { continue };
            let found = mempolicy::node_of(byte)?;
            if found != node {
                return Err(io::Error::other(format!("the kernel allocated memory on node {found}")));
            }
        }
        Ok(())
    }

    /// Returns the time of one load in nanoseconds, measured on the calling thread.
    pub fn nanoseconds(&self) -> f64 {
        let mut fastest = f64::INFINITY;
        let mut line = 0;
        for _ in 0..WALKS {
            let started = Instant::now();
            for _ in 0..LOADS {
                line = self.next(line);
            }
            line = black_box(line);
            fastest = fastest.min(started.elapsed().as_nanos() as f64 / f64::from(LOADS));
        }
        fastest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_one_ring_and_a_load_takes_time() {
        let buffer = ChaseBuffer::new(1 << 20, None).unwrap();
        let (mut line, mut steps) = (0, 0);
        loop {
            line = buffer.next(line);
            steps += 1;
            if line == 0 {
                break;
            }
        }
        assert_eq!(steps, (1 << 20) / LINE);
        let nanoseconds = buffer.nanoseconds();
        assert!(nanoseconds > 0.1 && nanoseconds < 100_000.0, "{nanoseconds}");
    }

    #[test]
    fn memory_of_a_node_is_on_it_or_refused() {
        // A container may not bind memory; a node that is not there is refused everywhere.
        if let Ok(buffer) = ChaseBuffer::new(1 << 20, Some(0)) {
            assert_eq!(mempolicy::node_of(&buffer.0[0]).unwrap(), 0);
        }
        assert!(ChaseBuffer::new(1 << 20, Some(900)).is_err());
        assert!(ChaseBuffer::new(1 << 20, Some(u32::MAX)).is_err());
    }
}
