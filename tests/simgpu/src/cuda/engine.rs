//! When work happens on a GPU: simulated nanoseconds, a copy engine each way, and multiprocessors that
//! kernels share.

/// What a piece of work needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The engine that copies to the GPU.
    ToGpu,
    /// The engine that copies to the host.
    ToHost,
    /// So many multiprocessors.
    Sms(u32),
}

/// A kernel under way.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    begin: u64,
    end: u64,
    sms: u32,
}

/// What the units of one device are busy with.
#[derive(Debug, Default)]
pub struct Engines {
    to_gpu: u64,
    to_host: u64,
    kernels: Vec<Kernel>,
}

/// Kernels remembered; older ones are over long before a later one could meet them.
const REMEMBERED: usize = 64;

impl Engines {
    /// Finds the time for a piece of work: not before `earliest`, and not before there is room. Work is
    /// placed in the order of the calls; what comes later never goes before it on the same unit.
    pub fn place(&mut self, unit: Unit, sms: u32, earliest: u64, duration: u64) -> (u64, u64) {
        match unit {
            Unit::ToGpu => engine(&mut self.to_gpu, earliest, duration),
            Unit::ToHost => engine(&mut self.to_host, earliest, duration),
            Unit::Sms(wanted) => self.kernel(wanted.min(sms), sms, earliest, duration),
        }
    }

    fn kernel(&mut self, wanted: u32, sms: u32, earliest: u64, duration: u64) -> (u64, u64) {
        let mut ends: Vec<u64> = self.kernels.iter().map(|k| k.end).filter(|end| *end > earliest).collect();
        ends.push(earliest);
        ends.sort_unstable();
        let begin = ends.into_iter().find(|begin| {
            let beside = self.kernels.iter().filter(|k| k.end > *begin && k.begin < begin + duration);
            beside.map(|k| k.sms).sum::<u32>() + wanted <= sms
        });
        let begin = begin.unwrap_or(earliest);
        let kernel = Kernel { begin, end: begin + duration, sms: wanted };
        if self.kernels.len() == REMEMBERED {
            self.kernels.remove(0);
        }
        self.kernels.push(kernel);
        (kernel.begin, kernel.end)
    }
}

fn engine(free: &mut u64, earliest: u64, duration: u64) -> (u64, u64) {
    let begin = earliest.max(*free);
    *free = begin + duration;
    (begin, *free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_one_direction_wait_for_each_other() {
        let mut engines = Engines::default();
        assert_eq!(engines.place(Unit::ToGpu, 132, 10, 100), (10, 110));
        assert_eq!(engines.place(Unit::ToGpu, 132, 20, 100), (110, 210));
        assert_eq!(engines.place(Unit::ToHost, 132, 20, 100), (20, 120));
    }

    #[test]
    fn kernels_run_at_once_as_long_as_there_is_room() {
        let mut engines = Engines::default();
        assert_eq!(engines.place(Unit::Sms(66), 132, 0, 100), (0, 100));
        assert_eq!(engines.place(Unit::Sms(66), 132, 0, 100), (0, 100));
        assert_eq!(engines.place(Unit::Sms(1), 132, 0, 50), (100, 150));
        assert_eq!(engines.place(Unit::Sms(500), 132, 0, 50), (150, 200), "more than there are");
    }

    /// Batches through three streams of stages of 4, 8 and 4: the longest stage alone sets the pace.
    #[test]
    fn three_streams_hide_the_copies() {
        let mut engines = Engines::default();
        let (mut copy_in, mut work, mut end) = (0, 0, 0);
        for _ in 0..8 {
            copy_in = engines.place(Unit::ToGpu, 132, copy_in, 4).1;
            work = engines.place(Unit::Sms(132), 132, work.max(copy_in), 8).1;
            end = engines.place(Unit::ToHost, 132, work, 4).1;
        }
        assert_eq!(end, 4 + 8 * 8 + 4);
    }
}
